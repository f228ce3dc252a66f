"""Batches whose rows are not padded: values one after the other, and the offsets beside them.

    rows    [1 2]  []  [3 4 5]
    x           1 2 3 4 5          the values, [sum of lengths, …]
    @offsets:x  0 2 2 5            row i has the values from offset i up to offset i + 1

The offsets follow all other columns.  A column whose shape is fixed lies as in any batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto.layout import Slot
from headrace_proto.schema import OFFSETS, Field

from ..reading.columns import Column, Ragged, Strings
from .assemble import Assembly, Parts, batch_schema


def ragged_schema(fields: Mapping[str, Field], batch_size: int | None) -> dict[str, Field]:
    """Return the schema of a ragged batch's columns on the wire."""
    schema = batch_schema(fields, batch_size)
    ends = None if batch_size is None else batch_size + 1
    for name, field in fields.items():
        if field.ragged_dims:
            schema[name] = Field(field.dtype, field.shape)
            schema[OFFSETS + name] = Field("int64", (ends,))
    return schema


class RaggedAssembly(Assembly):
    """One ragged batch about to be written."""

    def __init__(self, parts: Parts, fields: Mapping[str, Field]) -> None:
        self._offsets: list[np.ndarray] = []
        super().__init__(parts, fields, dynamic_pad=False)

    def _shape(self, name: str, field: Field, columns: list[Any]) -> tuple[int, ...]:
        """Return the shape of a column's values; the strings of all rows become one column."""
        if not field.ragged_dims:
            return super()._shape(name, field, columns)
        offsets = np.zeros(self.rows + 1, np.int64)
        np.concatenate([column.lengths for column in columns]).cumsum(out=offsets[1:])
        self._offsets.append(offsets)
        inner = columns[0].inner
        columns[:] = map(_flat, columns)
        return (int(offsets[-1]), *inner)

    def _fill_ragged(self, block: np.ndarray, slot: Slot, columns: list[Ragged]) -> None:
        out, at = block.data, slot.offset
        for column in columns:
            raw, sizes = column.payload.data, column.lengths * column.item_bytes
            # Rows that lie one after the other are copied as one.
            breaks = np.flatnonzero(column.starts[1:] != column.starts[:-1] + sizes[:-1]) + 1
            first = np.concatenate([[0], breaks])[: len(sizes)]
            lengths = np.add.reduceat(sizes, first).tolist()
            for start, size in zip(column.starts[first].tolist(), lengths, strict=True):
                out[at : at + size] = raw[start : start + size]
                at += size


def _flat(column: Column) -> Column:
    """Return the strings of all rows as one array, which is written like any other."""
    if not isinstance(column, Ragged) or not isinstance(column.raw, Strings):
        return column
    return column.values().reshape(int(column.lengths.sum()), *column.inner)
