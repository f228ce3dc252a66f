"""The schema of examples that nobody declared, from the first of them.

The rules for one column are those of examples in memory (``pipeline.examples``).  A value of None
is one that is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.examples import Misfit, infer_field

__all__ = ["infer_fields"]


def infer_fields(rows: Sequence[Mapping[Any, Any]]) -> dict[str, Field]:
    """The fields that all rows together show, in the order in which they appear.

    DataError names example and column of a value that does not go with those before it.
    """
    seen: dict[str, tuple[list[int], list[Any]]] = {}
    for i, row in enumerate(rows):
        for name, value in row.items():
            if not isinstance(name, str) or not name:
                raise DataError(f"example {i}: {name!r:.80} is no name of a column")
            if value is not None:
                numbers, values = seen.setdefault(name, ([], []))
                numbers.append(i)
                values.append(value)
    fields = {}
    for name, (numbers, values) in seen.items():
        try:
            field = infer_field(values)
        except Misfit as misfit:
            raise DataError(
                f"example {numbers[misfit.row]}, column {name!r}: "
                f"{values[misfit.row]!r:.60} {misfit}; declare the features of the source"
            ) from None
        # No element shows a length of 0 to be the rule.
        fields[name] = Field(field.dtype, tuple(d or None for d in field.shape))
    return fields
