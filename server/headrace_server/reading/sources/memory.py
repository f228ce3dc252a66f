"""Examples that travel with the declaration, packed by ``pipeline.examples``."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field
from headrace_server.pipeline.examples import packed_fields
from headrace_server.reading.columns import Column, Ragged, RaggedStrings, Strings
from headrace_server.reading.reader import IndexedReader, Opening

from .column_parts import whole_part
from .example_rows import Schema
from .parts_reader import PartsReader

__all__ = ["open_reader"]


def open_reader(opening: Opening) -> IndexedReader:
    """Features were applied when the examples were packed."""
    source, bad = opening.source, opening.bad
    n, packed = source.options["n"], source.options["columns"]
    fields = packed_fields(source.options)
    columns = {name: _unpacked(packed[name], fields[name], n) for name in fields}
    return PartsReader(fields, [whole_part("examples", columns, fields, Schema(fields), bad)])


def _unpacked(packed: Mapping[str, Any], field: Field, n: int) -> Column:
    varying = field.ragged_dims
    inner = tuple(d for d in field.shape[varying:] if d is not None)
    data = np.frombuffer(packed["data"], np.uint8)
    extents = np.empty((n, 0), np.int64)
    if varying:
        extents = np.frombuffer(packed["extents"], np.int64).reshape(n, varying)
    sizes = np.prod(extents, axis=1, dtype=np.int64) * prod(inner)
    starts = np.cumsum(sizes) - sizes
    if field.dtype == dtypes.BYTES:
        lengths = np.frombuffer(packed["lengths"], np.int64)
        flat = Strings(data, np.cumsum(lengths) - lengths, lengths)
        return RaggedStrings(flat, starts, extents, inner) if varying else flat.reshape(n, *inner)
    dtype = dtypes.numpy_dtype(field.dtype)
    if varying:
        return Ragged(data, dtype, starts * dtype.itemsize, extents, inner)
    return data.view(dtype).reshape(n, *inner)
