"""Checks of arguments when a pipeline is declared.

TypeError for a value of the wrong type, ValueError for one out of its limits.  Both name the
argument, the value and the limit.  Results are plain: Python numbers, lists and strings.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, Final, SupportsIndex, TypeAlias

import numpy as np

from headrace_proto import dtypes, limits
from headrace_proto.address import refuse_surrogates
from headrace_proto.dtypes import BYTES
from headrace_proto.errors import kind_of, near, rewording
from headrace_proto.schema import OFFSETS, Field, schema_to_wire

from .declaration import Feature, Options
from .examples import fitted_array
from .function_names import name_of

#: A batch of more rows than this is a mistake in a unit, and its indices alone weigh 8 MiB.
MAX_BATCH_SIZE: Final = limits.MAX_ROWS
MAX_COUNT: Final = 2**62
#: A shape of more elements than this is a mistake in a unit.
MAX_ELEMENTS: Final = 2**40
_MAKERS: Final = "scalar(dtype), fixed(dtype, shape) or sequence(dtype, shape)"
#: Nested deeper than this, or holding itself.
_DEPTH = 32
_Kinds = type | tuple[type, ...]


def check_kind(
    argument: str, value: object, kinds: _Kinds, wanted: str, *, but: _Kinds = ()
) -> Any:
    """Return a value of one of these types; TypeError for others, and for those of ``but``."""
    if not isinstance(value, kinds) or isinstance(value, but):
        raise TypeError(f"{argument}={value!r:.80} is {kind_of(value)}; it is {wanted}")
    return value


def checked_int(
    argument: str, value: object, low: int, high: int | None = None, *, or_none: bool = False
) -> int:
    """Return an int in ``low`` … ``high``; a bool is none.  ``or_none``: None is another value."""
    wanted = "an int or None" if or_none else "an int"
    index = check_kind(argument, value, SupportsIndex, wanted, but=(bool, np.bool_))
    with rewording(TypeError, f"{argument}={value!r:.80}: ", TypeError):  # an array of several
        number = operator.index(index)
    if number < low:
        raise ValueError(f"{argument}={number} is too small: the least is {low}")
    if high is not None and number > high:
        raise ValueError(f"{argument}={number} is too large: the most is {high}")
    return number


def checked_ints(argument: str, value: object, low: int, high: int) -> list[int]:
    """Return a list of ints, from a range or an array of one dimension, too."""
    listed = check_kind(argument, value, (Sequence, np.ndarray), "a list", but=(str, bytes))
    return [checked_int(f"{argument}[{i}]", one, low, high) for i, one in enumerate(listed)]


def flag(argument: str, value: object) -> bool:
    check_kind(argument, value, (bool, np.bool_), "True or False")
    return bool(value)


def checked_number(argument: str, value: object, low: float, high: float) -> float:
    """Return a finite number in ``low`` … ``high``; a bool is none."""
    number = check_kind(argument, value, Real, "a number", but=bool)
    if not (math.isfinite(number) and low <= number <= high):
        raise ValueError(f"{argument} must be between {low:g} and {high:g}, not {value!r}")
    return float(number)


def checked_bytes(argument: str, value: object) -> int:
    """Return a number of bytes, given as an int or as text such as "20GB"."""
    units = {"": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kKMGT]?B)", str(value))
    if isinstance(value, str) and match:
        return int(float(match[1]) * units.get(match[2], 1))
    if isinstance(value, str):
        raise ValueError(f"{argument}={value!r:.80} is not like '20GB', '512MB' or '100kB'")
    return checked_int(argument, value, 0, MAX_COUNT)


def one_of(argument: str, value: object, allowed: Collection[object]) -> str | None:
    if not isinstance(value, (str, type(None))) or value not in allowed:
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f"{argument}={value!r:.80} is not one of {', '.join(map(repr, allowed))}")
    return value


def checked_name(argument: str, value: object) -> str:
    """Return the name of a column."""
    name = str(check_kind(argument, value, str, "a column's name"))
    if not 0 < len(name) <= limits.MAX_NAME:
        raise ValueError(
            f"{argument}={name!r:.80} has {len(name)} characters; the name of a column has 1 to "
            f"{limits.MAX_NAME}"
        )
    return checked_text(argument, name)


def checked_text(argument: str, value: str) -> str:
    """Return a string that UTF-8 holds, as all that is sent or stored."""
    refuse_surrogates(f"{argument}={value!r:.200}", value)
    return value


def checked_names(argument: str, value: object, known: Mapping[str, Field] | None) -> list[str]:
    """Return a list of names of columns, each once; they are known where the schema is."""
    listed = _listed(argument, value, "a list of columns' names")
    names = [checked_name(f"{argument}[{i}]", name) for i, name in enumerate(listed)]
    if not names:
        raise ValueError(f"{argument} is empty: at least one column is wanted")
    for i, name in enumerate(names):
        if name in names[:i]:
            raise ValueError(f"{argument} names {name!r} twice")
        if known is not None and name not in known:
            raise unknown_column(f"{argument}[{i}]={name!r}", name, known)
    return names


def unknown_column(what: str, name: str, known: Collection[str]) -> ValueError:
    """Return the error of a column that is not there; ``what`` names the argument and it."""
    return ValueError(f"{what} is not one of the columns {', '.join(known)}{near(name, known)}")


def _listed(argument: str, value: object, wanted: str) -> list[object]:
    """Return the entries of a list or similar; TypeError for a string, a dict and others."""
    entries = check_kind(argument, value, Iterable, wanted, but=(str, bytes, Mapping))
    with rewording(TypeError, f"{argument}={value!r:.80}: ", TypeError):  # an array of no dimension
        return [*entries]


def checked_dtype(argument: str, value: object) -> str:
    """Return the name of a dtype."""
    with rewording(TypeError, f"{argument}={value!r:.80}: ", TypeError):
        return dtypes.canonical(value)


def checked_shape(argument: str, value: object) -> tuple[int, ...]:
    """Return the shape of one example's array, which has room for the dimension of the rows."""
    listed = _listed(argument, value, "a tuple of ints")
    dims = tuple(checked_int(f"{argument}[{i}]", d, 0, MAX_ELEMENTS) for i, d in enumerate(listed))
    check_rank(argument, dims)
    return dims


