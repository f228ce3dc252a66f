"""Segments in lanes: a row of the batch stays with its example until that ends.

    fresh, returned ─► lanes of a stripe ─► next_draft() ─► saved() … finished
          ▲                                                  │
          └──────────── leave(): back to what is kept ───────┘

A *stripe* is the ``batch_size`` lanes of one trainer.  An empty lane takes an example at the next
draft: a returned one (whose trainer left) before a fresh one, the oldest first.  Once no example
can come any more the batch is smaller, if that is allowed, and the stripe is dry when all its lanes
are empty.  If it is not allowed, a stripe that can not be filled takes nothing and is dry, and the
machine drops examples that can fill no stripe.  A stripe that is dry or left is closed, and its
number is not reused before a recall.  Without states it is dry before its last batches are done,
and its trainer may already work elsewhere.

Where states stay with the trainer a batch is drafted before the one before it is done (``ahead``),
and an example can continue in another lane only from its last state that is *kept* here.  Without
any states it continues after its last done segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .admitted_examples import (
    AT_SERVER,
    AT_TRAINER,
    NOWHERE,
    AdmittedExamples,
    MemberRows,
    RoundMembers,
)
from .slots import NO_NUMBERS, RoundMember, Segments


@dataclass(slots=True)
class _Stripe:
    lanes: np.ndarray  # slots; -1 is empty
    started: np.ndarray  # lanes that got an example since the last draft
    #: Insertion indices and lanes of the examples of an earlier life with which it was opened.
    opened: tuple[np.ndarray, np.ndarray] = NO_NUMBERS, NO_NUMBERS
    out: list[Segments] = field(default_factory=list)
    wanted: int = 0  # number of batches that are wanted and not drafted
    over: bool = False  # it gets no further drafts
    reported: bool = False  # whether it was reported as dry


class LaneOrder(AdmittedExamples):
    """The machine of ``order="lanes"``."""

    order = "lanes"

    def _set_up(self) -> None:
        self.ahead = self.states != AT_SERVER
        self._stripes: dict[int, _Stripe] = {}
        self.through: list[int] = []
        self._crowded = False  # more examples came back than there are places
        self._gone: set[int] = set()  # stripes that were closed
        self.rewound = 0  # number of done segments that are handed out again

    def _come_back(self, slots: np.ndarray) -> None:
        self._slots.done[slots] = self._slots.kept[slots] = self._slots.segment[slots]
        super()._come_back(slots)

    @property
    def _places(self) -> int | None:
        """How many examples may be in flight.

        When more examples return, begun stripes are filled anyway; otherwise they could deadlock.
        """
        if self.capacity is None or not self._crowded:
            return self.capacity
        begun = sum(bool((stripe.lanes >= 0).any()) for stripe in self._stripes.values())
        return max(self.capacity, begun * self.batch_size)

    @property
    def content(self) -> bool:
        """Whether all wanted batches are made, and no stripe is about to run dry."""
        if self.members is not None or self.dry:
            return False
        return not any(one.wanted or one.over for one in self._stripes.values())

    @property
    def takeable(self) -> int:
        going = (s.lanes for s in self._stripes.values() if self.ahead or not s.out)
        return self.ready + sum(int(np.count_nonzero(lanes >= 0)) for lanes in going)

    # Stripes

    def want(self, more: int, stripe: int = 0) -> None:
        """Allow more batches of a trainer, or more rounds of ranks."""
        if self.members is not None:
            self.members.want(more)
        elif stripe not in self._gone:  # else it ran dry meanwhile
            known = self._stripes.get(stripe) or self._open(stripe)
            known.wanted += more

    def _open(self, number: int) -> _Stripe:
        empty = np.full(self.batch_size, -1, np.int64)
        stripe = self._stripes[number] = _Stripe(empty, np.zeros(self.batch_size, bool))
        if self.places and number >= 0:
            (indices, lanes), *self.places = self.places
            slots = self.find(indices)
            ready = np.isin(slots, self._back.first(self._back.count)[1])
            ready &= lanes < self.batch_size
            stripe.opened = indices[ready], lanes[ready]
            self._put(stripe, lanes[ready], slots[ready])
            stripe.started[lanes[ready]] = True
        return stripe

    def places_after(self, saved: Mapping[int, Segments]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ``places`` for a later life of the stripes of now.

        ``saved``: by stripe the last batch that its trainer has saved.
        """
        places = []
        for number in sorted(self._stripes) if self.members is None else self.members.stripes:
            indices, lanes = self._stripes[number].opened
            if number in saved:
                going = ~saved[number].last
                indices, lanes = saved[number].indices[going], saved[number].lanes[going]
            if len(lanes) or self.members is not None:  # any trainer without a rank takes any
                places.append((indices, lanes))
        return [*places, *self.places]

    def leave(self, stripe: int, instead: int = -1) -> None:
        """Close a trainer's stripe; its examples continue from kept states."""
        gone = self._stripes.pop(stripe, None)
        if self.members is not None and gone is not None:
            self.members.leave(stripe, instead, gone.out)
            self._open(instead)
        self._gone.add(stripe)
        if gone is None:
            return
        for batch in gone.out:
            self._take_back(batch)
        slots = np.unique(np.concatenate([gone.lanes, *(batch.slots for batch in gone.out)]))
        slots = slots[slots >= 0]
        through = self._slots.segment if self.cancelled else self._slots.done
        ended = through[slots] == self._slots.count[slots]
        self._end(slots[ended])
        slots = slots[~ended]
        if self.cancelled:
            self._drop(slots, "cancelled")
            return
        self.rewound += int((self._slots.done[slots] - self._slots.kept[slots]).sum())
        self._reenter(slots[self._slots.segment[slots] == self._slots.count[slots]])
        self._slots.segment[slots] = self._slots.kept[slots]
        self._come_back(slots[self._slots.index[slots].argsort()])
        self._drop_leftovers()

    def _reenter(self, slots: np.ndarray) -> None:
        """Count examples as in flight again whose last segments were handed out."""
        super()._reenter(slots)
        self._crowded |= self.capacity is not None and self.in_flight > self.capacity

    def take_through(self) -> list[int]:
        """Return slots of ended or dropped examples, whose kept states can be dropped."""
        through, self.through = self.through, []
        return through

    # Segments

    def next_draft(self) -> Segments | None:
        """Return the next batch, if one is wanted and possible; trainers take turns."""
        if self.members is not None:
            return self._next_member()
        for number, stripe in list(self._stripes.items()):
            if stripe.over:
                self._run_dry(number, stripe)
                continue
            if not stripe.wanted or (stripe.out and not self.ahead):
                continue
            if np.count_nonzero(stripe.lanes < 0) and not self._fill([stripe]):
                continue
            lanes = (stripe.lanes >= 0).nonzero()[0]
            small = len(lanes) < self.batch_size
            if not len(lanes) or (small and not self.allow_small):
                if min(self._stripes) >= 0:  # else examples of a claimed batch come back
                    self._run_dry(number, stripe)
            else:
                self._stripes[number] = self._stripes.pop(number)  # after all others
                stripe.wanted -= 1
                return self._draft(number, stripe, lanes)
        return None

    def _fill(self, stripes: list[_Stripe], some: bool = False) -> bool:
        """Put examples in empty lanes, fewest used first; ``some``: allow a partial fill.

        Return False if that has to wait for more input.
        """
        empty = [(stripe.lanes < 0).nonzero()[0].tolist() for stripe in stripes]
        there = self.ready
        if there < sum(map(len, empty)):
            if not self._closed:
                return False
            if not (self.allow_small or some):
                return True
        places = sorted(
            (self.batch_size - len(e) + i, at, e[i])
            for at, e in enumerate(empty)
            for i in range(len(e))
        )
        del places[there:]
        slots = self._take_ready(len(places)).tolist()
        for (_, at, lane), slot in zip(places, slots, strict=True):
            stripes[at].lanes[lane] = slot
            stripes[at].started[lane] = True
        return True

    def _draft(
        self, number: int, stripe: _Stripe, lanes: np.ndarray, member: RoundMember | None = None
    ) -> Segments:
        slots = stripe.lanes[lanes]
        starts = stripe.started[lanes].nonzero()[0]
        batch = self._slots.segments(slots, number, lanes, starts, member=member)
        stripe.started[:] = False
        self._slots.segment[slots] += 1
        stripe.lanes[lanes[batch.last]] = -1
        stripe.out.append(batch)
        stripe.over = self.cancelled
        return self._hand_out(batch)

    def claim(self, slots: np.ndarray, segments: np.ndarray) -> Segments | None:
        """Rebuild a batch that a trainer holds from before a restart.

        Return None if a segment is not the next of its example, or is in other lanes.
        """
        taken = [slot for one in self._stripes.values() for slot in one.lanes]
        taken += [slot for batch in self._out.values() for slot in batch.slots]
        fits = slots.min() >= 0 and len(np.unique(slots)) == len(slots) <= self.batch_size
        fits = fits and not np.isin(slots, taken).any()
        if self.ahead or not fits or (self._slots.segment[slots] != segments).any():
            return None
        number, lanes = min([0, *self._stripes]) - 1, np.arange(len(slots))
        self._put(self._open(number), lanes, slots)  # a stripe that closes with the save
        return self._draft(number, self._stripes[number], lanes)

    def release(self, batch: Segments) -> None:
        """Take a claimed batch back: its examples continue in other trainers' lanes."""
        self.leave(batch.stripe)

    # Rounds of ranks

    def _round(self) -> list[Segments]:
        members = self._ranks
        stripes = [self._stripes[number] for number in members.stripes]
        if not (members.over or self._fill(stripes)):
            return []
        lanes = [(stripe.lanes >= 0).nonzero()[0] for stripe in stripes]
        rows = sum(map(len, lanes))
        if members.over or not rows or (rows < members.rows and not self.allow_small):
            return self._end_rounds(members)
        members.over = self.cancelled
        return [
            self._draft(number, stripe, lanes[rank], members.next_member(rank))
            for rank, (number, stripe) in enumerate(zip(members.stripes, stripes, strict=True))
        ]

    def _end_rounds(self, members: RoundMembers) -> list[Segments]:
        """Drop the examples in lanes, once no member is out, if no whole round can be formed."""
        if not self._out:
            for lanes in [self._stripes[number].lanes for number in members.stripes]:
                self._drop(lanes[lanes >= 0], "cancelled" if self.cancelled else "remainder")
                lanes[:] = -1
            self._drop_leftovers()
        return []

    def _any_rows(self, member: RoundMember) -> Segments | None:
        number = self._ranks.stripes[member.rank]
        stripe = self._stripes[number]
        if not self._fill([stripe], some=True):
            return None
        return self._draft(number, stripe, (stripe.lanes >= 0).nonzero()[0], member)

    def _same_rows(self, member: RoundMember, slots: np.ndarray, lanes: np.ndarray) -> Segments:
        number = self._ranks.stripes[member.rank]
        self._put(self._stripes[number], lanes, slots)
        return self._draft(number, self._stripes[number], lanes, member)

    def _keep_lanes(self, rank: int, rows: MemberRows) -> None:
        slots = self.find(rows.indices)
        there = (slots >= 0).nonzero()[0]
        there = there[self._slots.segment[slots[there]] == rows.segments[there] + 1]
        self._put(self._stripes[self._ranks.stripes[rank]], rows.lanes[there], slots[there])

    def _put(self, stripe: _Stripe, lanes: np.ndarray, slots: np.ndarray) -> None:
        """Put ready examples in these lanes."""
        self._withdraw(slots)
        stripe.lanes[lanes] = slots

    def _recall(self) -> None:
        for number in list(self._stripes):
            self.leave(number)
        self._gone.clear()  # new stripes may have the numbers of an earlier process's ranks

    def _open_stripes(self) -> None:
        for number in self._ranks.stripes:
            self._open(number)

    def expected(self) -> Segments | None:
        if self.members is not None:
            return None
        out = self.oldest_out()
        number = next(iter(self._stripes), 0) if out is None else out.stripe
        stripe = self._stripes.get(number)
        if stripe is None or stripe.over or self._back.count:
            return None
        slots, empty = stripe.lanes.copy(), (stripe.lanes < 0).nonzero()[0]
        if self._fresh.count < len(empty):
            return None
        slots[empty] = self._fresh.first(len(empty))
        starts = (stripe.started | (stripe.lanes < 0)).nonzero()[0]
        return self._slots.expected(slots, 0, number, np.arange(len(slots)), starts)

    def _run_dry(self, number: int, stripe: _Stripe) -> None:
        if not stripe.reported and (self.states == NOWHERE or not stripe.out):
            stripe.reported = stripe.over = True
            self.dry.append(number)
        if not stripe.out:
            slots = stripe.lanes[stripe.lanes >= 0]
            self._drop(slots, "cancelled" if self.cancelled else "remainder")
            del self._stripes[number]
            self._gone.add(number)
            self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """Drop examples that can not fill a stripe any more, if small batches are not allowed."""
        if self._closed and not self.allow_small and self._slots.live < self.most_rows:
            self._drop_ready("remainder")

    def saved(self, batch: Segments) -> np.ndarray | None:
        """Mark a batch as done; return the places of the rows whose states are needed.

        Return None where nothing can be saved: the feed was cancelled, or the stripe is closed.
        """
        stripe = self._stripes.get(batch.stripe)
        if stripe is None:
            return None
        self._take_back(batch)
        if self.members is not None:
            self.members.moved = True
        turn = stripe.out.index(batch)
        del stripe.out[turn]
        going = ~batch.last
        rows = going.nonzero()[0]
        refused = self.cancelled and bool(len(rows))
        slots, after = batch.slots, batch.segments + 1
        if refused:
            slots, after = slots[batch.last], after[batch.last]
        self._slots.done[slots] = done = np.maximum(self._slots.done[slots], after)
        if self.states != AT_TRAINER:
            self._slots.kept[slots] = done
        through = (self._slots.done[batch.slots] if refused else done) == batch.counts
        ended = batch.slots[through]
        if turn or np.count_nonzero(through & going):  # out of order: others may share examples
            for other in stripe.out:
                ended = ended[~np.isin(ended, other.slots)]
        self._end(ended)
        if batch.stripe < 0:  # a claimed batch: its examples continue in the same rows
            self.places = [(batch.indices[going], batch.lanes[going]), *self.places]
            self.leave(batch.stripe)
        self._drop_leftovers()
        return None if refused else rows

    def _free_slots(self, slots: np.ndarray) -> None:
        super()._free_slots(slots)
        self.through.extend(slots.tolist())

    def keep(self, batch: Segments, rows: np.ndarray) -> np.ndarray:
        """Note kept states of rows after a batch; return the rows whose states are still useful."""
        if batch.stripe not in self._stripes:
            return rows[:0]
        slots, after = batch.slots[rows], batch.segments[rows] + 1
        fits = (after < batch.counts[rows]) & (self._slots.index[slots] == batch.indices[rows])
        rows = rows[fits & (self._slots.done[slots] == after)]
        self._slots.kept[batch.slots[rows]] = batch.segments[rows] + 1
        return rows

    def finish(self, drop: bool = False) -> None:
        super().finish(drop)
        if drop:
            self._drop_ready("cancelled")
            for stripe in self._stripes.values():
                stripe.over = stripe.over or bool(stripe.out)
            if self.members is not None:
                self.members.over = self.members.over or bool(self._out)
        self._drop_leftovers()
