"""TFRecord files of tf.train.Example or SequenceExample, without TensorFlow.

    uncompressed   IndexedSource: every file is mapped (remote ones: read by ranges), and its frames
                   are indexed once
    compressed     StreamSource: one stream per file, a position is (record, decompressed byte)

Framing is checked when a file is indexed, the checksum of a payload when the record is first read;
neither is checked again.  Damage that ends a file (cut off, or a length that is wrong) is reported
when the file is opened, and with ``on_bad_example='skip'`` the rest of the file is left out.
"""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final, NamedTuple

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError, near

from ...files.extras import require
from ...files.manifest import DataFile, is_remote
from ...files.mapped_files import MappedFiles
from ...files.ranges import RangedFiles, expect, open_stream
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

_HEADER = struct.Struct("<QI")
_MASK_DELTA: Final = 0xA282EAD8
#: Maximum number of sound header values remembered, to skip their checksums.
_KNOWN_LENGTHS = 65536
#: Positions are moved from a list (36 bytes each) to an array (8 bytes each) this many at a time.
_FLUSH = 65536
#: Bytes of a remote file that are scanned at once.
_SCANNED = 1 << 22
#: Size of a payload from which on a call per record costs little beside its checksum.
_BIG_PAYLOAD = 4096


def length_is_sound(header: bytes) -> bool:
    """Return whether the first 12 bytes of a frame hold a length with its checksum."""
    length, crc = _HEADER.unpack(header)
    return bool(crc == _masked(crc32c.value(header[:8])) and length <= MAX_RECORD_BYTES)


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def scan(
    size: int,
    read: Callable[[int], memoryview],
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Return the bounds of the frames of a whole file, and its damage: 0, or the number.

    Frame i is bound i … bound i + 1; at the last bound the damage begins, if any.  ``read`` returns
    what follows a byte, HEAD bytes at least where the file has them.  ``progress`` is called now
    and then with the number of bytes scanned.
    """
    view, begin = read(0), 0
    unpack = _HEADER.unpack_from
    parts: list[np.ndarray] = []
    fresh: list[int] = []
    known: dict[int, int] = {}
    position, damage = 0, 0
    while size - position >= HEAD:
        at = position - begin
        if at + HEAD > len(view):
            view, begin, at = read(position), position, 0
        length, crc = unpack(view, at)
        if known.get(length) != crc:
            if not length_is_sound(bytes(view[at : at + HEAD])):
                damage = CORRUPT
                break
            if len(known) >= _KNOWN_LENGTHS:
                known.clear()
            known[length] = crc
        stop = position + length + HEAD + FOOT
        if stop > size:
            damage = TRUNCATED
            break
        fresh.append(position)
        position = stop
        if len(fresh) == _FLUSH:
            parts.append(np.array(fresh, np.int64))
            fresh.clear()
            progress(position)
    else:
        damage = TRUNCATED if position < size else 0
    return np.concatenate([*parts, np.array([*fresh, position, damage], np.int64)])


def bad_payloads(data: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the rows whose payload does not match its checksum."""
    stored = window(data, FOOT)[starts + lengths].view("<u4") - np.uint32(_MASK_DELTA)
    expected = (stored >> np.uint32(17)) | (stored << np.uint32(15))
    distinct = np.unique(lengths)
    if distinct.size * 16 > starts.size or distinct[-1] >= _BIG_PAYLOAD:
        payloads = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        got = np.fromiter((crc32c.value(data[a:b]) for a, b in payloads), np.uint32, starts.size)
        return np.flatnonzero(got != expected)
    got = np.zeros(starts.size, np.uint32)
    for length in distinct.tolist():
        if length:  # the checksum of no bytes is 0
            rows = np.flatnonzero(lengths == length)
            payloads = window(data, length)[starts[rows]].view(np.uint8).reshape(-1, length)
            got[rows] = list(map(crc32c.value, payloads))
    return np.flatnonzero(got != expected)


# ── Walks one tf.train.Example or SequenceExample and finds the places of the wanted values.
#
#     Example          1: Features
#     SequenceExample  1: Features (context)   2: FeatureLists
#     Features         1: map entry { 1: name  2: Feature }   repeated
#     FeatureLists     1: map entry { 1: name  2: FeatureList }   repeated
#     FeatureList      1: Feature   repeated, one per step
#     Feature          one of  1: BytesList   2: FloatList   3: Int64List
#     …List            1: value   repeated; numbers packed or one by one
#
# It decodes no value.  As in any protobuf reader, later fields win over earlier ones of the same
# name, lists in several pieces are joined, and unknown fields are skipped.


BYTES: Final = 1
FLOATS: Final = 2
INTS: Final = 3
KIND_NAMES: Final = {0: "no value", BYTES: "bytes_list", FLOATS: "float_list", INTS: "int64_list"}

#: Bytes of the longest number of 64 bits, 7 in each.
MOST_BYTES: Final = 10
#: The tag of a number that is not packed, by kind, and the sizes of fields by wire type.
_SINGLE: Final = {BYTES: -1, FLOATS: 0x0D, INTS: 0x08}
_SIZES: Final = {1: 8, 5: 4}

#: The tags of features and of feature lists.
_MAPS: Final = (0x0A, 0x12)

#: Where values lie in a record: the first byte, and the number of bytes.
Span = tuple[int, int]


class Malformed(Exception):
    """The bytes are no message of the expected type."""


class FoundValues:
    """The values of one feature of one record: their kind, and where they lie.

    ``steps`` is the number of steps where they come from feature_lists, else None, and ``widths``
    the numbers of values that steps were seen to have.
    """

    __slots__ = ("kind", "spans", "steps", "widths")

    def __init__(self) -> None:
        self.kind = 0
        self.spans: list[Span] = []
        self.steps: int | None = None
        self.widths: set[int] = set()


def walk(
    record: memoryview,
    wanted: Mapping[bytes, int],
    listed: Mapping[bytes, int],
) -> list[FoundValues | None]:
    """Return the found features by slot.

    ``wanted``: the slot of each name to look for among the features, ``listed`` among the
    feature_lists (whose values take precedence).
    """
    found: list[FoundValues | None] = [None] * len(wanted)
    lists: dict[int, FoundValues] = {}
    try:
        for tag, start, stop in fields_in(record, 0, len(record)):
            if tag == 0x0A:
                names, read = wanted, _feature
            elif tag == 0x12 and listed:
                names, read = listed, _feature_list
            else:
                continue
            for name, pieces in map_entries(record, start, stop):
                slot = names.get(name)
                if slot is not None:
                    value = FoundValues()
                    if tag == 0x0A:
                        found[slot] = value
                    else:
                        lists[slot], value.steps = value, 0
                    for a, b in pieces:
                        read(record, a, b, value)
    except IndexError:
        raise Malformed("a field goes past the end of the record") from None
    for slot, value in lists.items():
        found[slot] = value
    return found


def _varint(record: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = record[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * MOST_BYTES:
            raise Malformed(
                f"a number of more than {MOST_BYTES} bytes at byte {position - MOST_BYTES}"
            )


def _written(number: int) -> bytes:
    """Return a number as a varint."""
    return (
        number.to_bytes(1)
        if number < 0x80
        else bytes([number & 0x7F | 0x80]) + _written(number >> 7)
    )


def fields_in(record: memoryview, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields between two bytes: tag, and start and end of the content."""
    while position < stop:
        at, tag = position, record[position]
        start = at + 1
        if not 8 <= tag < 0x80:
            tag, start = _varint(record, at)
            if tag >> 3 == 0 or (tag < 0x80 and start > at + 1):
                raise Malformed(f"no field begins at byte {at}")
        wire = tag & 7
        if wire == 2:
            size = record[start]
            start += 1
            if size >= 0x80:
                size, start = _varint(record, start - 1)
            position = start + size
            if position > stop:
                raise Malformed(f"a field of {size} bytes at byte {start} goes past byte {stop}")
        elif wire == 0:
            _, position = _varint(record, start)
        elif wire in _SIZES:
            position = start + _SIZES[wire]
        else:
            raise Malformed(f"wire type {wire} at byte {at}")
        if position > stop:
            raise Malformed(f"the field at byte {at} goes past byte {stop}")
        yield tag, start, position


def map_entries(
    record: memoryview, position: int, stop: int
) -> Iterator[tuple[bytes, list[tuple[int, int]]]]:
    """Yield the entries of a map: name and spans of the value (one, except from odd writers)."""
    for tag, start, end in fields_in(record, position, stop):
        if tag == 0x0A:
            name, pieces = b"", []
            for part, a, b in fields_in(record, start, end):
                if part == 0x0A:
                    name = record[a:b].tobytes()
                elif part == 0x12:
                    pieces.append((a, b))
            yield name, pieces


def names_in(record: memoryview) -> list[str]:
    """Return the names of all features and feature lists of a sound record."""
    maps = ((start, stop) for tag, start, stop in fields_in(record, 0, len(record)) if tag in _MAPS)
    entries = (entry for start, stop in maps for entry in map_entries(record, start, stop))
    return [name.decode(errors="replace") for name, _ in entries]


def _feature(record: memoryview, position: int, stop: int, found: FoundValues) -> None:
    for tag, start, end in fields_in(record, position, stop):
        if tag == 0x0A or tag == 0x12 or tag == 0x1A:
            kind = tag >> 3
            if kind != found.kind:  # a oneof: the last kind set counts
                found.kind = kind
                found.spans = []
            _list(record, start, end, kind, found.spans)


def _list(record: memoryview, position: int, stop: int, kind: int, spans: list[Span]) -> None:
    """Add the values of a BytesList, FloatList or Int64List."""
    for tag, start, end in fields_in(record, position, stop):
        size = end - start
        if tag == 0x0A:
            if kind == FLOATS and size % 4:
                raise Malformed(f"packed floats of {size} bytes at byte {start}, no multiple of 4")
            if kind == INTS and size and record[end - 1] >= 0x80:
                raise Malformed(f"packed numbers end in the middle of one at byte {end}")
            if size or kind == BYTES:
                spans.append((start, size))
        elif tag == _SINGLE[kind]:
            spans.append((start, size))


def _feature_list(record: memoryview, position: int, stop: int, found: FoundValues) -> None:
    found.steps = found.steps or 0
    for tag, start, end in fields_in(record, position, stop):
        if tag != 0x0A:
            continue
        step = FoundValues()
        _feature(record, start, end, step)
        if step.kind != found.kind:
            if found.steps:
                raise Malformed(
                    f"step {found.steps} holds {KIND_NAMES[step.kind]} after steps of "
                    f"{KIND_NAMES[found.kind]}"
                )
            found.kind = step.kind
        found.widths.add(_width(record, step))
        found.spans += step.spans
        found.steps += 1


def _width(record: memoryview, step: FoundValues) -> int:
    """Return the number of values of one step."""
    if step.kind == FLOATS:
        return sum(size // 4 for _, size in step.spans)
    if step.kind == INTS:
        return sum(
            sum(byte < 0x80 for byte in record[start : start + size]) for start, size in step.spans
        )
    return len(step.spans)


def varints(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return values (int64) of varints back to back, and the index of the last byte of each.

    The last byte must end a number.  Those of more than ``MOST_BYTES`` have an arbitrary value.
    """
    ends = np.flatnonzero(raw < 0x80)
    if ends.size == raw.size:
        return raw.astype(np.int64), ends
    starts = np.empty_like(ends)
    starts[0] = 0
    starts[1:] = ends[:-1] + 1
    sizes = ends - starts + 1
    values = (raw[starts] & 0x7F).astype(np.uint64)
    for k in range(1, min(int(sizes.max()), MOST_BYTES)):
        rows = np.flatnonzero(sizes > k)
        values[rows] |= (raw[starts[rows] + k] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
    return values.view(np.int64), ends


# ── The wanted features of records, and the columns that their values become, by where they lie.
#
#     layout, template, walk ─► spans of records ─► all spans, in the order of the rows ─► column
#
# A span holds packed numbers, one number, or one string.  Strings, and packed floats of sequences
# that are wanted as float32, stay where they are: the column points into the buffer of the records.


_DTYPES: Final = {FLOATS: "a floating dtype", INTS: "an integer dtype"}
_FLOAT = np.dtype("<f4")
NO_NUMBERS = np.empty(0, np.int64)


class Fault(Exception):
    """A record can not be used: the reason by its short name, and in words."""


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
        #: The bytes before the floats of a step in a feature_list, as writers write them, and all
        #: bytes of such a step.
        self.head = b""
        for tag in (0x0A, 0x12, 0x0A) if self.sequence and self.kind == FLOATS else ():
            size = 4 * self.count + len(self.head)
            self.head = bytes([tag]) + _written(size) + self.head
        self.stride = len(self.head) + 4 * self.count
        if self.sequence and not self.count:
            shape = list(feature.shape)
            raise ValueError(f"feature {name!r}: a step of shape {shape} holds nothing")
        #: A column of one row; None: the feature must be there.
        self.default = defaults_of({name: feature}).get(name)
        nothing = np.full([d or 0 for d in self.field.shape], b"" if self.dtype is None else 0)
        blank = column_from_rows([nothing.astype(self.dtype or object)], self.field)
        #: A column of one row, for records that do not have the feature.
        self.filling: Column = blank if self.default is None else self.default

    def spans_of(self, found: FoundValues | None) -> Sequence[Span] | None:
        """Return the values found in a record; None: use the default.  Fault without either."""
        if found is None or (found.kind == 0 and found.steps is None):
            if self.default is not None:
                return None
            raise Fault(
                "missing_feature",
                f"feature {self.name!r} is missing, and has no default. Declare one, or skip such "
                f"records with on_bad_example='skip'",
            )
        if found.kind != self.kind and found.steps != 0:
            raise Fault(
                "wrong_type",
                f"feature {self.name!r} holds {KIND_NAMES[found.kind]}, wanted "
                f"{KIND_NAMES[self.kind]} for dtype {self.dtype or 'bytes'}{self._remedy(found)}",
            )
        if found.steps and found.widths != {self.count}:
            raise Fault("wrong_type", self.miscount(min(found.widths - {self.count}), "in a step"))
        return found.spans

    def miscount(self, count: int, where: str = "") -> str:
        """Return the text of the fault of a record that has so many values."""
        wanted = f"a multiple of {self.count}" if self.sequence and not where else f"{self.count}"
        shape = list(self.shape)
        return (
            f"feature {self.name!r} has {count} values{where and ' ' + where}, wanted {wanted} for "
            + (f"steps of shape {shape}" if self.sequence else f"shape {shape}")
        )

    def _remedy(self, found: FoundValues) -> str:
        if found.kind == BYTES:
            return ". Declare it as bytes and decode it in a map"
        return f". Declare it with {_DTYPES[found.kind]}" if found.kind else ""


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
    """Gathers the spans of one feature in n records that lie in ``data``, then makes a column."""

    def __init__(self, want: WantedFeature, data: np.ndarray, n: int) -> None:
        self._want, self._data, self._n = want, data, n
        self._added: list[_Spans] = []
        # The same from single records, as lists.
        self._rows: list[int] = []
        self._spans: list[Span] = []
        self._counts: list[int] = []

    def add(self, rows: np.ndarray, starts: np.ndarray, sizes: np.ndarray, steps: bool) -> None:
        """Add records of equally many spans [rows, spans].  ``rows`` are in order.

        ``steps``: a span is a feature_list of floats, a step after the other.
        """
        counts, starts, sizes = np.full(rows.size, starts.shape[1]), starts.ravel(), sizes.ravel()
        if steps:
            head, stride = len(self._want.head), self._want.stride
            counts = sizes // stride
            within = ranges(np.zeros_like(counts), counts)
            starts = np.repeat(starts + head, counts) + within * stride
            sizes = np.full(starts.size, stride - head)
        self._added.append(_Spans(rows, starts, sizes, counts))

    def add_one(self, row: int, start: int, spans: Sequence[Span]) -> None:
        """Add one record, which begins at ``start``."""
        self._rows.append(row)
        self._spans += [(start + at, size) for at, size in spans]
        self._counts.append(len(spans))

    def finish(self, faults: Faults) -> Column:
        """Return the column.  Rows that were not added hold the default, else anything."""
        spans, want = self._joined(), self._want
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

    def _joined(self) -> _Spans:
        """Return all spans, in the order of their rows."""
        if self._rows:
            rows, counts = np.array(self._rows, np.int64), np.array(self._counts, np.int64)
            starts, sizes = np.array(self._spans, np.int64).reshape(-1, 2).T
            self._added.append(_Spans(rows, starts, sizes, counts))
        if len(self._added) == 1:
            return self._added[0]
        parts = [(one.rows, one.starts, one.sizes, one.counts) for one in self._added]
        spans = _Spans(*map(np.concatenate, zip((NO_NUMBERS,) * 4, *parts, strict=True)))
        places = np.full(self._n, -1)  # cheaper than to sort them
        places[spans.rows] = np.arange(spans.rows.size)
        return spans.take(places if spans.rows.size == self._n else places[places >= 0])

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
        if len(values) == len(raw):  # a byte each
            return values, sizes
        bounds = np.cumsum(sizes)
        if np.array_equal(ends + 1, bounds):  # a number each
            counts = np.ones_like(bounds)
        else:
            counts = np.diff(ends.searchsorted(bounds), prepend=0)
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


# ── The form of one record, by which others are read many at a time.
#
#     record   header payload header payload … payload
#
# A payload is the values of a wanted feature (packed numbers, or one string), or a whole feature
# that is not wanted.  A header is all that stands before it: tags, names, and the lengths of the
# messages that begin there.  Each length shows after which payload its message ends.
#
# Records of one form differ in payloads and in the values of lengths alone.  So one header after
# the other is compared in all records at once, in each from its own position.  Records without a
# form (an empty list, numbers that are not packed, a name that comes twice) are walked one by one.


#: Slots, and where the values of records lie: starts and sizes [rows, spans].
Spans = list[tuple[int, np.ndarray, np.ndarray]]
#: Maximum number of payloads of a form.  With more of them a walk is no slower.
_MOST_PAYLOADS = 256
#: Maximum bytes of a length: those of 256 MB, so that sums of wrong ones stay far below 2**63.
_MOST_LENGTH = 4
_KINDS: Final = (0x0A, 0x12, 0x1A)


class _Unusual(Exception):
    """A record has no form."""


class _Length(NamedTuple):
    """A length in a header: its first byte there, its size, and the payload that ends with it."""

    at: int
    size: int
    ends: int


@dataclass(frozen=True, slots=True, eq=False)
class _Header:
    """A header, and what follows it: a payload of a slot (-1: not wanted).

    ``masks`` are the bits of its bytes that records of one form have in common, and ``content``
    their values, both [bytes, 1].  The last length is that of the payload.  ``steps``: the payload
    is a feature_list of floats.
    """

    content: np.ndarray
    masks: np.ndarray
    lengths: tuple[_Length, ...]
    slot: int
    steps: bool


class Form:
    """The form of a sound record.  _Unusual where it has none."""

    def __init__(self, record: np.ndarray, wants: Sequence[WantedFeature]) -> None:
        self._record, self._wants = record.data, wants
        self._slots = {want.name.encode(): i for i, want in enumerate(wants)}
        self._lengths: list[tuple[int, int, int]] = []  # of a message: its first byte, begin, end
        self._payloads: list[tuple[int, int, int, bool]] = []  # begin, end, slot, steps
        self.slots: dict[int, bool] = {}  # whether the values are steps of floats
        for tag, first, last in self._messages(0, record.size, _MAPS):
            for _, begin, end in self._messages(first, last, (0x0A,)):
                self._entry(begin, end, listed=tag == 0x12)
        self._headers = self._built(record)

    # Learning

    def _messages(self, at: int, stop: int, tags: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Yield fields as ``fields_in`` does; all must have one of these tags."""
        for tag, begin, end in fields_in(self._record, at, stop):
            if tag not in tags:
                raise _Unusual
            self._lengths.append((at + 1, begin, end))
            yield tag, begin, end
            at = end

    def _entry(self, begin: int, end: int, listed: bool) -> None:
        fields = list(fields_in(self._record, begin, end))
        if [tag for tag, _, _ in fields] != [0x0A, 0x12]:
            raise _Unusual
        (_, name, name_end), (_, begin, end) = fields
        self._lengths.append((name_end + 1, begin, end))
        slot = self._slots.get(self._record[name:name_end].tobytes(), -1)
        if slot < 0 or (listed and not self._wants[slot].sequence):
            self._payloads.append((begin, end, -1, False))
            return
        kind = self._wants[slot].kind
        if slot in self.slots or (listed and kind == INTS):
            raise _Unusual
        self.slots[slot] = listed and kind == FLOATS
        if self.slots[slot]:
            self._payloads.append((begin, end, slot, True))
            return
        steps = self._messages(begin, end, (0x0A,)) if listed else [(0, begin, end)]
        for _, begin, end in steps:
            self._feature(begin, end, slot)

    def _feature(self, begin: int, end: int, slot: int) -> None:
        want = self._wants[slot]
        lists = list(self._messages(begin, end, _KINDS))
        if [tag >> 3 for tag, _, _ in lists] != [want.kind]:
            raise _Unusual
        _, begin, end = lists[0]
        values = list(self._messages(begin, end, (0x0A,)))
        if not values or (want.kind != BYTES and len(values) > 1):
            raise _Unusual
        self._payloads += [(begin, end, slot, False) for _, begin, end in values]

    def _built(self, record: np.ndarray) -> list[_Header]:
        ends = {end: i for i, (_, end, _, _) in enumerate(self._payloads)}
        if not ends or len(ends) > _MOST_PAYLOADS or max(ends) != record.size:
            raise _Unusual
        masks = np.full(record.size, 0xFF, np.uint8)
        for at, begin, end in self._lengths:
            if end not in ends or begin - at > _MOST_LENGTH:  # of an empty message, say
                raise _Unusual
            masks[at:begin] = 0x80  # the bits that show how long it is
        headers, start, lengths = [], 0, deque(self._lengths)
        for begin, end, slot, steps in self._payloads:
            inside = []
            while lengths and lengths[0][0] < begin:
                at, after, message_end = lengths.popleft()
                inside.append(_Length(at - start, after - at, ends[message_end]))
            bits = masks[start:begin, None]
            content = record[start:begin, None] & bits
            headers.append(_Header(content, bits, tuple(inside), slot, steps))
            start = end
        return headers

    # Use

    def match(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[np.ndarray, Spans]:
        """Return a mask of the records of this form, and the places of the wanted values.

        The places of other records are arbitrary.
        """
        good = np.ones(starts.size, bool)
        spans: dict[int, tuple[list[np.ndarray], list[np.ndarray]]]
        spans = {slot: ([], []) for slot in self.slots}
        message_ends: list[list[np.ndarray]] = [[] for _ in self._headers]
        at = starts
        for i, header in enumerate(self._headers):
            read = len(header.masks)
            if (most := data.size - read) < 0 or not good.any():
                return np.zeros(starts.size, bool), []
            if int(at.max()) > most:
                good &= at <= most
                at = np.minimum(at, most)
            found = window(data, read)[at].view(np.uint8).reshape(-1, read).T.copy()
            good &= ((found & header.masks) == header.content).all(axis=0)
            for length in header.lengths:
                size = np.zeros(at.size, np.int64)
                for k in range(length.size):
                    size |= (found[length.at + k] & 0x7F).astype(np.int64) << 7 * k
                message_ends[length.ends].append(at + (length.at + length.size) + size)
            at = at + read
            *others, end = message_ends[i]
            for other in others:
                good &= other == end
            if header.slot >= 0:
                begins, sizes = spans[header.slot]
                begins.append(at)
                sizes.append(end - at)
                good &= end <= stops
                self._check(header, data, begins[-1], sizes[-1], good)
            at = end
        good &= at == stops
        return good, [
            (slot, np.stack(begins, axis=1), np.stack(sizes, axis=1))
            for slot, (begins, sizes) in spans.items()
        ]

    def _check(
        self,
        header: _Header,
        data: np.ndarray,
        begin: np.ndarray,
        sizes: np.ndarray,
        good: np.ndarray,
    ) -> None:
        """Strike out the payloads that do not hold whole numbers."""
        want = self._wants[header.slot]
        if header.steps:
            head = np.frombuffer(want.head, np.uint8)
            good &= sizes % want.stride == 0
            rows = np.flatnonzero(good)
            counts = sizes[rows] // want.stride
            at = np.repeat(begin[rows], counts)
            at += ranges(np.zeros_like(counts), counts) * want.stride
            found = window(data, head.size)[at].view(np.uint8).reshape(-1, head.size)
            good[np.repeat(rows, counts)[(found != head).any(axis=1)]] = False
        elif want.kind == INTS:  # the last byte ends a number
            good &= (data[np.minimum(begin + sizes - 1, data.size - 1)] < 0x80) | (sizes == 0)
        elif want.kind == FLOATS:
            good &= sizes & 3 == 0


# ── Records to columns: whole groups of records by their form, and the rest one by one.
#
#     records ─► forms: 0.1 µs for each header ─► walk each: 20 µs


#: Maximum number of forms that are compared with the records of a chunk.
_MOST_FORMS = 16
#: Least number of records for a form: to learn one costs as much as to walk some.
_LEAST_RECORDS = 8
#: Maximum number of features that a fault lists.
_LISTED = 20
#: Average bytes of records that are all read before they are compared.
_SMALL = 1024


class ExampleParser:
    """Parses chunks of records; remembers forms from one chunk to the next."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self._wants: tuple[WantedFeature, ...] = tuple(
            map(WantedFeature, features, features.values())
        )
        self._wanted = {want.name.encode(): i for i, want in enumerate(self._wants)}
        self._listed = {
            want.name.encode(): i for i, want in enumerate(self._wants) if want.sequence
        }
        self._forms: list[Form] = []

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Return columns of the records that lie in ``data`` (uint8) at these bytes, and faults.

        Faults are those of unusable records, by row; their values in the columns are arbitrary.
        """
        fillers = [Filler(want, data, starts.size) for want in self._wants]
        faults: Faults = {}
        for row in self._matched(data, starts, starts + lengths, fillers).tolist():
            start = int(starts[row])
            record = data.data[start : start + int(lengths[row])]
            try:
                found = self._walked(record)
                for filler, values in zip(fillers, found, strict=True):
                    if values is not None:
                        filler.add_one(row, start, values)
            except Malformed as error:
                text = f"is no tf.train.Example or SequenceExample: {error} of the record"
                faults[row] = ("corrupt_record", text)
            except Fault as error:
                reason, text = error.args
                if reason == "missing_feature":
                    names = names_in(record)
                    listed = ", ".join(map(repr, names[:_LISTED])) or "no feature"
                    lacks = next((w.name for w in self._wants if w.name not in names), "")
                    listed += ", …" if names[_LISTED:] else ""
                    text += f"; the record has {listed}{near(lacks, names)}"
                faults[row] = (reason, text)

        both = zip(self._wants, fillers, strict=True)
        return {want.name: filler.finish(faults) for want, filler in both}, faults

    def _walked(self, record: memoryview) -> list[Sequence[Span] | None]:
        """Return the values of a record by slot, None for defaults.  Malformed, or Fault."""
        found = walk(record, self._wanted, self._listed)
        return [want.spans_of(values) for want, values in zip(self._wants, found, strict=True)]

    def _matched(
        self, data: np.ndarray, starts: np.ndarray, stops: np.ndarray, fillers: list[Filler]
    ) -> np.ndarray:
        """Add the records that have a form; return the rows of the others."""
        rows, odd = np.arange(starts.size), list[int]()
        _fetch(data, starts, stops)
        matched = Counter[Form]()
        known = iter(self._forms)
        while len(odd) < _LEAST_RECORDS <= rows.size and len(matched) < _MOST_FORMS:
            form = next(known, None) or self._learned(data[starts[rows[0]] : stops[rows[0]]])
            if form is None:
                odd.append(int(rows[0]))
                rows = rows[1:]
                continue
            good, spans = form.match(data, starts[rows], stops[rows])
            chosen: Rows = slice(None) if good.all() else good
            taken, rows = rows[chosen], rows[~good]
            matched[form] = taken.size
            for slot, begins, sizes in spans if taken.size else ():
                fillers[slot].add(taken, begins[chosen], sizes[chosen], form.slots[slot])
        # Those that serve most records come first.  Room is made where there is none for another.
        least = 1 if len(matched) == _MOST_FORMS else 0
        self._forms = [form for form, n in matched.most_common() if n >= least] + [*known]
        return np.concatenate([np.array(odd, np.int64), rows])

    def _learned(self, record: np.ndarray) -> Form | None:
        """Return the form of a record; None where it has none, or a fault."""
        try:
            found = self._walked(record.data)
            form = Form(record, self._wants)
        except (Malformed, Fault, _Unusual):
            return None
        itself, _ = form.match(record, np.array([0]), np.array([record.size]))
        known = form.slots.keys() == {i for i, values in enumerate(found) if values is not None}
        return form if known and itself.all() else None


def _fetch(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> None:
    """Bring small records that lie side by side into the processor's cache.

    To read them in their order takes a fraction of the time for which comparisons at single places
    of each would wait for memory.
    """
    if starts.size:
        low, high = int(starts.min()), int(stops.max())
        if high - low < _SMALL * starts.size:
            data[low:high].max()


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
        far = [file for file in opening.files if is_remote(file.path)]
        expect((file, 0, min(HEAD, file.size)) for file in far)
        compressions = [_detected(file) for file in opening.files]
        parser = ExampleParser(features)
        if any(compressions):

            def walk(stream: int, place: Place) -> _Frames:
                file, kind = opening.files[stream], compressions[stream]
                return _Frames(file, kind, place, opening.bad, parser)

            streams = Streams(fields, len(compressions), walk, _OPEN_STREAMS)
            streams.files = opening.files
            return streams
        return PartsReader(fields, [_Records(opening, parser)])


# ── mapped files ─────────────────────────────────────────────────────────────────────────────────


class _Records(IndexedSource):
    """The one part of uncompressed files: the files in order, records in order."""

    def __init__(self, opening: Opening, parser: ExampleParser) -> None:
        files, bad, cache = opening.files, opening.bad, opening.cache
        self._parser, self._bad = parser, bad
        self._names = tuple(file.path for file in files)
        self.far = any(is_remote(file.path) for file in files)
        self._files = RangedFiles(files) if self.far else MappedFiles(files)
        indexes = [
            cache.get(file, "tfrecord frames", partial(self._scanned, i, cache.progress_of(file)))
            for i, file in enumerate(files)
        ]
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

    def _scanned(self, i: int, progress: Callable[[int], None]) -> np.ndarray:
        file = self._files.files[i]
        if isinstance(self._files, MappedFiles):
            data = self._files.file_data(i).data
            return scan(file.size, lambda byte: data[byte:], progress)
        with open_stream(file) as stream:

            def read(byte: int) -> memoryview:
                stream.seek(byte)
                return memoryview(stream.read(_SCANNED))

            return scan(file.size, read, progress)

    def take(self, rows: Rows) -> Chunk:
        ordinals = numbers_of(rows)
        file, record, bound = self._find(ordinals)
        frames, ends = self._bounds[bound], self._bounds[bound + 1]
        origin = Origin(self._names, file, record, frames - self._files.bases[file])
        data, at = self._files.bytes_at(frames, ends)
        columns, faults = self._parse(ordinals, data, at + HEAD, ends - frames - (HEAD + FOOT))
        return without(Chunk(columns, ordinals, origin), faults, self._bad)

    def expect(self, rows: np.ndarray) -> int:
        assert isinstance(self._files, RangedFiles)
        _, _, bound = self._find(rows)
        return self._files.expect(self._bounds[bound], self._bounds[bound + 1])

    def _find(self, ordinals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return file, record and bound of examples."""
        if len(self._names) == 1:  # a search of each takes a twentieth of a worker's time
            file = np.zeros(ordinals.size, np.int32)
            return file, ordinals, ordinals
        file = (np.searchsorted(self._first, ordinals, "right") - 1).astype(np.int32)
        record = ordinals - self._first[file]
        return file, record, record + self._first_bound[file]

    def _parse(
        self, ordinals: np.ndarray, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
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
                length = int.from_bytes(frame[:8], "little")
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
