"""Batches whose rows are not padded: values one after the other, and the offsets beside them.

    rows    [1 2]  []  [3 4 5]
    x           1 2 3 4 5          the values, [sum of lengths, …]
    @offsets:x  0 2 2 5            row i has the values from offset i up to offset i + 1

The offsets follow all other columns.  A column whose shape is fixed lies as in any batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.layout import arrange, array_at
from headrace_proto.schema import OFFSETS, Field

from ..reading.columns import Column, Ragged, Strings
from .assemble import (
    Assembly,
    Parts,
    batch_schema,
    fill_strings,
    light_take,
    string_bytes,
)


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
        self._begin(parts)
        rows = self.rows
        self._columns = []
        self._offsets: list[np.ndarray] = []
        specs: list[tuple[str, tuple[int, ...], int]] = []
        for name, field in fields.items():
            columns = [light_take(chunk.columns[name], rows) for chunk, rows in parts]
            if field.ragged_dims:
                shape: tuple[int, ...] = (self._ends(columns), *_inner(columns[0]))
                columns = [_flat(column) for column in columns]
            else:
                shape = (rows, *self._shape(name, columns, False))
            text = string_bytes(columns) if field.dtype == BYTES else 0
            self._columns.append(columns)
            specs.append((field.dtype, shape, text))
        specs += [("int64", (rows + 1,), 0)] * len(self._offsets)
        self.slots, self.nbytes = arrange(specs)

    def _ends(self, columns: list[Column]) -> int:
        """Note where the rows of a column begin and end; return their total number of values."""
        offsets = np.zeros(self.rows + 1, np.int64)
        np.concatenate([_lengths(column) for column in columns]).cumsum(out=offsets[1:])
        self._offsets.append(offsets)
        return int(offsets[-1])

    def unpadded(self) -> list[int]:
        return [prod(slot.shape) for slot in self.slots]

    def fill(self, block: np.ndarray) -> None:
        for i, columns in enumerate(self._columns):
            slot = self.slots[i]
            if slot.dtype == BYTES:
                fill_strings(block, slot, columns)
            elif isinstance(columns[0], Ragged):
                _fill_values(block, slot.offset, columns)
            else:
                self._fill_dense(array_at(block, slot), i, columns)
        for slot, offsets in zip(self.slots[len(self._columns) :], self._offsets, strict=True):
            array_at(block, slot)[:] = offsets


def _lengths(column: Column) -> np.ndarray:
    assert isinstance(column, Ragged)
    return column.lengths


def _inner(column: Column) -> tuple[int, ...]:
    assert isinstance(column, Ragged)
    return column.inner


def _flat(column: Column) -> Column:
    """Return the strings of all rows as one array, which is written like any other."""
    if not isinstance(column, Ragged) or not isinstance(column.raw, Strings):
        return column
    return column.values().reshape(int(column.lengths.sum()), *column.inner)


def _fill_values(block: np.ndarray, at: int, columns: list[Column]) -> None:
    out = block.data
    for column in columns:
        assert isinstance(column, Ragged)
        raw, sizes = column.raw.data, column.lengths * column.item_bytes
        # Rows that lie one after the other are copied as one.
        breaks = np.flatnonzero(column.starts[1:] != column.starts[:-1] + sizes[:-1]) + 1
        first = np.concatenate([[0], breaks])[: len(sizes)]
        lengths = np.add.reduceat(sizes, first).tolist()
        for start, size in zip(column.starts[first].tolist(), lengths, strict=True):
            out[at : at + size] = raw[start : start + size]
            at += size
