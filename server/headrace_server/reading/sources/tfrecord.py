"""TFRecord files of tf.train.Example or SequenceExample, without TensorFlow.

    uncompressed   IndexedSource: every file is mapped, its frames are indexed once
    compressed     StreamSource: one stream per file, a position is (record, decompressed byte)

Framing is checked when a file is indexed, the checksum of a payload when the record is first read;
neither is checked again.  Damage that ends a file (cut off, or a length that is wrong) does not
affect earlier records: with ``on_bad_example='skip'`` the rest of the file is reported once
and left out; otherwise the damage counts as one more record, and reading that one raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import prod
from typing import Final, NamedTuple

import numpy as np

from headrace_proto import dtypes
from headrace_proto.errors import DataError

from ...files.extras import require
from ...files.manifest import DataFile, open_stream
from ...files.mapped_files import MappedFiles
from ...pipeline.declaration import Feature
from ..chunk import Chunk, Faults, Origin, without
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
    take,
    window,
)
from ..example_rows import Place, Streams, Walk
from ..forward_files import (
    Compression,
    Damaged,
    compression_of,
    open_forward,
)
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
#: Size of a payload from which on a call per record costs little beside its checksum.
_BIG_PAYLOAD = 4096


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
    unpack = _HEADER.unpack_from
    parts: list[np.ndarray] = []
    fresh: list[int] = []
    known: dict[int, int] = {}
    position, damage = 0, 0
    while size - position >= HEAD:
        length, crc = unpack(view, position)
        if known.get(length) != crc:
            if not length_is_sound(bytes(view[position : position + HEAD])):
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


# ── Fields of protobuf messages, of many messages at a time.
#
#     Example          1: Features
#     SequenceExample  1: Features (context)   2: FeatureLists
#     Features         1: map entry { 1: name  2: Feature }   repeated
#     FeatureLists     1: map entry { 1: name  2: FeatureList }   repeated
#     FeatureList      1: Feature   repeated, one per step
#     Feature          one of  1: BytesList   2: FloatList   3: Int64List
#     …List            1: value   repeated; numbers packed or one by one
#
# The k-th fields of all messages are found at once: the length of each shows where the next one
# begins.  A message whose fields all have the header of the first one, as steps of equal size have,
# is divided at once.  Messages with an unusual field, and the last few, are walked byte by byte.


#: Bytes of the longest number of 64 bits, 7 in each.
MOST_BYTES: Final = 10
#: By wire type the bytes of a field that has no length; those of other types are walked.
_FAR: Final = 2**40
_SIZES: Final = np.array([0, 8, _FAR, _FAR, _FAR, 4, _FAR, _FAR])
#: Number of messages up to which a walk of each is quicker.
_FEW: Final = 8


class Malformed(Exception):
    """The bytes are no message of the expected type."""


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift >= 7 * MOST_BYTES:
            raise Malformed(
                f"a number of more than {MOST_BYTES} bytes at byte {position - MOST_BYTES}"
            )


def walked(message: memoryview, position: int) -> Iterator[tuple[int, int, int]]:
    """Yield the fields of a message from a byte on: tag, and start and end of the content."""
    stop = len(message)
    try:
        while position < stop:
            at = position
            tag, start = _varint(message, at)
            wire = tag & 7
            if tag >> 3 == 0:
                raise Malformed(f"no field begins at byte {at}")
            if wire == 2:
                size, start = _varint(message, start)
                position = start + size
            elif wire == 0:
                _, position = _varint(message, start)
            elif wire in (1, 5):
                position = start + int(_SIZES[wire])
            else:
                raise Malformed(f"wire type {wire} at byte {at}")
            if position > stop:
                raise IndexError
            yield tag, start, position
    except IndexError:
        raise Malformed(f"the field at byte {at} goes past byte {stop}") from None


class Fields(NamedTuple):
    """Fields of messages, in the order of these: ``of`` is the number of the message."""

    of: np.ndarray
    tag: np.ndarray
    begin: np.ndarray
    end: np.ndarray

    def where(self, mask: np.ndarray) -> Fields:
        return self if mask.all() else self.take(np.flatnonzero(mask))

    def take(self, rows: np.ndarray) -> Fields:
        return Fields(*(part.take(rows) for part in self))


def fields_of(
    data: np.ndarray, begin: np.ndarray, end: np.ndarray, faults: dict[int, str]
) -> Fields:
    """Return the fields of messages that lie in ``data``.

    Faults are added by the number of the message; its fields before the fault are there.
    """
    rows = np.flatnonzero(begin < end)
    at, left, found = begin[rows], list[tuple[np.ndarray, np.ndarray]](), list[Fields]()
    while rows.size > _FEW:
        stop, tag = end[rows], data[at]
        size, after = _lengths(data, at + 1)
        wire = tag & 7
        start = np.where(wire == 2, after, at + 1)
        past = np.where(wire == 2, after + size, np.where(wire == 0, after, start + _SIZES[wire]))
        sound = (tag >= 8) & (tag < 0x80) & (past <= stop)
        if not sound.all():
            left.append((rows[~sound], at[~sound]))
            rows, at, stop, tag = rows[sound], at[sound], stop[sound], tag[sound]
            start, past = start[sound], past[sound]
        fields = Fields(rows, tag, start, past)
        on = past < stop
        if not found and on.any():
            counts = _runs(data, at, start, past, stop)
            by = np.repeat(past - at, counts) * ranges(np.zeros_like(counts), counts)
            of, tags, begins, ends = (np.repeat(part, counts) for part in fields)
            fields = Fields(of, tags, begins + by, ends + by)
            past = past + (past - at) * (counts - 1)
            on = past < stop
        found.append(fields)
        rows, at = rows[on], past[on]
    left.append((rows, at))
    some: list[tuple[int, int, int, int]] = []
    for rows, at in left:
        for row, position in zip(rows.tolist(), at.tolist(), strict=True):
            first = int(begin[row])
            message = data.data[first : int(end[row])]
            try:
                for tag, a, b in walked(message, position - first):
                    some.append((row, tag, first + a, first + b))
            except Malformed as error:
                faults[row] = str(error)
    if some or not found:
        found.append(Fields(*np.array(some, np.int64).reshape(-1, 4).T))
    if len(found) == 1:
        return found[0]
    joined = Fields(*map(np.concatenate, zip(*found, strict=True)))
    return joined.take(np.argsort(joined.of, kind="stable"))


def _lengths(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths of at most four bytes, and where they end: far away for longer ones."""
    byte = data.take(at, mode="clip")
    size, after = (byte & 0x7F).astype(np.int64), at + 1
    more = np.flatnonzero(byte & 0x80)
    for k in range(1, 4):
        if more.size:
            byte = data.take(after[more], mode="clip")
            size[more] |= (byte & 0x7F).astype(np.int64) << 7 * k
            after[more] += 1
            more = more[byte >= 0x80]
    after[more] += _FAR
    return size, after


