"""Arrow arrays as columns, without copying payload.

    list ─► list ─► fixed_size_list ─► numbers | bits | strings
    each level: where the children of an element lie, by two offsets or by a fixed number

A column covers many record batches at once: per batch it knows only where each buffer begins, so
rows of any batches are found by one computation over their numbers.  That needs all buffers in
one mapped range (``MappedFiles``).  Where they are not (compressed files, Parquet), and for what
Arrow encodes further (dictionaries, nulls within lists, lists of bits), a column is built from
one decoded array.

pyarrow reads the files and gives the buffers.  Its ``take`` does not serve here: it copies lists,
and joins all batches first, which costs hundreds of times as much for rows of many batches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, rewording
from headrace_proto.schema import Field

from ....files.extras import require
from ...column_parts import BatchNumbers, StoredRows
from ...columns import (
    Column,
    Ragged,
    Rows,
    Strings,
    inner_dims,
    numbers_of,
    ranges,
    rows_of_items,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
else:
    pa = require("pyarrow", "server", "reading of Arrow and Parquet files")

#: Rows that break a rule, by a mask, and the rule.
Unsound = list[tuple[np.ndarray, str]]

#: Types of text as types of bytes: text in a file need not be UTF-8.
_WITHOUT_UTF8 = {
    pa.string(): pa.binary(),
    pa.large_string(): pa.large_binary(),
    pa.string_view(): pa.binary_view(),
}


_TEXT = {*_WITHOUT_UTF8, *_WITHOUT_UTF8.values()}

#: The errors of Arrow for what it can not read.
_FAULTS = (pa.ArrowException, OSError, IndexError, UnicodeDecodeError)


#: Returns an array of bytes that contains a buffer, and the byte at which the buffer begins.
Placing = Callable[[pa.Buffer], tuple[np.ndarray, int]]


class NotMapped(Exception):
    """A buffer lies outside the mapped files, or must be decoded before it can be read."""


def naming(where: str) -> AbstractContextManager[None]:
    """Raise a fault that Arrow finds as a DataError that begins with ``where``."""
    return rewording(DataError, f"{where}: ", *_FAULTS, but=(DataError,))


def stored_field(kind: pa.DataType) -> Field:
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
    if kind in _TEXT or pa.types.is_fixed_size_binary(kind):
        return Field(dtypes.BYTES)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return Field(dtypes.canonical(np.dtype(kind.to_pandas_dtype())))
    raise TypeError(f"has the Arrow type {kind}, which is no number, string or list of them")


def fields_of_schema(
    file: str, schema: pa.Schema, names: Collection[str] | None
) -> dict[str, Field]:
    """Return fields of an Arrow schema (``names`` None: of all its columns)."""
    fields = {}
    for entry in schema:
        if names is not None and (entry.name not in names or pa.types.is_null(entry.type)):
            continue  # a column of nulls only is ignored
        if entry.name in fields:
            raise DataError(f"{file}: two columns are named {entry.name!r}; rename one")
        try:
            fields[entry.name] = stored_field(entry.type)
        except TypeError as error:
            raise DataError(
                f"{file}, column {entry.name!r}: it {error}; declare the features without it, or "
                "write it otherwise"
            ) from None
    return fields


@dataclass(slots=True)
class _Level:
    """One level of lists, or strings of bytes.  Element e of batch b is at ``shift[b] + e``."""

    shift: np.ndarray  # int64 [batches]
    size: int | None = None  # number of children of each element; None: by ``entries``
    #: int32 | int64, the offsets of all batches, from shift[b] on, and the children of each batch.
    entries: Any = field(default_factory=lambda: _int64([]))
    children: np.ndarray = field(default_factory=lambda: _int64([]))

    def descend(
        self, batch: BatchNumbers, index: np.ndarray, count: np.ndarray | None, unsound: Unsound
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return first child and number of children per element.

        ``count``: the number of equal elements per row (None: one).
        """
        at = self.shift[batch] + index
        if self.size is not None:
            return at * self.size, np.full(len(index), self.size, np.int64)
        begin = self.entries[at].astype(np.int64)
        after = at + 1 if count is None else np.where(count > 0, at + 1, at)
        lengths = self.entries[after] - begin
        if count is not None and (count > 1).any():
            each = ranges(at, count)
            row = np.repeat(np.arange(len(index)), count)
            differs = self.entries[each + 1] - self.entries[each] != lengths[row]
            irregular = np.bincount(row[differs], minlength=len(index)) > 0
            if irregular.any():
                unsound.append((irregular, _IRREGULAR))
                lengths = np.where(irregular, 0, lengths)
        room = self.children[batch] - begin  # a sum with damaged offsets may be beyond 64 bits
        wrong = (begin < 0) | (lengths < 0) | (lengths > room)
        if count is not None:
            wrong |= lengths * count > room
        if wrong.any():
            unsound.append((wrong, _OUTSIDE))
            begin, lengths = np.where(wrong, 0, begin), np.where(wrong, 0, lengths)
        return begin, lengths


