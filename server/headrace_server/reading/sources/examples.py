"""Examples that travel with the declaration, packed by ``pipeline.examples``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field
from headrace_server.pipeline.examples import packed_fields
from headrace_server.reading.columns import Column, Strings, column_of
from headrace_server.reading.reader import IndexedReader, Opening

from .column_parts import whole_part
from .example_rows import Schema
from .parts_reader import PartsReader


def open_reader(opening: Opening) -> IndexedReader:
    """Return the reader of the packed examples, to which features were applied already."""
    source, bad = opening.source, opening.bad
    n, packed = source.options["n"], source.options["columns"]
    fields = packed_fields(source.options)
    columns = {name: _unpacked(packed[name], fields[name], n) for name in fields}
    return PartsReader(fields, [whole_part("examples", columns, fields, Schema(fields), bad)])


def _unpacked(packed: Mapping[str, Any], field: Field, n: int) -> Column:
    data = np.frombuffer(packed["data"], np.uint8)
    extents = np.empty((n, 0), np.int64)
    if field.ragged_dims:
        extents = np.frombuffer(packed["extents"], np.int64).reshape(n, field.ragged_dims)
    if field.dtype != dtypes.BYTES:
        return column_of(data.view(dtypes.numpy_dtype(field.dtype)), field, extents)
    lengths = np.frombuffer(packed["lengths"], np.int64)
    return column_of(Strings(data, np.cumsum(lengths) - lengths, lengths), field, extents)