def _runs(
    data: np.ndarray, at: np.ndarray, start: np.ndarray, past: np.ndarray, stop: np.ndarray
) -> np.ndarray:
    """Return how many fields a message has that are all like its first one, else 1."""
    stride, head = past - at, start - at

    def alike(rows: np.ndarray, here: np.ndarray) -> np.ndarray:
        """Return whether the fields at ``here`` have the header of the first one."""
        same = np.ones(rows.size, bool)
        for k in range(int(head[rows].max(initial=0))):
            byte, first = data.take(here + k, mode="clip"), data.take(at[rows] + k, mode="clip")
            same &= (byte == first) | (k >= head[rows])
        return same

    counts = (stop - at) // stride
    # The second and the last one rule most messages out.
    rows = np.flatnonzero((counts > 1) & (counts * stride == stop - at) & (head > 1))
    rows = rows[alike(rows, past[rows])]
    rows = rows[alike(rows, stop[rows] - stride[rows])]
    of = np.repeat(rows, counts[rows])
    same = alike(of, at[of] + ranges(np.zeros_like(rows), counts[rows]) * stride[of])
    found: np.ndarray = np.ones_like(counts)
    found[rows] = counts[rows]
    found[of[~same]] = 1
    return found


# ── The wanted features of records, and the columns that their values become, by where they lie.
#
#     records ─► entries of the wanted names ─► features ─► lists ─► spans ─► column
#
# A span holds packed numbers, one number, or one string.  Strings, and packed floats of sequences
# that are wanted as float32, stay where they are: the column points into the buffer of the records.
# As in any protobuf reader, later fields win over earlier ones of the same name, lists in several
# pieces are joined, and unknown fields are skipped.


