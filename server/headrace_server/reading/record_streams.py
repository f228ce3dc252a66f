"""Streams that are read from a place on: files, and what a function yields.

    position ──► walk (what is open, its place) ──► chunk, and the position after it
                   of records: a generator ──► rows ──► Schema ──► chunk

A position is a few integers: where the next record begins, and its number.  A walk stays open
after a read, so that the usual next call continues without a seek; any other call starts a new
walk.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import Chunk
from headrace_server.reading.example_rows import Row, RowSource, Shown, schema_of
from headrace_server.reading.forward_files import NOTHING_AFTER, Damaged
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.source import Opening, StreamSource

#: Maximum number of files kept open.  A partition reads one at a time.
_KEPT_WALKS = 4

#: Yields the records of a walk from its place on, and moves that to the next record before each
#: yield.  Damaged where no more can be read.
Reading = Callable[["Records"], Iterator["Record"]]
_PLACE = struct.Struct("<2Q")


class Place(NamedTuple):
    """The place of a record: its byte in the decompressed file, and its number."""

    byte: int = 0
    record: int = 0


@dataclass(slots=True)
class Record:
    """One record as read: a row, or the text of its fault."""

    place: Place
    row: Row | None = None
    wrong: str = ""
    reason: str = "corrupt_record"


def place_at(position: bytes) -> Place:
    """Return the place at a position; b"" is the start of the stream."""
    if position and len(position) != _PLACE.size:
        raise ValueError(f"{len(position)} bytes are no position in a file: {_PLACE.size} are")
    return Place(*_PLACE.unpack(position)) if position else Place()


class Walk:
    """One stream that is read forward; ``place`` is that of the next record."""

    place: Place

    def ready(self, limit: int, whole: bool) -> int:
        """Return how many examples can be read without a wait, at most ``limit``."""
        return limit  # what a file has is there

    def read(self, limit: int) -> tuple[Chunk, bool]:
        """Return at most so many examples, and whether the stream goes on."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what it holds open."""


class Streams(StreamSource):
    """A StreamSource over walks."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        streams: int,
        walk: Callable[[int, Place], Walk],
        most_open: int = _KEPT_WALKS,
        may_wait: bool = False,
    ) -> None:
        """``walk`` starts one, of a stream from a place on."""
        self.fields, self.streams, self.may_wait = fields, streams, may_wait
        self._walk, self._most_open = walk, most_open
        self._walks: OrderedDict[tuple[int, Place], Walk] = OrderedDict()

    def ready(self, stream: int, position: bytes, limit: int, whole: bool) -> int:
        place = place_at(position)
        walk = self._at(stream, place)
        self._walks[stream, place] = walk
        return walk.ready(limit, whole)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        walk = self._at(stream, place_at(position))
        goes_on = False
        try:
            chunk, goes_on = walk.read(limit)
        finally:
            if not goes_on:
                walk.close()
        if not goes_on:
            return chunk, None
        if (other := self._walks.pop((stream, walk.place), None)) is not None:
            other.close()
        self._walks[stream, walk.place] = walk
        return chunk, _PLACE.pack(*walk.place)

    def _at(self, stream: int, place: Place) -> Walk:
        """Return the walk that has come to a place, or a new one; no other read finds it."""
        walk = self._walks.pop((stream, place), None)
        while len(self._walks) >= self._most_open:
            self._walks.popitem(last=False)[1].close()
        return walk or self._walk(stream, place)

    def close(self) -> None:
        while self._walks:
            self._walks.popitem()[1].close()


class Records(RowSource, Walk):
    """A walk over records, whose source is opened when the first one is read."""

    def __init__(
        self, name: str, place: Place, bad: BadRecords, records: Reading, offsets: bool = True
    ) -> None:
        super().__init__(name, bad, offsets)
        self.place = place
        self._ended = False
        self._left = self._until_damage(records)

    def read(self, limit: int) -> tuple[Chunk, bool]:
        rows: list[Row] = []
        places: list[Place] = []
        for record in islice(self._left, limit):
            if record.row is None:
                self.bad.report(self._error(record), record.reason)
            else:
                rows.append(record.row)
                places.append(record.place)
        numbers = [place.record for place in places]
        return self.chunk(rows, numbers, [place.byte for place in places]), not self._ended

    def examples(self) -> Iterator[Shown]:
        """Yield the places of all records, and their rows or errors; close the walk."""
        with closing(self):
            for record in self._left:
                row = self._error(record) if record.row is None else record.row
                yield self.where(record.place.record, record.place.byte), row

    def _error(self, record: Record) -> DataError:
        return DataError(f"{self.where(record.place.record, record.place.byte)}: {record.wrong}")

    def _until_damage(self, records: Reading) -> Generator[Record]:
        """Yield the records; damage is the fault of the last one."""
        last = None
        try:
            yield from records(self)
        except Damaged as error:
            last = Record(self.place, None, f"{error}{NOTHING_AFTER}", error.reason)
        self._ended = True
        if last is not None:
            yield last

    def close(self) -> None:
        self._left.close()


def file_streams(
    opening: Opening,
    records: Callable[[DataFile, Records], Iterator[Record]],
    features: Mapping[str, Feature] | None,
) -> Streams:
    """Return a stream of records per file."""

    def walk(i: int, place: Place) -> Records:
        file = opening.files[i]
        return Records(file.path, place, opening.bad, partial(records, file))

    return record_streams(len(opening.files), walk, features)


def record_streams(
    streams: int,
    walk: Callable[[int, Place], Records],
    features: Mapping[str, Feature] | None,
    most_open: int = _KEPT_WALKS,
    examples: Iterable[Shown] | None = None,
) -> Streams:
    """Return streams of records.

    ``examples`` shows the first examples where discarded walks would cost too much, and records may
    not be there yet.
    """
    shown = chain.from_iterable(walk(i, Place()).examples() for i in range(streams))
    schema = schema_of(features, shown if examples is None else examples)

    def started(stream: int, place: Place) -> Records:
        records = walk(stream, place)
        records.schema = schema
        return records

    return Streams(schema.fields, streams, started, most_open, may_wait=examples is not None)
