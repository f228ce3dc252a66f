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

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..shaping.admission import BEGUN, REFUSED
from ..shaping.plan import Position, Read, Stages, State
from ..shaping.spans import Spans
from ..shaping.stored_state import AT, CHUNK, END, LINE, Change, Column, Examples, Key, Saved


@dataclass(slots=True)
class _Chunk:
    first: int  # its first line
    cursor: bytes  # to resume reading at this chunk
    unsettled: int  # number of open lines


#: Segments of a done batch and the keys of these; no keys where none of its rows is to be stored.
Commit = tuple[Spans, Sequence[Key]]


class StoredExamples:
    """The lines of one partition, and the reads of its chunks.

    Examples are numbered as they are read: their *lines*.  A line is open until its example has
    begun and is stored, or has ended.  A later process reads from the oldest chunk with an open
    line, the *base*, and skips the closed lines after that.
    """

    def __init__(self) -> None:
        self._next = 0  # the next line
        self._base, self._base_line = -1, 0  # -1: no chunk so far
        #: Chunks from the base on; only the newest may have no open line.
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()
        self._reads: dict[int, bytes] = {}  # of chunks with an open or a stored line
        self._stored: dict[int, int] = {}  # chunk → examples of it in the store
        self._line_in = np.empty(0, np.int64)  # by entry: line of the last stored example in it
        self._marks: dict[int, int] = {}  # lines that an earlier process began, ended or refused
        self._moved = False  # whether the base has moved since it was stored …
        self._cursor = b""  # … with this cursor

    # Input

    def read(
        self, read: Read, rows: int, stages: Stages, cursor: State
    ) -> tuple[int, np.ndarray | None]:
        """Record a chunk; return its first line, and marks of rows that an earlier process handled.

        ``cursor`` describes the input before the chunk.
        """
        first = self._next
        if rows:
            self._reads[read.chunk] = pack([[read.epoch, read.position, read.limit], stages])
        whole = {**cursor, "chunk": read.chunk, "line": first, "stages": stages}
        newest = next(reversed(self._chunks), None)
        if newest is not None and not self._chunks[newest].unsettled:
            del self._chunks[newest]
        self._chunks[read.chunk] = _Chunk(first, pack(whole), rows)
        self._next += rows
        self._advance()
        if not self._marks:
            return first, None
        marks = np.array([self._marks.pop(first + row, 0) for row in range(rows)], np.int8)
        self._close_lines([read.chunk] * int(np.count_nonzero(marks)))
        self._forget_reads([read.chunk])
        return first, marks

    @property
    def epoch(self) -> int | None:
        """The epoch of the oldest unbegun example; None where all read examples have begun."""
        if not self._is_open(self._base):
            return None
        cursor = msgpack.unpackb(self._chunks[self._base].cursor, strict_map_key=False)
        return int(cursor["input"]["epoch"])

    @property
    def needs(self) -> list[Position]:
        """The positions from which a later process reads; none before a base is stored."""
        if not self._cursor:
            return []
        cursor = msgpack.unpackb(self._cursor, strict_map_key=False)
        again = [self.reread(chunk)[0].position for chunk in self._stored]
        return [cursor["input"]["position"], *again]

    def _close_lines(self, chunks: Sequence[int]) -> None:
        """Close one line of each of these chunks."""
        for number, lines in _counted(chunks).items():
            chunk = self._chunks.get(number)
            if chunk is None or chunk.unsettled < lines:
                raise ValueError(f"no line of chunk {number} is open")
            chunk.unsettled -= lines
            if not chunk.unsettled and number != next(reversed(self._chunks)):
                del self._chunks[number]
        self._advance()

    def _advance(self) -> None:
        """Note the base, and whether it has moved."""
        base = next(iter(self._chunks), self._base)
        if base != self._base:
            self._moved = True
            self._base, self._base_line = base, self._chunks[base].first

    def _is_open(self, chunk: int) -> bool:
        """Return whether a line of a chunk is open."""
        return chunk in self._chunks and self._chunks[chunk].unsettled > 0

    def reread(self, chunk: int) -> tuple[Read, Stages]:
        """Return the read of an earlier process's chunk, and the state of the stages before it."""
        place, stages = msgpack.unpackb(self._reads[chunk], strict_map_key=False)
        return Read(chunk, *place), stages

    # Changes

    def saved(
        self, commits: Sequence[Commit], states: Callable[[np.ndarray], Sequence[Column]]
    ) -> Change:
        """Record that batches are done, in this order.

        ``states`` returns the present states of entries.  An example in several batches is stored
        once, as the last of them leaves it.
        """
        change = Change()
        numbers, entries, after, keys, only = _joined(commits)
        ended = after == numbers[END]
        over = ended.nonzero()[0]
        stored = self._are_stored(entries, numbers[LINE])
        closed = list[int]()
        if keys:
            still = (~ended if only is None else only & ~ended).nonzero()[0]
            if len(still):
                there = entries.take(still)
                of_still = [*map(keys.__getitem__, still.tolist())]
                put = Examples(numbers.take(still, 1), of_still, states(there))
                put.numbers[AT] = after.take(still)
                closed = self._put(change, put, there, stored.take(still))
        if len(over):
            closed += self._end(change, numbers.take(over, 1), stored.take(over))
        self._close(change, closed)
        return change

    def flushed(
        self, batch: Spans, rows: np.ndarray, keys: Sequence[Key], states: Sequence[Column]
    ) -> Change:
        """Record states after a batch, done or not, of its unfinished ``rows``."""
        change, entries = Change(), batch.entries[rows]
        put = Examples(batch.numbers.take(rows, 1), keys, states)
        put.numbers[AT] = batch.after[rows]
        self._close(change, self._put(change, put, entries, self._are_stored(entries, put.lines)))
        return change

    def _are_stored(self, entries: np.ndarray, lines: np.ndarray) -> np.ndarray:
        """Return which of the examples with these lines, in these entries, are in the store."""
        most = int(np.maximum.reduce(entries, initial=-1)) + 1
        if most > len(self._line_in):
            self._line_in = np.pad(self._line_in, (0, most), constant_values=-1)
        stored: np.ndarray = self._line_in.take(entries) == lines
        return stored

    def _put(
        self, change: Change, put: Examples, entries: np.ndarray, stored: np.ndarray
    ) -> list[int]:
        """Store unfinished examples after a batch; return the chunks of those not yet stored."""
        change.put = put
        if stored.all():
            return []
        self._line_in[entries] = put.lines
        begun: list[int] = put.numbers[CHUNK][~stored].tolist()
        for chunk, rows in _counted(begun).items():
            count = self._stored.get(chunk, 0)
            self._stored[chunk] = count + rows
            if not count:
                change.chunks[chunk] = self._reads[chunk]
        return begun

    def refused(self, chunk: int, row: int) -> Change:
        """Record that an example was refused, since its key was in flight."""
        change = Change(done=[2 * (self._chunks[chunk].first + row) + 1])
        self._close(change, [chunk])
        return change

    def dropped(self, numbers: np.ndarray, entries: np.ndarray) -> Change:
        """Record that examples fill no batch before the end, begun or not."""
        change = Change()
        self._close(change, self._end(change, numbers, self._are_stored(entries, numbers[LINE])))
        return change

    def _end(self, change: Change, numbers: np.ndarray, stored: np.ndarray) -> list[int]:
        """End examples; return the chunks of those that are not ``stored``."""
        lines, chunks = numbers[LINE], numbers[CHUNK]
        change.drop = lines[stored].tolist()
        for chunk, rows in _counted(chunks[stored].tolist()).items():
            self._stored[chunk] -= rows
            if not self._stored[chunk]:
                del self._stored[chunk]
                change.drop_chunks.append(chunk)
        change.done = (2 * lines[lines >= self._base_line]).tolist()
        closed: list[int] = chunks[~stored].tolist()
        return closed

    def _close(self, change: Change, closed: list[int]) -> None:
        self._close_lines(closed)
        self._forget_reads({*closed, *change.drop_chunks})
        if self._moved:
            self._moved = False
            change.base = 2 * self._base_line
            change.meta["base"] = self._cursor = self._chunks[self._base].cursor

    def _forget_reads(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            if chunk not in self._stored and not self._is_open(chunk):
                self._reads.pop(chunk, None)

    # After a restart

    def resume(self, saved: Saved) -> State:
        """Resume from the store; return the cursor of its ``base``."""
        cursor: State = msgpack.unpackb(saved.meta["base"], strict_map_key=False)
        self._next = self._base_line = cursor["line"]
        self._cursor = saved.meta["base"]
        self._reads.update(saved.chunks)
        for mark in saved.done:
            self._marks[mark // 2] = REFUSED if mark % 2 else BEGUN
        lines, chunks = saved.examples.numbers[[LINE, CHUNK]]
        self._stored.update(Counter(chunks.tolist()))
        self._marks.update(dict.fromkeys(lines[lines >= cursor["line"]].tolist(), BEGUN))
        return cursor

    def in_entries(self, entries: np.ndarray, lines: np.ndarray) -> None:
        """Note the entries of resumed examples."""
        self._are_stored(entries, lines)
        self._line_in[entries] = lines


def _joined(
    commits: Sequence[Commit],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Sequence[Key], np.ndarray | None]:
    """Return numbers, entries, steps after and keys of the segments of commits, in their order.

    The last value masks the segments after which an entry is not in a later batch; None: all.
    """
    if len(commits) == 1:
        ((spans, keys),) = commits
        return spans.numbers, spans.entries, spans.after, keys, None
    numbers = np.concatenate([spans.numbers for spans, _ in commits], axis=1)
    entries = np.concatenate([spans.entries for spans, _ in commits])
    after = np.concatenate([spans.after for spans, _ in commits])
    keys = [*chain.from_iterable(of_batch for _, of_batch in commits)]
    # An example that ends leaves its entry to others: the last segment is of the last one.
    places, last = np.arange(len(entries)), np.empty(entries.max(initial=-1) + 1, np.int64)
    last[entries] = places
    return numbers, entries, after, keys, last.take(entries) == places


def _counted(chunks: Sequence[int]) -> dict[int, int]:
    """Return how often each of these chunks comes; a few of them do, mostly one."""
    return {chunk: chunks.count(chunk) for chunk in set(chunks)}
