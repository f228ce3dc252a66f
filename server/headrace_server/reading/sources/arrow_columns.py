"""Arrow arrays as columns, without copying payload.

    list ─► list ─► fixed_size_list ─► numbers | bits | strings
    each level: where the children of an element lie, by two offsets or by a fixed number

A column covers many record batches at once: per batch it knows only where each buffer begins, so
rows of any batches are found by one computation over their numbers.  That needs all buffers in one
mapped range (``MappedFiles``).  Where they are not (compressed files, Parquet), and for what
Arrow encodes further (dictionaries, nulls within lists, lists of bits), a column is built from one
decoded array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto import dtypes
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading.columns import Column, Ragged, Rows, Strings
from headrace_server.reading.fitting import rows_of_items
from headrace_server.reading.stretches import ranges

from .column_parts import StoredRows

#: Returns an array of bytes that contains a buffer, and the byte at which the buffer begins.
Placing = Callable[[Any], tuple[np.ndarray, int]]
Batch = int | np.ndarray

#: Types of text as types of bytes: text in a file need not be UTF-8.
_WITHOUT_UTF8 = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


class NotMapped(Exception):
    """A buffer lies outside the mapped files, or must be decoded before it can be read."""


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Raise a fault that Arrow finds as a DataError that begins with ``where``."""
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, IndexError, UnicodeDecodeError) as error:
        raise DataError(f"{where}: {error}") from None


