"""Examples in memory, packed by ``pipeline.examples``: columns are views of the shared bytes."""

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
    options, bad = opening.source.options, opening.bad
    fields, memory = packed_fields(options), options["memory"].array
    columns = {
        name: _unpacked(options["columns"][name], memory, field, options["n"])
        for name, field in fields.items()
    }
    return PartsReader(fields, [whole_part("examples", columns, fields, Schema(fields), bad)])


def _unpacked(packed: Mapping[str, Any], memory: np.ndarray, field: Field, n: int) -> Column:
    data = memory[slice(*packed["data"])]
    extents = np.empty((n, 0), np.int64)
    if field.ragged_dims:
        extents = memory[slice(*packed["extents"])].view(np.int64).reshape(n, field.ragged_dims)
    if field.dtype != dtypes.BYTES:
        return column_of(data.view(dtypes.numpy_dtype(field.dtype)), field, extents)
    lengths = memory[slice(*packed["lengths"])].view(np.int64)
    return column_of(Strings(data, np.cumsum(lengths) - lengths, lengths), field, extents)
