"""A reader that records its reads, leaves out rows that kill, and tries suspects alone.

    read ─► rows that are out: bad examples ─► suspects, alone: a rehearsal ─► diary ─► reader

A rehearsal takes one row alone through every function of the user and discards the result, so a row
that kills the worker does so with its own name in the diary.  The stages see the same rows in the
same chunks as without a guard, less those that are out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..making.compose import shape_check
from ..pipeline.declaration import Declaration
from ..pipeline.forks import OwnProcess
from ..process.worker_diary import Diary
from ..reading.chunk import Chunk
from ..reading.columns import Rows, numbers_of
from ..reading.reader import (
    ORDINAL_BITS,
    BadRecords,
    ChecksAhead,
    IndexedReader,
    Reader,
    StreamReader,
)
from ..reading.sampling import SAMPLERS
from ..reading.stages import RowStages

ReportPassed = Callable[[str, list[int]], None]


class Rehearsal:
    """Calls every function of a pipeline with one row."""

    def __init__(
        self, declaration: Declaration, fields: Mapping[str, Field], bad: BadRecords
    ) -> None:
        self._shape = declaration.shape
        self._quiet = replace(bad, skip=True, counts={}, logged=1 << 62)
        before: list[Any] = []
        chains = []
        for stage in declaration.stages:
            # later stages should see rows that a sampler would drop by chance
            if stage.kind in SAMPLERS:
                chains.append((*before, stage))
            else:
                before.append(stage)
        self._chains = [RowStages(chain, fields) for chain in (*chains, tuple(before))]
        for chain in self._chains:
            for sampler in chain.samplers:
                sampler.announces = False

    def row(self, chunk: Chunk) -> None:
        """Call them with a chunk of one row; errors are left for the real call to report."""
        for number, chain in enumerate(self._chains):
            try:
                after = chain.apply(chunk, self._quiet)
                if number == len(self._chains) - 1 and len(after):
                    shape_check(self._shape, chain.fields or {}, self._quiet)(after)
            except MemoryError:
                raise
            except Exception:
                continue


@dataclass(eq=False)
class Guard(OwnProcess):
    """The guard of one feed in one life of a worker."""

    feed: str
    declaration: Declaration
    partitions: int
    diary: Diary
    bad: BadRecords
    marks: Mapping[str, Any]
    passed: ReportPassed

    def __post_init__(self) -> None:
        self._out = {int(row): str(text) for row, text in self.marks.get("out", ())}
        self._suspect = set(self.marks.get("suspect", ()))
        self._watched = set(self.marks.get("watched", ()))
        self._reached = {int(row): int(n) for row, n in self.marks.get("reached", ())}
        self._rehearsal: Rehearsal | None = None
        self._partition = 0
        self._opening = self._reads = False
        self._touched: set[int] = set()
        self._windowed = False  # whether rows of a window stay for later steps without reads
        self._in_window: dict[int, tuple[np.ndarray, str]] = {}  # by partition
        self.needed = False  # whether stored positions rely on the rows read now
        source, paths = self.declaration.source, self.declaration.source.paths
        self.source = paths[0] if len(paths) == 1 else f"the source ({source.kinds})"

    def around(self, reader: Reader) -> Reader:
        """Return the reader under guard."""
        if isinstance(reader, IndexedReader):
            return _Indexed(reader, self)
        few = reader.streams < self.partitions
        self._windowed = few or self.declaration.order.seed is not None
        return _Streamed(reader, self)

    def step(self, partition: int, opening: bool = False, reads: bool = True) -> Guard:
        """Begin a step of work: its context.  A step that raises stays in the diary.

        ``reads``: whether it may read, and so call code of the user.
        """
        self._partition, self._opening, self.needed = partition, opening, False
        self._reads = reads
        self.diary.begin(self.feed, partition, opening)
        if partition in self._in_window:
            rows, where = self._in_window[partition]
            self.diary.reading(rows, where, needed=self._moves)
        return self

    def __enter__(self) -> None:
        if self._reads:
            super().__enter__()

    def __exit__(self, *error: object) -> None:
        if self._reads:
            super().__exit__()
        if error[0] is None:
            self.needed = False
            if self._touched and not self._windowed:
                self._pass_touched()
            self.diary.idle()

    @property
    def _moves(self) -> bool:
        """Whether leaving out a row would move others, as in a shuffled window of a stream."""
        return self.needed or (self._windowed and self.declaration.order.seed is not None)

    def _pass_touched(self) -> None:
        if not self._opening:  # an opening calls only some of the functions
            self.passed(self.feed, sorted(self._touched))
            self._watched -= self._touched
            self._suspect -= self._touched
        self._touched = set()

    def mask(self, rows: np.ndarray) -> np.ndarray | None:
        """Return a mask of the rows to keep, or None for all; report the others as bad."""
        if not self._out:
            return None
        out = np.isin(rows, np.fromiter(self._out, np.int64))
        if not out.any():
            return None
        for row in rows[out].tolist():
            self.bad.report(DataError(self._out[row]), "quarantined")
        return ~out

    def suspects(self, rows: np.ndarray) -> Iterator[tuple[int, int]]:
        """Return place and number of each row to try alone."""
        if self._suspect:
            for place in np.flatnonzero(np.isin(rows, np.fromiter(self._suspect, np.int64))):
                yield int(place), int(rows[place])

    def alone(self, row: int, where: str = "", upto: int = 0) -> None:
        """Record that one row is tried alone."""
        text = where or f"{self.source}, example {row}"
        self.diary.reading(np.array([row]), text, alone=True, needed=self._moves, upto=upto)

    def rehearse(self, chunk: Chunk, fields: Mapping[str, Field]) -> None:
        """Call all functions with the row that is tried."""
        if not len(chunk):
            return
        self.diary.at(chunk.origin.describe(0))
        if self._rehearsal is None:
            self._rehearsal = Rehearsal(self.declaration, fields, self.bad)
        self._rehearsal.row(chunk)

    def checking(self, rows: np.ndarray) -> bool:
        """Record rows that are checked before they are read; False where they are to be read first.

        Rows that may have killed a worker are read one by one.
        """
        if self._out or self._suspect or self._watched:
            return False
        where = f"{self.source}, examples from {rows[0]} on"
        self.diary.reading(rows, where, needed=self._moves)
        return True

    def reading(self, rows: np.ndarray, where: str = "", upto: int = 0) -> None:
        """Record rows that are read together; ``upto`` bounds the rows read of a stream."""
        if not where and len(rows):
            where = f"{self.source}, {len(rows)} examples from {rows[0]} on"
        self.diary.reading(rows, where, needed=self._moves, upto=upto)
        if self._windowed and self._touched:
            self._pass_touched()  # the steps of the window before are over
        if self._watched:
            touched = self._watched.intersection(rows.tolist())
            self._touched |= {row for row in touched if row >= 0}  # stream_passed handles streams

    def read(self, rows: np.ndarray, chunk: Chunk) -> None:
        """Record that rows were read; the stages come next."""
        if len(chunk):
            where = chunk.origin.describe(0)
            if len(chunk) > 1:
                where += f" … {chunk.origin.describe(len(chunk) - 1)} ({len(chunk)} examples)"
            self.diary.at(where)
            if self._windowed:
                self._in_window[self._partition] = rows, where

    def is_suspect(self, row: int) -> bool:
        return row in self._suspect

    def stream_passed(self, row: int, reached: int) -> None:
        """Record that a stream was read up to ``reached`` rows.

        It has passed once that is beyond the reads that killed earlier lives.
        """
        beyond = reached >= self._reached.get(row, 0)
        if row in self._watched and not self._opening and beyond:
            self.passed(self.feed, [row])
            self._watched.discard(row)
            self._suspect.discard(row)


class _Indexed:
    """An IndexedReader under guard."""

    def __init__(self, reader: IndexedReader, guard: Guard) -> None:
        self._reader, self._guard = reader, guard
        self.fields, self.length = reader.fields, reader.length

    def take(self, rows: Rows) -> Chunk:
        kept = numbers_of(rows)
        if (mask := self._guard.mask(kept)) is not None:
            rows = kept = kept[mask]
        for _, row in self._guard.suspects(kept):
            self._guard.alone(row)
            self._guard.rehearse(self._reader.take(np.array([row])), self.fields)
        self._guard.reading(kept)
        chunk = self._reader.take(rows)
        self._guard.read(kept, chunk)
        return chunk

    def check_ahead(self, rows: np.ndarray, stop: Callable[[], object]) -> int:
        if not isinstance(self._reader, ChecksAhead) or not self._guard.checking(rows):
            return 0
        return self._reader.check_ahead(rows, stop)

    def close(self) -> None:
        self._reader.close()


class _Streamed:
    """A StreamReader under guard."""

    def __init__(self, reader: StreamReader, guard: Guard) -> None:
        self._reader, self._guard = reader, guard
        self.fields, self.streams = reader.fields, reader.streams
        self._at: dict[int, int] = {}  # rows of each stream that this process has read

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        itself = -1 - stream
        where = f"{self._guard.source}, stream {stream}"
        if self._guard.is_suspect(itself):
            chunk, after = self._slowly(stream, position, limit, where)
        else:
            self._guard.reading(np.array([itself]), where, self._at.get(stream, 0) + limit)
            chunk, after = self._reader.read(stream, position, limit)
        if len(chunk):
            self._at[stream] = int(chunk.ordinals[-1]) + 1
        self._guard.stream_passed(itself, self._at.get(stream, 0))
        rows = chunk.ordinals | (stream << ORDINAL_BITS)
        mask = self._guard.mask(rows)
        if mask is not None:
            rows, chunk = rows[mask], chunk.take(np.flatnonzero(mask))
        for place, row in self._guard.suspects(rows):
            one = chunk.take(np.array([place]))
            self._guard.alone(row, one.origin.describe(0))
            self._guard.rehearse(one, self.fields)
        self._guard.reading(rows)
        self._guard.read(rows, chunk)
        return chunk, after

    def _slowly(
        self, stream: int, position: bytes, limit: int, where: str
    ) -> tuple[Chunk, bytes | None]:
        """Read rows one by one, so that the diary names an unreadable one."""
        parts: list[Chunk] = []
        at: bytes | None = position
        while at is not None and len(parts) < limit:
            self._guard.alone(-1 - stream, where, self._at.get(stream, 0) + 1)
            chunk, at = self._reader.read(stream, at, 1)
            parts.append(chunk)
            if len(chunk):
                self._at[stream] = int(chunk.ordinals[-1]) + 1
                where = f"what follows {chunk.origin.describe(0)}"
        full = [part for part in parts if len(part)]
        return Chunk.join(full or parts[:1]), at

    def close(self) -> None:
        self._reader.close()
