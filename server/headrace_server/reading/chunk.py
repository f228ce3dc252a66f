"""A chunk: some hundred examples as columns, with where each came from; the bad ones among them.

rows ─► faults ─► BadRecords.report: raise, or skip and count ─► the other rows
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from headrace_proto.errors import DataError, FilesMissing
from headrace_proto.schema import Field

from .columns import Column, column_from_rows, concatenate, take

#: Ends the name of a file in origins whose lines are counted, from 1 as editors do.
LINE: Final = ", line"


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """The files and records that the rows of a chunk came from, for errors."""

    files: tuple[str, ...]  # or ("examples",), ("module:factory",) …
    file: np.ndarray  # int32 [n], index into files
    record: np.ndarray  # int64 [n], number in its file: of a record from 0, of a line from 1
    offset: np.ndarray | None = None  # int64 [n], byte offset in its file where there is one

    @classmethod
    def single(cls, file: str, record: np.ndarray, offset: np.ndarray | None = None) -> Origin:
        return cls((file,), np.zeros(len(record), np.int32), record, offset)

    def take(self, rows: np.ndarray | slice) -> Origin:
        offset = None if self.offset is None else self.offset[rows]
        return Origin(self.files, self.file[rows], self.record[rows], offset)

    def describe(self, row: int) -> str:
        """Return the place of a row: ``FILE, record 17, byte 4096``."""
        file = self.files[int(self.file[row])]
        text = f"{counting(file)} {int(self.record[row])}"
        return text if self.offset is None else f"{text}, byte {int(self.offset[row])}"

    @staticmethod
    def join(parts: list[Origin]) -> Origin:
        files = tuple(dict.fromkeys(name for part in parts for name in part.files))
        number = {name: i for i, name in enumerate(files)}
        maps = [np.array([number[name] for name in part.files], np.int32) for part in parts]
        offsets = [part.offset for part in parts]
        return Origin(
            files,
            np.concatenate([m[part.file] for m, part in zip(maps, parts, strict=True)]),
            np.concatenate([part.record for part in parts]),
            None if any(o is None for o in offsets) else np.concatenate(offsets),  # type: ignore[arg-type]
        )


def counting(file: str) -> str:
    """Return a file's name with the word for what is counted in it, unless it has that already."""
    return file if file.endswith(LINE) else f"{file}, record"


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Examples as columns: numpy arrays ``[n, …]``, ``Ragged`` where shapes vary, and ``Strings``.

    Its attributes are ``columns`` by name, the ``ordinals`` of the examples within the source, by
    which chance is keyed, their ``origin``, and ``facts``: values that stages computed for each row
    (its class, its rate …), which stay with the row, and which user functions do not see.
    """

    columns: Mapping[str, Column]
    ordinals: np.ndarray  # int64 [n]
    origin: Origin
    facts: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, columns: Mapping[str, Column], ordinals: np.ndarray, file: str) -> Chunk:
        """Return examples of one file, which are its records of these numbers."""
        return cls(columns, ordinals, Origin.single(file, ordinals))

    def __len__(self) -> int:
        return len(self.ordinals)

    def take(self, rows: np.ndarray | slice) -> Chunk:
        """Return these rows, in this order."""
        columns = {name: take(column, rows) for name, column in self.columns.items()}
        facts = {name: fact[rows] for name, fact in self.facts.items()}
        return Chunk(columns, self.ordinals[rows], self.origin.take(rows), facts)

    def with_columns(self, columns: Mapping[str, Column]) -> Chunk:
        """Return the rows with these columns in place of theirs."""
        return Chunk(dict(columns), self.ordinals, self.origin, self.facts)

    def with_fact(self, name: str, fact: np.ndarray) -> Chunk:
        """Return the rows with a value for each, which ``fact_fields`` of the stage names."""
        return Chunk(self.columns, self.ordinals, self.origin, {**self.facts, name: fact})

    def without_fact(self, name: str) -> Chunk:
        facts = {known: fact for known, fact in self.facts.items() if known != name}
        return Chunk(self.columns, self.ordinals, self.origin, facts)

    @staticmethod
    def empty(fields: Mapping[str, Field], file: str = "") -> Chunk:
        """Return a chunk without rows."""
        none = np.empty(0, np.int64)
        columns = {name: column_from_rows([], field) for name, field in fields.items()}
        return Chunk(columns, none, Origin.single(file, none))

    @staticmethod
    def join(chunks: Iterable[Chunk]) -> Chunk:
        """Return one chunk after the other.  Copies payload: not for the hot path."""
        parts = list(chunks)
        if len(parts) == 1:
            return parts[0]
        return Chunk(
            {name: concatenate([p.columns[name] for p in parts]) for name in parts[0].columns},
            np.concatenate([part.ordinals for part in parts]),
            Origin.join([part.origin for part in parts]),
            {name: np.concatenate([p.facts[name] for p in parts]) for name in parts[0].facts},
        )


#: 2**40 records in a stream, and 2**23 streams, fit an int64.
ORDINAL_BITS: Final = 40
logger = logging.getLogger("headrace.data")
#: ``BadRecords.logged`` where nothing more is logged.
LOGS_NOTHING: Final = 1 << 62

#: By row what is wrong with it: the reason by its short name, and in words.
Faults = dict[int, tuple[str, str]]

#: Messages of bad records that are logged one by one; the rest is only counted.
_LOGGED_ONE_BY_ONE = 20


@dataclass
class RowsAtHand:
    """Notes which rows a feed has at hand, should they kill the process."""

    #: Called with the rows that are read next: their numbers, where they are, and their epoch.
    note: Callable[[np.ndarray, str, int], None] = lambda rows, where, epoch: None
    #: Called with the place of these rows once they are read.
    at: Callable[[str], None] = lambda where: None
    source: str = ""
    #: By partition the rows that its worker had at hand when it died.  They are read one by one.
    suspects: Mapping[int, set[int]] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)  # rows noted, where there are suspects

    def reading(self, rows: np.ndarray, epoch: int, where: str = "") -> None:
        """Note that rows are about to be read."""
        if not where and len(rows):
            where = f"{self.source}, example {rows[0]}"
            if len(rows) > 1:
                where += f" and {len(rows) - 1} others"
        self.note(rows, where, epoch)
        if self.suspects:
            self.touched.update(rows.tolist())

    def read(self, chunk: Chunk) -> None:
        """Note where the rows at hand come from."""
        if len(chunk):
            where = chunk.origin.describe(0)
            if len(chunk) > 1:
                where += f" … {chunk.origin.describe(len(chunk) - 1)} ({len(chunk)} examples)"
            self.at(where)

    def hold(self, chunk: Chunk, epoch: int) -> None:
        """Note that the rows of a chunk are at hand, and where they come from."""
        self.reading(chunk.ordinals, epoch)
        self.read(chunk)


@dataclass
class BadRecords:
    """The rule ``on_bad_example`` at work: raise, or skip with a count and a log line."""

    skip: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    logged: int = 0
    #: Called after each row that a user function took or returned, since these may be slow.
    progress: Callable[[], None] = lambda: None
    #: Called with the name of a user function before its calls, and with "" after them.
    enters: Callable[[str], None] = lambda name: None
    hand: RowsAtHand = field(default_factory=RowsAtHand)

    def report(self, error: DataError, reason: str = "bad_record", rows: int = 1) -> None:
        """Report a record that breaks a rule; return where it is skipped, else raise.

        A file that is missing is never skipped.
        """
        if not self.skip or isinstance(error, FilesMissing):
            raise error
        self.counts[reason] = self.counts.get(reason, 0) + rows
        self.logged += 1
        if self.logged <= _LOGGED_ONE_BY_ONE:
            logger.warning("skipped: %s", error)
        if self.logged == _LOGGED_ONE_BY_ONE:
            logger.warning("skipped: further bad records are counted and not logged")


def fault_of(chunk: Chunk, row: int | None, text: str, cause: Exception | None = None) -> DataError:
    """Return the error of a row, or (None) of the whole chunk."""
    rest = f" and the {len(chunk) - 1} after it" if row is None and len(chunk) > 1 else ""
    error = DataError(f"{chunk.origin.describe(row or 0)}{rest}: {text}")
    error.__cause__ = cause
    return error


def without(chunk: Chunk, faults: Faults, bad: BadRecords, after: str = ": ") -> Chunk:
    """Return the rows of a chunk that have no fault; report the others, in their order."""
    if not faults:
        return chunk
    for row in sorted(faults):
        reason, text = faults[row]
        bad.report(DataError(f"{chunk.origin.describe(row)}{after}{text}"), reason)
    return chunk.take(np.delete(np.arange(len(chunk)), list(faults)))
