"""Segments in the order of arrival: TensorFlow's order.

    fresh ──┐                      ┌─► last segment: finished
            ├─► next_draft() ─► out ┤
    back ───┘                      └─► saved(): back, for its next segment

A draft takes the ready segments with the smallest insertion indices.  Examples begin in the order
of their indices, so *returned* ones are older than *fresh* ones, and the order is: returned ones by
index, then fresh ones.  After a restart a fresh example may be older, if the states of another
trainer were stored and those of its own trainer were not; then the draft sorts its rows.

After the end of the input small batches are drafted at once if they are allowed.  If not, the
machine drops the rest as soon as too few examples for a batch are unfinished.
"""

from __future__ import annotations

import numpy as np

from .admitted_examples import AdmittedExamples
from .slots import NO_NUMBERS, RoundMember, Segments


class ArrivalOrder(AdmittedExamples):
    """The machine of ``order="arrival"``."""

    order = "arrival"

    def _set_up(self) -> None:
        self._wanted = 0  # number of batches that are wanted and not made

    def want(self, more: int, stripe: int = 0) -> None:
        """Allow more batches, or rounds."""
        if self.members is not None:
            self.members.want(more)
        else:
            self._wanted += more

    def set_batch_size(self, rows: int) -> None:
        """Draft batches of ``rows`` rows from now on."""
        self.batch_size = rows
        self._adapt_to_rows()

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._wanted = 0  # trainers ask again for batches wanted at the border

    @property
    def starved(self) -> bool:
        """Whether a wanted batch needs states that trainers have."""
        if self.members is not None:
            return False
        return self._wanted > 0 and not self.hungry and bool(self._out)

    @property
    def content(self) -> bool:
        """Whether all wanted batches are made."""
        return not self._wanted and self.members is None

    @property
    def _next_out(self) -> int:
        return sum(len(batch) for batch in self._out.values())

    def next_draft(self) -> Segments | None:
        """Return the next batch, if one is wanted and possible."""
        if self.members is not None:
            return self._next_member()
        if not self._wanted:
            return None
        n = min(self.batch_size, self.ready)
        if n < self.batch_size and not (self._closed and self.allow_small and n):
            return None
        self._wanted -= 1
        batch = self._slots.segments(self._first(n), self.first_stripe)
        self._hand_out(batch)
        if self._finished:
            self._drop_leftovers()
        return batch

    def _first(self, n: int) -> np.ndarray:
        """Take the ready segments with the ``n`` smallest insertion indices."""
        back, index = min(n, self._back.count), self._slots.index
        slots = self._take_ready(n)
        if 0 < back < n and index[slots[back - 1]] > index[slots[back]]:
            slots = slots[index[slots].argsort()]
        return slots

    def _round(self) -> list[Segments]:
        rows, world = self._ranks.rows, self._ranks.world
        n = min(rows, self.ready)
        if n < rows and not (self._closed and self.allow_small and n):
            return []
        slots = self._first(n)
        dealt = []
        for rank in range(world):
            own, member = slots[rank::world], self._ranks.next_member(rank)
            dealt.append(self._member(member, own, np.arange(len(own))))
        return dealt

    def _same_rows(self, member: RoundMember, slots: np.ndarray, lanes: np.ndarray) -> Segments:
        self._withdraw(slots)
        return self._member(member, slots, lanes)

    def _member(self, member: RoundMember, slots: np.ndarray, lanes: np.ndarray) -> Segments:
        stripe = self._ranks.stripes[member.rank]
        return self._hand_out(self._slots.segments(slots, stripe, lanes, member=member))

    def expected(self) -> Segments | None:
        if self.members is not None:
            return None
        size, out = self.batch_size, self.oldest_out()
        slots, further = NO_NUMBERS, np.zeros(size, np.int64)
        if out is not None:
            going = ~out.last
            slots = out.slots[going]
            further[: len(slots)] = 1
        if self._back.count:
            indices, waiting = self._back.first(size)
            if out is not None:
                indices = np.concatenate([indices, out.indices[going]])
            order = indices.argsort(kind="stable")[:size]
            slots = np.concatenate([waiting, slots])[order]
            further[: len(order)] = order >= len(waiting)
        slots = slots[:size]  # a batch of an earlier size may have more
        missing = size - len(slots)
        if self._fresh.count < missing:
            return None
        if missing:
            slots = np.concatenate([slots, self._fresh.first(missing)])
        return self._slots.expected(slots, further)

    def saved(self, batch: Segments) -> np.ndarray | None:
        """Mark a batch as done: places of the rows whose states are wanted.

        Return None if the feed was cancelled, so that saves are not possible any more.
        """
        self._take_back(batch)
        if self.members is not None:
            self.members.moved = True
        rows = (~batch.last).nonzero()[0]
        slots = batch.slots[rows]
        self._end(batch.ended)
        self._slots.segment[slots] = batch.segments[rows] + 1
        if self.cancelled and len(rows):
            self._drop(slots, "cancelled")
            return None
        self._back.put(batch.indices[rows], slots)
        if self._finished:
            self._drop_leftovers()
        return rows

    def claim(self, slots: np.ndarray, segments: np.ndarray) -> Segments | None:
        """Make the batch again that a trainer has from before a restart.

        Return None if a segment is not the next of its example, or was handed out again, or if the
        insertion indices do not ascend, as those of every batch do.
        """
        if (slots < 0).any() or (np.diff(self._slots.index[slots]) <= 0).any():
            return None
        if (self._slots.segment[slots] != segments).any():
            return None
        if any(np.isin(slots, batch.slots).any() for batch in self._out.values()):
            return None
        self._withdraw(slots)
        return self._hand_out(self._slots.segments(slots))

    def release(self, batch: Segments) -> None:
        """Take a claimed batch back: its segments are ready again."""
        self._make_ready(batch)
        self._drop_leftovers()

    def _recall(self) -> None:
        self._wanted = 0
        for batch in list(self._out.values()):
            self._make_ready(batch)

    def _make_ready(self, batch: Segments) -> None:
        """Make the segments of a batch that is out ready again."""
        self._take_back(batch)
        self._reenter(batch.ended)
        self._back.put(batch.indices, batch.slots)

    def _drop_leftovers(self) -> None:
        """Drop ready segments that can not fill a batch any more, unless it may be smaller."""
        if self.allow_small or not self._closed:
            return
        returning = sum(len(batch) - len(batch.ended) for batch in self._out.values())
        if self.ready + (0 if self.cancelled else returning) < self.most_rows:
            self._drop_ready("remainder")

    def finish(self, drop: bool = False) -> None:
        super().finish(drop)
        self._drop_leftovers()
