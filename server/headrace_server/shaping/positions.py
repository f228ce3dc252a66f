"""A number for each of many positions, as two sorted columns.

A dict takes 52 bytes for an entry and 64 for its two numbers; these columns take 12.  A position
mostly comes after all others, so it is appended.  One that goes leaves its place, which it takes
again if it comes back; the columns are made anew once half of their places are left.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np


class Positions:
    def __init__(self) -> None:
        self._positions, self._numbers = array("q"), array("i")  # -1: it has gone
        self._gone = 0

    def __len__(self) -> int:
        return len(self._positions) - self._gone

    def __iter__(self) -> Iterator[int]:
        return (position for position, _ in self.items())

    def __contains__(self, position: int) -> bool:
        return self.get(position) >= 0

    def items(self) -> Iterator[tuple[int, int]]:
        pairs = zip(self._positions, self._numbers, strict=True)
        return ((position, number) for position, number in pairs if number >= 0)

    @property
    def numbers(self) -> np.ndarray:
        numbers = np.array(self._numbers)
        return numbers[numbers >= 0]

    def get(self, position: int) -> int:
        """Return the number of a position; -1: it has none."""
        at = bisect_left(self._positions, position)
        found = at < len(self._positions) and self._positions[at] == position
        return self._numbers[at] if found else -1

    def find(self, positions: np.ndarray) -> np.ndarray:
        """Return the number of each position; -1: it has none."""
        there = np.append(np.asarray(self._positions), -1)
        at = there[:-1].searchsorted(positions)
        numbers = np.append(np.asarray(self._numbers), -1)
        found: np.ndarray = np.where(there[at] == positions, numbers[at], -1)
        return found

    def __setitem__(self, position: int, number: int) -> None:
        """Give a number to a position that has none."""
        at = bisect_left(self._positions, position)
        if at < len(self._positions) and self._positions[at] == position:
            self._numbers[at] = number
            self._gone -= 1
        else:
            self._positions.insert(at, position)
            self._numbers.insert(at, number)

    def __delitem__(self, position: int) -> None:
        at = bisect_left(self._positions, position)
        if at == len(self._positions) or self._positions[at] != position or self._numbers[at] < 0:
            raise KeyError(position)
        self._numbers[at] = -1
        self._gone += 1
        if 2 * self._gone > len(self._positions):
            there = np.array(self._numbers) >= 0
            self._positions = array("q", np.array(self._positions)[there].tobytes())
            self._numbers = array("i", np.array(self._numbers)[there].tobytes())
            self._gone = 0