def stored_field(kind: Any) -> Field:
    """Return the field of an Arrow type; TypeError for types that have none."""
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation not in (None, [*range(len(kind.shape))]):
            raise TypeError("is a permuted tensor; write it with its dimensions in order")
        inner = stored_field(kind.value_type)
        return Field(inner.dtype, (*kind.shape, *inner.shape))
    if isinstance(kind, pa.BaseExtensionType):
        return stored_field(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return stored_field(kind.value_type)
    sized = pa.types.is_fixed_size_list(kind)
    if sized or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = stored_field(kind.value_type)
        return Field(inner.dtype, (kind.list_size if sized else None, *inner.shape))
    if _is_text(kind) or pa.types.is_fixed_size_binary(kind):
        return Field(dtypes.BYTES)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Field(dtypes.canonical(np.dtype(kind.to_pandas_dtype())))
    raise TypeError(f"has the Arrow type {kind}, which is no number, string or list of them")


def _is_text(kind: Any) -> bool:
    of = pa.types
    plain = (of.is_string, of.is_binary, of.is_large_string, of.is_large_binary)
    return any(test(kind) for test in (*plain, of.is_string_view, of.is_binary_view))


@dataclass(slots=True)
class _Level:
    """One level of lists.  Element e of batch b is at ``shift[b] + e``."""

    shift: np.ndarray  # int64 [batches]
    size: int | None  # number of children of each element; None: by ``entries``
    entries: np.ndarray  # int32 | int64, the offsets of all batches, from shift[b] on
    children: np.ndarray  # int64 [batches]
    nulls: np.ndarray | None  # int64 [elements + 1]: how many before; decoded arrays only


class ArrowColumn:
    """One column of one or many record batches."""

    def __init__(self, arrays: Sequence[Any], place: Placing, decoded: bool) -> None:
        """``decoded``: there is one array, and it may be decoded into new buffers."""
        self.field = stored_field(arrays[0].type)
        self._decoded = decoded
        self._levels: list[_Level] = []
        self._valid = self._validity(arrays, place)
        below = list(arrays)
        while True:
            below = [self._plain(array) for array in below]
            nulls = self._inner_nulls(below) if self._levels else None
            kind = below[0].type
            if pa.types.is_fixed_size_list(kind):
                shift = _int64(array.offset for array in below)
                level = _Level(shift, kind.list_size, np.empty(0, np.int32), shift, nulls)
            elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
                width = 8 if pa.types.is_large_list(kind) else 4
                entries, shift = self._offsets(below, width, place)
                children = _int64(len(array.values) for array in below)
                level = _Level(shift, None, entries, children, nulls)
            else:
                break
            self._levels.append(level)
            below = [array.values for array in below]
        self._leaf_nulls = nulls
        self._leaf(below, place)

    # ── building ────────────────────────────────────────────────────────────────────────────

    def _plain(self, array: Any) -> Any:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        kind = array.type
        encoded = pa.types.is_dictionary(kind)
        viewed = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
        if not (encoded or viewed):
            return array
        if not self._decoded:
            raise NotMapped
        values = array.dictionary if encoded else array
        values = values.view(_WITHOUT_UTF8.get(values.type, values.type))
        values.validate(full=True)  # Arrow would follow wrong offsets out of the buffer
        return (
            self._plain(values.take(array.indices)) if encoded else values.cast(pa.large_binary())
        )

    def _validity(
        self, arrays: Sequence[Any], place: Placing
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return validity bytes and the first bit of each batch (-1: all rows are valid)."""
        if not any(array.null_count for array in arrays):
            return None
        if self._decoded:
            valid = self._plain(arrays[0]).is_valid().to_numpy(zero_copy_only=False)
            return np.packbits(valid, bitorder="little"), _int64([0])
        raw, first = np.empty(0, np.uint8), []
        for array in map(self._plain, arrays):
            if array.null_count:
                raw, base = place(array.buffers()[0])
                first.append(8 * base + array.offset)
            else:
                first.append(-1)
        return raw, _int64(first)

    def _inner_nulls(self, arrays: Sequence[Any]) -> np.ndarray | None:
        if not any(array.null_count for array in arrays):
            return None
        if not self._decoded:
            raise NotMapped
        null = arrays[0].is_null().to_numpy(zero_copy_only=False)
        return np.concatenate([[0], np.cumsum(null)])

    def _offsets(
        self, arrays: Sequence[Any], width: int, place: Placing
    ) -> tuple[np.ndarray, np.ndarray]:
        raw, shift = np.empty(0, np.uint8), []
        for array in arrays:
            holder, base = place(array.buffers()[1])
            if base % width:
                raise NotMapped
            raw = holder if holder.size else raw
            shift.append(base // width + array.offset)
        entries = raw[: raw.size // width * width].view(np.dtype(f"int{8 * width}"))
        return entries, _int64(shift)

    def _leaf(self, arrays: Sequence[Any], place: Placing) -> None:
        kind = arrays[0].type
        self._text = _is_text(kind) or pa.types.is_fixed_size_binary(kind)
        self._bits = pa.types.is_boolean(kind) and not self._decoded
        self._dtype = np.dtype(np.uint8 if self._text else self.field.dtype)
        self._entries: np.ndarray | None = None
        self._width = 1
        if self._bits and self.field.ragged_dims:
            raise NotMapped
        if pa.types.is_boolean(kind) and self._decoded:
            values = arrays[0].fill_null(False).to_numpy(zero_copy_only=False).view(np.uint8)
            self._raw, self._first = values, _int64([0])
            return
        if _is_text(kind):
            large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
            self._entries, self._shift = self._offsets(arrays, 8 if large else 4, place)
            buffers = [array.buffers()[2] for array in arrays]
            self._limit = _int64(buffer.size if buffer else 0 for buffer in buffers)
            offsets = [0] * len(arrays)
        else:
            self._width = kind.byte_width if self._text else self._dtype.itemsize
            buffers = [array.buffers()[1] for array in arrays]
            offsets = [array.offset for array in arrays]
        placed = [place(buffer) for buffer in buffers]
        self._raw = next((raw for raw, _ in placed if raw.size), np.empty(0, np.uint8))
        unit = 8 if self._bits else 1  # the first bit, or the first byte
        step = 1 if self._bits else self._width
        self._first = _int64(
            base * unit + offset * step for (_, base), offset in zip(placed, offsets, strict=True)
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def read(self, batch: Batch, rows: Rows) -> StoredRows:
        """Return rows of a batch, or one row of each of several (then both are arrays)."""
        shape = self.field.shape
        if isinstance(rows, slice) and isinstance(batch, int) and self._valid is None:
            if not self.field.ragged_dims and not self._text and not self._bits:
                if self._leaf_nulls is None:
                    return StoredRows(self._view(batch, rows.start, rows.stop))
            elif shape == () and self._entries is not None:
                return self._plain_texts(batch, rows)
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        missing = self._missing(batch, index)
        unsound: list[tuple[np.ndarray, str]] = []
        extents: list[np.ndarray] = []
        count = np.ones(len(index), np.int64)
        for level in self._levels:
            _note_nulls(level.nulls, index, count, unsound)
            if level.size is not None:
                index = (index + level.shift[batch]) * level.size
                extents.append(np.full(len(index), level.size, np.int64))
            else:
                index, lengths = _descend(level, batch, index, count, unsound)
                extents.append(lengths)
            count = count * extents[-1]
        _note_nulls(self._leaf_nulls, index, count, unsound)
        if self._text:
            column = self._texts(batch, index, count, extents, unsound)
        else:
            column = self._numbers(batch, index, extents)
        return StoredRows(column, missing, tuple(unsound))

    def _view(self, batch: int, start: int, stop: int) -> np.ndarray:
        n = stop - start
        for level in self._levels:
            by, size = int(level.shift[batch]), level.size or 0
            start, stop = (start + by) * size, (stop + by) * size
        first = int(self._first[batch])
        raw = self._raw[first + start * self._width : first + stop * self._width]
        values: np.ndarray = raw.view(self._dtype)
        return values.reshape(n, *(d or 0 for d in self.field.shape))

    def _plain_texts(self, batch: int, rows: slice) -> StoredRows:
        assert self._entries is not None
        shift = int(self._shift[batch])
        bounds = self._entries[shift + rows.start : shift + rows.stop + 1].astype(np.int64)
        lengths = np.diff(bounds)
        limit = int(self._limit[batch])
        if len(lengths) and (lengths.min() < 0 or bounds[0] < 0 or bounds[-1] > limit):
            wrong, begin, lengths = _confined(bounds[:-1], lengths, limit)
            return StoredRows(Strings(self._raw, begin, lengths), None, ((wrong, _OUTSIDE),))
        return StoredRows(Strings(self._raw, bounds[:-1] + int(self._first[batch]), lengths))

    def _missing(self, batch: Batch, index: np.ndarray) -> np.ndarray | None:
        if self._valid is None:
            return None
        raw, first = self._valid
        begin = np.broadcast_to(first[batch], index.shape)
        missing = ~_bits_at(raw, np.where(begin < 0, 0, begin + index))
        missing[begin < 0] = False
        return missing

    def _numbers(self, batch: Batch, index: np.ndarray, extents: list[np.ndarray]) -> Column:
        varying = self.field.ragged_dims
        inner = tuple(d for d in self.field.shape[varying:] if d is not None)
        if self._bits:
            first = np.broadcast_to(self._first[batch], index.shape) + index
            return _bits_at(self._raw, first[:, None] + np.arange(prod(inner))).reshape(
                len(index), *inner
            )
        starts = self._first[batch] + index * self._width
        if not varying:
            return rows_of_items(self._raw, starts, self._dtype, inner)
        by_row = np.stack(extents[:varying], axis=1)
        return Ragged(self._raw, self._dtype, starts, by_row, inner)

    def _texts(
        self,
        batch: Batch,
        index: np.ndarray,
        count: np.ndarray,
        extents: list[np.ndarray],
        unsound: list[tuple[np.ndarray, str]],
    ) -> Column:
        n, varying = len(index), self.field.ragged_dims
        inner = tuple(d for d in self.field.shape[varying:] if d is not None)
        leaves = ranges(index, count)
        of = batch if isinstance(batch, int) else np.repeat(batch, count)
        if self._entries is None:
            begin = leaves * self._width
            lengths = np.full(len(leaves), self._width, np.int64)
        else:
            at = self._shift[of] + leaves
            begin = self._entries[at].astype(np.int64)
            lengths = self._entries[at + 1] - begin
            wrong, begin, lengths = _confined(begin, lengths, self._limit[of])
            if wrong.any():
                rows = np.zeros(n, bool)
                rows[np.repeat(np.arange(n), count)[wrong]] = True
                unsound.append((rows, _OUTSIDE))
        strings = Strings(self._raw, self._first[of] + begin, lengths)
        if not varying:
            return strings.reshape(n, *inner)
        by_row = np.stack(extents[:varying], axis=1)
        return Ragged(strings, strings.dtype, np.cumsum(count) - count, by_row, inner)


_OUTSIDE = "an offset of it points outside of its buffer: the file is damaged"
_IRREGULAR = "its inner lists differ in length, so that the row is no array"
_NULL_WITHIN = "it holds a null within a list; only whole values can be missing"


def _descend(
    level: _Level,
    batch: Batch,
    index: np.ndarray,
    count: np.ndarray,
    unsound: list[tuple[np.ndarray, str]],
) -> tuple[np.ndarray, np.ndarray]:
    """First child and number of children per element, for ``count`` equal elements per row."""
    at = level.shift[batch] + index
    begin = level.entries[at].astype(np.int64)
    lengths = level.entries[np.where(count > 0, at + 1, at)] - begin
    if (count > 1).any():
        each = ranges(at, count)
        row = np.repeat(np.arange(len(index)), count)
        differs = level.entries[each + 1] - level.entries[each] != lengths[row]
        irregular = np.bincount(row[differs], minlength=len(index)) > 0
        if irregular.any():
            unsound.append((irregular, _IRREGULAR))
            lengths = np.where(irregular, 0, lengths)
    wrong, begin, _ = _confined(begin, lengths * count, level.children[batch])
    if wrong.any():
        unsound.append((wrong, _OUTSIDE))
        lengths = np.where(wrong, 0, lengths)
    return begin, lengths


def _confined(
    begin: np.ndarray, lengths: np.ndarray, limit: np.ndarray | int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a mask of stretches outside 0 … limit, and all stretches with those made empty."""
    wrong = (begin < 0) | (lengths < 0) | (begin + lengths > limit)
    if not wrong.any():
        return wrong, begin, lengths
    return wrong, np.where(wrong, 0, begin), np.where(wrong, 0, lengths)


def _note_nulls(
    before: np.ndarray | None,
    index: np.ndarray,
    count: np.ndarray,
    unsound: list[tuple[np.ndarray, str]],
) -> None:
    if before is not None:
        holds = before[index + count] > before[index]
        if holds.any():
            unsound.append((holds, _NULL_WITHIN))


def _bits_at(raw: np.ndarray, bit: np.ndarray) -> np.ndarray:
    picked: np.ndarray = (raw[bit >> 3] >> (bit & 7).astype(np.uint8)) & 1
    return picked.view(np.bool_)


def _int64(values: Any) -> np.ndarray:
    return np.array(list(values), np.int64)


def _own(buffer: Any) -> tuple[np.ndarray, int]:
    return (np.frombuffer(buffer, np.uint8) if buffer else np.empty(0, np.uint8)), 0


class DecodedColumn:
    """A column of one array, copied where it must be decoded."""

    def __init__(self, array: Any) -> None:
        if isinstance(array, pa.ChunkedArray):
            array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
        self._column = ArrowColumn([array], _own, decoded=True)
        self.field = self._column.field

    def read(self, rows: Rows) -> StoredRows:
        return self._column.read(0, rows)
