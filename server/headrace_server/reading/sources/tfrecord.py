"""TFRecord files of tf.train.Example or SequenceExample, without TensorFlow.

    uncompressed   IndexedSource: every file is mapped, its frames are indexed once
    compressed     StreamSource: one stream per file, a position is (record, decompressed byte)

Framing is checked when a file is indexed, the checksum of a payload when the record is first read;
neither is checked again.  Damage that ends a file (cut off, or a length that is wrong) is reported
when the file is opened, and with ``on_bad_example='skip'`` the rest of the file is left out.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Final, NamedTuple

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, near

from ...files.extras import require
from ...files.manifest import DataFile, open_stream
from ...files.mapped_files import MappedFiles
from ...pipeline.declaration import Feature, Plain
from ..chunk import BadRecords, Chunk, Faults, Origin, without
from ..columns import (
    Column,
    Ragged,
    Rows,
    Strings,
    column_from_rows,
    column_of,
    concatenate,
    defaults_of,
    gather,
    numbers_of,
    ranges,
    repeated,
    take,
    window,
)
from ..example_rows import Place, Record, Records, Row, Streams
from ..forward_files import Compression, Damaged, compression_of, open_forward
from ..source import IndexedSource, Opening, PartsReader, Source, StreamSource

# ── The framing of a TFRecord file: where each record lies, and its checksums.
#
#     u64 length | u32 crc(length) | payload | u32 crc(payload)        little-endian, crc32c, masked
#
# A file is walked once: the walk checks lengths and their checksums, and the result is one array of
# frame bounds.  A wrong length can not be stepped over (nothing in the format marks the next
# frame), so it ends the usable part of the file: the index then names the damage instead of
# raising, and the records before it stay readable.  Payload checksums are checked when a record is
# first read.


crc32c = require("google_crc32c", "server", "read_tfrecord")

HEAD: Final = 12
FOOT: Final = 4
#: Maximum length of a protobuf message; a greater length is damage, even with a right checksum.
MAX_RECORD_BYTES: Final = 2**31 - 1

CORRUPT: Final = 1
TRUNCATED: Final = 2

_HEADER, _LENGTH = struct.Struct("<QI"), struct.Struct("<Q")
_MASK_DELTA: Final = 0xA282EAD8
#: Number of records after which a scan reports how far it has come.
_REPORTED = 65536


@lru_cache(_REPORTED)  # records of equal lengths have equal headers
def length_is_sound(header: bytes) -> bool:
    """Return whether the first 12 bytes of a frame hold a length with its checksum."""
    length, crc = _HEADER.unpack(header)
    return bool(crc == _masked(crc32c.value(header[:8])) and length <= MAX_RECORD_BYTES)


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def scan(data: np.ndarray, progress: Callable[[int], None] = lambda done: None) -> np.ndarray:
    """Return the bounds of the frames of a whole file (uint8), and its damage: 0, or the number.

    Frame i is bound i … bound i + 1; at the last bound the damage begins, if any.  ``progress`` is
    called now and then with the number of bytes scanned.
    """
    view, size = data.data, data.size
    bounds = array("q")
    position, damage = 0, 0
    while size - position >= HEAD:
        head = bytes(view[position : position + HEAD])
        if not length_is_sound(head):
            damage = CORRUPT
            break
        stop = position + int.from_bytes(head[:8], "little") + HEAD + FOOT
        if stop > size:
            damage = TRUNCATED
            break
        bounds.append(position)
        position = stop
        if len(bounds) % _REPORTED == 0:
            progress(position)
    else:
        damage = TRUNCATED if position < size else 0
    bounds.extend((position, damage))
    return np.array(bounds, np.int64)


def bad_payloads(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the rows whose payload does not match its checksum."""
    stored = window(data, FOOT)[starts + lengths].view("<u4") - np.uint32(_MASK_DELTA)
    expected = (stored >> np.uint32(17)) | (stored << np.uint32(15))
    payloads = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    got = np.fromiter((crc32c.value(data[a:b]) for a, b in payloads), np.uint32, starts.size)
    return np.flatnonzero(got != expected)


# ── Walks the messages of all records at once, and finds the places of the wanted values.
#
#     Example          1: Features
#     SequenceExample  1: Features (context)   2: FeatureLists
#     Features         1: map entry { 1: name  2: Feature }   repeated
#     FeatureLists     1: map entry { 1: name  2: FeatureList }   repeated
#     FeatureList      1: Feature   repeated, one per step
#     Feature          one of  1: BytesList   2: FloatList   3: Int64List
#     …List            1: value   repeated; numbers packed or one by one
#
# It goes down one level of messages after the other, and reads the next field of all messages of a
# level by one computation: 0.1 µs for each.  It decodes no value.  As in any protobuf reader, later
# fields win over earlier ones of the same name, lists in several pieces are joined, and unknown
# fields are skipped.


