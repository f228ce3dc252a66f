"""A queue of numbers, first in first out, in one array."""

from __future__ import annotations

import numpy as np


class Fifo:
    """Items of the shape ``inner``: numbers, or rows of a table.

    They are a stretch of one array, which is written behind it and never before it.  So arrays that
    came out are views and stay as they are.
    """

    __slots__ = ("_begin", "_end", "_items", "count")

    def __init__(self, *inner: int) -> None:
        self._items = np.empty((0, *inner), np.int64)
        self._begin = self._end = 0
        self.count = 0  # of items in it

    def put(self, items: np.ndarray) -> None:
        """Append items."""
        if self._end + len(items) > len(self._items):
            left = self.first(self.count)
            grown = np.empty((2 * (len(left) + len(items)), *left.shape[1:]), np.int64)
            grown[: len(left)] = left
            self._items, self._begin, self._end = grown, 0, len(left)
        begin, self._end = self._end, self._end + len(items)
        self.count += len(items)
        self._items[begin : self._end] = items

    def get(self, n: int) -> np.ndarray:
        """Remove and return the first ``n``; there must be that many."""
        begin = self._begin
        self._begin = end = begin + n
        self.count -= n
        return self._items[begin:end]

    def first(self, n: int) -> np.ndarray:
        """Return the first ``n``, or all where there are fewer, which stay."""
        return self._items[self._begin : min(self._begin + n, self._end)]

    def last(self, n: int) -> np.ndarray:
        """Return the last ``n``, which stay, and may be put in another order."""
        return self._items[self._end - n : self._end]

    def drop(self, n: int) -> None:
        """Remove the last ``n``."""
        self._end -= n
        self.count -= n

    def remove(self, items: np.ndarray) -> None:
        """Remove these numbers at any place in the queue."""
        left = self.get(self.count)
        self.put(left[~np.isin(left, items)])
