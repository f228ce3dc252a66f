"""TFRecord files of tf.train.Example or SequenceExample, without TensorFlow.

    uncompressed   IndexedReader: every file is mapped, its frames are indexed once
    compressed     StreamReader: one stream per file, a position is (record, decompressed byte)

Framing is checked when a file is indexed, the checksum of a payload when the record is first read;
neither is checked again.  Damage that ends a file (cut off, or a length that is wrong) does not
affect earlier records: with ``on_bad_example='skip'`` the rest of the file is reported once
and left out; otherwise the damage counts as one more record, and reading that one raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

import numpy as np

from headrace_proto.errors import DataError
from headrace_server.files.manifest import DataFile, open_stream
from headrace_server.files.mapped_files import MappedFiles
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import Column, Rows, numbers_of
from headrace_server.reading.reader import Faults, IndexedReader, Opening, StreamReader, without

from .example_parse import ExampleParser
from .forward_files import Compression, Damaged, compression_of, open_forward
from .parts_reader import PartsReader
from .record_streams import Streams
from .tfrecord_frames import (
    CORRUPT,
    FOOT,
    HEAD,
    MAX_RECORD_BYTES,
    TRUNCATED,
    bad_payloads,
    length_is_sound,
    scan,
    sound,
)

#: Maximum number of records that one call checks before they are read, and bytes of them between
#: two looks whether a message has come: 6 µs, and as much again where pages are mapped.
_AHEAD_RECORDS, _AHEAD_BYTES = 256, 64 << 10
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


def open_reader(opening: Opening) -> IndexedReader | StreamReader:
    """Return an indexed reader where no file is compressed, else streams."""
    options, features = opening.source.options, opening.source.features or {}
    fields = {name: feature.field for name, feature in features.items()}
    given = options.get("compression", "auto")
    compressions = [_detected(file) if given == "auto" else given for file in opening.files]
    parser = ExampleParser(features, options.get("record", "auto") != "example")
    if any(compressions):

        def walk(stream: int, place: FramePlace) -> _Walk:
            return _Walk(opening, parser, stream, compressions[stream], place)

        return Streams(fields, len(compressions), walk, FramePlace, _OPEN_STREAMS)
    return PartsReader(fields, [_Records(opening, parser)])


# ── mapped files ─────────────────────────────────────────────────────────────────────────────────


class _Records:
    """The one SourcePart of uncompressed files: the files in order, records in order."""

    def __init__(self, opening: Opening, parser: ExampleParser) -> None:
        files, bad, cache = opening.files, opening.bad, opening.cache
        verify = opening.source.options.get("verify", True)
        self._parser, self._bad = parser, bad
        self._names = tuple(file.path for file in files)
        self._files = MappedFiles(files, cache.directory, cache.copies)
        kind = "tfrecord frames" if verify else "tfrecord frames, unverified"
        indexes = []
        for i, file in enumerate(files):

            def build(i: int = i, file: DataFile = file) -> np.ndarray:
                return np.append(*scan(self._files.file_data(i), verify, cache.progress_of(file)))

            indexes.append(cache.get(file, kind, build))
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
        self._verified = np.zeros(self.length, bool) if verify else None

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

    def check_ahead(self, rows: np.ndarray, stop: Callable[[], object]) -> int:
        """Verify checksums of these examples until ``stop`` returns a value; return how many."""
        if self._verified is None or self._damage or not self._files.local:
            return 0
        rows = rows[:_AHEAD_RECORDS]
        fresh = np.flatnonzero(~self._verified[rows])
        ordinals = rows[fresh]
        *_, bound = self._find(ordinals)
        starts = self._bounds[bound] + HEAD
        lengths = self._bounds[bound + 1] - FOOT - starts
        nbytes = 0
        checked = sound(self._files.data, starts, lengths)
        for place, length, is_sound in zip(fresh.tolist(), lengths.tolist(), checked, strict=True):
            self._verified[rows[place]] = is_sound
            nbytes += length
            if nbytes >= _AHEAD_BYTES:
                nbytes = 0
                if stop():
                    return place + 1
        return len(rows)

    def _parse(
        self, ordinals: np.ndarray, starts: np.ndarray, stops: np.ndarray
    ) -> tuple[dict[str, Column], Faults]:
        data, lengths = self._files.data, stops - starts
        columns, faults = self._parser.parse(data, starts, lengths)
        if self._verified is not None:
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


class FramePlace(NamedTuple):
    """The number of a record, and its byte in the decompressed file."""

    record: int = 0
    byte: int = 0


def _frames(
    file: DataFile, compression: Compression, verify: bool, place: FramePlace
) -> Generator[bytes]:
    """Yield the frames of a file from a place on.  Damaged where it is damaged or cut off."""
    at = place.byte
    with open_forward(file, at, compression) as stream:
        while frame := stream.read(HEAD):
            size = HEAD
            if len(frame) == HEAD:
                length: int = _LENGTH.unpack_from(frame)[0]
                if length > MAX_RECORD_BYTES or (verify and not length_is_sound(frame)):
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


class _Walk:
    """A walk over the records of a compressed file."""

    def __init__(
        self,
        opening: Opening,
        parser: ExampleParser,
        stream: int,
        compression: Compression,
        place: FramePlace,
    ) -> None:
        self.place, self._name = place, opening.files[stream].path
        self._parser, self._bad = parser, opening.bad
        self._verify = opening.source.options.get("verify", True)
        self._frames = _frames(opening.files[stream], compression, self._verify, place)
        self._left: Iterator[bytes] = self._frames
        self._damage: Damaged | None = None  # the fault where the frames end

    def ready(self, limit: int, whole: bool) -> int:
        """Return ``limit``: what a file has is there."""
        return limit

    def read(self, limit: int) -> tuple[Chunk, bool]:
        found: list[bytes] = []
        try:
            found.extend(islice(self._left, limit))
        except Damaged as error:
            self._damage = error
        at, bounds = self.place, np.cumsum([0, *map(len, found)])
        chunk, faults = self._parse(np.frombuffer(b"".join(found), np.uint8), bounds)
        if faults and not self._bad.skip and (good := min(faults)):
            # Return the records before the bad one now; the bad one raises when it is next.
            self._left = chain(found[good:], self._left)
            self.place = FramePlace(at.record + good, at.byte + int(bounds[good]))
            return chunk.take(slice(0, good)), True
        self.place = FramePlace(at.record + len(found), at.byte + int(bounds[-1]))
        chunk = without(chunk, faults, self._bad)
        if len(found) == limit or self._damage is None:
            return chunk, len(found) == limit
        if not self._bad.skip and found:
            return chunk, True
        where = f"{self._name}, record {self.place.record}, byte {self.place.byte} decompressed"
        text = f"{where}: {self._damage}; the rest of the file can not be read. {_REMEDY}"
        self._bad.report(DataError(text), self._damage.reason)
        return chunk, False

    def _parse(self, data: np.ndarray, bounds: np.ndarray) -> tuple[Chunk, Faults]:
        starts, lengths = bounds[:-1] + HEAD, np.diff(bounds) - (HEAD + FOOT)
        columns, faults = self._parser.parse(data, starts, lengths)
        if self._verify and starts.size:
            wrong = bad_payloads(data, starts, lengths)
            faults.update((int(row), _BAD_CHECKSUM) for row in wrong)
        record = self.place.record + np.arange(starts.size, dtype=np.int64)
        origin = Origin.single(self._name, record, bounds[:-1] + self.place.byte)
        return Chunk(columns, record, origin), faults

    def close(self) -> None:
        self._frames.close()
