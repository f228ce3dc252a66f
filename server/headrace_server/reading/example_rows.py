"""Examples that come one by one as mappings (JSON, CSV, tar, Python): by number, or in streams.

    rows ──► names and missing values ──► columns, whole ──► chunk
                                              └─ where one does not fit: row by row ─► reports

The schema is the declared one, or inferred from the first examples.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from headrace_proto.errors import DataError, brief, listed, near
from headrace_proto.schema import Field

from ..files.manifest import DataFile, is_remote
from ..files.mapped_files import MappedFiles
from ..files.ranges import REQUEST_BYTES, RangedFiles, expect
from ..pipeline.declaration import Feature
from ..pipeline.examples import Misfit, infer_field
from .block_order import even_blocks
from .chunk import LINE, BadRecords, Chunk, Faults, Origin, counting, without
from .columns import Column, Rows, defaults_of, numbers_of, row_of
from .forward_files import NOTHING_AFTER, Damaged
from .row_functions import collect
from .source import IndexedSource, Opening, PartsReader, StreamSource

#: Number of examples for inference: enough to see which dimensions vary, and soon read.
PROBED = 64
_REMEDY = "declare the features of the source"
_GIVE = "; give the feature a default"

Row = Mapping[str, object]
#: The place of an example in words, and its row, or the error of a bad one.
Shown = tuple[str, Row | DataError]
#: Calls a function for each of some numbers.
Each = Callable[[Callable[[int], Row | DataError], list[int]], Iterable[Row | DataError]]


@dataclass(frozen=True)
class Schema:
    """The columns that examples have, and the defaults of missing values, of one row each."""

    fields: Mapping[str, Field]
    defaults: Mapping[str, Column] = field(default_factory=dict)
    declared: bool = False

    def chunk(
        self, rows: Sequence[Row], ordinals: np.ndarray, origin: Origin, bad: BadRecords
    ) -> Chunk:
        """Return the rows that fit; the others are reported."""
        faults: Faults = {}
        remedy = "" if self.declared else f"; {_REMEDY}"
        give = _GIVE if self.declared else f"{remedy}, with a default"
        for i, row in enumerate(() if self.declared else rows):
            for name in row.keys() - self.fields.keys():
                text = f"column {name!r}: the first examples have no such column{remedy}"
                faults[i] = "wrong_type", text
        given = {name: [row.get(name) for row in rows] for name in self.fields}
        for name, values in given.items():
            for i in (i for i, value in enumerate(values) if value is None):
                if name in self.defaults:
                    values[i] = row_of(self.defaults[name], 0)
                else:
                    others = rows[i].keys() - self.fields.keys()
                    has = f"the example has {listed(rows[i]) or 'none'}"
                    text = f"column {name!r}: it is missing ({has}){near(name, others) or give}"
                    faults.setdefault(i, ("missing_feature", text))
        columns = collect(given, self.fields, len(rows), faults, "", remedy)
        chunk = without(Chunk({}, ordinals, origin), faults, bad, ", ")
        return chunk.with_columns(columns)


def schema_of(features: Mapping[str, Feature] | None, examples: Iterable[Shown] = ()) -> Schema:
    """Return the declared schema, or that of the first sound examples."""
    if features is None:
        return Schema(infer_fields(_first_rows(examples)))
    fields = {name: feature.field for name, feature in features.items()}
    return Schema(fields, defaults_of(features), declared=True)


def _first_rows(examples: Iterable[Shown]) -> list[tuple[str, Row]]:
    """Return the first sound rows.  Others are reported when they are read."""
    rows, wrong = list[tuple[str, Row]](), None
    for where, example in examples:
        if isinstance(example, DataError):
            wrong = wrong or example
        else:
            rows.append((where, example))
        if len(rows) == PROBED:
            break
    if wrong is not None and not rows:
        raise DataError(f"{wrong}; no record shows the columns: declare the features") from wrong
    return rows


def infer_fields(rows: Iterable[tuple[str, Mapping[str, object]]]) -> dict[str, Field]:
    """Infer the fields of all rows together, in the order of their first appearance.

    Each comes with its place.  DataError has that, and the column, of a value that does not fit
    earlier ones.
    """
    seen: dict[str, tuple[list[str], list[object]]] = {}
    for where, row in rows:
        for name, value in row.items():
            if not isinstance(name, str) or not name:
                raise DataError(f"{where}: {name!r:.80} is no name of a column")
            if value is not None:
                places, values = seen.setdefault(name, ([], []))
                places.append(where)
                values.append(value)
    fields = {}
    for name, (places, values) in seen.items():
        try:
            field = infer_field(values)
        except Misfit as misfit:
            value, why = brief(values[misfit.row]), str(misfit)
            fault = why if why.startswith(value) else f"{value} {why}"
            where = f"{places[misfit.row]}, column {name!r}"
            raise DataError(f"{where}: {fault}; {_REMEDY}") from None
        # A length of 0 does not show that the dimension is fixed.
        fields[name] = Field(field.dtype, tuple(d or None for d in field.shape))
    return fields


class RowSource:
    """A file, or what a function gives, whose examples are read one by one.

    ``name`` stands in origins and errors, with the bytes of records if ``offsets``.  ``schema`` is
    set before chunks are read.
    """

    name: str
    bad: BadRecords
    offsets: bool
    schema: Schema

    def where(self, record: int, byte: int) -> str:
        """Return the place of a record, for errors."""
        text = f"{counting(self.name)} {record}"
        return f"{text}, byte {byte}" if self.offsets else text

    def origin(self, numbers: np.ndarray, offsets: Sequence[int] | np.ndarray) -> Origin:
        """Return the places of records, by the numbers by which errors name them."""
        at = np.array(offsets, np.int64) if self.offsets else None
        return Origin.single(self.name, numbers, at)

    def chunk(self, rows: Sequence[Row], numbers: np.ndarray, origin: Origin) -> Chunk:
        """Return the rows that fit, which are those of some records; the others are reported."""
        return self.schema.chunk(rows, numbers, origin, self.bad)


@dataclass(eq=False)
class RowPart(RowSource, IndexedSource):
    """A part whose examples are read one by one."""

    name: str
    length: int
    get: Callable[[int], Row]  # the row of a number; ValueError describes its fault
    bad: BadRecords
    starts: np.ndarray | None = None  # the bytes of records
    each: Each = map  # as ``map``, or gets the same rows in another way
    #: The lines (from 1) of records, by which errors name them.
    lines: Callable[[np.ndarray], np.ndarray] | None = None
    steps: np.ndarray | None = None  # of each example, where they are known

    def __post_init__(self) -> None:
        self.name += "" if self.lines is None else LINE
        self.offsets = self.starts is not None
        # Without offsets a view of a single 0: a sequence may be longer than any memory, even
        # than an array of larger numbers may seem.
        none = np.broadcast_to(np.int8(0), self.length)
        self._bytes = none if self.starts is None else self.starts

    def examples(self) -> Iterator[Shown]:
        for number in range(self.length):
            yield self._place(number), self._row(number)

    def _place(self, number: int) -> str:
        shown = number if self.lines is None else int(self.lines(np.array([number]))[0])
        return self.where(shown, int(self._bytes[number]))

    def _row(self, number: int) -> Row | DataError:
        """Return the row of a number, or an error that names the record."""
        try:
            return self.get(number)
        except ValueError as error:
            fault = DataError(f"{self._place(number)}: {error}")
            fault.__cause__ = error.__cause__
            return fault

    def take(self, rows: Rows) -> Chunk:
        found: list[Row] = []
        sound: list[int] = []
        numbers = numbers_of(rows).tolist()
        for number, row in zip(numbers, self.each(self._row, numbers), strict=True):
            if isinstance(row, DataError):
                self.bad.report(row, "corrupt_record")
            else:
                found.append(row)
                sound.append(number)
        at = np.array(sound, np.int64)
        named = at if self.lines is None else self.lines(at)
        return self.chunk(found, at, self.origin(named, self._bytes[at]))

    def steps_of(self, column: str) -> np.ndarray | None:
        return self.steps

    def close(self) -> None:
        del self.get, self.each  # so that its file can be unmapped


class FilePart(RowPart):
    """A part whose examples are ranges of a file, each of which ``parse`` makes a row of."""

    def __init__(
        self,
        file: DataFile,
        parse: Callable[[memoryview], Row],  # ValueError describes the fault of a row
        bad: BadRecords,
        starts: np.ndarray,
        stops: np.ndarray,
        lines: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> None:
        self._file, self._parse, self._stops = file, parse, stops
        self.far = is_remote(file.path)
        self._files = RangedFiles((file,)) if self.far else MappedFiles((file,))
        super().__init__(
            file.path, len(starts), self._one, bad, starts, each=self._several, lines=lines
        )

    def _one(self, number: int) -> Row:
        (row,) = self._several(None, [number])
        return row  # type: ignore[return-value]

    def _several(
        self, row_of: Callable[[int], Row | DataError] | None, numbers: list[int]
    ) -> Iterator[Row | DataError]:
        """Yield rows; ``row_of`` has the error of one that is at fault."""
        starts, stops = self._bytes[numbers], self._stops[numbers]
        data, at = self._files.bytes_at(starts, stops)
        view, sizes = data.data, (stops - starts).tolist()
        for number, start, size in zip(numbers, at.tolist(), sizes, strict=True):
            try:
                row: Row | DataError = self._parse(view[start : start + size])
            except ValueError:
                if row_of is None:
                    raise
                row = row_of(number)
            yield row

    def blocks(self, block_bytes: int) -> np.ndarray:
        return even_blocks(self._bytes, self._file.size, block_bytes)

    def expect(self, rows: np.ndarray) -> int:
        if isinstance(self._files, MappedFiles):
            return len(rows)
        return self._files.expect(self._bytes[rows], self._stops[rows])

    def close(self) -> None:
        super().close()
        self._files = MappedFiles(())


def reader_of_rows(parts: Sequence[RowPart], features: Mapping[str, Feature] | None) -> PartsReader:
    """Return the reader of parts whose examples are read one by one."""
    schema = schema_of(features, chain.from_iterable(part.examples() for part in parts))
    for part in parts:
        part.schema = schema
    return PartsReader(schema.fields, parts)


# ── Streams that are read from a place on: files, and what a function yields.
#
#     position ──► walk (what is open, its place) ──► chunk, and the position after it
#                    of records: a generator ──► rows ──► Schema ──► chunk
#
# A position is a few integers: where the next record begins, and its number.  A walk stays open
# after a read, so that the usual next call continues without a seek; any other call starts a new
# walk.

#: Maximum number of files kept open.  A partition reads one at a time.
_KEPT_WALKS = 4

#: Yields the records of a walk from its place on, and moves that to the next record before each
#: yield.  Damaged where no more can be read.
Reading = Callable[["Records"], Iterator["Record"]]


class Place(NamedTuple):
    """The place of a record: its byte in the decompressed file, and its number.

    ``blank``: of a file of lines, how many before it are no records.
    """

    byte: int = 0
    record: int = 0
    blank: int = 0

    def pack(self) -> bytes:
        """Return it as a position: two integers, or three."""
        return struct.pack("<2Q" if not self.blank else "<3Q", *self[: 2 + (self.blank > 0)])


@dataclass(slots=True)
class Record:
    """One record as read: a row, or the text of its fault."""

    place: Place
    row: Row | None = None
    wrong: str = ""
    reason: str = "corrupt_record"


def place_at(position: bytes) -> Place:
    """Return the place at a position; b"" is the start of the stream."""
    if len(position) not in (0, 16, 24):
        raise ValueError(f"{len(position)} bytes are no position in a file: 16 or 24 are")
    return Place(*struct.unpack(f"<{len(position) // 8}Q", position))


@dataclass(eq=False)
class Streams(StreamSource):
    """A StreamSource over walks."""

    streams: int
    walk: Callable[[int, Place], Records]  # starts one, of a stream from a place on
    features: Mapping[str, Feature] | None
    most_open: int = _KEPT_WALKS
    files: tuple[DataFile, ...] = ()  # those of the streams, where streams are files
    #: Returns parts with the same examples, where these can be read by number.
    numbered: Callable[[], Sequence[RowPart]] | None = None

    def __post_init__(self) -> None:
        self._walks: OrderedDict[tuple[int, Place], Records] = OrderedDict()
        self._schema = schema_of(self.features, self._first_examples())
        self.fields = self._schema.fields

    def _first_examples(self) -> Iterator[Shown]:
        for stream in range(self.streams):
            walk = self._walks[stream, Place()] = self.walk(stream, Place())
            yield from walk.first_examples()

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        place = place_at(position)
        walk = self._at(stream, place)
        self._walks[stream, place] = walk
        return walk.ready(limit)

    def by_number(self) -> IndexedSource | None:
        return None if self.numbered is None else self._by_number

    @cached_property
    def _by_number(self) -> IndexedSource:
        assert self.numbered is not None
        parts = self.numbered()
        for part in parts:
            part.schema = self._schema
        return PartsReader(self.fields, parts)

    def expect_stream(self, stream: int) -> None:
        if self.files and is_remote((file := self.files[stream]).path):
            expect([(file, 0, min(file.size, 4 * REQUEST_BYTES))])

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
        return chunk, walk.place.pack()

    def _at(self, stream: int, place: Place) -> Records:
        """Return the walk that has come to a place, or a new one; no other read finds it."""
        walk = self._walks.pop((stream, place), None)
        if walk is None:
            earlier = [at for at in self._walks if at[0] == stream and at[1].record < place.record]
            last = max(earlier, key=lambda at: at[1].record, default=None)
            if last is not None and self._walks[last].reaches(place):
                walk = self._walks.pop(last)
        while len(self._walks) >= self.most_open:
            self._walks.popitem(last=False)[1].close()
        walk = walk or self.walk(stream, place)
        walk.schema = self._schema
        return walk

    def close(self) -> None:
        while self._walks:
            self._walks.popitem()[1].close()


class Records(RowSource):
    """A walk over the records of a stream, which is opened when the first one is read.

    ``place`` is that of the next record.
    """

    def __init__(
        self, name: str, place: Place, bad: BadRecords, records: Reading, offsets: bool = True
    ) -> None:
        self.name, self.bad, self.offsets, self.place = name, bad, offsets, place
        self._ended = False
        self._left = self._until_damage(records)
        #: Records that were looked at before they are read, each with the place after it.
        self.ahead: deque[tuple[Record, Place]] = deque()

    def ready(self, limit: int) -> int:
        """Return how many examples can be read without a wait, at most ``limit``."""
        return limit  # what a file has is there

    def reaches(self, place: Place) -> bool:
        """Return whether it goes on to a later place by itself before the next read."""
        return False

    def read(self, limit: int) -> tuple[Chunk, bool]:
        """Return at most so many examples, and whether the stream goes on."""
        rows: list[Row] = []
        places: list[Place] = []
        for record, after in islice(iter(self._next, None), limit):
            self.place = after
            if record.row is None:
                self.bad.report(self._error(record), record.reason)
            else:
                rows.append(record.row)
                places.append(record.place)
        numbers = np.array([place.record for place in places], np.int64)
        named = np.array([*map(self._number, places)], np.int64)
        origin = self.origin(named, [place.byte for place in places])
        return self.chunk(rows, numbers, origin), bool(self.ahead) or not self._ended

    def first_examples(self) -> Iterator[Shown]:
        """Return the places of the first records of a stream, and their rows or errors.

        They are read later all the same.
        """
        self.ahead.extend(islice(self._left, PROBED))
        self.place = Place()
        for record, _ in self.ahead:
            row = self._error(record) if record.row is None else record.row
            yield self.where(self._number(record.place), record.place.byte), row

    def _number(self, place: Place) -> int:
        """Return the number by which errors name a record: its line where lines are counted."""
        return place.record + (place.blank + 1 if self.name.endswith(LINE) else 0)

    def _next(self) -> tuple[Record, Place] | None:
        return self.ahead.popleft() if self.ahead else next(self._left, None)

    def _error(self, record: Record) -> DataError:
        where = self.where(self._number(record.place), record.place.byte)
        return DataError(f"{where}: {record.wrong}")

    def _until_damage(self, records: Reading) -> Generator[tuple[Record, Place]]:
        """Yield the records with the places after them; damage is the fault of the last one."""
        try:
            for record in records(self):
                yield record, self.place
            self._ended = True
        except Damaged as error:
            self._ended = True
            yield Record(self.place, None, f"{error}{NOTHING_AFTER}", error.reason), self.place

    def close(self) -> None:
        """Let go of what it holds open."""
        self._left.close()


def file_streams(
    opening: Opening,
    records: Callable[[DataFile, Records], Iterator[Record]],
    features: Mapping[str, Feature] | None,
    counted: str = "",
    numbered: Callable[[], Sequence[RowPart]] | None = None,
) -> Streams:
    """Return a stream of records per file; ``counted`` is LINE where errors name lines."""

    def walk(i: int, place: Place) -> Records:
        file = opening.files[i]
        return Records(file.path + counted, place, opening.bad, partial(records, file))

    return Streams(len(opening.files), walk, features, files=opening.files, numbered=numbered)
