"""Examples in memory, packed for a declaration.

    [{name: value}, …] ─► pack_examples ─► {"n": n, "columns": {name: packed column}}

    packed column    "dtype"    wire name
                     "shape"    of one element, -1 where it varies
                     "data"     bytes of the elements one after the other (byte strings: joined)
                     "extents"  int64 [n, r] as bytes, the first r dimensions of each element; None
                                when none varies (r counts up to the last dimension that varies)
                     "lengths"  int64 as bytes, one per byte string; None for numbers

Python ints become int64, floats float64, bools bool, str and bytes byte strings; numpy arrays keep
their dtype.  Lists are arrays.  A dimension that differs between examples varies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_proto import dtypes, limits
from headrace_proto.errors import kind_of
from headrace_proto.schema import RESERVED, Field

if TYPE_CHECKING:
    from .declaration import Feature, Options

_TEXT = bytes, str, bytearray


class Misfit(ValueError):
    """A value does not go with the others of its column; ``row`` counts from 0."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(text)
        self.row = row


def as_array(value: object) -> np.ndarray:
    """Return a value as a numeric array or an object array of ``bytes``.  ValueError for others."""
    if isinstance(value, _TEXT):
        return _strings(value)
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(f"{value!r:.80} is a nested list of unequal lengths") from None
    except Exception as error:  # of __array__, as of a tensor with a gradient
        raise ValueError(f"is {kind_of(value)}, and no array: {error}") from None
    if array.dtype.kind in "SUO":
        # From the value itself: a numpy S array has lost the zero bytes at the ends.
        return _strings(value)
    if dtypes.name_of(array.dtype) not in dtypes.DTYPES:
        raise ValueError(f"dtype {array.dtype} is not one of {', '.join(sorted(dtypes.DTYPES))}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _strings(value: object) -> np.ndarray:
    objects = np.asarray(bytes(value) if isinstance(value, bytearray) else value, object)
    out = np.empty(objects.shape, object)
    flat = out.reshape(-1)
    for i, text in enumerate(objects.reshape(-1).tolist()):
        if not isinstance(text, _TEXT):
            fault = "holds neither strings alone nor numbers that a dtype has room for"
            raise ValueError(f"{value!r:.80} {fault}")
        flat[i] = text.encode() if isinstance(text, str) else bytes(text)
    return out


def _untyped(value: object, array: np.ndarray) -> bool:
    """Return whether a value is an empty list, which shows no dtype."""
    return array.size == 0 and isinstance(value, (list, tuple))


def infer_field(values: Sequence[object]) -> Field:
    """Return the common field of values.  Integers among floats are floats; an empty list
    shows no dtype, and stands for an empty array of any rank.

    Misfit names the first value that does not go with those before it.
    """
    known: Field | None = None
    empties: list[tuple[int, tuple[int, ...]]] = []
    for row, value in enumerate(values):
        try:
            array = as_array(value)
            if _untyped(value, array):
                empties.append((row, array.shape))
                continue
            field = Field(dtypes.name_of(array.dtype), array.shape)
            known = field if known is None else _merged(known, field)
        except ValueError as error:
            raise Misfit(row, str(error)) from None
    for row, shape in empties:
        known = known or Field("float64", shape)
        if len(shape) > len(known.shape):
            raise Misfit(row, f"has {len(shape)} dimensions, others are {known}")
        known = Field(known.dtype, (*_dims(known.shape, shape), *known.shape[len(shape) :]))
    if known is None:
        raise ValueError("no values to infer a dtype and a shape from")
    return known


def _dims(known: Iterable[int | None], new: Iterable[int | None]) -> list[int | None]:
    return [a if a == b else None for a, b in zip(known, new, strict=False)]


def _merged(known: Field, new: Field) -> Field:
    dtype = _common(known.dtype, new.dtype)
    if dtype is None or len(known.shape) != len(new.shape):
        raise ValueError(f"is {new}, those before it are {known}")
    return Field(dtype, tuple(_dims(known.shape, new.shape)))


def _common(a: str, b: str) -> str | None:
    """Return the dtype that holds the values of both without changing their meaning."""
    if a == b:
        return a
    if dtypes.BYTES in (a, b) or "bool" in (a, b):
        return None
    left, right = dtypes.numpy_dtype(a), dtypes.numpy_dtype(b)
    try:
        both = np.result_type(left, right)
    except TypeError:
        return None
    if left.kind in "iu" and right.kind in "iu" and both.kind == "f":
        return None  # int64 and uint64: no dtype holds both
    return dtypes.canonical(both)


def cast(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the array in another dtype, if no value changes its meaning; else ValueError."""
    have = dtypes.name_of(array.dtype)
    if have == dtype:
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if dtypes.BYTES not in (have, dtype):
        want = dtypes.numpy_dtype(dtype)
        if not array.size or _may_become(array, want):
            with np.errstate(over="ignore", invalid="ignore"):
                out = array.astype(want)
            if want.kind in "iub" or np.array_equal(np.isfinite(out), np.isfinite(array)):
                return out
    some = array.reshape(-1)[:3].tolist()
    raise ValueError(f"is {have} ({some!r:.60}), which does not fit {dtype}")


def _may_become(array: np.ndarray, want: np.dtype) -> bool:
    kind = array.dtype.kind
    if kind in "iu" and want.kind in "iu":
        limit = np.iinfo(want)
        return bool(limit.min <= int(array.min()) and int(array.max()) <= limit.max)
    if kind == "c":
        return want.kind == "c"
    return kind in "iufV" and want.kind in "fcV"  # V: the floats of ml_dtypes


def pack_examples(
    examples: Iterable[Mapping[str, object]], features: Mapping[str, Feature] | None = None
) -> dict[str, Any]:
    """Return examples packed.

    With features, only the columns they name are taken, with their dtypes, shapes and defaults.
    ValueError names the number of the example (from 0) and the column that breaks a rule.
    """
    rows = list(examples)
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(f"example {i} is {kind_of(row)}; an example is a dict of name to value")
    names = _common_names(rows) if features is None else list(features)
    columns = {
        name: _column(name, rows, None if features is None else features[name]) for name in names
    }
    return {"n": len(rows), "columns": columns}


def names_fault(names: Collection[object]) -> str:
    """Return the fault of names of columns, or ""."""
    if not 0 < len(names) <= limits.MAX_COLUMNS:
        return f"{len(names)} columns; 1 to {limits.MAX_COLUMNS} can be"
    for name in names:
        if not isinstance(name, str) or not 0 < len(name) <= limits.MAX_NAME:
            most = limits.MAX_NAME
            return f"a column named {name!r:.80}; names are strings of 1 to {most} characters"
        if name.startswith(RESERVED):
            return f"a column named {name!r:.80}; {RESERVED!r} begins names that headrace adds"
        if not name.isprintable() and any("\ud800" <= c <= "\udfff" for c in name):
            return f"a column named {name!r:.80}, which is not a text that UTF-8 can hold"
    return ""


def _common_names(rows: list[Mapping[str, object]]) -> list[str]:
    if not rows:
        raise ValueError("no examples: an empty list needs features= to say what its columns are")
    names = list(rows[0])
    if fault := names_fault(names):
        raise ValueError(f"example 0 has {fault}")
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            raise ValueError(f"example {i} has the columns {list(row)}; example 0 has {names}")
    return names


def _column(name: str, rows: list[Mapping[str, object]], feature: Feature | None) -> dict[str, Any]:
    """Return a packed column."""
    values = [_value(name, i, row, feature) for i, row in enumerate(rows)]
    try:
        field = infer_field(values) if feature is None else feature.field
        flat, extents = flat_values(values, field)
    except Misfit as misfit:
        remedy = "" if feature else "; give features= to say what dtype and shape it has"
        raise ValueError(f"example {misfit.row}, column {name!r}: {misfit}{remedy}") from None
    strings = field.dtype == dtypes.BYTES
    return {
        "dtype": field.dtype,
        "shape": [-1 if d is None else d for d in field.shape],
        "data": b"".join(flat.tolist()) if strings else flat.tobytes(),
        "extents": extents.tobytes() if field.ragged_dims else None,
        "lengths": np.array(list(map(len, flat)), np.int64).tobytes() if strings else None,
    }


def _value(name: str, i: int, row: Mapping[str, object], feature: Feature | None) -> object:
    if name in row:
        return row[name]
    assert feature is not None  # else the names were compared
    if not feature.has_default:
        raise ValueError(f"example {i} lacks column {name!r}, which has no default")
    return feature.default


def flat_values(values: Sequence[object], field: Field) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of examples, checked against a field, one after the other, and the first
    dimensions of each, as far as they may vary.  Misfit names the first that does not fit."""
    none = np.empty(0, object if field.dtype == dtypes.BYTES else dtypes.numpy_dtype(field.dtype))
    arrays, varying = [none], field.ragged_dims
    for i, value in enumerate(values):
        try:
            arrays.append(fitted_array(value, field))
        except (ValueError, TypeError, OverflowError) as error:
            raise Misfit(i, str(error)) from None
    extents = np.array([array.shape[:varying] for array in arrays[1:]], np.int64)
    flat = np.concatenate([array.reshape(-1) for array in arrays])
    return flat, extents.reshape(len(values), varying)


def fitted_array(value: object, field: Field) -> np.ndarray:
    """Return the value of one example as a field wants it; ValueError where it does not fit.

    An empty list stands for an empty array of any rank.
    """
    array = as_array(value)
    if _untyped(value, array):
        dtype = object if field.dtype == dtypes.BYTES else dtypes.numpy_dtype(field.dtype)
        rest = field.shape[array.ndim :]
        array = array.reshape(*array.shape, *(d or 0 for d in rest)).astype(dtype)
    if field.dtype == "uint64" and array.dtype == np.float64:
        array = _unsigned(value, array)
    array = cast(array, field.dtype)
    if not field.admits(array.shape):
        raise ValueError(f"has the shape {list(array.shape)}, which does not fit {field}")
    return array


def _unsigned(value: object, array: np.ndarray) -> np.ndarray:
    """Return integers as uint64 that numpy took for floats: its default type does not hold them."""
    objects = np.asarray(value, object)
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in objects.reshape(-1)):
        return objects.astype(np.uint64)
    return array


def packed_fields(columns: Options) -> dict[str, Field]:
    """Return the schema of packed columns."""
    return {
        name: Field(column["dtype"], tuple(None if d == -1 else d for d in column["shape"]))
        for name, column in columns.items()
    }