BYTES: Final = 1
FLOATS: Final = 2
INTS: Final = 3
KIND_NAMES: Final = {0: "no value", BYTES: "bytes_list", FLOATS: "float_list", INTS: "int64_list"}
#: The tag of a number that is not packed, by kind.
_SINGLE: Final = np.array([-1, -1, 0x0D, 0x08])
_DTYPES: Final = {FLOATS: "a floating dtype", INTS: "an integer dtype"}
_FLOAT = np.dtype("<f4")
#: Maximum number of features that a fault lists.
_LISTED = 20


class Spans(NamedTuple):
    """Where values lie: the record, the feature (one for each step), the first byte, the size."""

    record: np.ndarray
    feature: np.ndarray
    begin: np.ndarray
    size: np.ndarray

    def take(self, rows: np.ndarray | slice) -> Spans:
        return Spans(*(part[rows] for part in self))


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

    def miscount(self, count: int, where: str = "") -> str:
        """Return the text of the fault of a record that has so many values."""
        wanted = f"a multiple of {self.count}" if self.sequence and not where else f"{self.count}"
        shape = list(self.shape)
        return f"feature {self.name!r} has {count} values{where}, wanted {wanted} for " + (
            f"steps of shape {shape}" if self.sequence else f"shape {shape}"
        )

    def wrong_kind(self, kind: int) -> str:
        """Return the text of the fault of a record that has values of another kind."""
        remedy = f". Declare it with {_DTYPES[kind]}" if kind in _DTYPES else ""
        if kind == BYTES:
            remedy = ". Declare it as bytes and decode it in a map"
        return (
            f"feature {self.name!r} holds {KIND_NAMES[kind]}, wanted {KIND_NAMES[self.kind]} for "
            f"dtype {self.dtype or 'bytes'}{remedy}"
        )

    def column(
        self,
        data: np.ndarray,
        there: np.ndarray,
        spans: Spans,
        steps: np.ndarray,
        step_records: np.ndarray,
        faults: Faults,
    ) -> Column:
        """Return the column of the records.

        ``there``: which of them have the feature; the others hold the default.  ``steps`` are the
        numbers of the features that are steps, of these records.
        """
        values, counts = self._values(data, spans, faults)
        if steps.size:
            widths = np.bincount(spans.feature, counts, int(steps.max()) + 1)[steps]
            for i in np.flatnonzero(widths != self.count).tolist():
                text = self.miscount(int(widths[i]), " in a step")
                faults.setdefault(int(step_records[i]), ("wrong_type", text))
        totals = np.bincount(spans.record, counts, there.size).astype(np.int64)
        wrong = there & (totals % self.count > 0 if self.sequence else totals != self.count)
        for row in np.flatnonzero(wrong).tolist():
            faults.setdefault(row, ("wrong_type", self.miscount(int(totals[row]))))
        if wrong.any():
            there = there & ~wrong
            spans = spans.take(there[spans.record])
            values, counts = self._values(data, spans, faults)
        if self.kind == INTS:
            self._check_range(values, np.repeat(spans.record, counts), faults)
        rows = np.flatnonzero(there)
        column = self._joined(data, spans, values, rows, totals[rows])
        if rows.size == there.size:
            return column
        both = concatenate([column, self.filling])
        return take(both, np.where(there, np.cumsum(there) - 1, rows.size))

    def _values(
        self, data: np.ndarray, spans: Spans, faults: Faults
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers in the spans, and how many values each span has.

        Strings are not read, and floats only where the column does not point to them.  Numbers
        that are too long are faults of their records.
        """
        if self.kind == BYTES:
            return np.empty(0, np.int64), np.ones_like(spans.size)
        if self.kind == FLOATS:
            if self._points(spans):
                return np.empty(0, _FLOAT), spans.size // 4
            return gather(data, spans.begin, spans.size).view(_FLOAT), spans.size // 4
        raw = gather(data, spans.begin, spans.size)
        values, ends = varints(raw)
        counts = np.diff(ends.searchsorted(np.cumsum(spans.size)), prepend=0)
        if (long := np.diff(ends, prepend=-1) > MOST_BYTES).any():
            text = f"feature {self.name!r}: a number of more than {MOST_BYTES} bytes"
            for row in np.repeat(spans.record, counts)[long].tolist():
                faults.setdefault(row, ("corrupt_record", text))
        return values, counts

    def _points(self, spans: Spans) -> bool:
        """Return whether the column can point to the floats: at most one span for each record."""
        alone = self.sequence and self.dtype == _FLOAT
        return alone and bool((spans.record[1:] > spans.record[:-1]).all())

    def _check_range(self, values: np.ndarray, records: np.ndarray, faults: Faults) -> None:
        dtype = self.dtype
        assert dtype is not None
        if dtype == values.dtype or not values.size:
            return
        low, high = (0, 1) if dtype.kind == "b" else _limits(dtype)
        beyond = np.flatnonzero((values < low) | (values > high))
        for row, value in zip(records[beyond].tolist(), values[beyond].tolist(), strict=True):
            text = f"{value}, which {dtype} can not ({low} … {high}). Declare it as int64"
            text = f"feature {self.name!r} holds {text}"
            faults.setdefault(row, ("out_of_range", text))

    def _joined(
        self,
        data: np.ndarray,
        spans: Spans,
        values: np.ndarray,
        rows: np.ndarray,
        totals: np.ndarray,
    ) -> Column:
        """Return the column of the records that have the feature."""
        extents = np.empty((len(rows), 0), np.int64)
        if self.sequence:
            extents = (totals // self.count)[:, None]
        if self.dtype is None:
            return column_of(Strings(data, spans.begin, spans.size), self.field, extents)
        if self.kind == FLOATS and self._points(spans):
            starts = np.zeros(len(rows), np.int64)
            starts[rows.searchsorted(spans.record)] = spans.begin
            return Ragged(data, _FLOAT, starts, extents, self.shape)
        if values.dtype != self.dtype:
            with np.errstate(all="ignore"):  # too large for float16 is inf there, as in any cast
                values = values.astype(self.dtype)
        return column_of(values, self.field, extents)


def _limits(dtype: np.dtype) -> tuple[int, int]:
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), 2**63 - 1)


class ExampleParser:
    """Parses chunks of records."""

    def __init__(self, features: Mapping[str, Feature]) -> None:
        self._wants = [WantedFeature(name, feature) for name, feature in features.items()]
        self._sequences = np.array([want.sequence for want in self._wants])
        #: By the number of their bytes the names, sorted, and the numbers of their features.
        self._keys: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        names = [name.encode() for name in features]
        for n in set(map(len, names)):
            alike = sorted((name, i) for i, name in enumerate(names) if len(name) == n)
            keys = np.array([name for name, _ in alike], f"S{max(1, n)}")
            self._keys[n] = keys, np.array([i for _, i in alike])

    def parse(
        self, data: np.ndarray, starts: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        """Return columns of the records that lie in ``data`` (uint8) at these bytes, and faults.

        Faults are those of unusable records, by row; their values in the columns are arbitrary.
        """
        faults: Faults = {}

        def malformed(row: int, byte: int, text: str) -> None:
            text = f"{text} of the message at byte {byte - starts[row]} of the record"
            text = f"is no tf.train.Example or SequenceExample: {text}"
            faults.setdefault(row, ("corrupt_record", text))

        def fields(record: np.ndarray, begin: np.ndarray, end: np.ndarray) -> Fields:
            """Return the fields of messages of these records."""
            wrong: dict[int, str] = {}
            found = fields_of(data, begin, end, wrong)
            for i, text in sorted(wrong.items()):
                malformed(int(record[i]), int(begin[i]), text)
            return found

        # Entries of maps, each with its record and name.
        maps = fields(np.arange(starts.size), starts, starts + lengths)
        maps = maps.where((maps.tag == 0x0A) | (maps.tag == 0x12))
        entries = fields(maps.of, maps.begin, maps.end)
        entries = entries.where(entries.tag == 0x0A)
        record, listed = maps.of[entries.of], (maps.tag == 0x12)[entries.of]
        parts = fields(record, entries.begin, entries.end)
        named = parts.where(parts.tag == 0x0A)
        names = np.zeros((2, record.size), np.int64)
        names[:, named.of] = named.begin, named.end - named.begin
        slot = self._slots(data, names[0], names[1], listed)

        # Of each record and wanted feature the entry that counts.
        held = np.full((starts.size, len(self._wants)), -1)
        for rows in (np.flatnonzero((slot >= 0) & (listed == which)) for which in (False, True)):
            held[record[rows], slot[rows]] = rows
        counting = np.zeros(record.size, bool)
        counting[held[held >= 0]] = True
        values = parts.where((parts.tag == 0x12) & counting[parts.of])

        # Features: one of an entry, under its number, or one for each step, under higher ones.
        lists, alone = values.where(listed[values.of]), values.where(~listed[values.of])
        steps = fields(record[lists.of], lists.begin, lists.end)
        steps = steps.where(steps.tag == 0x0A)
        entry = np.concatenate([np.arange(record.size), lists.of[steps.of]])
        number = np.concatenate([alone.of, record.size + np.arange(steps.of.size)])
        begin = np.concatenate([alone.begin, steps.begin])
        end = np.concatenate([alone.end, steps.end])
        kinds = fields(record[entry[number]], begin, end)
        kinds = kinds.where((kinds.tag == 0x0A) | (kinds.tag == 0x12) | (kinds.tag == 0x1A))
        kind = np.zeros(entry.size, np.uint8)
        kind[number[kinds.of]] = kinds.tag >> 3
        other = kinds.tag >> 3 != kind[number[kinds.of]]
        if other.any():  # a oneof: the last kind counts, and no values before another one
            before = np.full(entry.size, -1)
            before[number[kinds.of[other]]] = np.flatnonzero(other)
            kinds = kinds.where(np.arange(other.size) > before[number[kinds.of]])

        items = fields(record[entry[number[kinds.of]]], kinds.begin, kinds.end)
        feature, size = number[kinds.of[items.of]], items.end - items.begin
        packed, of_kind = items.tag == 0x0A, kind[feature]
        odd = (of_kind == FLOATS) & (size & 3 > 0)
        odd |= (of_kind == INTS) & (size > 0) & (data.take(items.end - 1, mode="clip") >= 0x80)
        for i in np.flatnonzero(packed & odd).tolist():
            text = "packed numbers end in the middle of one, in a list"
            malformed(int(record[entry[feature[i]]]), int(items.begin[i]), text)
        good = packed & ~odd & ((size > 0) | (of_kind == BYTES)) | (items.tag == _SINGLE[of_kind])

        # Which records have which features, and of the right kind.
        there = held >= 0
        there[there] = (listed | (kind[: record.size] > 0))[held[there]]
        step = np.arange(entry.size) >= record.size
        used = counting[entry] & (step | (~listed[entry] & (kind > 0)))
        wanted_kinds = np.array([want.kind for want in self._wants], np.uint8)
        for at in np.flatnonzero(used & (kind != wanted_kinds[slot[entry]])).tolist():
            row, i = int(record[entry[at]]), int(slot[entry[at]])
            faults.setdefault(row, ("wrong_type", self._wants[i].wrong_kind(int(kind[at]))))
            there[row, i] = False
        for i, want in enumerate(self._wants):
            lacking = np.flatnonzero(~there[:, i] & (want.default is None)).tolist()
            for row in (row for row in lacking if row not in faults):
                mine = names[:, record == row].T.tolist()
                shown = [data[a : a + n].tobytes().decode(errors="replace") for a, n in mine]
                faults[row] = "missing_feature", _lacking(want.name, shown)

        # The spans and the steps of each wanted feature, by their records.
        good &= there[record[entry[feature]], slot[entry[feature]]]
        spans = Spans(record[entry[feature]], feature, items.begin, size)
        step &= used & there[record[entry], slot[entry]]
        each = self._by_slot(slot[entry[feature]], spans.record, good)
        steps_of_each = self._by_slot(slot[entry], record[entry], step)
        columns = {}
        for i, (own, which) in enumerate(zip(each, steps_of_each, strict=True)):
            columns[self._wants[i].name] = self._wants[i].column(
                data, there[:, i], spans.take(own), which, record[entry[which]], faults
            )
        return columns, faults

    def _by_slot(
        self, slot: np.ndarray, record: np.ndarray, chosen: np.ndarray
    ) -> Iterator[np.ndarray]:
        """Yield the chosen ones of each wanted feature, in the order of their records."""
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(slot[rows].astype(np.int16), kind="stable")]
        bounds = slot[rows].searchsorted(np.arange(len(self._wants) + 1))
        for a, b in pairwise(bounds.tolist()):
            own = rows[a:b]
            by = record[own]
            if not (by[1:] >= by[:-1]).all():  # some in lists, some alone
                own = own[np.argsort(by, kind="stable")]
            yield own

    def _slots(
        self, data: np.ndarray, begin: np.ndarray, size: np.ndarray, listed: np.ndarray
    ) -> np.ndarray:
        """Return the numbers of the wanted features that entries are, -1 for others."""
        slots = np.full(size.size, -1)
        for n, (keys, numbers) in self._keys.items():
            rows = np.flatnonzero(size == n)
            if not n:
                slots[rows] = numbers[0]
            elif rows.size:
                found = window(data, n)[begin[rows]].view(keys.dtype)
                at = np.minimum(keys.searchsorted(found), keys.size - 1)
                slots[rows] = np.where(keys[at] == found, numbers[at], -1)
        return np.where(listed & ~self._sequences[slots], -1, slots)


def _lacking(name: str, names: Sequence[str]) -> str:
    """Return the text of the fault of a record that lacks a wanted feature."""
    listed = ", ".join(map(repr, names[:_LISTED])) + (", …" if names[_LISTED:] else "")
    return (
        f"feature {name!r} is missing, and has no default. Declare one, or skip such records with "
        f"on_bad_example='skip'; the record has {listed or 'no feature'}"
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
_LENGTH = struct.Struct("<Q")
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

            def walk(stream: int, place: Place) -> _Walk:
                return _Walk(opening, parser, stream, compressions[stream], place)

            return Streams(fields, len(compressions), walk, _OPEN_STREAMS)
        return PartsReader(fields, [_Records(opening, parser)])


# ── mapped files ─────────────────────────────────────────────────────────────────────────────────


class _Records(IndexedSource):
    """The one part of uncompressed files: the files in order, records in order."""

    def __init__(self, opening: Opening, parser: ExampleParser) -> None:
        files, bad, cache = opening.files, opening.bad, opening.cache
        self._parser, self._bad = parser, bad
        self._names = tuple(file.path for file in files)
        self._files = MappedFiles(files, cache.directory, cache.copies)
        indexes = []
        for i, file in enumerate(files):

            def build(i: int = i, file: DataFile = file) -> np.ndarray:
                return scan(self._files.file_data(i), cache.progress_of(file))

            indexes.append(cache.get(file, "tfrecord frames", build))
        bounds = [index[:-1] for index in indexes]
        #: Good records of each file, and readable ones: one more where reading the damage has to
        #: raise.
        self._good = np.array([len(one) - 1 for one in bounds], np.int64)
        self._damage = {i: int(index[-1]) for i, index in enumerate(indexes) if index[-1]}
        self._ends = [int(one[-1]) for one in bounds]
        counted = self._good.copy()
        for i in self._damage:
            if bad.skip:
                bad.report(self._damage_error(i), _DAMAGE[self._damage[i]][0])
            else:
                counted[i] += 1
        self._first = np.cumsum(counted) - counted
        self.length = int(counted.sum())
        # Bounds of all files in one array, as positions in the one buffer.  Each file has one
        # bound more than records, at which its damage begins.
        sizes = self._good + 1
        self._first_bound = np.cumsum(sizes) - sizes
        if len(indexes) != 1:  # one stays mapped, and workers share it
            bounds = [b + base for b, base in zip(bounds, self._files.bases, strict=True)]
        none = np.empty(0, np.int64)
        self._bounds = bounds[0] if len(indexes) == 1 else np.concatenate([none, *bounds])
        self._verified = np.zeros(self.length, bool)

    def _damage_error(self, i: int) -> DataError:
        file, at = self._files.files[i], self._ends[i]
        fault = _DAMAGE[self._damage[i]][1].format(file.size)
        return DataError(
            f"{file.path}, record {self._good[i]}, byte {at}: {fault}; the rest of the file "
            f"({file.size - at} bytes) can not be read. {_REMEDY}"
        )

    def take(self, rows: Rows) -> Chunk:
        ordinals = numbers_of(rows)
        file, record, bound = self._find(ordinals)
        frames = self._bounds[bound]
        origin = Origin(self._names, file, record, frames - self._files.bases[file])
        if self._damage:
            beyond = np.flatnonzero(record >= self._good[file])
            if beyond.size:  # without skipping, the first bad record raises
                self.take(ordinals[: beyond[0]])
                raise self._damage_error(int(file[beyond[0]]))
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


def _frames(file: DataFile, compression: Compression, place: Place) -> Generator[bytes]:
    """Yield the frames of a file from a place on.  Damaged where it is damaged or cut off."""
    at = place.byte
    with open_forward(file, at, compression) as stream:
        while frame := stream.read(HEAD):
            size = HEAD
            if len(frame) == HEAD:
                length: int = _LENGTH.unpack_from(frame)[0]
                if not length_is_sound(frame):
                    raise Damaged("the length of the record, or its checksum, is wrong")
                size = HEAD + length + FOOT
                frame += stream.read(length + FOOT)
            if len(frame) < size:
                text = (
                    f"truncated at byte {at + len(frame)}: the frame that begins at byte {at} is "
                    "not complete"
                )
                raise Damaged(text, "truncated_file")
            at += size
            yield frame


class _Walk(Walk):
    """A walk over the records of a compressed file."""

    def __init__(
        self, opening: Opening, parser: ExampleParser, stream: int, kind: Compression, place: Place
    ) -> None:
        file = opening.files[stream]
        self.place, self._name, self._frames = place, file.path, _frames(file, kind, place)
        self._parser, self._bad = parser, opening.bad

    def read(self, limit: int) -> tuple[Chunk, bool]:
        found: list[bytes] = []
        damage: Damaged | None = None
        try:
            found.extend(islice(self._frames, limit))
        except Damaged as error:  # after those that were found
            damage = error
        at, bounds = self.place, np.cumsum([0, *map(len, found)])
        data, starts = np.frombuffer(b"".join(found), np.uint8), bounds[:-1] + HEAD
        lengths = np.diff(bounds) - (HEAD + FOOT)
        columns, faults = self._parser.parse(data, starts, lengths)
        wrong = bad_payloads(data, starts, lengths) if found else ()
        faults.update((int(row), _BAD_CHECKSUM) for row in wrong)
        record = at.record + np.arange(len(found), dtype=np.int64)
        origin = Origin.single(self._name, record, bounds[:-1] + at.byte)
        chunk = without(Chunk(columns, record, origin), faults, self._bad)
        self.place = Place(at.byte + int(bounds[-1]), at.record + len(found))
        if damage is not None:
            where = f"{self._name}, record {self.place.record}, byte {self.place.byte} decompressed"
            text = f"{where}: {damage}; the rest of the file can not be read. {_REMEDY}"
            self._bad.report(DataError(text), damage.reason)
        return chunk, len(found) == limit

    def close(self) -> None:
        self._frames.close()
