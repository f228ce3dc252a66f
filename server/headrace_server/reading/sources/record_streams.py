"""Streams that are read record by record: files, and what a function yields.

    position ──► Walk (what is open, a place in it) ──► records ──► Schema ──► chunk

A position is a few integers: where the next record begins, and its number.  A walk is kept open
after a read, so that the usual next call goes on without a seek; any other call starts one anew.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.manifest import DataFile, open_stream
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.reader import BadRecords, Opening

from .example_rows import Row, schema_of

#: The exceptions that reading a damaged compressed file raises.
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
#: Files that are kept open.  A partition reads one at a time.
_KEPT_WALKS = 4


class Place(NamedTuple):
    """The place of a record: its byte in the decompressed file, its number, its first row."""

    byte: int = 0
    record: int = 0
    row: int = 0

    def packed(self) -> bytes:
        return _PLACE.pack(*self)

    @classmethod
    def unpacked(cls, position: bytes) -> Place:
        if not position:
            return cls()
        if len(position) != _PLACE.size:
            raise ValueError(f"{len(position)} bytes are no position in a file: {_PLACE.size} are")
        return cls(*_PLACE.unpack(position))


_PLACE = struct.Struct("<QQQ")


@dataclass(slots=True)
class StreamRecord:
    """One record as read: a row, or the text of its fault."""

    place: Place
    row: Row | None = None
    wrong: str = ""
    reason: str = "corrupt_record"
    ends: bool = False  # nothing can be read after it


class Walk(Protocol):
    """Records of one stream from a place on."""

    @property
    def place(self) -> Place:
        """The place of the next record."""

    def next(self) -> StreamRecord | None:
        """None at the end of the stream.  DAMAGE or Damaged where no more can be read."""

    def close(self) -> None: ...


class FileWalk:
    """A walk over a file, which is opened when its first record is read."""

    def __init__(self, file: DataFile, place: Place) -> None:
        self.place, self._file = place, file
        self._opened: Any = None  # what is read from, and closed

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def open_plain(file: DataFile, byte: int) -> BinaryIO:
    """The content from a byte on.  Compressed files are decompressed up to it once more."""
    stream = open_stream(file)
    if file.path.endswith((".gz", ".tgz")):
        stream = cast(BinaryIO, _Unpacked(stream))
    try:
        stream.seek(byte)
    except BaseException:
        stream.close()
        raise
    return stream


class _Unpacked(gzip.GzipFile):
    """Closes the file beneath it, too."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self._beneath = stream

    def close(self) -> None:
        super().close()
        self._beneath.close()


class Damaged(Exception):
    """Nothing can be read after this place; ``reason`` is its short name."""

    def __init__(self, text: str, reason: str = "corrupt_file") -> None:
        super().__init__(text)
        self.reason = reason


def _next(walk: Walk) -> StreamRecord | None:
    """The next record of a walk; damage is reported as its last one."""
    try:
        return walk.next()
    except EOFError as error:
        text, reason = f"the compressed file is cut off ({error})", "truncated_file"
    except DAMAGE as error:
        text, reason = f"the compressed file is damaged ({error})", "corrupt_file"
    except Damaged as error:
        text, reason = str(error), error.reason
    return StreamRecord(walk.place, None, text, reason, ends=True)


def file_streams(
    opening: Opening,
    walk: Callable[[DataFile, Place], Walk],
    features: Mapping[str, Feature] | None,
) -> Streams:
    """A stream per file."""
    files = opening.files
    names = [file.path for file in files]
    return Streams(names, lambda stream, place: walk(files[stream], place), features, opening.bad)


class Streams:
    """A StreamReader over walks.  ``names`` of the streams stand in origins and errors.

    ``offsets``: records have a byte in their stream.  ``examples`` shows the first examples where
    walks that are thrown away would cost too much.
    """

    def __init__(
        self,
        names: Sequence[str],
        walk: Callable[[int, Place], Walk],
        features: Mapping[str, Feature] | None,
        bad: BadRecords,
        offsets: bool = True,
        most_open: int = _KEPT_WALKS,
        examples: Iterable[Row | DataError] | None = None,
    ) -> None:
        self._names, self._walk, self._bad = tuple(names), walk, bad
        self._offsets, self._most_open = offsets, most_open
        self._walks: OrderedDict[int, Walk] = OrderedDict()
        self._schema = schema_of(features, self._examples() if examples is None else examples)

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._schema.fields

    @property
    def streams(self) -> int:
        return len(self._names)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        walk = self._at(stream, Place.unpacked(position))
        records: list[tuple[Place, Row]] = []
        ended = False
        for _ in range(limit):
            record = _next(walk)
            if record is None:
                ended = True
                break
            if record.row is None:
                self._bad.report(self._error(stream, record), record.reason)
            else:
                records.append((record.place, record.row))
            if record.ends:
                ended = True
                break
        if ended:
            self._walks.pop(stream).close()
        return self._chunk(stream, records), None if ended else walk.place.packed()

    def close(self) -> None:
        while self._walks:
            self._walks.popitem()[1].close()

    def _at(self, stream: int, place: Place) -> Walk:
        walk = self._walks.pop(stream, None)
        if walk is not None and walk.place != place:
            walk.close()
            walk = None
        if walk is None:
            while len(self._walks) >= self._most_open:
                self._walks.popitem(last=False)[1].close()
            walk = self._walk(stream, place)
        self._walks[stream] = walk
        return walk

    def _error(self, stream: int, record: StreamRecord) -> DataError:
        at = f", byte {record.place.byte}" if self._offsets else ""
        return DataError(f"{self._names[stream]}, record {record.place.record}{at}: {record.wrong}")

    def _chunk(self, stream: int, records: Sequence[tuple[Place, Row]]) -> Chunk:
        ordinals = np.array([place.record for place, _ in records], np.int64)
        offsets = np.array([place.byte for place, _ in records], np.int64)
        origin = Origin.single(self._names[stream], ordinals, offsets if self._offsets else None)
        return self._schema.chunk([row for _, row in records], ordinals, origin, self._bad)[0]

    def _examples(self) -> Iterator[Row | DataError]:
        for stream in range(self.streams):
            walk = self._walk(stream, Place())
            try:
                while (record := _next(walk)) is not None:
                    yield self._error(stream, record) if record.row is None else record.row
                    if record.ends:
                        break
            finally:
                walk.close()