def _own(buffer: pa.Buffer | None) -> tuple[np.ndarray, int]:
    return (np.frombuffer(buffer, np.uint8) if buffer else np.empty(0, np.uint8)), 0


class ArrowColumn:
    """One column of one or many record batches."""

    def __init__(
        self, arrays: Sequence[pa.Array], place: Placing = _own, decoded: bool = True
    ) -> None:
        """``decoded``: there is one batch, of which parts may be decoded."""
        self.field = stored_field(arrays[0].type)
        self._decoded = decoded
        self._levels: list[_Level] = []
        self._nulls: list[np.ndarray | None] = []  # by level, and of the leaves: see _inner_nulls
        below = [self._plain(array) for array in arrays]
        self._valid = self._validity(below, place)
        while True:
            self._nulls.append(self._inner_nulls(below) if self._levels else None)
            kind = below[0].type
            if pa.types.is_fixed_size_list(kind):
                shift = _int64(array.offset for array in below)
                self._levels.append(_Level(shift, kind.list_size))
            elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
                width = 8 if pa.types.is_large_list(kind) else 4
                children = _int64(len(array.values) for array in below)
                self._levels.append(self._offsets(below, width, place, children))
            else:
                break
            below = [self._plain(array.values) for array in below]
        self._leaf(below, place)

    # ── building ────────────────────────────────────────────────────────────────────────────

    def _plain(self, array: pa.Array) -> pa.Array:
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
        self, arrays: Sequence[pa.Array], place: Placing
    ) -> tuple[Any, np.ndarray] | None:
        """Return validity bytes and the first bit of each batch (-1: all rows are valid)."""
        if not any(array.null_count for array in arrays):
            return None
        raw, first = np.empty(0, np.uint8), []
        for array in arrays:
            if array.null_count:
                raw, base = place(array.buffers()[0])
                first.append(8 * base + array.offset)
            else:
                first.append(-1)
        return raw, _int64(first)

    def _inner_nulls(self, arrays: Sequence[pa.Array]) -> np.ndarray | None:
        """Return how many nulls come before each element; of decoded arrays only."""
        if not any(array.null_count for array in arrays):
            return None
        if not self._decoded:
            raise NotMapped
        null = arrays[0].is_null().to_numpy(zero_copy_only=False)
        return np.concatenate([[0], np.cumsum(null)])

    def _offsets(
        self, arrays: Sequence[pa.Array], width: int, place: Placing, children: np.ndarray
    ) -> _Level:
        raw, shift = np.empty(0, np.uint8), []
        for array in arrays:
            holder, base = place(array.buffers()[1])
            if base % width:
                raise NotMapped
            raw = holder if holder.size else raw
            shift.append(base // width + array.offset)
        entries = raw[: raw.size // width * width].view(np.dtype(f"int{8 * width}"))
        return _Level(_int64(shift), None, entries, children)

    def _leaf(self, arrays: Sequence[pa.Array], place: Placing) -> None:
        kind = arrays[0].type
        self._text: _Level | None = None  # of strings: their bytes are the leaves
        self._bits = pa.types.is_boolean(kind) and not self._decoded
        if self._bits and self.field.ragged_dims:
            raise NotMapped
        offsets = [array.offset for array in arrays]
        buffers = [array.buffers()[-1] for array in arrays]
        if kind in _TEXT:
            large = kind in (pa.large_string(), pa.large_binary())
            sizes = _int64(buffer.size if buffer else 0 for buffer in buffers)
            self._text = self._offsets(arrays, 8 if large else 4, place, sizes)
            offsets = [0] * len(arrays)
        elif pa.types.is_fixed_size_binary(kind):
            self._text = _Level(_int64(offsets), kind.byte_width)
            offsets = [0] * len(arrays)
        elif pa.types.is_boolean(kind) and self._decoded:
            values = arrays[0].fill_null(False).to_numpy(zero_copy_only=False)
            buffers, offsets = [pa.py_buffer(values.view(np.uint8))], [0]
        self._dtype = np.dtype(self.field.dtype if self._text is None else np.uint8)
        placed = [place(buffer) for buffer in buffers]
        self._raw = next((raw for raw, _ in placed if raw.size), np.empty(0, np.uint8))
        # The first bit, or the first byte.
        unit, step = (8, 1) if self._bits else (1, self._dtype.itemsize)
        self._first = _int64(
            base * unit + offset * step for (_, base), offset in zip(placed, offsets, strict=True)
        )
        #: Numbers of a fixed shape in memory, without nulls.
        self._dense = not (
            self._bits
            or self._text
            or self.field.ragged_dims
            or self._valid
            or any(nulls is not None for nulls in self._nulls)
        )

    # ── reading ─────────────────────────────────────────────────────────────────────────────

    def read(self, batch: BatchNumbers, rows: Rows) -> StoredRows:
        if self._dense and isinstance(rows, slice) and isinstance(batch, int):
            return StoredRows(self._adjacent(batch, rows), None, ())
        index = numbers_of(rows)
        missing = self._missing(batch, index)
        unsound: Unsound = []
        extents: list[np.ndarray] = []
        count = np.ones(len(index), np.int64)
        for level, nulls in zip(self._levels, self._nulls, strict=False):
            _note_nulls(nulls, index, count, unsound)
            index, lengths = level.descend(batch, index, count, unsound)
            extents.append(lengths)
            count = count * lengths
        _note_nulls(self._nulls[-1], index, count, unsound)
        if self._text is None:
            column = self._numbers(batch, index, extents)
        else:
            column = self._texts(batch, index, count, extents, unsound)
        return StoredRows(column, missing, tuple(unsound))

    def _missing(self, batch: BatchNumbers, index: np.ndarray) -> np.ndarray | None:
        if self._valid is None:
            return None
        raw, first = self._valid
        begin = np.broadcast_to(first[batch], index.shape)
        missing = ~_bits_at(raw, np.where(begin < 0, 0, begin + index))
        missing[begin < 0] = False
        return missing

    def _adjacent(self, batch: int, rows: slice) -> np.ndarray:
        """Return adjacent rows of a dense column, as a view."""
        index, shape = rows.start, (rows.stop - rows.start, *self.field.shape)
        for level in self._levels:
            index = (int(level.shift[batch]) + index) * level.size
        start = int(self._first[batch]) + index * self._dtype.itemsize
        values: np.ndarray = self._raw[start : start + prod(shape) * self._dtype.itemsize]
        return values.view(self._dtype).reshape(shape)

    def _numbers(self, batch: BatchNumbers, index: np.ndarray, extents: list[np.ndarray]) -> Column:
        varying, inner = self.field.ragged_dims, inner_dims(self.field)
        if self._bits:
            first = np.broadcast_to(self._first[batch], index.shape) + index
            bits = _bits_at(self._raw, first[:, None] + np.arange(prod(inner)))
            return bits.reshape(len(index), *inner)
        starts = self._first[batch] + index * self._dtype.itemsize
        if not varying:
            return rows_of_items(self._raw, starts, self._dtype, inner)
        return Ragged(self._raw, self._dtype, starts, np.stack(extents[:varying], axis=1), inner)

    def _texts(
        self,
        batch: BatchNumbers,
        index: np.ndarray,
        count: np.ndarray,
        extents: Any,
        unsound: Unsound,
    ) -> Column:
        assert self._text is not None
        n, varying, inner = len(index), self.field.ragged_dims, inner_dims(self.field)
        broken: Unsound = []
        of = batch if isinstance(batch, int) else np.repeat(batch, count)
        begin, lengths = self._text.descend(of, ranges(index, count), None, broken)
        for wrong, rule in broken:
            rows = np.zeros(n, bool)
            rows[np.repeat(np.arange(n), count)[wrong]] = True
            unsound.append((rows, rule))
        strings = Strings(self._raw, self._first[of] + begin, lengths)
        if not varying:
            return strings.reshape(n, *inner)
        by_row = np.stack(extents[:varying], axis=1)
        return Ragged(strings, strings.dtype, np.cumsum(count) - count, by_row, inner)


_OUTSIDE = "an offset of it points outside of its buffer: the file is damaged"
_IRREGULAR = "its inner lists differ in length, so that the row is no array"
_NULL_WITHIN = "it holds a null within a list; only whole values can be missing"


def _note_nulls(
    before: np.ndarray | None, index: np.ndarray, count: np.ndarray, unsound: Unsound
) -> None:
    if before is not None:
        holds = before[index + count] > before[index]
        if holds.any():
            unsound.append((holds, _NULL_WITHIN))


def _bits_at(raw: Any, bit: np.ndarray) -> np.ndarray:
    picked: np.ndarray = (raw[bit >> 3] >> (bit & 7).astype(np.uint8)) & 1
    return picked.view(np.bool_)


def _int64(values: Iterable[int]) -> np.ndarray:
    return np.array(list(values), np.int64)


def decoded_column(array: pa.Array | pa.ChunkedArray) -> ArrowColumn:
    """Return a column of one array, copied where it must be decoded."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    return ArrowColumn([array])
