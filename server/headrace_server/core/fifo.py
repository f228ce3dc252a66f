"""A queue of slots: add arrays of any size, remove any number, first in first out."""

from __future__ import annotations

from collections import deque

import numpy as np

_NONE = np.empty(0, np.int64)


class Fifo:
    """Slots, first in first out."""

    def __init__(self) -> None:
        self._parts: deque[np.ndarray] = deque()
        self.count = 0

    def put(self, slots: np.ndarray) -> None:
        self._parts.append(slots)
        self.count += len(slots)

    def get(self, n: int) -> np.ndarray:
        """Remove and return the first ``n``; there must be that many."""
        self.count -= n
        taken = []
        while n:
            part = self._parts.popleft()
            if len(part) > n:
                self._parts.appendleft(part[n:])
                part = part[:n]
            taken.append(part)
            n -= len(part)
        return taken[0] if len(taken) == 1 else np.concatenate([_NONE, *taken])

    def remove(self, slots: np.ndarray) -> None:
        """Remove these at any place in the queue."""
        left = self.get(self.count)
        left = left[~np.isin(left, slots)]
        if len(left):
            self.put(left)

    def first(self, n: int) -> np.ndarray:
        """Return the first ``n`` and leave them."""
        slots = self.get(n)
        if n:
            self._parts.appendleft(slots)
            self.count += n
        return slots
