"""Queues of slots: arrays go in, and any number comes out, first in first out or in order."""

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


class OldestFirst:
    """Returned slots, the smallest insertion index first.

    They are a few sorted runs, each less than half as long as the one before when it was added.  So
    the cost of a batch grows with the logarithm of their number.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # [2, n]: insertion indices, slots
        self.count = 0

    def put(self, indices: np.ndarray, slots: np.ndarray) -> None:
        """Add slots with ascending indices."""
        if not len(slots):
            return
        self.count += len(slots)
        run = np.empty((2, len(slots)), np.int64)
        run[0], run[1] = indices, slots
        while self._runs and self._runs[-1].shape[1] <= 2 * run.shape[1]:
            run = np.concatenate([self._runs.pop(), run], axis=1)
            run = run[:, np.argsort(run[0], kind="stable")]
        self._runs.append(run)

    def get(self, n: int) -> np.ndarray:
        """Remove the first ``n``, which must be there."""
        self.count -= n
        if len(self._runs) == 1 and self._runs[0].shape[1] == n:
            whole: np.ndarray = self._runs.pop()[1]
            return whole
        heads = [run[:, :n] for run in self._runs]
        if len(heads) > 1:
            joined = np.concatenate(heads, axis=1)
            order = np.argsort(joined[0], kind="stable")[:n]
            origins = np.repeat(np.arange(len(heads)), [head.shape[1] for head in heads])[order]
            taken = np.bincount(origins, minlength=len(heads)).tolist()
            slots: np.ndarray = joined[1, order]
        else:
            slots = heads[0][1] if heads else np.empty(0, np.int64)
            taken = [len(slots)] * len(heads)
        runs = [run[:, used:] for run, used in zip(self._runs, taken, strict=True)]
        self._runs = [run for run in runs if run.shape[1]]
        return slots

    def first(self, n: int) -> np.ndarray:
        """Return unsorted indices and slots that include the first ``n``; leave them."""
        if not self._runs:
            return np.empty((2, 0), np.int64)
        return np.concatenate([run[:, :n] for run in self._runs], axis=1)
