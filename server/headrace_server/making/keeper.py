"""What of a partition of segments outlives its process: examples that have begun, and the rest of
the input by where to read on.

    read() ─► chunks with their lines        saved() ─► Change ─► store        resume() ◄─ Saved

An example that has begun is stored with its states and with the read that brought it.  All others
are read again, from the oldest chunk that still has one that has neither begun nor ended.

The caller submits changes in the order in which it gets them, and a refusal's before any batch of
later lines: a line that was not refused takes an insertion index.  It begins a new life with chunk
numbers above all stored ones and the cursor's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack

from ..core.changes import Change, Column, Examples, Key, Saved
from ..core.plan import Read
from ..core.progress import Lines
from ..core.sequences import BEGUN, REFUSED
from ..core.slots import Begun, Segments

__all__ = ["Keeper"]


class Keeper:
    """One partition's lines, and how its chunks are read again."""

    def __init__(self) -> None:
        self.lines = Lines()
        self._reads: dict[int, bytes] = {}  # of chunks with an open or a stored line
        self._first: dict[int, int] = {}  # lines of chunks in memory
        self._stored: dict[int, int] = {}  # chunk → examples of it in the store
        self._kept: dict[int, int] = {}  # line → chunk of examples in the store
        self._marks: dict[int, int] = {}  # lines that an earlier life has dealt with
        self._moved = False  # the base, since it was stored

    # Input

    def read(
        self, read: Read, rows: int, stages: Any, cursor: dict[str, Any]
    ) -> tuple[int, np.ndarray | None]:
        """A chunk was read; ``cursor`` is how all goes on from before it.

        Its first line, and marks of rows that an earlier life has dealt with.
        """
        first = self.lines.next
        if rows:
            self._reads[read.chunk] = pack([[read.epoch, read.position, read.limit], stages])
            self._first[read.chunk] = first
        whole = {**cursor, "chunk": read.chunk, "line": first, "stages": stages}
        self._moved |= self.lines.read(read.chunk, rows, pack(whole))
        if not self._marks:
            return first, None
        marks = np.array([self._marks.pop(first + row, 0) for row in range(rows)], np.int8)
        self._moved |= self.lines.closed([read.chunk] * int(np.count_nonzero(marks)))
        self._let_go([read.chunk])
        return first, marks

    def forget(self, chunk: int) -> None:
        """A chunk's payload is not needed now.  It can be read again while a line is not done."""
        self._first.pop(chunk, None)

    def reread(self, chunk: int) -> tuple[Read, Any]:
        """How to read a chunk again that an earlier life has read, and what stages remembered."""
        place, stages = msgpack.unpackb(self._reads[chunk], strict_map_key=False)
        return Read(chunk, *place), stages

    # Changes

    def saved(
        self, batch: Segments, rows: np.ndarray, keys: Sequence[Key], states: Sequence[Column]
    ) -> Change:
        """A batch is done, once; ``rows`` of it go on, with these keys and states."""
        change, closed = Change(), list[int]()
        self._put(change, batch, rows, keys, states, closed)
        for place in batch.last.nonzero()[0].tolist():
            self._end(change, int(batch.lines[place]), int(batch.chunks[place]), closed)
        self._close(change, closed)
        return change

    def flushed(
        self, batch: Segments, rows: np.ndarray, keys: Sequence[Key], states: Sequence[Column]
    ) -> Change:
        """States of ``rows`` after a batch came by themselves, the batch being done or not."""
        change, closed = Change(), list[int]()
        self._put(change, batch, rows, keys, states, closed)
        self._close(change, closed)
        return change

    def _put(
        self,
        change: Change,
        batch: Segments,
        rows: np.ndarray,
        keys: Sequence[Key],
        states: Sequence[Column],
        closed: list[int],
    ) -> None:
        if not len(rows):
            return
        numbers = np.array(
            [batch.lines, batch.indices, batch.chunks, batch.rows, batch.segments, batch.counts],
            np.int64,
        )
        if len(rows) < len(batch):
            numbers = numbers[:, rows]
        numbers[4] += 1
        ended = numbers[4] == numbers[5]
        if ended.any():
            key = keys[int(ended.argmax())][1]
            raise ValueError(f"example {key!r:.80} has ended: it has no state to keep")
        change.put = Examples(numbers, keys, states)
        lines, kept = numbers[0].tolist(), self._kept
        for place in [place for place, line in enumerate(lines) if line not in kept]:
            chunk = int(numbers[2, place])
            self._keep(change, lines[place], chunk)
            closed.append(chunk)

    def refused(self, chunk: int, row: int) -> Change:
        """An example's key was in flight: it is passed over."""
        change = Change(done=[2 * (self._first[chunk] + row) + 1])
        self._close(change, [chunk])
        return change

    def passed_over(self, chunk: int, row: int) -> Change:
        """An example that was just read is left out: later lives take it for one that has ended."""
        change = Change(done=[2 * (self._first[chunk] + row)])
        self._close(change, [chunk])
        return change

    def ended(self, line: int, chunk: int) -> Change:
        """An example that goes on from what is stored goes on no more."""
        change, closed = Change(), list[int]()
        self._end(change, line, chunk, closed)
        self._close(change, closed)
        return change

    def _keep(self, change: Change, line: int, chunk: int) -> None:
        self._kept[line] = chunk
        count = self._stored.get(chunk, 0)
        self._stored[chunk] = count + 1
        if not count:
            change.chunks[chunk] = self._reads[chunk]

    def _end(self, change: Change, line: int, chunk: int, closed: list[int]) -> None:
        if line in self._kept:
            del self._kept[line]
            change.drop.append(line)
            self._stored[chunk] -= 1
            if not self._stored[chunk]:
                del self._stored[chunk]
                change.drop_chunks.append(chunk)
        else:
            closed.append(chunk)
        if line >= self.lines.base_line:
            change.done.append(2 * line)

    def _close(self, change: Change, closed: list[int]) -> None:
        self._moved |= self.lines.closed(closed)
        self._let_go([*closed, *change.drop_chunks])
        if self._moved:
            self._moved = False
            change.base = 2 * self.lines.base_line
            change.meta["base"] = self.lines.base_cursor

    def _let_go(self, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            if chunk not in self._stored and not self.lines.is_open(chunk):
                self._reads.pop(chunk, None)

    # Another life

    def resume(self, saved: Saved) -> tuple[dict[str, Any], Begun]:
        """Go on from what is stored: the cursor to read on from, and the examples that go on.

        There is nothing to go on from while no ``base`` is stored.
        """
        cursor: dict[str, Any] = msgpack.unpackb(saved.meta["base"], strict_map_key=False)
        self.lines = Lines(cursor["line"])
        self._reads.update(saved.chunks)
        for mark in saved.done:
            self._marks[mark // 2] = REFUSED if mark % 2 else BEGUN
        examples = saved.examples
        lines, indices, chunks, rows, segments, counts = examples.numbers
        self._kept.update(zip(lines.tolist(), chunks.tolist(), strict=True))
        self._stored.update(Counter(chunks.tolist()))
        self._marks.update(dict.fromkeys(lines[lines >= cursor["line"]].tolist(), BEGUN))
        return cursor, Begun(chunks, rows, counts, segments, indices, lines, examples.keys)
