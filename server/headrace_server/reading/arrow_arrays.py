"""Columns as Arrow arrays: what ``sources/arrow_columns`` reads back without a copy.

[n, *shape]          fixed_size_list of … of numbers | binary
dimensions that vary list
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from .flat import Flat

__all__ = ["arrow_array", "arrow_schema"]

_MOST_OFFSET = 2**31 - 1


def arrow_schema(fields: Mapping[str, Field]) -> Any:
    """The Arrow schema of an example; DataError names a column that Arrow has no type for."""
    return pa.schema([pa.field(name, _type(name, field)) for name, field in fields.items()])


def _type(name: str, field: Field) -> Any:
    try:
        kind = (
            pa.binary() if field.dtype == BYTES else pa.from_numpy_dtype(numpy_dtype(field.dtype))
        )
    except (pa.ArrowException, TypeError):
        raise DataError(
            f"column {name!r} is {field}, and Arrow files have no {field.dtype}: map it to a type "
            "that they have, or leave it out by select"
        ) from None
    for extent in reversed(field.shape):
        kind = pa.list_(kind, -1 if extent is None else extent)
    return kind


def arrow_array(name: str, field: Field, flat: Flat) -> Any:
    """The rows of a column."""
    if flat.lengths is None:
        array = pa.array(flat.values)
    else:
        offsets = _offsets(name, flat.lengths)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(flat.values))]
        array = pa.Array.from_buffers(pa.binary(), len(flat.lengths), buffers)
    for depth in range(len(field.shape) - 1, -1, -1):
        per_row = np.prod(flat.shapes[:, :depth], axis=1, dtype=np.int64)
        extent = field.shape[depth]
        buffers = [None]
        if extent is None:
            buffers.append(pa.py_buffer(_offsets(name, np.repeat(flat.shapes[:, depth], per_row))))
        kind = pa.list_(array.type, -1 if extent is None else extent)
        array = pa.Array.from_buffers(kind, int(per_row.sum()), buffers, children=[array])
    return array


def _offsets(name: str, lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MOST_OFFSET:
        raise DataError(
            f"column {name!r}: {len(lengths)} rows have {offsets[-1]} elements; Arrow lists hold "
            f"{_MOST_OFFSET}"
        )
    return offsets.astype(np.int32)
