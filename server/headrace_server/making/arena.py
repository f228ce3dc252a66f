"""The allocator of shared memory for batches: page-aligned blocks in a growing set of segments.

    segment 0  [ block | free |  block  |      free      ]
    segment 1  [ block  | block |          free          ]

The laws:

* First fit at the lowest address (segment, then offset), so warm memory is reused first.
* Segments are added when nothing fits, while the sum of their sizes stays within the budget.
  One *beyond* it has a single block, and is removed when that is freed.
* Segments are removed only when a request that fits the budget fits neither a free range nor the
  rest of the budget: empty ones, newest first, no more than the request needs.  An idle segment
  stays, so a steady load creates and removes nothing.
* Hence an arena whose blocks are all free admits every request within the budget.

The arena touches no memory.  After an ``allocate`` the caller removes the segments that ``retired``
names, and creates that of the block if there is none yet; numbers are never used twice.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from headrace_proto.errors import LimitExceeded
from headrace_proto.record import record

PAGE: Final = 4096


@record
class Block:
    """A place in a segment of ``nbytes``, which are whole pages."""

    segment: int
    offset: int
    nbytes: int


@dataclass(slots=True)
class _Segment:
    """Free ranges (offset and end) by ascending offset, no two of them adjacent."""

    size: int
    free: list[tuple[int, int]]
    beyond: bool = False  # the budget

    def carve(self, nbytes: int) -> int | None:
        """Occupy ``nbytes`` at the lowest offset with room for them; return that offset."""
        for i, (start, stop) in enumerate(self.free):
            if stop - start >= nbytes:
                self.free[i : i + 1] = [(start + nbytes, stop)] if stop - start > nbytes else []
                return start
        return None

    def give_back(self, start: int, stop: int) -> None:
        """Free a range, joined with the free ranges that touch it."""
        free = self.free
        i = bisect_left(free, (start, stop))
        if i < len(free) and free[i][0] == stop:
            stop = free.pop(i)[1]
        if i and free[i - 1][1] == start:
            i -= 1
            start = free.pop(i)[0]
        free.insert(i, (start, stop))


class Arena:
    """The allocator of one slab.

    ``budget_bytes`` bounds the sum of the segments' sizes, without those beyond it.
    """

    def __init__(self, budget_bytes: int, segment_bytes: int) -> None:
        self.budget_bytes = budget_bytes // PAGE * PAGE
        self.segment_bytes = _whole_pages(segment_bytes)
        self.used_bytes = 0
        self.reserved_bytes = 0
        self._segments: dict[int, _Segment] = {}  # by ascending number
        self._live: dict[tuple[int, int], Block] = {}
        self._next_number = 0
        self.retired: list[int] = []  # numbers of segments, until the caller has removed them

    def allocate(self, nbytes: int, grow: bool = True, beyond: bool = False) -> Block | None:
        """Return a block with room for ``nbytes``, at least one page; None if there is no room now.

        Without ``grow`` it adds no segment; with ``beyond`` it may add one beyond the budget.
        """
        size = _whole_pages(nbytes)
        if grow and size > self.budget_bytes:
            raise LimitExceeded(
                f"a block of {nbytes} bytes does not fit into a slab of {self.budget_bytes} bytes; "
                f"raise slab_bytes to {size} or more, or make batches smaller"
            )
        for number, segment in self._segments.items():
            offset = segment.carve(size)
            if offset is not None:
                return self._occupied(number, offset, size)
        if grow and self._make_room(size):
            number = self._add_segment(size)
        elif beyond:
            number, self._next_number = self._next_number, self._next_number + 1
            self._segments[number] = _Segment(size, [(0, size)], beyond)
        else:
            return None
        self._segments[number].carve(size)
        return self._occupied(number, 0, size)

    def admits(self, nbytes: int) -> bool:
        """Return whether ``allocate`` would find room now."""
        size, rest = _whole_pages(nbytes), self.budget_bytes - self.reserved_bytes
        if rest >= size:
            return True
        segments = self._segments.values()
        if any(stop - start >= size for one in segments for start, stop in one.free):
            return True
        return rest + sum(one.size for one in segments if one.free == [(0, one.size)]) >= size

    def free(self, block: Block) -> None:
        """Free a block; ValueError, and no change, if it is not occupied."""
        place = (block.segment, block.offset)
        if self._live.get(place) is not block:
            raise ValueError(f"{block} is not occupied: freed before, or of another arena")
        del self._live[place]
        self.used_bytes -= block.nbytes
        if self._segments[block.segment].beyond:
            del self._segments[block.segment]
            self.retired.append(block.segment)
        else:
            self._segments[block.segment].give_back(block.offset, block.offset + block.nbytes)

    def size_of(self, number: int) -> int:
        """Return the size of a segment."""
        return self._segments[number].size

    def _occupied(self, number: int, offset: int, size: int) -> Block:
        block = Block(number, offset, size)
        self._live[number, offset] = block
        self.used_bytes += size
        return block

    def _make_room(self, size: int) -> bool:
        """Return whether the budget admits a segment of ``size``; retire empty ones if needed."""
        missing = self.reserved_bytes + size - self.budget_bytes
        retire: list[int] = []
        for number, segment in reversed(self._segments.items()):
            if missing <= 0:
                break
            if segment.free == [(0, segment.size)]:
                retire.append(number)
                missing -= segment.size
        if missing > 0:
            return False
        for number in retire:
            self.reserved_bytes -= self._segments.pop(number).size
        self.retired += retire
        return True

    def _add_segment(self, size: int) -> int:
        """Add a segment of the usual size, larger if needed, or of the rest of the budget."""
        number, self._next_number = self._next_number, self._next_number + 1
        size = min(max(size, self.segment_bytes), self.budget_bytes - self.reserved_bytes)
        self._segments[number] = _Segment(size, [(0, size)])
        self.reserved_bytes += size
        return number


def _whole_pages(nbytes: int) -> int:
    return max(1, -(-nbytes // PAGE)) * PAGE
