"""Examples in memory, packed by ``pipeline.examples``: columns are views of their bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field

from ...pipeline.declaration import Options
from ...pipeline.declaration import Source as Declared
from ...pipeline.examples import packed_fields
from ..column_parts import whole_part
from ..columns import Column, Strings, column_of
from ..example_rows import Schema
from ..source import Opening, PartsReader


class Examples(PartsReader):
    """The packed examples, to which features were applied already."""

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field]:
        return packed_fields(source.options["columns"])

    def __init__(self, opening: Opening, n: int, columns: Options) -> None:
        fields = packed_fields(columns)
        unpacked = {name: _unpacked(columns[name], field, n) for name, field in fields.items()}
        schema = Schema(fields)
        super().__init__(fields, [whole_part("examples", unpacked, schema, opening.bad)])


def _unpacked(packed: Options, field: Field, n: int) -> Column:
    extents = np.empty((n, 0), np.int64)
    if field.ragged_dims:
        extents = np.frombuffer(packed["extents"], np.int64).reshape(n, field.ragged_dims)
    if field.dtype != dtypes.BYTES:
        values = np.frombuffer(packed["data"], dtypes.numpy_dtype(field.dtype))
        return column_of(values, field, extents)
    lengths = np.frombuffer(packed["lengths"], np.int64)
    data = np.frombuffer(packed["data"], np.uint8)
    return column_of(Strings(data, np.cumsum(lengths) - lengths, lengths), field, extents)
