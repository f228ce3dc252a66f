"""The plain shape: every ``batch_size`` rows in the order of their arrival.

offer(chunk) … ──► rows waiting ──► next_draft()        full batches
finish()       ──►              ──► next_draft()        the rest, if smaller ones are allowed

A new batch size applies to the rows that make no whole batch yet.  So a stream depends on the place
of the change among rows and batches, and not on how many batches were drafted by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .plan import RESIZED, Draft
from .row_queue import QueuedRows


class PlainBatches(QueuedRows):
    """Shaper of ``.batch(batch_size, allow_smaller_final_batch)``."""

    kind = "batch"

    def __init__(self, batch_size: int, allow_smaller_final_batch: bool = False) -> None:
        super().__init__(1)
        self.batch_size = batch_size  # for batches that are not whole yet
        self._declared = batch_size
        self._older: deque[list[int]] = deque()  # number and size of whole batches of other sizes
        self.allow_smaller = allow_smaller_final_batch
        self._queue = self._queues[0]

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        if rows:
            self._queue.append(chunk, np.arange(rows))

    def finish(self, drop: bool = False) -> None:
        self._finished = True
        if drop:
            self._drop("cancelled", self._queue.rows)
        elif not self.allow_smaller:
            self._drop("remainder", self._loose % self.batch_size)

    @property
    def _loose(self) -> int:
        """The number of rows after the whole batches of older sizes."""
        return self._queue.rows - sum(count * size for count, size in self._older)

    @property
    def resized(self) -> bool:
        """Whether batches may have another size than was declared."""
        return bool(self._older) or self.batch_size != self._declared

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use another batch size for all rows that are in no whole batch."""
        whole = self._loose // self.batch_size
        if whole:
            self._older.append([whole, self.batch_size])
        (self.batch_size,) = batch_sizes
        if self._finished and not self.allow_smaller:
            self._drop("remainder", self._loose % self.batch_size)

    def _drop(self, reason: str, rows: int) -> None:
        """Drop the last rows that wait."""
        self._count(reason, rows)
        self._queue.drop_last(rows)

    def next_draft(self) -> Draft | None:
        size = self._older[0][1] if self._older else self.batch_size
        rows = min(size, self._queue.rows)
        if not rows or (rows < size and not self._finished):
            return None
        if self._older:
            self._older[0][0] -= 1
            if not self._older[0][0]:
                self._older.popleft()
        parts = self._queue.take(rows)[0]
        return Draft(tuple(parts), {} if size == self._declared else RESIZED)

    def ready(self) -> int:
        return sum(count for count, _ in self._older) + self._loose // self.batch_size

    def snapshot(self) -> dict[str, Any]:
        sizes = {"sizes": [self.batch_size, [*self._older]]} if self.resized else {}
        return {
            **sizes,
            "batch_size": self._declared,
            "waiting": self._queue.ranges(),
            "finished": self._finished,
            "dropped": dict(self._dropped),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        waiting, finished, dropped = self._stored(state, {}, batch_size=self._declared)
        self.batch_size, older = state.get("sizes", (self._declared, ()))
        self._older = deque([count, size] for count, size in older)
        self._queue.drop_last(self._queue.rows)
        for chunk, start, stop in waiting:
            self._queue.append(chunk, np.arange(start, stop))
        self._finished = finished
        self._dropped = dict(dropped)
