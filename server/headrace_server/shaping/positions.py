"""A number for each of many positions, as two sorted columns.

A dict takes 52 bytes for an entry and 64 for its two numbers; these columns take 12.  A position
mostly comes after all others, so it is appended.  One that comes or goes amid 100,000 moves those
after it, which takes some microseconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator


class Positions:
    def __init__(self) -> None:
        self._positions, self.numbers = array("q"), array("i")

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[int]:
        return iter(self._positions)

    def __contains__(self, position: int) -> bool:
        return self.get(position) >= 0

    def items(self) -> Iterator[tuple[int, int]]:
        return zip(self._positions, self.numbers, strict=True)

    def get(self, position: int) -> int:
        """Return the number of a position; -1: it has none."""
        at = bisect_left(self._positions, position)
        found = at < len(self._positions) and self._positions[at] == position
        return self.numbers[at] if found else -1

    def __setitem__(self, position: int, number: int) -> None:
        """Give a new position a number."""
        at = bisect_left(self._positions, position)
        self._positions.insert(at, position)
        self.numbers.insert(at, number)

    def __delitem__(self, position: int) -> None:
        if position not in self:
            raise KeyError(position)
        at = bisect_left(self._positions, position)
        del self._positions[at], self.numbers[at]
