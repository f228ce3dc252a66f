"""The plain shape: every ``batch_size`` rows in the order of their arrival.

offer(chunk) … ──► rows waiting ──► next_draft()        full batches
finish()       ──►              ──► next_draft()        the rest, if smaller ones are allowed

A new batch size applies to the rows that make no whole batch yet.  So a stream depends on the place
of the change among rows and batches, and not on how many batches were drafted by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from .plan import RESIZED, Draft, Part
from .row_queue import QueuedRows


class PlainBatches(QueuedRows):
    """Shaper of ``.batch(batch_size, allow_smaller_final_batch)``."""

    kind = "batch"

    def __init__(self, batch_size: int, allow_smaller_final_batch: bool = False) -> None:
        super().__init__()
        self.batch_size = batch_size  # for batches that are not whole yet
        self._declared = batch_size
        self._older: deque[list[int]] = deque()  # number and size of whole batches of other sizes
        self.allow_smaller = allow_smaller_final_batch
        self._waiting: deque[tuple[int, int, int]] = deque()  # chunk, start, stop
        self._rows = 0

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        if rows:
            self._waiting.append((chunk, 0, rows))
            self._rows += rows

    def finish(self, drop: bool = False) -> None:
        self._finished = True
        if drop:
            self._drop("cancelled", self._rows)
        elif not self.allow_smaller:
            self._drop("remainder", self._loose % self.batch_size)

    @property
    def _loose(self) -> int:
        """The number of rows after the whole batches of older sizes."""
        if not self._older:
            return self._rows
        return self._rows - sum(count * size for count, size in self._older)

    @property
    def resized(self) -> bool:
        """Whether batches may have another size than was declared."""
        return bool(self._older) or self.batch_size != self._declared

    def set_batch_size(self, batch_size: int) -> None:
        """Use another batch size for all rows that are in no whole batch."""
        whole = self._loose // self.batch_size
        if whole:
            self._older.append([whole, self.batch_size])
        self.batch_size = batch_size
        if self._finished and not self.allow_smaller:
            self._drop("remainder", self._loose % batch_size)

    def _drop(self, reason: str, remainder: int) -> None:
        """Drop the last rows that wait."""
        self._count(reason, remainder)
        self._rows -= remainder
        while remainder:
            chunk, start, stop = self._waiting.pop()
            cut = min(remainder, stop - start)
            remainder -= cut
            if stop - cut > start:
                self._waiting.append((chunk, start, stop - cut))

    def next_draft(self) -> Draft | None:
        size = wanted = self._older[0][1] if self._older else self.batch_size
        if self._rows < wanted:
            if not self._finished or not self._rows:
                return None
            wanted = self._rows
        parts = []
        self._rows -= wanted
        while wanted:
            chunk, start, stop = self._waiting.popleft()
            cut = min(wanted, stop - start)
            parts.append(Part(chunk, slice(start, start + cut)))
            wanted -= cut
            if start + cut < stop:
                self._waiting.appendleft((chunk, start + cut, stop))
        if self._older:
            self._older[0][0] -= 1
            if not self._older[0][0]:
                self._older.popleft()
        return Draft(tuple(parts), {} if size == self._declared else RESIZED)

    def ready(self) -> int:
        """Return the number of whole batches that were not taken."""
        older = sum(count for count, _ in self._older)
        return older + self._loose // self.batch_size

    def waiting(self) -> int:
        return self._rows

    def chunks(self) -> set[int]:
        return {chunk for chunk, _, _ in self._waiting}

    def snapshot(self) -> dict[str, Any]:
        sizes = {"sizes": [self.batch_size, [*self._older]]} if self.resized else {}
        return {
            **sizes,
            "batch_size": self._declared,
            "waiting": [list(entry) for entry in self._waiting],
            "finished": self._finished,
            "dropped": dict(self._dropped),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        waiting, finished, dropped = self._stored(state, {}, batch_size=self._declared)
        self.batch_size, older = state.get("sizes", (self._declared, ()))
        self._older = deque([count, size] for count, size in older)
        self._waiting = deque((c, a, b) for c, a, b in waiting)
        self._rows = sum(b - a for _, a, b in self._waiting)
        self._finished = finished
        self._dropped = dict(dropped)
