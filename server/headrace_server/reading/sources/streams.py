"""Stream readers over files that are parsed record by record.

    position ──► Walk (an open file, a place in it) ──► records ──► rows.Layout ──► chunk

A position is a few integers: where the next record begins, and its number.  A walk is kept open
after a read, so that the usual next call goes on without a seek; any other call starts one anew.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.manifest import DataFile, open_stream
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.reader import BadRecords

from .inference import PROBED
from .parts import empty_columns
from .rows import layout_of

__all__ = ["DAMAGE", "FileStreams", "Place", "Record", "Walk", "damage_text", "open_plain"]

#: What reading a damaged compressed file raises.
DAMAGE = (EOFError, zlib.error, gzip.BadGzipFile)
#: Files that are kept open.  A partition reads one at a time.
_KEPT_WALKS = 4


class Place(NamedTuple):
    """Where a record begins: byte (of the decompressed file), record number, row number."""

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
class Record:
    """One record as read: a row, or what is wrong with it."""

    place: Place
    row: Mapping[str, Any] | None = None
    wrong: str = ""
    reason: str = "corrupt_record"
    ends: bool = False  # nothing can be read after it


class Walk(Protocol):
    """Records of one file from a place on."""

    @property
    def place(self) -> Place:
        """Where the next record begins."""

    def next(self) -> Record | None:
        """None at the end of the file."""

    def close(self) -> None: ...


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


def damage_text(error: Exception) -> tuple[str, str]:
    """Text and reason for what a damaged compressed file raised."""
    if isinstance(error, EOFError):
        return f"the compressed file is cut off ({error})", "truncated_file"
    return f"the compressed file is damaged ({error})", "corrupt_file"


class FileStreams:
    """A StreamReader with a stream per file."""

    def __init__(
        self,
        files: Sequence[DataFile],
        walk: Callable[[DataFile, Place], Walk],
        features: Mapping[str, Feature] | None,
        bad: BadRecords,
    ) -> None:
        self._files, self._walk, self._bad = tuple(files), walk, bad
        self._walks: OrderedDict[int, Walk] = OrderedDict()
        self._layout = layout_of(features, lambda: self._probe(PROBED))

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._layout.fields

    @property
    def streams(self) -> int:
        return len(self._files)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        walk = self._at(stream, Place.unpacked(position))
        records: list[Record] = []
        ended = False
        for _ in range(limit):
            record = walk.next()
            if record is None:
                ended = True
                break
            if record.row is None:
                self._report(stream, record)
            else:
                records.append(record)
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
            while len(self._walks) >= _KEPT_WALKS:
                self._walks.popitem(last=False)[1].close()
            walk = self._walk(self._files[stream], place)
        self._walks[stream] = walk
        return walk

    def _report(self, stream: int, record: Record) -> None:
        where = (
            f"{self._files[stream].path}, record {record.place.record}, byte {record.place.byte}"
        )
        self._bad.report(DataError(f"{where}: {record.wrong}"), record.reason)

    def _chunk(self, stream: int, records: Sequence[Record]) -> Chunk:
        ordinals = np.array([record.place.record for record in records], np.int64)
        offsets = np.array([record.place.byte for record in records], np.int64)
        origin = Origin.single(self._files[stream].path, ordinals, offsets)
        if not records:
            return Chunk(empty_columns(self.fields), ordinals, origin)
        rows = [cast(Mapping[str, Any], record.row) for record in records]
        return self._layout.chunk(rows, ordinals, origin, self._bad)[0]

    def _probe(self, wanted: int) -> list[Mapping[str, Any]]:
        """The first sound rows of all files.  Others are reported when they are read."""
        rows: list[Mapping[str, Any]] = []
        first_wrong = ""
        for file in self._files:
            walk = self._walk(file, Place())
            try:
                while len(rows) < wanted:
                    record = walk.next()
                    if record is None:
                        break
                    if record.row is not None:
                        rows.append(record.row)
                    else:
                        where = f"{file.path}, record {record.place.record}"
                        first_wrong = first_wrong or f"{where}: {record.wrong}"
                    if record.ends:
                        break
            finally:
                walk.close()
            if len(rows) >= wanted:
                break
        if not rows and first_wrong:
            raise DataError(f"{first_wrong}; no record shows the columns: declare the features")
        return rows
