"""The origin of one value per example: a column, a function of the columns, a constant.

    "label"                the column of that name
    "module:function"      a function that gets the columns of some hundred examples, as a
    function               vectorized map does, and gives one value per example
    0.5, True              the same value for all, where that makes sense

As plain data: ``["column", name]``, ``["function", name]``, ``["constant", value]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.schema import RESERVED, Field

from .argument_checks import check_kind, checked_name, unknown_column
from .function_names import name_of

__all__ = ["RESERVED", "Value", "checked_value", "selector_text"]

#: A column's name, a function or its name, or a constant.
Value = str | Callable[..., Any] | float | bool


def checked_value(
    argument: str,
    value: Any,
    known: Mapping[str, Field] | None,
    *,
    constant: tuple[float, float] | None = None,
    sequence: bool = False,
    integer: bool = False,
) -> list[Any]:
    """Return a selector as plain data.

    ``constant`` gives the limits of a number that may stand for all examples.  A column is one
    number per example; with ``sequence`` it may also be a sequence, whose length counts, and with
    ``integer`` it is of integers or bools.
    """
    if isinstance(value, (np.number, np.bool_)):
        value = value.item()
    if constant is not None and isinstance(value, (bool, int, float)):
        low, high = constant
        if not low <= value <= high:
            raise ValueError(f"{argument}={value!r} does not lie in {low:g} … {high:g}")
        return ["constant", float(value)]
    if callable(value) or (isinstance(value, str) and ":" in value):
        return ["function", name_of(value, argument)]
    a_function = "a function of the columns"
    wanted = f", {a_function} or a number" if constant else f" or {a_function}"
    check_kind(argument, value, str, f"a column's name{wanted}")
    name = checked_name(argument, value)
    if known is not None:
        field = known.get(name)
        if field is None:
            raise unknown_column(f"{argument}={name!r}", name, known)
        is_sequence = sequence and field.shape != () and field.ragged_dims < 2
        strange = field.dtype == BYTES or field.dtype.startswith("complex")
        if not is_sequence and (field.shape or strange):
            wanted = "one number per example" + (", or a sequence" if sequence else "")
            raise ValueError(f"{argument}={name!r} is {field}; it must be {wanted}")
        if integer and not is_sequence and not field.dtype.startswith(("int", "uint", "bool")):
            raise TypeError(f"{argument}={name!r} is {field}; it must be of integers")
    return ["column", name]


def selector_text(selector: list[Any]) -> str:
    """Return a selector in words, for errors."""
    kind, value = selector
    return f"column {value!r}" if kind == "column" else f"{kind} {value}"
