"""The allocator of a slab's memory: page-aligned blocks in one range that grows at its end.

    [ block | free |  block  |  block  |   free   ]┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄]
    0                                             size                        budget

The laws:

* First fit at the lowest offset, so warm memory is reused first.  A block ends at or before a limit
  that comes with its request.
* The range shrinks only by ``shrink``, so a steady load takes nothing from the system and gives
  nothing back.
* Free ranges that touch are one, so an arena whose blocks are all free admits every request within
  its limit.

The arena touches no memory: the caller takes more from the system, and then calls ``grow``.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from headrace_proto.record import record

PAGE: Final = 4096


@record
class Block:
    """A place of ``nbytes``, which are whole pages."""

    offset: int
    nbytes: int


class Arena:
    """The allocator of one range."""

    def __init__(self) -> None:
        self.size = 0
        self.used_bytes = 0
        self._free: list[tuple[int, int]] = []  # offset and end, ascending, no two adjacent
        self._live: dict[int, Block] = {}  # by offset

    def allocate(self, nbytes: int, limit: int) -> Block | None:
        """Return a block of ``nbytes``, which are whole pages; None if no free range has them."""
        for i, (start, stop) in enumerate(self._free):
            end = start + nbytes
            if end <= stop and end <= limit:
                self._free[i : i + 1] = [(end, stop)] if end < stop else []
                self._live[start] = block = Block(start, nbytes)
                self.used_bytes += nbytes
                return block
        return None

    def lacks(self, nbytes: int, limit: int) -> int | None:
        """Return by how much the range must grow to admit a block; None if the limit forbids it."""
        if any(min(stop, limit) - start >= nbytes for start, stop in self._free):
            return 0
        start, stop = self._free[-1] if self._free else (self.size, self.size)
        end = (start if stop == self.size else self.size) + nbytes
        return end - self.size if end <= limit else None

    def grow(self, nbytes: int) -> None:
        """Add memory at the end."""
        start, self.size = self.size, self.size + nbytes
        self._give_back(start, self.size)

    def shrink(self, least: int) -> int:
        """Remove the free end of the range beyond ``least`` bytes; return how many bytes went."""
        start, stop = self._free[-1] if self._free else (0, 0)
        if stop < self.size or stop <= least:
            return 0
        self._free.pop()
        self.size = max(start, least)
        if start < self.size:
            self._free.append((start, self.size))
        return stop - self.size

    def free(self, block: Block) -> None:
        """Free a block; ValueError, and no change, if it is not occupied."""
        if self._live.get(block.offset) is not block:
            raise ValueError(f"{block} is not occupied: freed before, or of another arena")
        del self._live[block.offset]
        self.used_bytes -= block.nbytes
        self._give_back(block.offset, block.offset + block.nbytes)

    def _give_back(self, start: int, stop: int) -> None:
        """Free a range, joined with the free ranges that touch it."""
        free = self._free
        i = bisect_left(free, (start, stop))
        if i < len(free) and free[i][0] == stop:
            stop = free.pop(i)[1]
        if i and free[i - 1][1] == start:
            i -= 1
            start = free.pop(i)[0]
        free.insert(i, (start, stop))