def check_rank(what: str, dims: tuple[int | None, ...]) -> None:
    """Raise ValueError where a batch has no room for rows of a shape."""
    if len(dims) >= limits.MAX_RANK:  # one more is that of the rows
        raise ValueError(f"{what} has {len(dims)} dimensions; {limits.MAX_RANK - 1} can be")


def field_of(what: str, name: str, known: Mapping[str, Field]) -> Field:
    """Return the field of a column for batches; ``what`` names the argument and the column."""
    field = known.get(name)
    if field is None:
        raise unknown_column(what, name, known)
    check_rank(what, field.shape)
    return field


def fixed_field(what: str, name: str, known: Mapping[str, Field]) -> Field:
    """Return the field of a column that is alike in all examples, and not empty."""
    field = field_of(what, name, known)
    if None in field.shape:
        raise ValueError(
            f"{what} is {field}, which varies; it must have a fixed shape: where it has, declare "
            f"its feature, as hs.fixed({field.dtype!r}, shape)"
        )
    check_full(what, field)
    return field


def check_full(what: str, field: Field) -> None:
    if 0 in field.shape:
        raise ValueError(f"{what} is {field}, which is empty; every dimension must be 1 or more")


def checked_features(argument: str, value: object) -> dict[str, Feature]:
    features = _mapping(argument, value)
    for name, feature in features.items():
        check_kind(f"{argument}[{name!r}]", feature, Feature, f"made by {_MAKERS}")
    return features


def checked_schema(argument: str, value: object) -> list[list[object]]:
    """Return the schema of a function's results, from features (without defaults) or fields."""
    fields = {}
    for name, entry in _mapping(argument, value).items():
        if isinstance(entry, Field):
            fields[name] = entry
            continue
        feature = checked_features(argument, {name: entry})[name]
        if feature.has_default:
            raise ValueError(
                f"{argument}[{name!r}] has a default; a function gives every column: leave it out"
            )
        fields[name] = feature.field
    return schema_to_wire(fields)


def checked_ragged(argument: str, value: object) -> dict[str, str]:
    """Return the array of the offsets of each ragged column."""
    given = _mapping(argument, value, "the array of its offsets")
    return {name: checked_name(f"{argument}[{name!r}]", array) for name, array in given.items()}


