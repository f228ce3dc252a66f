"""How far examples are, so that a later life can go on: from where to read, and what to pass over.

    Lines      of a feed of segments.  Examples are numbered as they are read (their *lines*); each
               is open until it has begun, and been stored, or ended.  Reading goes on from the
               oldest chunk with an open line; lines after that which are not open are listed
    Numbers    of other feeds.  Batches are numbered; reading goes on from the cursor of the last
               batch before which all are done; those after it which are done are listed

Both are asked after each commit what has changed, and say what is not needed any more.  In memory
Lines holds the chunks with an open line and the newest one, Numbers one cursor for each batch from
the oldest that is not done.  The lists of what is passed over grow for as long as the oldest stays
open, by what is done above it and by nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Lines", "Numbers"]


@dataclass(slots=True)
class _Chunk:
    first: int  # its first line
    cursor: bytes  # how to read it again, and on from there
    unsettled: int  # lines that are open


class Lines:
    """The lines of one partition."""

    def __init__(self, first: int = 0) -> None:
        self.next = first
        self.base = -1  # the chunk from which reading goes on; -1: none was read yet
        self.base_line = first
        self._chunks: OrderedDict[int, _Chunk] = OrderedDict()  # only the newest has no open line

    def read(self, chunk: int, rows: int, cursor: bytes) -> bool:
        """A chunk was read.  Whether reading goes on from it, which is to be noted."""
        newest = next(reversed(self._chunks), None)
        if newest is not None and not self._chunks[newest].unsettled:
            del self._chunks[newest]
        self._chunks[chunk] = _Chunk(self.next, cursor, rows)
        self.next += rows
        return self._advance()

    def closed(self, chunks: Iterable[int]) -> bool:
        """One line of each of these chunks is open no more.  Whether the base has moved."""
        for number in chunks:
            chunk = self._chunks.get(number)
            if chunk is None or not chunk.unsettled:
                raise ValueError(f"no line of chunk {number} is open")
            chunk.unsettled -= 1
            if not chunk.unsettled and number != next(reversed(self._chunks)):
                del self._chunks[number]
        return self._advance()

    def is_open(self, chunk: int) -> bool:
        """Whether a line of a chunk is open."""
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
    """The batches of one partition.  ``base`` is the first from which they are made again."""

    def __init__(self, base: int = 0, done: Iterable[int] = ()) -> None:
        self.base = base
        self._done = {number for number in done if number >= base}
        self._cursors: dict[int, bytes] = {}  # after the batch of that number

    def made(self, number: int, cursor: bytes) -> None:
        """A batch was made; from its cursor the one after it is made."""
        if number >= self.base:
            self._cursors[number] = cursor

    @property
    def above(self) -> list[int]:
        """What is done from the base on."""
        return sorted(self._done)

    def is_done(self, number: int) -> bool:
        return number < self.base or number in self._done

    def done(self, number: int) -> tuple[int, bytes] | None:
        """A batch is done.  The new base with its cursor, when there is one."""
        if self.is_done(number):
            return None
        self._done.add(number)
        moved = None
        upto = self.base
        while upto in self._done:
            cursor = self._cursors.get(upto)
            upto += 1
            if cursor is not None:
                moved = upto, cursor
        if moved is not None:
            for passed in range(self.base, moved[0]):
                self._done.discard(passed)
                self._cursors.pop(passed, None)
            self.base = moved[0]
        return moved
