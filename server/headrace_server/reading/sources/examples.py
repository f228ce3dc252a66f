"""Examples in memory, packed by ``pipeline.examples``: columns are views of the shared bytes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headrace_proto import dtypes
from headrace_proto.schema import Field

from ...pipeline.declaration import Plain
from ...pipeline.declaration import Source as Declared
from ...pipeline.examples import SharedBytes, packed_fields
from ..column_parts import whole_part
from ..columns import Column, Strings, column_of
from ..example_rows import Schema
from ..source import Opening, PartsReader


class Examples(PartsReader):
    """The packed examples, to which features were applied already."""

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field]:
        return packed_fields(source.options["columns"])

    def __init__(
        self, opening: Opening, n: int, columns: Mapping[str, Plain], memory: SharedBytes
    ) -> None:
        fields = packed_fields(columns)
        data = memory.array
        unpacked = {name: _unpacked(columns[name], data, f, n) for name, f in fields.items()}
        schema = Schema(fields)
        super().__init__(fields, [whole_part("examples", unpacked, fields, schema, opening.bad)])


def _unpacked(packed: Mapping[str, Plain], memory: np.ndarray, field: Field, n: int) -> Column:
    data = memory[slice(*packed["data"])]
    extents = np.empty((n, 0), np.int64)
    if field.ragged_dims:
        extents = memory[slice(*packed["extents"])].view(np.int64).reshape(n, field.ragged_dims)
    if field.dtype != dtypes.BYTES:
        return column_of(data.view(dtypes.numpy_dtype(field.dtype)), field, extents)
    lengths = memory[slice(*packed["lengths"])].view(np.int64)
    return column_of(Strings(data, np.cumsum(lengths) - lengths, lengths), field, extents)