def _mapping(argument: str, value: object, entry: str = _MAKERS) -> dict[str, Any]:
    given = check_kind(argument, value, Mapping, f"a dict of column to {entry}")
    if not 0 < len(given) <= limits.MAX_COLUMNS:
        raise ValueError(f"{argument} names {len(given)} columns; 1 to {limits.MAX_COLUMNS} can be")
    return {checked_name(f"a name in {argument}", name): entry for name, entry in given.items()}


def checked_paths(argument: str, value: object) -> tuple[str, ...]:
    """Return paths, patterns and URLs, local ones absolute: a server may run elsewhere."""
    one = isinstance(value, (str, bytes, os.PathLike))
    paths = []
    for entry in [value] if one else _listed(argument, value, "a path or a list of paths"):
        given = check_kind(f"one of {argument}", entry, (str, os.PathLike), "a path")
        path = checked_text(argument, os.fsdecode(given))
        if not path or "\0" in path:
            raise ValueError(f"{argument} holds {path!r:.80}, which is empty or has a NUL")
        remote = "://" in path or "::" in path
        paths.append(path if remote else os.path.abspath(path))
    if not paths:
        raise ValueError(f"{argument} is an empty list: at least one path is wanted")
    return tuple(paths)


def plain_data(argument: str, value: Any, depth: int = 0) -> Any:
    """Return the value as plain data: None, bools, numbers, strings, lists and dicts."""
    if depth > _DEPTH:
        raise ValueError(f"{argument} is nested deeper than {_DEPTH}")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, float, bytes):
        return value
    if type(value) is str:
        return checked_text(argument, value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if type(value) is int:
        return checked_int(argument, value, -(2**63), 2**64 - 1)
    if isinstance(value, (list, tuple)):
        return [plain_data(f"{argument}[{i}]", v, depth + 1) for i, v in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            check_kind(f"a key of {argument}", key, str, "a str")
        return {k: plain_data(f"{argument}[{k!r}]", v, depth + 1) for k, v in value.items()}
    sent = "None, a bool, number or string, or a list or dict of them: only these can be sent"
    raise TypeError(f"{argument}={value!r:.80} is {kind_of(value)}; it is {sent}")


# ── Checks of the arguments that give batches static shapes by padding, or leave rows unpadded.


#: A dimension of more elements than this is a mistake in a unit.
_MOST = 2**31 - 1

_PADDING = (
    *("pad_to_multiple", "pad_to", "pad_to_boundary"),
    *("padding_values", "mask", "ragged"),
)
#: Appended to the name of a padded column: the column that is True where that has real steps.
MASK: Final = "_mask"

PadTo = Mapping[str, int | Sequence[int | None]]
#: By column: the number, bool or string that stands where rows are padded.
PaddingValues = Options


def padded(options: dict[str, Any], known: Mapping[str, Field] | None) -> dict[str, Any]:
    """Return the options of a shape, those of padding left out where they are not given."""
    asked = {name: options.pop(name, None) for name in _PADDING}
    given = {
        name: value for name, value in asked.items() if value is not None and value is not False
    }
    if "pad_to" in given:
        given["pad_to"] = _sizes(given["pad_to"], known)
    if given.pop("ragged", False):
        for name, value in ({"dynamic_pad": True} if options["dynamic_pad"] else given).items():
            raise ValueError(f"ragged=True pads nothing: leave out {name}={value!r}")
        if known is not None and (fault := ragged_fault(known)):
            raise ValueError(f"ragged=True: {fault}")
        return {**options, "ragged": True}
    for name, value in given.items():
        if not options["dynamic_pad"]:
            raise ValueError(f"{name}={value!r} needs dynamic_pad=True, which pads rows at all")
    if known is not None:
        values, mask = given.get("padding_values", {}), given.get("mask", False)
        check_padding(values, mask, varying(known), known)
    return options | given


def varying(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the columns whose shape varies, which batches pad."""
    return {name: field for name, field in fields.items() if field.ragged_dims}


def checked_padding_values(argument: str, value: object) -> dict[str, Any]:
    given = check_kind(argument, value, Mapping, "a dict of column to the value that pads it")
    names = [checked_name(f"a column in {argument}", name) for name in given]
    return {name: plain_data(f"{argument}[{name!r}]", given[name]) for name in names}


def check_padding(
    values: Options, mask: bool, padded: Mapping[str, Field], known: Collection[str]
) -> None:
    """ValueError where ``padding_values`` or ``mask`` do not go with the columns that are padded.

    ``known`` are all columns of the batch.
    """
    for name, value in values.items():
        what = f"padding_values[{name!r}]={value!r:.80}"
        if name not in padded:
            listed = ", ".join(padded) or "none"
            raise ValueError(
                f"{what} is for a column that is padded; those are: {listed}{near(name, padded)}"
            )
        field = Field(padded[name].dtype)
        with rewording(ValueError, f"{what}, one value of the column {padded[name]}: ", ValueError):
            fitted_array(value, field)
    for name in padded if mask else ():
        if name + MASK in known:
            raise ValueError(
                f"mask=True: the mask of column {name!r} is the column {name + MASK!r} of a batch, "
                "and a column of that name exists: rename that one in a map"
            )


def _sizes(value: object, known: Mapping[str, Field] | None) -> dict[str, list[int | None]]:
    sizes = {}
    for name, size in _mapping("pad_to", value, "size").items():
        what = f"pad_to[{name!r}]"
        listed = list(size) if isinstance(size, (list, tuple)) else [size]
        several = len(listed) > 1
        sizes[name] = [
            None if size is None and several else checked_int(what, size, 1, _MOST, or_none=several)
            for size in listed
        ]
        if known is None:
            continue
        if name not in known:
            raise unknown_column(what, name, known)
        if fault := size_fault(known[name], sizes[name]):
            raise ValueError(f"{what}={size!r}: {fault}")
    return sizes


def size_fault(field: Field, sizes: list[int | None]) -> str:
    """Return the reason why a column can not be padded so, or ""."""
    if not field.ragged_dims:
        return f"the column is {field}, which does not vary"
    if len(sizes) > field.ragged_dims:
        return f"the column is {field}, of which {field.ragged_dims} dimensions may vary"
    for size, dim in zip(sizes, field.shape, strict=False):
        if dim is not None and size not in (None, dim):
            return f"the column is {field}, and {dim} is the size of that dimension"
    return ""


def ragged_fault(fields: Mapping[str, Field]) -> str:
    """Return the reason why batches of these columns can not be ragged, or ""."""
    ragged = varying(fields)
    for name, field in ragged.items():
        if field.ragged_dims > 1:
            return (
                f"column {name!r} is {field}: only the first dimension of a ragged column varies; "
                "declare dynamic_pad=True, or select other columns"
            )
        if len(name) > limits.MAX_NAME - len(OFFSETS):
            most = limits.MAX_NAME - len(OFFSETS)
            return f"column {name!r:.80} has a name of more than {most} characters"
    if len(fields) + len(ragged) > limits.MAX_COLUMNS:
        return (
            f"{len(fields)} columns, {len(ragged)} of them ragged, are more than "
            f"{limits.MAX_COLUMNS} arrays: the offsets of each ragged column count, too"
        )
    return "" if ragged else f"no column varies, of {', '.join(map(str, fields))}; leave it out"


# ── The origin of one value per example: a column, a function of the columns, a constant.
#
#     "label"                the column of that name
#     "module:function"      a function that gets the columns of some hundred examples, as a
#     function               vectorized map does, and gives one value per example
#     0.5, True              the same value for all, where that makes sense
#
# As plain data: ``["column", name]``, ``["function", name]``, ``["constant", value]``.


#: A column's name, a function or its name, or a constant.
Value = str | Callable[..., object] | float | bool
#: A selector as plain data: its kind, and a value of that kind.
Selector: TypeAlias = list[Any]


def checked_value(
    argument: str,
    value: object,
    known: Mapping[str, Field] | None,
    *,
    constant: tuple[float, float] | None = None,
    sequence: bool = False,
    integer: bool = False,
) -> Selector:
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
            raise ValueError(f"{argument} must be between {low:g} and {high:g}, not {value!r}")
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


def selector_text(selector: Selector) -> str:
    """Return a selector in words, for errors."""
    kind, value = selector
    return f"column {value!r}" if kind == "column" else f"{kind} {value}"
