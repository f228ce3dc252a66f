"""Parts of sources that hold whole columns: Arrow, Parquet, numpy files, examples in memory.

    stored column ──read──► rows, and which of them are missing or unsound
                  ──fit───► the declared field, defaults in place of missing values

A row with a fault in any column is reported once and left out of all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from headrace_proto.errors import DataError, listed, near
from headrace_proto.schema import Field

from ..files.manifest import DataFile, is_remote
from ..files.ranges import BLOCK, Range, RemoteFile, expect, keep_more, with_ends
from .block_order import block_count
from .chunk import BadRecords, Chunk, Faults, Origin, without
from .columns import (
    Column,
    Ragged,
    Rows,
    clash,
    concatenate,
    field_of,
    fitted,
    misfit,
    numbers_of,
    repeated,
    row_count,
    row_of,
    take,
)
from .example_rows import Schema, schema_of
from .source import IndexedSource, Opening

T = TypeVar("T")
#: Stored bytes of the parts that are decoded before they are read in turn, and most of them.
_AHEAD_BYTES: Final = 1 << 25
_MOST_AHEAD: Final = 64
#: The number of a group of rows that are stored together, or that of each row.
BatchNumbers = int | np.ndarray


class StoredRows(NamedTuple):
    """Rows of a column as stored.

    Values of missing and unsound rows are arbitrary but readable.
    """

    column: Column
    missing: np.ndarray | None = None  # bool [n]
    unsound: tuple[tuple[np.ndarray, str], ...] = ()  # bool [n], and the broken rule


class StoredColumn(Protocol):
    @property
    def field(self) -> Field: ...

    def read(self, batch: BatchNumbers, rows: Rows) -> StoredRows: ...


_Held = Mapping[str, StoredColumn]


class Whole(NamedTuple):
    """A column that is in memory as a whole."""

    column: Column
    field: Field

    def read(self, batch: BatchNumbers, rows: Rows) -> StoredRows:
        return StoredRows(take(self.column, rows))


def origin_in(file: str, first: int) -> Callable[[BatchNumbers, Rows], Origin]:
    """Return the origin of consecutive rows of a file, from record ``first`` on."""

    return lambda _, rows: Origin.single(file, first + numbers_of(rows))


def files_that_serve(
    opening: Opening,
    opened: Callable[[DataFile], tuple[T, Mapping[str, Field]]],
    names_of: Callable[[T], Collection[str]] | None = None,
) -> tuple[Schema, list[tuple[DataFile, T, Mapping[str, Field]]]]:
    """Return the schema, and the files that have its columns; report the others.

    The schema is the declared one, or that of the first file.  Each file comes as it was opened,
    with its fields.  ``names_of`` gives the names of all columns, where ``opened`` gives the fields
    of the wanted.
    """
    features, bad = opening.features, opening.bad
    schema = None if features is None else schema_of(features)
    served = []
    for file in with_ends(opening.files, BLOCK):
        try:
            content, fields = opened(file)
        except DataError as error:
            bad.report(error, "corrupt_file")
            continue
        schema = schema or Schema(fields)
        names = fields if names_of is None else names_of(content)
        if _serves(file.path, fields, names, schema, bad):
            served.append((file, content, fields))
    return schema or Schema({}), served


def _serves(
    file: str, have: Mapping[str, Field], names: Collection[str], schema: Schema, bad: BadRecords
) -> bool:
    """Return whether a file has the columns of the schema; report the reason if not."""

    def report(name: str, text: str, reason: str) -> bool:
        bad.report(DataError(f"{file}, column {name!r}: {text}"), reason)
        return False

    for name, want in schema.fields.items():
        field = have.get(name)
        if field is None:
            if name in schema.defaults:
                continue
            text = (
                f"the file has no such column (it has {listed(names)}); give the feature a "
                f"default, or leave it out{near(name, names)}"
            )
            return report(name, text, "missing_feature")
        reason = clash(field, want)
        if reason is None and not schema.declared and field != want:
            reason = f"is {field} here and {want} in the first file; declare the features"
        if reason is not None:
            return report(name, f"it {reason}", "wrong_type")
    for name in () if schema.declared else have.keys() - schema.fields.keys():
        text = "the first file has no such column; declare the features"
        return report(name, text, "wrong_type")
    return True


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPart(IndexedSource):
    """A part over stored columns.  ``columns`` may load them, and raise DataError."""

    length: int
    columns: Callable[[], _Held]
    schema: Schema
    origin: Callable[[BatchNumbers, Rows], Origin]
    bad: BadRecords
    #: Returns a batch and rows in it, or (as arrays) the batch and the row in it of each row.
    locate: Callable[[Rows], tuple[BatchNumbers, Rows]] = lambda rows: (0, rows)
    #: The rows with which groups begin that are stored together; None: equal ones of ``nbytes``.
    starts: np.ndarray | None = None
    nbytes: int = 0
    #: Begins to load the columns; returns False where it can not yet.
    begin: Callable[[], bool] | None = None

    def expect(self, rows: np.ndarray) -> int:
        return len(rows) if self.begin is None or self.begin() else 0

    def blocks(self, block_bytes: int) -> np.ndarray:
        if self.starts is not None:
            return self.starts
        count = block_count(self.nbytes, block_bytes)
        return np.unique(np.arange(count) * self.length // count)

    def steps_of(self, column: str) -> np.ndarray | None:
        """Return the steps of a column that is not decoded, and has no value that is missing."""
        if self.begin is not None or column in self.schema.defaults:
            return None
        stored = self.columns().get(column)
        if stored is None:
            return None
        if not stored.field.ragged_dims:
            return np.full(self.length, stored.field.shape[0])
        found, missing, unsound = stored.read(*self.locate(slice(0, self.length)))
        if unsound or (missing is not None and missing.any()) or not isinstance(found, Ragged):
            return None
        return found.lengths

    def take(self, rows: Rows) -> Chunk:
        try:
            held = self.columns()
        except DataError as error:
            self.bad.report(error, "corrupt_file", row_count(rows))
            return replace(Chunk.empty(self.schema.fields), origin=self.origin(0, slice(0, 0)))
        batch, local = self.locate(rows)
        wrong: Faults = {}
        columns: dict[str, Column] = {}
        for name in self.schema.fields:
            if (column := self._column(name, held, batch, local, wrong)) is not None:
                columns[name] = column
        index, origin = numbers_of(rows), self.origin(batch, local)
        if not wrong:
            return Chunk(columns, index, origin)
        kept = without(Chunk({}, index, origin), wrong, self.bad, ", ")
        return self.take(kept.ordinals)

    def _column(
        self, name: str, held: _Held, batch: BatchNumbers, rows: Rows, wrong: Faults
    ) -> Column | None:
        if name not in held:
            return repeated(self.schema.defaults[name], row_count(rows))
        stored, want = held[name], self.schema.fields[name]
        column, missing, unsound = stored.read(batch, rows)
        sound = np.ones(row_count(rows), bool)
        if missing is not None and missing.any():
            if name not in self.schema.defaults:
                text = f"column {name!r}: it is null; give the feature a default"
                _add_all(wrong, missing, "missing_feature", text)
                return None
            sound = ~missing
            column = take(column, np.flatnonzero(sound))
        for mask, rule in unsound:
            _add_all(wrong, mask & sound, "corrupt_record", f"column {name!r}: {rule}")
        if wrong:
            return None
        try:
            column = column if stored.field == want else fitted(column, want)
        except ValueError:
            for i, row in enumerate(np.flatnonzero(sound).tolist()):
                if text := misfit(row_of(column, i), want):
                    wrong.setdefault(row, ("wrong_type", f"column {name!r}: {text}"))
            return None
        if sound.all():
            return column
        both = concatenate([column, self.schema.defaults[name]])
        return take(both, np.where(sound, np.cumsum(sound) - 1, len(column)))


def _add_all(wrong: Faults, mask: np.ndarray, reason: str, text: str) -> None:
    for i in np.flatnonzero(mask).tolist():
        wrong.setdefault(i, (reason, text))


def whole_part(
    file: str, columns: Mapping[str, Column], schema: Schema, bad: BadRecords
) -> ColumnPart:
    """Return the part of columns that are in memory as a whole."""
    whole = {name: Whole(column, field_of(column)) for name, column in columns.items()}
    rows = len(next(iter(columns.values()), ()))
    nbytes = sum(column.nbytes for column in columns.values())
    return ColumnPart(rows, lambda: whole, schema, origin_in(file, 0), bad, nbytes=nbytes)


class Decoded(Generic[T]):
    """The parts that were decoded last, and those that a thread decodes ahead.

    A part is decoded ahead where it is expected, or where its neighbour was read after the one
    before that: which is rare where rows are taken at random.  Only the thread reads files: one of
    Arrow must not be read by two at once.  ``ranges`` are the bytes of a part, where these are
    known: those of remote files come together, before the thread wants them.
    """

    def __init__(
        self,
        load: Callable[[T], _Held],
        most: int,
        ranges: Callable[[T], Sequence[Range]] = lambda part: (),
    ) -> None:
        self._load, self._most, self._held, self._ranges = load, most, 0, ranges
        self._far = 0  # parts of remote files that are decoded ahead
        #: The remote files of the parts.
        self.files: list[RemoteFile] = []
        self._parts: list[T] = []
        self._sizes: dict[int, int] = {}
        self._thread = ThreadPoolExecutor(1, "headrace-columns")
        self._kept: OrderedDict[int, Future[_Held]] = OrderedDict()
        self._ahead: dict[int, Future[_Held]] = {}
        #: The stored bytes of the parts that are not decoded yet, by what decodes them.
        self._coming: dict[Callable[[], _Held], int] = {}

    def part(
        self,
        part: T,
        rows: int,
        schema: Schema,
        origin: Callable[[BatchNumbers, Rows], Origin],
        bad: BadRecords,
    ) -> ColumnPart:
        """Return the part after those known."""
        self._parts.append(part)
        number = len(self._parts) - 1
        begin = partial(self._expect, number)
        return ColumnPart(rows, partial(self._read, number), schema, origin, bad, begin=begin)

    def hold(self, blocks: int) -> int:
        """Keep so many parts more, whose rows are read in turn; return how many come ahead."""
        if not self._held and self.files:  # bytes are there until they are decoded
            sizes = [*map(self._size, range(len(self._parts)))]
            keep_more(self, max(sizes, default=0) + _AHEAD_BYTES)
            self._far = min(_MOST_AHEAD, _AHEAD_BYTES * len(sizes) // max(1, sum(sizes)))
        self._held += blocks
        for file in self.files:
            file.in_order = False
        return self._far

    def _expect(self, number: int) -> bool:
        """Begin to decode a part, where parts are held; return False where enough are under way."""
        known = not (self._held or self._far) or number in self._kept or number in self._ahead
        lacks = len(self._kept) + len(self._ahead) < self._held  # of those that are read in turn
        ahead = sum(self._size(one) for one in self._ahead)
        most = max(self._held, self._far)
        if not known and (lacks or (ahead < _AHEAD_BYTES and len(self._ahead) < most)):
            self._ahead[number] = self._begin(number)
            known = True
        return known

    def _size(self, number: int) -> int:
        """Return the stored bytes of a part."""
        if number not in self._sizes:
            parts = self._ranges(self._parts[number])
            self._sizes[number] = sum(stop - start for _, start, stop in parts)
        return self._sizes[number]

    def _read(self, number: int) -> _Held:
        kept, after = self._kept, number + 1
        future = kept.pop(number, None) or self._ahead.pop(number, None) or self._begin(number)
        columns = future.result()  # one that fails is not kept
        in_order = number - 1 in kept and not self._held
        kept[number] = future
        if len(kept) > self._most + self._held:
            last = kept.popitem(last=False)[0]
            if not self._held:
                self._ahead.pop(last + 1, None)
        known = after in kept or after in self._ahead or after == len(self._parts)
        if in_order and not known:
            self._ahead[after] = self._begin(after)
        return columns

    def _begin(self, number: int) -> Future[_Held]:
        """Begin to fetch the bytes of a part, and to decode it after those begun before."""
        part = self._parts[number]
        ranges = [one for one in self._ranges(part) if is_remote(one[0].path)]
        if sum(self._coming.copy().values()) < _AHEAD_BYTES:
            expect(ranges, once=True)

        def load() -> _Held:
            try:
                expect(ranges, once=True)
                return self._load(part)
            finally:
                del self._coming[load]

        self._coming[load] = self._size(number)
        return self._thread.submit(load)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._kept.clear()
        self._ahead.clear()
