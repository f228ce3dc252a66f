"""A queue of slots: arrays go in, and any number comes out, first in first out."""

from __future__ import annotations

from collections import deque

import numpy as np

_NONE = np.empty(0, np.int64)


class Fifo:
    """Slots, first in first out."""

    def __init__(self) -> None:
        self._parts: deque[np.ndarray] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, slots: np.ndarray) -> None:
        self._parts.append(slots)
        self._count += len(slots)

    def get(self, n: int) -> np.ndarray:
        """Remove the first ``n``, which must be there."""
        self._count -= n
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
        """Remove these, wherever they are."""
        left = self.get(self._count)
        left = left[~np.isin(left, slots)]
        if len(left):
            self.put(left)

    def first(self, n: int) -> np.ndarray:
        """The first ``n``, which stay."""
        slots = self.get(n)
        if n:
            self._parts.appendleft(slots)
            self._count += n
        return slots
