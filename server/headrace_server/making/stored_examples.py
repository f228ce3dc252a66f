"""The record of a partition of segments that outlives its process, example by example.

    read() ─► chunks with their lines        saved() ─► Change ─► store        resume() ◄─ Saved

The record stores examples that have begun, each with its states and the read of its chunk.  A later
process reads all others again, from the oldest chunk with an example that has neither begun nor
ended.

The caller stores changes in the order in which it gets them, and the change of a refusal before any
batch of later lines, since only a line that was not refused takes an insertion index.  After a
restart it numbers chunks above all stored ones and that of the cursor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..core.admitted_examples import BEGUN, REFUSED
from ..core.plan import Read
from ..core.slots import Segments
from ..core.stored_progress import OpenLines
from ..core.stored_state import (
    CHUNK,
    LINE,
    SEGMENT,
    Change,
    Column,
    Examples,
    Key,
    Saved,
)

#: A done batch, the places of its unfinished rows, and the keys of all.
Commit = tuple[Segments, np.ndarray, Sequence[Key]]


class StoredExamples:
    """The lines of one partition, and the reads of its chunks."""

    def __init__(self) -> None:
        self.lines = OpenLines()
        self._reads: dict[int, bytes] = {}  # of chunks with an open or a stored line
        self._stored: dict[int, int] = {}  # chunk → examples of it in the store
        self._begun: dict[int, int] = {}  # line → chunk of examples in the store
        self._marks: dict[int, int] = {}  # lines that an earlier process began, ended or refused
        self._moved = False  # whether the base has moved since it was stored

    # Input

    def read(
        self, read: Read, rows: int, stages: Any, cursor: dict[str, Any]
    ) -> tuple[int, np.ndarray | None]:
        """Record a chunk; return its first line, and marks of rows that an earlier process handled.

        ``cursor`` describes the input before the chunk.
        """
        first = self.lines.next
        if rows:
            self._reads[read.chunk] = pack([[read.epoch, read.position, read.limit], stages])
        whole = {**cursor, "chunk": read.chunk, "line": first, "stages": stages}
        self._moved |= self.lines.read(read.chunk, rows, pack(whole))
        if not self._marks:
            return first, None
        marks = np.array([self._marks.pop(first + row, 0) for row in range(rows)], np.int8)
        self._moved |= self.lines.closed([read.chunk] * int(np.count_nonzero(marks)))
        self._forget_reads([read.chunk])
        return first, marks

    @property
    def epoch(self) -> int | None:
        """The epoch of the oldest unbegun example; None where all read examples have begun."""
        lines = self.lines
        if not lines.is_open(lines.base):
            return None
        cursor = msgpack.unpackb(lines.base_cursor, strict_map_key=False)
        return int(cursor["input"]["epoch"])

    def reread(self, chunk: int) -> tuple[Read, Any]:
        """Return the read of an earlier process's chunk, and the state of the stages before it."""
        place, stages = msgpack.unpackb(self._reads[chunk], strict_map_key=False)
        return Read(chunk, *place), stages

    # Changes

    def saved(
        self, commits: Sequence[Commit], states: Callable[[np.ndarray], Sequence[Column]]
    ) -> Change:
        """Record that batches are done, in this order.

        ``states`` returns the present states of slots.  An example in several batches is stored
        once, as the last of them leaves it.
        """
        change, closed = Change(), list[int]()
        numbers = np.concatenate([batch.numbers for batch, _, _ in commits], axis=1)
        slots = np.concatenate([batch.slots for batch, _, _ in commits])
        ended = np.concatenate([batch.last for batch, _, _ in commits])
        firsts = accumulate((len(keys) for _, _, keys in commits[:-1]), initial=0)
        unfinished = [at + rows for at, (_, rows, _) in zip(firsts, commits, strict=True)]
        counts = ended.copy()
        counts[np.concatenate(unfinished)] = True
        # An example that ends leaves its slot to others: the last row of a slot is of the last one.
        places = counts.nonzero()[0]
        last = np.empty(slots.max(initial=-1) + 1, np.int64)
        last[slots[places]] = places
        still = places[(last[slots[places]] == places) & ~ended[places]]
        if len(still):
            keys = [*chain.from_iterable(of_batch for _, _, of_batch in commits)]
            of_still = [keys[place] for place in still.tolist()]
            put = Examples(numbers.take(still, 1), of_still, states(slots[still]))
            self._put(change, put, closed)
        self._end(change, numbers[LINE : CHUNK + 1 : CHUNK - LINE, ended].T.tolist(), closed)
        self._close(change, closed)
        return change

    def flushed(
        self, batch: Segments, rows: np.ndarray, keys: Sequence[Key], states: Sequence[Column]
    ) -> Change:
        """Record states after a batch, done or not, of its unfinished ``rows``."""
        change, closed = Change(), list[int]()
        put = Examples(batch.numbers.take(rows, 1), keys, states)
        self._put(change, put, closed)
        self._close(change, closed)
        return change

    def _put(self, change: Change, put: Examples, closed: list[int]) -> None:
        """Store unfinished examples after a batch; they may have begun with it."""
        change.put = put
        put.numbers[SEGMENT] += 1
        places = zip(*put.numbers[LINE : CHUNK + 1 : CHUNK - LINE].tolist(), strict=True)
        begin = [(line, chunk) for line, chunk in places if line not in self._begun]
        self._begun.update(begin)
        chunks = [chunk for _, chunk in begin]
        for chunk, rows in Counter(chunks).items():
            count = self._stored.get(chunk, 0)
            self._stored[chunk] = count + rows
            if not count:
                change.chunks[chunk] = self._reads[chunk]
        closed += chunks

    def refused(self, chunk: int, row: int) -> Change:
        """Record that an example was refused, since its key was in flight."""
        change = Change(done=[2 * self.lines.line(chunk, row) + 1])
        self._close(change, [chunk])
        return change

    def passed_over(self, chunk: int, row: int) -> Change:
        """Record that an example just read is left out, as if it had ended."""
        change = Change(done=[2 * self.lines.line(chunk, row)])
        self._close(change, [chunk])
        return change

    def ended(self, line: int, chunk: int) -> Change:
        """Record that a stored example ended."""
        change, closed = Change(), list[int]()
        self._end(change, [(line, chunk)], closed)
        self._close(change, closed)
        return change

    def _end(self, change: Change, ended: Iterable[Sequence[int]], closed: list[int]) -> None:
        """End examples, each a line and its chunk."""
        begun, stored, base = self._begun, self._stored, self.lines.base_line
        for line, chunk in ended:
            if begun.pop(line, None) is None:
                closed.append(chunk)
            else:
                change.drop.append(line)
                stored[chunk] -= 1
                if not stored[chunk]:
                    del stored[chunk]
                    change.drop_chunks.append(chunk)
            if line >= base:
                change.done.append(2 * line)

    def _close(self, change: Change, closed: list[int]) -> None:
        self._moved |= self.lines.closed(closed)
        self._forget_reads({*closed, *change.drop_chunks})
        if self._moved:
            self._moved = False
            change.base = 2 * self.lines.base_line
            change.meta["base"] = self.lines.base_cursor

    def _forget_reads(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            if chunk not in self._stored and not self.lines.is_open(chunk):
                self._reads.pop(chunk, None)

    # After a restart

    def resume(self, saved: Saved) -> dict[str, Any]:
        """Resume from the store; return the cursor of its ``base``."""
        cursor: dict[str, Any] = msgpack.unpackb(saved.meta["base"], strict_map_key=False)
        self.lines = OpenLines(cursor["line"])
        self._reads.update(saved.chunks)
        for mark in saved.done:
            self._marks[mark // 2] = REFUSED if mark % 2 else BEGUN
        lines, chunks = saved.examples.numbers[[LINE, CHUNK]]
        self._begun.update(zip(lines.tolist(), chunks.tolist(), strict=True))
        self._stored.update(Counter(chunks.tolist()))
        self._marks.update(dict.fromkeys(lines[lines >= cursor["line"]].tolist(), BEGUN))
        return cursor
