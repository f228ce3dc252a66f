"""Rows into buckets, buckets into batches: a whole chunk at once.

    offer(chunk) ─► one queue per bucket ─► batches, in the order in which they became full
    finish()     ─► the remainders of the buckets, ascending bucket id, or dropped

Inside a bucket rows keep their order.  A batch becomes full with the row that reaches the bucket's
batch size.  With a budget (``max_padded_elements``) a batch also becomes full when the row arrives
that does not fit: with it, the padded length times the number of rows would exceed the budget.
That row opens the next batch, so a row longer than the budget is a batch of its own.  A row costs
at least one element, whatever its length.  Rows that are not padded (``ragged``) fill a budget with
the sum of their lengths.  At the end of the input, a batch into which no row of any
length would fit counts as full, not as a remainder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from .padding import NO_PADDING, Padding
from .plan import RESIZED, Draft
from .row_queue import MAX_COUNTER, QueuedRows, below, decoded


def bucket_of(lengths: np.ndarray, boundaries: np.ndarray) -> np.ndarray:
    """Return the bucket of each length: the number of boundaries that it reaches."""
    return np.searchsorted(boundaries, lengths, side="right")


class Buckets(QueuedRows):
    """Shaper of ``.bucket`` and ``.bucket_by_sequence_length``.

    Facts: ``bucket`` (ids in [0, K)) and, in every chunk or in none, ``length`` (int64, which a
    budget needs).  With lengths, ``meta`` counts the elements of a batch padded to its longest row,
    and the real ones.
    """

    kind = "bucket"

    def __init__(
        self,
        batch_sizes: Sequence[int | None],
        allow_smaller_final_batch: bool = False,
        max_padded_elements: int | None = None,
        padding: Padding = NO_PADDING,
        ragged: bool = False,
    ) -> None:
        self._padding = padding
        self._ragged = ragged
        self._sizes = self._declared = tuple(batch_sizes)
        self.resized = False  # whether batches may have other sizes than were declared
        self._fixed = not allow_smaller_final_batch and max_padded_elements is None
        self.allow_smaller = allow_smaller_final_batch
        self.max_padded_elements = max_padded_elements
        count = len(self._sizes)
        # Few values in a narrow type sort by radix, several times as fast.
        self._narrow = np.min_scalar_type(count - 1) if count <= 2**16 else np.dtype(np.int64)
        super().__init__(count)
        # bucket, and number of rows from the front of its queue
        self._full: deque[tuple[int, int]] = deque()
        self._open = [0] * count  # rows of each queue that are in no full batch
        # By queue: the longest open row, or the sum of ragged ones; kept only with a budget.
        self._longest = [0] * count
        self._with_lengths: bool | None = None

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        if not rows:
            return
        lengths = facts.get("length")
        self._with_lengths = lengths is not None
        ids = facts["bucket"].astype(self._narrow)
        order = np.argsort(ids, kind="stable")
        if lengths is not None:
            lengths = np.maximum(lengths[order], 0)
        counts = np.bincount(ids, minlength=len(self._queues))
        buckets = counts.nonzero()[0].tolist()
        full: list[tuple[int, int, int]] = []  # position of the last row, bucket, number of rows
        start = 0
        for bucket in buckets:
            stop = start + int(counts[bucket])
            # Copies, so that a few waiting rows do not keep the whole chunk's arrays alive.
            own = order[start:stop].copy()
            own_lengths = None if lengths is None else lengths[start:stop].copy()
            self._queues[bucket].append(chunk, own, own_lengths)
            if self.max_padded_elements is None or own_lengths is None:
                size = self._sizes[bucket] or 0
                ends = own[size - self._open[bucket] - 1 :: size].tolist()
                full += [(row, bucket, size) for row in ends]
                self._open[bucket] += len(own) - size * len(ends)
            else:
                full += self._fill_budget(bucket, own, own_lengths)
            start = stop
        full.sort(key=itemgetter(0))
        self._full.extend((bucket, size) for _, bucket, size in full)

    @property
    def batch_sizes(self) -> tuple[int | None, ...]:
        return self._sizes

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use other batch sizes for all rows that are in no full batch.

        Batches that become full by that come in the order of the buckets.
        """
        self._sizes, self.resized = tuple(batch_sizes), True
        for bucket, size in enumerate(batch_sizes):
            full, self._open[bucket] = divmod(self._open[bucket], size)
            self._full.extend([(bucket, size)] * full)
            if full and self.max_padded_elements is not None:
                self._longest[bucket] = self._measured(bucket)

    def _fill_budget(
        self, bucket: int, rows: np.ndarray, lengths: np.ndarray
    ) -> list[tuple[int, int, int]]:
        """Find full batches of a bucket under the budget, in a step for each batch."""
        budget = self.max_padded_elements or 0
        size = self._sizes[bucket] or len(rows) + MAX_COUNTER
        held, longest, at = self._open[bucket], self._longest[bucket], 0
        full: list[tuple[int, int, int]] = []
        window = 64  # rows looked at in one step, of the order of a batch
        while at < len(rows):
            room = min(size - held, len(rows) - at)
            look = min(window, room)
            if self._ragged:
                grown = longest + np.cumsum(_costs(lengths[at : at + look], budget))
                too_much = grown > budget
            else:
                # Compared by division: a product could exceed 64 bits.
                grown = np.maximum.accumulate(np.maximum(lengths[at : at + look], max(longest, 1)))
                padded = self._padding.padded(grown, bucket)
                too_much = padded > budget // np.arange(held + 1, held + look + 1)
            if not held:
                too_much[0] = False  # a batch of one row always fits
            misfit = int(too_much.argmax()) if too_much.any() else look
            if misfit:
                held, longest, at = held + misfit, int(grown[misfit - 1]), at + misfit
            if misfit == look and held < size:
                window *= 2
                continue
            full.append((int(rows[at] if misfit < look else rows[at - 1]), bucket, held))
            window = max(64, held)
            held = longest = 0
        self._open[bucket], self._longest[bucket] = held, longest
        return full

    def finish(self, drop: bool = False) -> None:
        self._finished = True
        if drop:
            self._drop("cancelled", [queue.rows for queue in self._queues])
            self._full.clear()
            return
        left = [0] * len(self._queues)
        for bucket, held in enumerate(self._open):
            if held and (self.allow_smaller or self._fits_no_more(bucket)):
                self._full.append((bucket, held))
            else:
                left[bucket] = held
        self._drop("remainder", left)

    def _fits_no_more(self, bucket: int) -> bool:
        budget = self.max_padded_elements
        if self._ragged:
            return budget is not None and self._longest[bucket] >= budget
        longest = self._padded(max(self._longest[bucket], 1), bucket)
        return budget is not None and longest * (self._open[bucket] + 1) > budget

    def _measured(self, bucket: int) -> int:
        """Return the longest of a bucket's open rows, or the sum of ragged ones."""
        queue, count = self._queues[bucket], self._open[bucket]
        if not self._ragged:
            return queue.longest_of_last(count)
        budget = self.max_padded_elements or 0
        return min(sum(int(_costs(part, budget).sum()) for part in queue.last(count)), budget + 1)

    def _padded(self, longest: int, bucket: int) -> int:
        if not self._padding.pads:
            return longest
        return int(self._padding.padded(np.array([longest]), bucket)[0])

    def _drop(self, reason: str, last: list[int]) -> None:
        self._count(reason, sum(last))
        for queue, count in zip(self._queues, last, strict=True):
            queue.drop_last(count)
        self._open = [0] * len(self._queues)
        self._longest = [0] * len(self._queues)

    def next_draft(self) -> Draft | None:
        if not self._full:
            return None
        bucket, count = self._full.popleft()
        parts, longest, real = self._queues[bucket].take(count)
        meta: dict[str, Any] = {"bucket": bucket}
        if self._fixed and count != self._declared[bucket]:
            meta.update(RESIZED)
        if self._with_lengths:
            padded = real if self._ragged else self._padded(longest, bucket) * count
            meta["padded"], meta["real"] = min(padded, MAX_COUNTER), min(real, MAX_COUNTER)
        return Draft(tuple(parts), meta)

    def ready(self) -> int:
        return len(self._full)

    def snapshot(self) -> dict[str, Any]:
        sizes = {"sizes": list(self._sizes)} if self.resized else {}
        return {
            **sizes,
            "batch_sizes": list(self._declared),
            "max_padded_elements": self.max_padded_elements,
            "lengths": None if self._with_lengths is None else int(self._with_lengths),
            "full": [list(entry) for entry in self._full],
            **self._plain(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        lengths, full, waiting, finished, dropped = self._stored(
            state,
            {"lengths": (int, type(None)), "full": list},
            batch_sizes=list(self._declared),
            max_padded_elements=self.max_padded_elements,
        )
        count = len(self._queues)
        queues = decoded("waiting", lambda: self._unpacked(waiting))
        entries = decoded("full", lambda: [(below(b, count), int(n)) for b, n in full])
        held = [queue.rows for queue in queues]
        for bucket, size in entries:
            held[bucket] -= size
            if size < 1 or held[bucket] < 0:
                raise ValueError(f"the field 'full' has more of bucket {bucket} than 'waiting'")
        self.resized = "sizes" in state
        self._sizes = tuple(state.get("sizes", self._declared))
        self._queues, self._full = queues, deque(entries)
        self._open = held
        self._with_lengths = None if lengths is None else bool(lengths)
        self._longest = [0] * count
        if self.max_padded_elements is not None:
            self._longest = [self._measured(bucket) for bucket in range(count)]
        self._finished = finished
        self._dropped = dict(dropped)


def _costs(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Return the elements of ragged rows, capped just above the budget to keep their sum exact."""
    costs: np.ndarray = np.clip(lengths, 1, budget + 1).astype(np.uint64)
    return costs
