"""The progress of a partition: where a later process resumes reading, and what it skips.

    OpenLines  for segments.  Examples are numbered as they are read (their *lines*); a line is
               open until its example has begun and is stored, or has ended.  Reading goes on from
               the oldest chunk with an open line; closed lines after that are listed
    Numbers    for plain batches.  Reading goes on from the cursor of the last batch before which
               all are done; done batches after it are listed

OpenLines holds the chunks with an open line and the newest chunk; Numbers holds one cursor for each
batch from the oldest open one on.  The lists of skipped lines and batches grow while the oldest
stays open, by those that are done after it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Chunk:
    first: int  # its first line
    cursor: bytes  # to resume reading at this chunk
    unsettled: int  # number of open lines


class OpenLines:
    """The lines of one partition."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self.base = -1  # the chunk at which reading resumes; -1 before the first
        self.base_line = first
        # only the newest may have no open line
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()

    def read(self, chunk: int, rows: int, cursor: bytes) -> bool:
        """Add a chunk; return whether reading now resumes at another one, which is to be stored."""
        newest = next(reversed(self._chunks), None)
        if newest is not None and not self._chunks[newest].unsettled:
            del self._chunks[newest]
        self._chunks[chunk] = _Chunk(self.next, cursor, rows)
        self.next += rows
        return self._advance()

    def closed(self, chunks: Iterable[int]) -> bool:
        """Close one line of each of these chunks; return whether the base has moved."""
        for number, lines in Counter(chunks).items():
            chunk = self._chunks.get(number)
            if chunk is None or chunk.unsettled < lines:
                raise ValueError(f"no line of chunk {number} is open")
            chunk.unsettled -= lines
            if not chunk.unsettled and number != next(reversed(self._chunks)):
                del self._chunks[number]
        return self._advance()

    def line(self, chunk: int, row: int) -> int:
        """Return the number of an open line, by its chunk and row."""
        return self._chunks[chunk].first + row

    def is_open(self, chunk: int) -> bool:
        """Return whether a line of a chunk is open."""
        known = self._chunks.get(chunk)
        return known is not None and known.unsettled > 0

    @property
    def base_cursor(self) -> bytes:
        return self._chunks[self.base].cursor

    def _advance(self) -> bool:
        before = self.base
        if self._chunks:
            self.base = next(iter(self._chunks))
            self.base_line = self._chunks[self.base].first
        return self.base != before


class Numbers:
    """The batches of one partition.  ``base`` is the first that a later process makes again."""

    def __init__(self, base: int = 0, done: Iterable[int] = ()) -> None:
        self.base = self.first_open = base  # the latter: the first that is not done
        self._done = {number for number in done if number >= base}
        self._cursors: dict[int, bytes] = {}  # after the batch of this number, in their order
        self._pass_done()

    def made(self, number: int, cursor: bytes) -> None:
        """Add a batch with the cursor after it."""
        if number >= self.base:
            self._cursors[number] = cursor

    @property
    def above(self) -> list[int]:
        """Done batches from the base on."""
        return sorted(self._done)

    def _pass_done(self) -> None:
        while self.first_open in self._done:
            self.first_open += 1

    def is_done(self, number: int) -> bool:
        return number < self.base or number in self._done

    def done(self, number: int) -> tuple[int, bytes] | None:
        """Mark a batch as done; return the new base and its cursor, if the base has moved."""
        if self.is_done(number):
            return None
        self._done.add(number)
        self._pass_done()
        moved = None
        while self._cursors and (upto := next(iter(self._cursors))) < self.first_open:
            moved = upto + 1, self._cursors.pop(upto)
        if moved is not None:
            self._done.difference_update(range(self.base, moved[0]))
            self.base = moved[0]
        return moved