BYTES: Final = 1
FLOATS: Final = 2
INTS: Final = 3
KIND_NAMES: Final = ("no value", "bytes_list", "float_list", "int64_list")

#: Bytes of the longest number of 64 bits, 7 in each.
MOST_BYTES: Final = 10
#: The tag of a number that is not packed, by kind, and the sizes of fields by wire type (-1: none).
_SINGLE: Final = np.array([-1, -1, 0x0D, 0x08])
_SIZES: Final = np.array([0, 8, 0, -1, -1, 4, -1, -1])
#: Number of fields of a message from which on fields of equal headers are read at once, so many of
#: each message, and more where that succeeds.
_MANY: Final = 4
_AT_ONCE: Final = 8
_BEYOND: Final = 1 << 62  # more bytes than there are


class Messages(NamedTuple):
    """Messages, or other stretches of records: the row of the record, first and last byte of each.

    They are in the order of their records, and of their places there.
    """

    row: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def take(self, which: np.ndarray) -> Messages:
        return Messages(self.row[which], self.begin[which], self.end[which])


def _numbers_at(
    data: np.ndarray, at: np.ndarray, lengths: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the varints at some bytes, and the bytes after them.

    Those after a varint without an end are beyond all data.  Of ``lengths`` one that has more than
    64 bits is -1; any other number loses the bits above these.
    """
    byte = data.take(at, mode="clip")
    values, after = byte.astype(np.int64), at + 1
    goes_on = np.flatnonzero(byte >= 0x80)
    values[goes_on] &= 0x7F
    for k in range(1, MOST_BYTES):
        if not goes_on.size:
            break
        more = data.take(at[goes_on] + k, mode="clip").astype(np.int64)
        values[goes_on] |= (more & 0x7F) << 7 * k
        if lengths and k == MOST_BYTES - 1:
            values[goes_on[more > 1]] = -1
        after[goes_on] += 1
        goes_on = goes_on[more >= 0x80]
    after[goes_on] = _BEYOND
    return values, after


class FoundValues(NamedTuple):
    """Features of records: the wanted feature (by its slot), kind and number of steps of each.

    There are steps where they come from feature_lists, else -1.  ``odd`` is the number of values of
    a step that has not as many as are wanted, -1 where all have.  ``of`` is the feature of each
    span, in ascending order.
    """

    row: np.ndarray
    slot: np.ndarray
    kind: np.ndarray
    steps: np.ndarray
    odd: np.ndarray
    of: np.ndarray
    begin: np.ndarray
    size: np.ndarray


class Walker:
    """Walks the records that lie in ``data``, and notes the faults of those that are unsound."""

    def __init__(self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> None:
        self._data, self._starts = data, starts
        self.faults: Faults = {}
        self._names: list[Messages] = []
        rows = np.arange(starts.size)
        _, self._tags, self._maps = self._fields(Messages(rows, starts, starts + lengths))
        self.has_lists = bool((self._tags == 0x12).any())

    def _report(self, wrong: np.ndarray, rows: np.ndarray, text: str, *places: np.ndarray) -> None:
        """Note faults; the text gets the number of bytes from the record's start to each place."""
        for i in np.flatnonzero(wrong).tolist():
            row = int(rows[i])
            said = text.format(*(int(place[i] - self._starts[row]) for place in places))
            fault = f"is no tf.train.Example or SequenceExample: {said} of the record"
            self.faults.setdefault(row, ("corrupt_record", fault))

    def _fields(self, inside: Messages) -> tuple[np.ndarray, np.ndarray, Messages]:
        """Return the fields of messages: the message of each, its tag, and its content."""
        data, found, at_once = self._data, [], _AT_ONCE
        of = np.flatnonzero(inside.begin < inside.end)
        at, stop = inside.begin[of], inside.end[of]
        while of.size:
            tag, begin, strange = data.take(at, mode="clip"), at + 1, np.False_
            if not ((tag >= 8) & (tag < 0x80)).all():  # fields of large numbers, or of none
                tag, begin = _numbers_at(data, at)
                strange = (tag >> 3 == 0) | ((tag < 0x80) & (begin > at + 1))
            size, after = _numbers_at(data, begin, lengths=True)
            wire = tag & 7
            if not (listed := wire == 2).all():
                size = np.where(listed, size, np.where(wire == 0, after - begin, _SIZES[wire]))
                after = np.where(listed, after, begin)
            begin, end = after, after + size
            wrong = strange | (size < 0) | (size > stop - begin)
            if wrong.any():  # the first text of each record counts
                rows, out = inside.row[of], begin > stop
                text = "the field at byte {} goes past the end of its message, or past the end"
                self._report(wrong & out, rows, text, at)
                self._report(wrong & strange, rows, "no field begins at byte {}", at)
                text = "the field at byte {} has no wire type"
                self._report(wrong & (_SIZES[wire] < 0), rows, text, at)
                text = "a field of {} bytes at byte {} goes past byte {}"
                length = size + self._starts[rows]
                self._report(wrong, rows, text, length, begin, stop)
                of, tag, wire, at, stop, begin, end = (
                    some[~wrong] for some in (of, tag, wire, at, stop, begin, end)
                )
            found.append((of, tag, begin, end))
            if len(found) > _MANY and of.size:
                count, at_once = self._alike(at, begin, end, stop, wire, at_once)
                each, by = np.repeat(np.arange(of.size), count), (end - at)
                shift = ranges(np.ones_like(count), count) * by[each]
                found.append((of[each], tag[each], begin[each] + shift, end[each] + shift))
                end = end + count * by
            more = end < stop
            of, at, stop = of[more], end[more], stop[more]
        if not found:
            none = np.empty(0, np.int64)
            return none, none, Messages(none, none, none)
        of, tag, begin, end = (
            found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        )
        if len(found) > 1:
            order = np.argsort(of, kind="stable")
            of, tag, begin, end = of[order], tag[order], begin[order], end[order]
        return of, tag, Messages(inside.row[of], begin, end)

    def _alike(
        self,
        at: np.ndarray,
        begin: np.ndarray,
        end: np.ndarray,
        stop: np.ndarray,
        wire: np.ndarray,
        most: int,
    ) -> tuple[np.ndarray, int]:
        """Return how many fields of the same header follow each field, and how many to try next."""
        width, head = end - at, begin - at
        size = int(head[0])
        count = np.minimum((stop - end) // width, most)
        count[(wire == 0) | (head != size)] = 0  # a varint shows its size nowhere else
        each = np.repeat(np.arange(at.size), count)
        there = at[each] + ranges(np.ones_like(count), count) * width[each]
        headers = window(self._data, size)
        differs = headers[there] != headers[np.where(count, at, 0)][each]
        other, before = np.flatnonzero(differs), np.cumsum(count) - count
        first = np.append(other, each.size)[np.searchsorted(other, before)]
        return np.minimum(first - before, count), 4 * most if not other.size else _AT_ONCE

    def found(self, wanted: Mapping[bytes, int], listed: bool, counts: np.ndarray) -> FoundValues:
        """Return the features of names; ``wanted`` has the slot of each.

        ``listed``: those in feature_lists, whose steps have ``counts`` values, by slot.
        """
        _, tags, entries = self._fields(self._maps.take(self._tags == (0x12 if listed else 0x0A)))
        entries = entries.take(tags == 0x0A)
        of, tags, parts = self._fields(entries)
        slots = self._slots(wanted, entries, of[tags == 0x0A], parts.take(tags == 0x0A))
        values = (tags == 0x12) & (slots[of] >= 0)
        of, parts = of[values], parts.take(values)
        odd = steps = np.full(slots.size, -1)
        if listed:
            inside, tags, parts = self._fields(parts)
            of, parts = of[inside][tags == 0x0A], parts.take(tags == 0x0A)
            steps = np.bincount(of, minlength=slots.size)
            kind, step, spans = self._features(np.arange(of.size), parts)
            first = (np.cumsum(steps) - steps)[of]
            self._check_steps(kind, np.arange(of.size) - first, kind[first], parts.row)
            width = self._widths(kind, step, spans)
            odd, wrong = odd.copy(), np.flatnonzero(width != counts[slots[of]])
            order = wrong[np.argsort(-width[wrong], kind="stable")]
            odd[of[order]] = width[order]  # the least
            kinds = np.zeros(slots.size, np.int64)
            kinds[of] = kind
            kind, of = kinds, of[step]
        else:
            kind, of, spans = self._features(of, parts, slots.size)
        sizes = spans.end - spans.begin
        return FoundValues(entries.row, slots, kind, steps, odd, of, spans.begin, sizes)

    def _slots(
        self, wanted: Mapping[bytes, int], entries: Messages, of: np.ndarray, names: Messages
    ) -> np.ndarray:
        """Return the slots of entries of maps by their names, -1 where they are not wanted."""
        begin, size = entries.begin.copy(), np.zeros_like(of, shape=entries.row.size)
        begin[of], size[of] = names.begin, names.end - names.begin  # the last name counts
        self._names.append(Messages(entries.row, begin, begin + size))
        slots = np.full(size.size, -1)
        for name, slot in wanted.items():
            alike = np.flatnonzero(size == len(name))
            if name:
                found = window(self._data, len(name))[begin[alike]].view(np.uint8)
                same = found.reshape(-1, len(name)) == np.frombuffer(name, np.uint8)
                alike = alike[same.all(axis=1)]
            slots[alike] = slot
        return slots

    def _features(
        self, of: np.ndarray, parts: Messages, n: int | None = None
    ) -> tuple[np.ndarray, np.ndarray, Messages]:
        """Return the kinds of n features, and the feature and the place of each span of values.

        ``of`` is the feature of each part.
        """
        inside, tags, lists = self._fields(parts)
        known = (tags == 0x0A) | (tags == 0x12) | (tags == 0x1A)
        of, kind, lists = of[inside][known], tags[known] >> 3, lists.take(known)
        kinds = np.zeros(parts.row.size if n is None else n, np.int64)
        kinds[of] = kind  # a oneof: the last kind set counts, and what was set after another one
        other = np.flatnonzero(kind != kinds[of])
        since = np.full(kinds.size, -1)
        since[of[other]] = other
        stays = np.arange(kind.size) > since[of]
        inside, tags, values = self._fields(lists)
        kind, size, packed = kind[inside], values.end - values.begin, tags == 0x0A
        text = "packed floats at byte {}, whose bytes are no multiple of 4,"
        self._report(packed & (kind == FLOATS) & (size % 4 != 0), values.row, text, values.begin)
        text = "packed numbers end in the middle of one at byte {}"
        cut = packed & (kind == INTS) & (size > 0) & (self._data[values.end - 1] >= 0x80)
        self._report(cut, values.row, text, values.end)
        spans = np.where(packed, (size > 0) | (kind == BYTES), tags == _SINGLE[kind])
        spans &= stays[inside]
        return kinds, of[inside[spans]], values.take(spans)

    def _check_steps(
        self, kind: np.ndarray, step: np.ndarray, first: np.ndarray, rows: np.ndarray
    ) -> None:
        for i in np.flatnonzero(kind != first).tolist():
            text = f"step {step[i]} holds {KIND_NAMES[kind[i]]} after steps of "
            self._report(np.arange(kind.size) == i, rows, text + KIND_NAMES[first[i]])

    def _widths(self, kind: np.ndarray, of: np.ndarray, spans: Messages) -> np.ndarray:
        """Return the number of values of each step; ``of`` is the step of each span."""
        sizes = spans.end - spans.begin
        counts = np.where(kind[of] == FLOATS, sizes // 4, 1)
        if (numbers := kind[of] == INTS).any():
            raw = gather(self._data, spans.begin[numbers], sizes[numbers])
            ends = np.append(0, np.cumsum(raw < 0x80))
            after = np.cumsum(sizes[numbers])
            counts[numbers] = ends[after] - ends[after - sizes[numbers]]
        return np.bincount(of, counts, kind.size).astype(np.int64)

    def names_in(self, row: int) -> list[str]:
        """Return the names of all features and feature lists of a record."""
        return [
            self._data[begin:end].tobytes().decode(errors="replace")
            for names in self._names
            for begin, end in zip(*names.take(names.row == row)[1:], strict=True)
        ]


def varints(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values (int64) of varints back to back, and the index of the last byte of each.

    The last byte must end a number.  Those of more than ``MOST_BYTES`` have an arbitrary value.
    """
    ends = np.flatnonzero(raw < 0x80)
    if ends.size == raw.size:
        return raw.astype(np.int64), ends
    starts = np.append(0, ends[:-1] + 1)
    return _numbers_at(raw, starts)[0], ends


# ── The wanted features of records, and the columns that their values become, by where they lie.
#
#     spans of records, in the order of the rows ─► column
#
# A span holds packed numbers, one number, or one string.  Strings, and packed floats of sequences
# that are wanted as float32, stay where they are: the column points into the buffer of the records.


_DTYPES: Final = {FLOATS: "a floating dtype", INTS: "an integer dtype"}
_FLOAT = np.dtype("<f4")
NO_NUMBERS = np.empty(0, np.int64)


class WantedFeature:
    """One wanted feature.  ``count`` values make a row, or one step of a sequence."""

    def __init__(self, name: str, feature: Feature) -> None:
        """Raise ValueError for a feature that TFRecord can not have."""
        self.name, self.field, self.shape = name, feature.field, feature.shape
        #: The dtype, None for byte strings.
        self.dtype = None if feature.dtype == dtypes.BYTES else dtypes.numpy_dtype(feature.dtype)
        if self.dtype is None:
            self.kind = BYTES
        elif self.dtype.kind == "c":
            raise ValueError(
                f"feature {name!r} has dtype {self.dtype}: TFRecord holds no complex numbers. "
                "Declare the parts as floats and join them in a map"
            )
        else:
            self.kind = INTS if self.dtype.kind in "iub" else FLOATS
        self.sequence, self.count = feature.kind == "sequence", prod(feature.shape)
        if self.sequence and not self.count:
            shape = list(feature.shape)
            raise ValueError(f"feature {name!r}: a step of shape {shape} holds nothing")
        #: A column of one row; None: the feature must be there.
        self.default = defaults_of({name: feature}).get(name)
        nothing = np.full([d or 0 for d in self.field.shape], b"" if self.dtype is None else 0)
        blank = column_from_rows([nothing.astype(self.dtype or object)], self.field)
        #: A column of one row, for records that do not have the feature.
        self.filling: Column = blank if self.default is None else self.default

    def unlike(self, kind: int) -> str:
        """Return the text of the fault of a record that holds values of another kind."""
        remedy = f". Declare it with {_DTYPES[kind]}" if kind in _DTYPES else ""
        if kind == BYTES:
            remedy = ". Declare it as bytes and decode it in a map"
        return (
            f"feature {self.name!r} holds {KIND_NAMES[kind]}, wanted {KIND_NAMES[self.kind]} for "
            f"dtype {self.dtype or 'bytes'}{remedy}"
        )

    def miscount(self, count: int, where: str = "") -> str:
        """Return the text of the fault of a record that has so many values."""
        wanted = f"a multiple of {self.count}" if self.sequence and not where else f"{self.count}"
        shape = list(self.shape)
        return (
            f"feature {self.name!r} has {count} values{where and ' ' + where}, wanted {wanted} for "
            + (f"steps of shape {shape}" if self.sequence else f"shape {shape}")
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Spans:
    """Spans of records, back to back; ``counts`` are those of each record."""

    rows: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray
    counts: np.ndarray

    def take(self, records: np.ndarray) -> _Spans:
        counts = self.counts[records]
        if self.single:
            return _Spans(self.rows[records], self.starts[records], self.sizes[records], counts)
        spans = ranges((np.cumsum(self.counts) - self.counts)[records], counts)
        return _Spans(self.rows[records], self.starts[spans], self.sizes[spans], counts)

    @property
    def single(self) -> bool:
        """Whether each record has one span."""
        return len(self.sizes) == len(self.rows) and bool(self.counts.all())

    def bytes_of_rows(self) -> np.ndarray:
        """Return the number of bytes in the spans of each record."""
        if self.single:
            return self.sizes
        before = np.concatenate([[0], np.cumsum(self.sizes)])
        ends = np.cumsum(self.counts)
        sizes: np.ndarray = before[ends] - before[ends - self.counts]
        return sizes


class Filler:
    """Makes a column of the spans of one feature in n records that lie in ``data``."""

    def __init__(self, want: WantedFeature, data: np.ndarray, n: int) -> None:
        self._want, self._data, self._n = want, data, n

    def finish(self, spans: _Spans, faults: Faults) -> Column:
        """Return the column.  Rows without spans hold the default, else anything."""
        want = self._want
        if not len(spans.rows):
            return repeated(want.filling, self._n)
        values, counts = self._values(spans, faults)
        wrong = counts % want.count if want.sequence else counts != want.count
        if wrong.any():
            for i in np.flatnonzero(wrong).tolist():
                text = want.miscount(int(counts[i]))
                faults.setdefault(int(spans.rows[i]), ("wrong_type", text))
            spans = spans.take(np.flatnonzero(wrong == 0))
            values, counts = self._values(spans, faults)
        if want.kind == INTS:
            self._check_range(values, np.repeat(spans.rows, counts), faults)
        return self._placed(spans.rows, self._column(spans, values, counts))

    def _values(self, spans: _Spans, faults: Faults) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers in the spans, and how many values each record has.

        Strings are not read, and floats only where the column does not point to them.  Numbers
        that are too long are faults of their records.
        """
        if self._want.kind == BYTES:
            return NO_NUMBERS, spans.counts
        sizes = spans.bytes_of_rows()
        if self._want.kind == FLOATS:
            if self._points(spans):
                return NO_NUMBERS, sizes // 4
            return gather(self._data, spans.starts, spans.sizes).view(_FLOAT), sizes // 4
        raw = gather(self._data, spans.starts, spans.sizes)
        values, ends = varints(raw)
        counts = np.diff(ends.searchsorted(np.cumsum(sizes)), prepend=0)
        if (long := np.diff(ends, prepend=-1) > MOST_BYTES).any():
            text = f"feature {self._want.name!r}: a number of more than {MOST_BYTES} bytes"
            for row in np.repeat(spans.rows, counts)[long].tolist():
                faults.setdefault(row, ("corrupt_record", text))
        return values, counts

    def _points(self, spans: _Spans) -> bool:
        """Return whether the column can point to the floats: at most one span for each record."""
        want = self._want
        if not want.sequence or want.dtype != _FLOAT:
            return False
        return spans.single or bool((spans.counts <= 1).all())

    def _check_range(self, values: np.ndarray, rows: np.ndarray, faults: Faults) -> None:
        dtype = self._want.dtype
        assert dtype is not None
        if dtype == values.dtype or not values.size:
            return
        low, high = (0, 1) if dtype.kind == "b" else _limits(dtype)
        beyond = np.flatnonzero((values < low) | (values > high))
        for row, value in zip(rows[beyond].tolist(), values[beyond].tolist(), strict=True):
            text = f"{value}, which {dtype} can not ({low} … {high}). Declare it as int64"
            text = f"feature {self._want.name!r} holds {text}"
            faults.setdefault(row, ("out_of_range", text))

    def _column(self, spans: _Spans, values: np.ndarray, counts: np.ndarray) -> Column:
        """Return the column of the records that were added."""
        want = self._want
        extents = np.empty((len(counts), 0), np.int64)
        if want.sequence:
            extents = (counts // want.count)[:, None]
        if want.dtype is None:
            return column_of(Strings(self._data, spans.starts, spans.sizes), want.field, extents)
        if want.kind == FLOATS and self._points(spans):
            starts = np.zeros(len(counts), np.int64)
            starts[spans.counts == 1] = spans.starts
            return Ragged(self._data, _FLOAT, starts, extents, want.shape)
        if values.dtype != want.dtype:
            with np.errstate(all="ignore"):  # too large for float16 is inf there, as in any cast
                values = values.astype(want.dtype)
        return column_of(values, want.field, extents)

    def _placed(self, rows: np.ndarray, column: Column) -> Column:
        """Return the column of all n records."""
        if len(rows) == self._n:
            return column
        places = np.zeros(self._n, np.int64)
        if self._want.default is not None or not len(rows):
            places[:] = len(rows)
            column = concatenate([column, self._want.filling])
        places[rows] = np.arange(len(rows))
        return take(column, places)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), 2**63 - 1)


# ── Records to columns.

#: Maximum number of features that a fault lists.
_LISTED = 20


class ExampleParser:
    """Parses chunks of records."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self._wants = [WantedFeature(name, feature) for name, feature in features.items()]
        self._wanted = {want.name.encode(): i for i, want in enumerate(self._wants)}
        self._listed = {n: i for n, i in self._wanted.items() if self._wants[i].sequence}
        self._counts = np.array([want.count for want in self._wants], np.int64)

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Return columns of the records that lie in ``data`` (uint8) at these bytes, and faults.

        Faults are those of unusable records, by row; their values in the columns are arbitrary.
        """
        walker = Walker(data, starts, lengths)
        found = walker.found(self._wanted, False, self._counts)
        if walker.has_lists:
            listed = walker.found(self._listed, True, self._counts)
            listed = listed._replace(of=listed.of + len(found.row))
            found = FoundValues(*map(np.concatenate, zip(found, listed, strict=True)))
        chosen = np.full((len(self._wants), starts.size), -1)
        wanted = np.flatnonzero(found.slot >= 0)
        chosen[found.slot[wanted], found.row[wanted]] = wanted  # the last of each name
        counts = np.bincount(found.of, minlength=len(found.row))
        first = np.cumsum(counts) - counts
        faults, columns = walker.faults, {}
        for want, features_of in zip(self._wants, chosen, strict=True):
            rows = self._sound(want, found, features_of, walker)
            of = features_of[rows]
            spans = ranges(first[of], counts[of])
            own = _Spans(rows, found.begin[spans], found.size[spans], counts[of])
            columns[want.name] = Filler(want, data, starts.size).finish(own, faults)
        return columns, faults

    def _sound(
        self, want: WantedFeature, found: FoundValues, of: np.ndarray, walker: Walker
    ) -> np.ndarray:
        """Return the rows that have a feature; note the faults of those in which it is unsound."""
        faults = walker.faults
        kind, steps, odd = (
            np.append(facts, none)[of]  # none is the last, that of number -1
            for facts, none in ((found.kind, 0), (found.steps, -1), (found.odd, -1))
        )
        there = (kind > 0) | (steps >= 0)
        if want.default is None and not there.all():
            for row in np.flatnonzero(~there).tolist():
                if row not in faults:
                    faults[row] = "missing_feature", self._missing(want, walker.names_in(row))
        wrong = there & (kind != want.kind) & (steps != 0)
        for row in np.flatnonzero(wrong).tolist():
            faults.setdefault(row, ("wrong_type", want.unlike(int(kind[row]))))
        for row in np.flatnonzero(odd >= 0).tolist():
            faults.setdefault(row, ("wrong_type", want.miscount(int(odd[row]), "in a step")))
        sound = there
        sound[list(faults)] = False
        return np.flatnonzero(sound)

    def _missing(self, want: WantedFeature, names: list[str]) -> str:
        listed = ", ".join(map(repr, names[:_LISTED])) or "no feature"
        lacks = next((w.name for w in self._wants if w.name not in names), "")
        listed += ", …" if names[_LISTED:] else ""
        return (
            f"feature {want.name!r} is missing, and has no default. Declare one, or skip such "
            f"records with on_bad_example='skip'; the record has {listed}{near(lacks, names)}"
        )


#: Maximum number of open streams; each holds a file, an inflater (some 50 kB) and a block.
_OPEN_STREAMS = 32

_REMEDY: Final = "Write the file again, or skip the rest with on_bad_example='skip'"
_CHECKSUM_TEXT: Final = (
    "the payload does not have its checksum: the bytes changed after they were written. Write the "
    "file again, or skip the record with on_bad_example='skip'"
)
#: Short name and text of each damage of a file.
_DAMAGE: Final = {
    TRUNCATED: (
        "truncated_file",
        "truncated at byte {}: the frame that begins here is not complete",
    ),
    CORRUPT: ("corrupt_file", "the length of the record, or its checksum, is wrong"),
}
_BAD_CHECKSUM: Final = ("corrupt_record", _CHECKSUM_TEXT)


class Tfrecord(Source):
    """By number where no file is compressed, else streams."""

    @classmethod
    def open(cls, opening: Opening) -> StreamSource:
        features = opening.features or {}
        fields = {name: feature.field for name, feature in features.items()}
        compressions = [_detected(file) for file in opening.files]
        parser = ExampleParser(features)
        if any(compressions):

            def walk(stream: int, place: Place) -> _Frames:
                file, kind = opening.files[stream], compressions[stream]
                return _Frames(file, kind, place, opening.bad, parser)

            return Streams(fields, len(compressions), walk, _OPEN_STREAMS)
        return PartsReader(fields, [_Records(opening, parser)])


# ── mapped files ─────────────────────────────────────────────────────────────────────────────────


class _Records(IndexedSource):
    """The one part of uncompressed files: the files in order, records in order."""

    def __init__(self, opening: Opening, parser: ExampleParser) -> None:
        files, bad, cache = opening.files, opening.bad, opening.cache
        self._parser, self._bad = parser, bad
        self._names = tuple(file.path for file in files)
        self._files = MappedFiles(files, cache.copies)
        indexes = []
        for i, file in enumerate(files):

            def build(i: int = i, file: DataFile = file) -> np.ndarray:
                return scan(self._files.file_data(i), cache.progress_of(file))

            indexes.append(cache.get(file, "tfrecord frames", build))
        bounds = [index[:-1] for index in indexes]
        for index, file in zip(indexes, files, strict=True):
            if damage := int(index[-1]):
                reason, fault = _DAMAGE[damage]
                text = (
                    f"{file.path}, record {len(index) - 2}, byte {index[-2]}: "
                    f"{fault.format(file.size)}; the rest of the file ({file.size - index[-2]} "
                    f"bytes) can not be read. {_REMEDY}"
                )
                bad.report(DataError(text), reason)
        good = np.array([len(one) - 1 for one in bounds], np.int64)
        self._first = np.cumsum(good) - good
        self.length = int(good.sum())
        # Bounds of all files in one array, as positions in the one buffer.  Each file has one
        # bound more than records, at which its damage begins.
        sizes = good + 1
        self._first_bound = np.cumsum(sizes) - sizes
        if len(indexes) != 1:  # one stays mapped, and workers share it
            bounds = [b + base for b, base in zip(bounds, self._files.bases, strict=True)]
        none = np.empty(0, np.int64)
        self._bounds = bounds[0] if len(indexes) == 1 else np.concatenate([none, *bounds])
        self._verified = np.zeros(self.length, bool)

    def take(self, rows: Rows) -> Chunk:
        ordinals = numbers_of(rows)
        file, record, bound = self._find(ordinals)
        frames = self._bounds[bound]
        origin = Origin(self._names, file, record, frames - self._files.bases[file])
        columns, faults = self._parse(ordinals, frames + HEAD, self._bounds[bound + 1] - FOOT)
        return without(Chunk(columns, ordinals, origin), faults, self._bad)

    def _find(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return file, record and bound of examples; their files are loaded."""
        if len(self._names) == 1:  # a search of each takes a twentieth of a worker's time
            file = np.zeros(ordinals.size, np.int32)
            self._files.load(file[:1])
            return file, ordinals, ordinals
        file = (np.searchsorted(self._first, ordinals, "right") - 1).astype(np.int32)
        record = ordinals - self._first[file]
        self._files.load(file)
        return file, record, record + self._first_bound[file]

    def _parse(
        self, ordinals: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        data, lengths = self._files.data, stops - starts
        columns, faults = self._parser.parse(data, starts, lengths)
        fresh = np.flatnonzero(~self._verified[ordinals])
        if fresh.size:
            wrong = bad_payloads(data, starts[fresh], lengths[fresh])
            faults.update((int(fresh[k]), _BAD_CHECKSUM) for k in wrong)
            self._verified[ordinals[np.delete(fresh, wrong)]] = True
        return columns, faults

    def close(self) -> None:
        """Release the files; chunks that point into them keep them mapped."""
        self._files = MappedFiles(())


# ── compressed files ─────────────────────────────────────────────────────────────────────────────


def _detected(file: DataFile) -> Compression:
    """Return the compression of a file, by its first bytes, or by its name where it has too few."""
    with open_stream(file) as stream:
        head = stream.read(HEAD)
    if len(head) == HEAD and length_is_sound(head):
        return None
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if len(head) >= 2 and head[0] & 0x8F == 8 and int.from_bytes(head[:2]) % 31 == 0:
        return "zlib"
    return compression_of(file.path)


class _Frames(Records):
    """A walk over the records of a compressed file."""

    def __init__(
        self,
        file: DataFile,
        kind: Compression,
        place: Place,
        bad: BadRecords,
        parser: ExampleParser,
    ) -> None:
        super().__init__(file.path, place, bad, partial(_frames, file, kind))
        self._parser = parser

    def chunk(
        self, rows: Sequence[Row], records: Sequence[int], offsets: Sequence[int] | np.ndarray
    ) -> Chunk:
        frames: list[Plain] = [row[""] for row in rows]
        bounds = np.cumsum([0, *map(len, frames)])
        data = np.frombuffer(b"".join(frames), np.uint8)
        starts, lengths = bounds[:-1] + HEAD, np.diff(bounds) - (HEAD + FOOT)
        columns, faults = self._parser.parse(data, starts, lengths)
        wrong = bad_payloads(data, starts, lengths) if frames else ()
        faults.update((int(row), _BAD_CHECKSUM) for row in wrong)
        numbers = np.array(records, np.int64)
        origin = Origin.single(self.name, numbers, np.array(offsets, np.int64))
        return without(Chunk(columns, numbers, origin), faults, self.bad)


def _frames(file: DataFile, compression: Compression, walk: Records) -> Iterator[Record]:
    """Yield the frames of a file.  Damaged where it is damaged or cut off."""
    with open_forward(file, walk.place.byte, compression) as stream:
        while frame := stream.read(HEAD):
            here, size = walk.place, HEAD
            if len(frame) == HEAD:
                length: int = _LENGTH.unpack_from(frame)[0]
                if not length_is_sound(frame):
                    raise Damaged("the length of the record, or its checksum, is wrong")
                size = HEAD + length + FOOT
                frame += stream.read(length + FOOT)
            if len(frame) < size:
                text = (
                    f"truncated at byte {here.byte + len(frame)}: the frame that begins at byte "
                    f"{here.byte} is not complete"
                )
                raise Damaged(text, "truncated_file")
            walk.place = Place(here.byte + size, here.record + 1)
            yield Record(here, {"": frame})
