"""A queue of slots: arrays go in, and any number comes out, first in first out."""

from __future__ import annotations

import numpy as np


class Fifo:
    """Slots, first in first out.

    They are a stretch of one array, which is written behind it and never before it, so that arrays
    that came out are views and stay as they are.
    """

    def __init__(self) -> None:
        self._slots = np.empty(0, np.int64)
        self._begin = self._end = 0
        self.count = 0  # of slots in it

    def put(self, slots: np.ndarray) -> None:
        """Append slots."""
        end = self._end + len(slots)
        if end > len(self._slots):
            left = self._slots[self._begin : self._end]
            self._slots = np.empty(2 * (len(left) + len(slots)), np.int64)
            self._slots[: len(left)] = left
            self._begin, self._end, end = 0, len(left), len(left) + len(slots)
        self._slots[self._end : end] = slots
        self._end = end
        self.count += len(slots)

    def get(self, n: int) -> np.ndarray:
        """Remove and return the first ``n``; there must be that many."""
        begin = self._begin
        self._begin = end = begin + n
        self.count -= n
        return self._slots[begin:end]

    def first(self, n: int) -> np.ndarray:
        """Return the first ``n``, which stay."""
        return self._slots[self._begin : self._begin + n]

    def remove(self, slots: np.ndarray) -> None:
        """Remove these at any place in the queue."""
        left = self.get(self.count)
        self.put(left[~np.isin(left, slots)])
