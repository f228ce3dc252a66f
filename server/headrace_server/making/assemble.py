"""Plans become bytes: here the payload of padded rows is copied.

    Assembly(parts, fields, pad) ── shapes, layout, size ──► a block is found ──► fill(block)

An assembly checks that the rows fit together before it asks for a block, so a bad batch costs no
memory.  Padding is 0, False or the empty string, or a value that was declared, on the right of each
dimension that varies, up to the largest row or to a size that was declared (``shaping/bucket.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, name_of
from headrace_proto.errors import DataError
from headrace_proto.layout import (
    MOST_EVEN,
    ColumnPlace,
    arrange,
    array_at,
    copy_bytes,
    even_offsets,
)
from headrace_proto.schema import OFFSETS, Field

from ..reading.chunk import Chunk
from ..reading.columns import Column, Ragged, Rows, Strings, row_count, take
from ..shaping.bucket import NO_PADDING, Padding

arranged = lru_cache(maxsize=1024)(arrange)

#: Bytes from which it pays to copy rows in pieces.
_MUCH = 512 * 1024
#: Average bytes from which strings are copied one by one, straight into the block.
_LONG = 1024
#: Padding up to this size is copied from zeros, which a cache holds: quicker than to fill it.
_FEW_ZEROS = 32 * 1024
_ZEROS = memoryview(bytes(_FEW_ZEROS))

Parts = Sequence[tuple[Chunk, Rows]]
#: One column in each part of a batch: all arrays, all Strings, or all Ragged.
Pieces = list[Any]


def batch_schema(fields: Mapping[str, Field], batch_size: int | None) -> dict[str, Field]:
    """Return the schema of a batch: one more dimension, which is None if batches differ in size."""
    return {name: Field(f.dtype, (batch_size, *f.shape)) for name, f in fields.items()}


class Assembly:
    """One batch about to be written."""

    def __init__(
        self,
        parts: Parts,
        fields: Mapping[str, Field],
        dynamic_pad: bool,
        padding: Padding = NO_PADDING,
        bucket: int = 0,
    ) -> None:
        """Without ``padding`` rows are padded to the largest one of the batch."""
        self._parts = parts
        self._counts = [row_count(taken) for _, taken in parts]
        self.rows = rows = sum(self._counts)
        self._dynamic_pad = dynamic_pad
        #: Columns after those of the rows: masks, or the offsets of a ``RaggedAssembly``.
        self._added: list[np.ndarray] = []
        #: Columns of numbers with a value for padding: number, places of real elements, value.
        self._valued: list[tuple[int, np.ndarray, Any]] = []
        #: By column what the parts have of it, and the same as it is written.
        self.columns: list[Pieces] = []
        self._written: list[Pieces] = []
        specs = []
        for name, field in fields.items():
            columns: Pieces = [_light_take(chunk.columns[name], taken) for chunk, taken in parts]
            shape = self._shape(name, field, columns)
            if padding.pads and (varying := field.ragged_dims):
                largest = shape[1 : varying + 1]
                sizes = padding.shape(name, field.shape[:varying], largest, bucket)
                shape = (rows, *sizes, *shape[varying + 1 :])
            text, value = 0, padding.values.get(name)
            if (padding.mask or value is not None) and field.ragged_dims:
                dims = shape[1 : 1 + field.ragged_dims]
                real = np.concatenate([_within(column, dims) for column in columns])
                if padding.mask:
                    self._added.append(real)
                if value is not None and field.dtype != BYTES:
                    self._valued.append((len(self.columns), real, value))
            self.columns.append(columns)
            if field.dtype == BYTES:
                if isinstance(columns[0], Ragged):
                    blank = as_bytes(value)
                    columns = [_dense_strings(column, shape[1:], blank) for column in columns]
                for column in columns:
                    text += column.nbytes
            self._written.append(columns)
            specs.append((field.dtype, shape, text))
        specs += [(name_of(added.dtype), added.shape, 0) for added in self._added]
        self.slots: list[ColumnPlace]
        self.slots, self.nbytes = arranged(tuple(specs))

    def _shape(self, name: str, field: Field, columns: Pieces) -> tuple[int, ...]:
        first = columns[0]
        if not isinstance(first, Ragged):
            shape = first.shape[1:]
            for column in columns[1:]:
                if column.shape[1:] != shape:
                    raise DataError(f"column {name!r} changes its shape: {shape} and others")
            return (self.rows, *shape)
        extents = first.extents
        if len(columns) > 1:
            extents = np.concatenate([c.extents for c in columns])
        if not self._dynamic_pad and len(extents) and (extents != extents[0]).any():
            other = int((extents != extents[0]).any(axis=1).argmax())
            raise DataError(
                f"column {name!r}: rows of one batch have unequal shapes: "
                f"{[*extents[0].tolist(), *first.inner]} ({self._origin(0)}) and "
                f"{[*extents[other].tolist(), *first.inner]} ({self._origin(other)}); "
                "declare dynamic_pad=True to pad them"
            )
        largest = np.maximum.reduce(extents).tolist() if len(extents) else [0] * extents.shape[1]
        return (self.rows, *largest, *first.inner)

    def _origin(self, row: int) -> str:
        for chunk, rows in self._parts:
            if row < row_count(rows):
                number = rows.start + row if isinstance(rows, slice) else int(rows[row])
                return chunk.origin.describe(number)
            row -= row_count(rows)
        raise IndexError(row)

    def fill(self, block: np.ndarray) -> None:
        """Write the batch into its block (uint8, at least ``nbytes``)."""
        for slot, columns in zip(self.slots, self._written, strict=False):
            if slot.dtype == BYTES:
                fill_strings(block, slot, columns)
            elif isinstance(columns[0], Ragged):
                self._fill_ragged(block, slot, columns)
            else:
                self._fill_dense(array_at(block, slot), columns)
        for i, real, value in self._valued:
            array_at(block, self.slots[i])[~real] = value
        for i, added in enumerate(self._added, len(self.columns)):
            array_at(block, self.slots[i])[:] = added

    def _fill_dense(self, out: np.ndarray, columns: Pieces) -> None:
        at = 0
        for column, (_, rows), n in zip(columns, self._parts, self._counts, strict=True):
            if isinstance(rows, slice):
                _copy(out[at : at + n], column[rows])
            else:
                column.take(rows, 0, out[at : at + n], "clip")
            at += n

    def _fill_ragged(self, block: np.ndarray, slot: ColumnPlace, columns: list[Ragged]) -> None:
        varying = columns[0].extents.shape[1]
        if varying > 1:
            _fill_nested(array_at(block, slot), columns)
            return
        row_bytes = slot.nbytes // max(1, slot.shape[0])
        at = slot.offset
        out = block.data  # cheaper to slice than an array
        for column in columns:
            raw = column.payload.data
            sizes = (column.extents[:, 0] * column.item_bytes).tolist()
            for start, size in zip(column.starts.tolist(), sizes, strict=True):
                end = at + size
                out[at:end] = raw[start : start + size]
                at += row_bytes
                if at - end <= _FEW_ZEROS:
                    out[end:at] = _ZEROS[: at - end]
                else:
                    block[end:at] = 0


def _light_take(column: Column, rows: Rows) -> Column:
    """Return rows of a column if that copies no payload; a dense column is copied when written."""
    return column if isinstance(column, np.ndarray) else take(column, rows)


def _copy(out: np.ndarray, rows: np.ndarray) -> None:
    """Copy rows of the same shape."""
    if rows.nbytes > _MUCH and rows.flags.c_contiguous and rows.dtype == out.dtype:
        copy_bytes(out.reshape(-1).view(np.uint8), rows.reshape(-1).view(np.uint8))
    else:
        out[:] = rows


def _within(column: Ragged, shape: tuple[int, ...]) -> np.ndarray:
    """Return a mask of the real elements in rows padded to this shape."""
    inside = np.ones((len(column), *shape), bool)
    for k in range(column.extents.shape[1]):
        places = np.arange(shape[k]) < column.extents[:, k, None]
        inside &= places.reshape(len(column), *(d if i == k else 1 for i, d in enumerate(shape)))
    return inside


def _dense_strings(column: Ragged, shape: tuple[int, ...], blank: bytes) -> Strings:
    """Return the strings as rows of this shape, filled up with ``blank``."""
    strings = column.values()
    assert isinstance(strings, Strings)
    return spread(strings, _within(column, shape), blank)


def as_bytes(value: str | bytes | None) -> bytes:
    """Return a value that pads strings as bytes; None: the empty string."""
    return value.encode() if isinstance(value, str) else value or b""


def spread(strings: Strings, inside: np.ndarray, blank: bytes) -> Strings:
    """Return strings, one for each true place of a mask, and ``blank`` at the others."""
    if blank:
        data, lengths = strings.joined(), np.append(strings.lengths, len(blank))
        at = np.where(inside, np.cumsum(inside).reshape(inside.shape) - 1, len(strings))
        data = np.concatenate([data, np.frombuffer(blank, np.uint8)])
        return Strings(data, (np.cumsum(lengths) - lengths)[at], lengths[at])
    if not len(strings):
        return Strings(strings.data, np.zeros(inside.shape, np.int64), inside.astype(np.int64))
    # An empty one begins where the string before it ends, so strings back to back stay so.
    at = np.maximum(np.cumsum(inside).reshape(inside.shape) - 1, 0)
    starts, lengths = strings.starts[at], strings.lengths[at]
    return Strings(strings.data, starts + lengths * ~inside, lengths * inside)


def fill_strings(block: np.ndarray, slot: ColumnPlace, columns: list[Strings]) -> None:
    count = prod(slot.shape)
    start = slot.offset + 8 * (count + 1)
    widths = {column.width for column in columns}
    if count <= MOST_EVEN and len(widths) == 1 and (width := widths.pop()):
        block.data[slot.offset : start] = even_offsets(count, width)
    else:
        offsets = np.ndarray((count + 1,), np.int64, block, slot.offset)
        offsets[0] = 0
        lengths = [column.lengths for column in columns]
        whole = lengths[0] if len(lengths) == 1 else np.concatenate(lengths)
        whole.reshape(-1).cumsum(out=offsets[1:])
    for column in columns:
        start += _copy_strings(block[start:], column)


def _copy_strings(out: np.ndarray, strings: Strings) -> int:
    """Copy strings back to back; return the number of their bytes."""
    nbytes, starts = strings.nbytes, strings.starts
    if nbytes < _LONG * starts.size:
        out[:nbytes] = strings.joined()
        return nbytes
    at, to, raw = 0, out.data, strings.data.data
    lengths = strings.lengths.reshape(-1).tolist()
    for start, size in zip(starts.reshape(-1).tolist(), lengths, strict=True):
        to[at : at + size] = raw[start : start + size]
        at += size
    return nbytes


def _fill_nested(out: np.ndarray, columns: list[Ragged]) -> None:
    at = 0
    for column in columns:
        for i in range(len(column)):
            row = column.row(i)
            if prod(row.shape) != prod(out.shape[1:]):
                out[at] = 0
            out[at][tuple(slice(0, d) for d in row.shape)] = row
            at += 1


def ragged_schema(fields: Mapping[str, Field], batch_size: int | None) -> dict[str, Field]:
    """Return the schema of a ragged batch's columns on the wire.

        rows    [1 2]  []  [3 4 5]
        x           1 2 3 4 5          the values, [sum of lengths, …]
        @offsets:x  0 2 2 5            row i has the values from offset i up to offset i + 1

    The offsets follow all other columns.  A column whose shape is fixed lies as in any batch.
    """
    schema = batch_schema(fields, batch_size)
    ends = None if batch_size is None else batch_size + 1
    for name, field in fields.items():
        if field.ragged_dims:
            schema[name] = Field(field.dtype, field.shape)
            schema[OFFSETS + name] = Field("int64", (ends,))
    return schema


class RaggedAssembly(Assembly):
    """One ragged batch about to be written."""

    def _shape(self, name: str, field: Field, columns: Pieces) -> tuple[int, ...]:
        """Return the shape of a column's values; the strings of all rows become one column."""
        if not field.ragged_dims:
            return super()._shape(name, field, columns)
        offsets = np.zeros(self.rows + 1, np.int64)
        np.concatenate([column.lengths for column in columns]).cumsum(out=offsets[1:])
        self._added.append(offsets)
        inner = columns[0].inner
        columns[:] = map(_flat, columns)
        return (int(offsets[-1]), *inner)

    def _fill_ragged(self, block: np.ndarray, slot: ColumnPlace, columns: list[Ragged]) -> None:
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
