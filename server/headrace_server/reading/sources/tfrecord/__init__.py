"""TFRecord files of tf.train.Example or SequenceExample, without TensorFlow.

    uncompressed   IndexedSource: every file is mapped (remote ones: read by ranges), and its frames
                   are indexed once
    compressed     StreamSource: one stream per file, a position is (record, decompressed byte)

Framing is checked when a file is indexed, the checksum of a payload when the record is first read;
neither is checked again.  Damage that ends a file (cut off, or a length that is wrong) is reported
when the file is opened, and with ``on_bad_example='skip'`` the rest of the file is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError

from ....files.durable_file import MOST_OPEN
from ....files.index_cache import some_of
from ....files.manifest import DataFile, is_remote
from ....files.mapped_files import MappedFiles
from ....files.ranges import RangedFiles, open_stream, with_ends
from ...block_order import even_blocks
from ...chunk import Chunk, Faults, Origin, without
from ...columns import Column, Rows, numbers_of
from ...example_rows import Place, Record, Records, Row, Streams
from ...forward_files import Compression, Damaged, compression_of, open_forward
from ...source import IndexedSource, Opening, PartsReader, Source, StreamSource
from .frames import CORRUPT, FOOT, HEAD, TRUNCATED, bad_payloads, length_is_sound, scan
from .parser import ExampleParser

#: Bytes of a remote file that are scanned at once.
_SCANNED = 1 << 22
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
        compressions = [_detected(file) for file in with_ends(opening.files, HEAD)]
        parser = ExampleParser(features)
        if any(compressions):

            def walk(stream: int, place: Place) -> _Frames:
                file = opening.files[stream]
                frames = partial(_frames, file, compressions[stream])
                begun = _Frames(file.path, place, opening.bad, frames)
                begun.parser = parser
                return begun

            return Streams(len(compressions), walk, features, MOST_OPEN, opening.files)
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
            cache.get(
                file,
                "tfrecord frames",
                partial(self._scanned, i, cache.progress_of(file)),
                partial(self._fits, i),
            )
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

    def _fits(self, i: int, index: np.ndarray) -> bool:
        """Return whether frames of a file still lie where its index says, at some places.

        The stamp of a remote file names its content.
        """
        if not isinstance(self._files, MappedFiles):
            return True
        data, bounds = self._files.file_data(i), index[:-1]
        for frame in some_of(len(bounds) - 1):
            start, stop = int(bounds[frame]), int(bounds[frame + 1])
            head = data[start : start + HEAD].tobytes()
            if len(head) < HEAD or not length_is_sound(head):
                return False
            if start + HEAD + int.from_bytes(head[:8], "little") + FOOT != stop:
                return False
        return True

    def take(self, rows: Rows) -> Chunk:
        ordinals = numbers_of(rows)
        file, record, bound = self._find(ordinals)
        frames, ends = self._bounds[bound], self._bounds[bound + 1]
        origin = Origin(self._names, file, record, frames - self._files.bases[file])
        data, at = self._files.bytes_at(frames, ends)
        columns, faults = self._parse(ordinals, data, at + HEAD, ends - frames - (HEAD + FOOT))
        return without(Chunk(columns, ordinals, origin), faults, self._bad)

    def blocks(self, block_bytes: int) -> np.ndarray:
        found = [np.empty(0, np.int64)]
        ends = np.append(self._first, self.length)
        for i, file in enumerate(self._files.files):
            at = int(self._first_bound[i])
            starts = self._bounds[at : at + int(ends[i + 1] - ends[i])] - self._files.bases[i]
            found.append(ends[i] + even_blocks(starts, file.size, block_bytes))
        return np.concatenate(found)

    def expect(self, rows: np.ndarray) -> int:
        if isinstance(self._files, MappedFiles):
            return len(rows)
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

    #: Set before chunks are read.
    parser: ExampleParser

    def chunk(self, rows: Sequence[Row], numbers: np.ndarray, origin: Origin) -> Chunk:
        frames: list[Any] = [row[""] for row in rows]
        bounds = np.cumsum([0, *map(len, frames)])
        data = np.frombuffer(b"".join(frames), np.uint8)
        starts, lengths = bounds[:-1] + HEAD, np.diff(bounds) - (HEAD + FOOT)
        columns, faults = self.parser.parse(data, starts, lengths)
        wrong = bad_payloads(data, starts, lengths) if frames else ()
        faults.update((int(row), _BAD_CHECKSUM) for row in wrong)
        return without(Chunk(columns, numbers, origin), faults, self.bad)


def _frames(file: DataFile, compression: Compression, walk: Records) -> Iterator[Record]:
    """Yield the frames of a file.  Damaged where it is damaged or cut off."""
    with open_forward(file, walk.place.byte, compression) as stream:
        while frame := stream.read(HEAD):
            here, size = walk.place, HEAD
            if len(frame) == HEAD:
                length = int.from_bytes(frame[:8], "little")
                if not length_is_sound(frame):
                    raise Damaged(_DAMAGE[CORRUPT][1])
                size = HEAD + length + FOOT
                frame += stream.read(length + FOOT)
            if len(frame) < size:
                reason, text = _DAMAGE[TRUNCATED]
                raise Damaged(text.format(here.byte + len(frame)), reason)
            walk.place = Place(here.byte + size, here.record + 1)
            yield Record(here, {"": frame})
