"""The pure machine of a partition of segments: which segments are in which batch.

    step() ─► Read ── arrived() ──► fresh ──┐              ┌─► last segment: the example ends
                                            ├─► a batch ─► out
    leave(), deal(), ended lanes ─► back ───┘              └─► commit(): back, or on in its lane

                 who may get a batch          its rows
    arrival      anyone                       the ready segments with the smallest insertion indices
    lanes        the session of the lanes     one of each of its lanes, which keep their examples
    ranks        a rank                       a *round* has a member for each rank, drafted together

With states at the server (``chained``) the next segment of an example needs the commit of the one
before it; so a session has one batch of its lanes, and ranks one round, until that is committed.
Else several may be out.  With states at the trainers (AT_TRAINER) an example goes on elsewhere from
its last state that was *kept* here, without states (NOWHERE) after its last committed segment.

Empty lanes take examples at the next batch, those that came back before fresh ones, the oldest
first.  Once no example can come any more a batch may be smaller, if ``allow_small``; else what can
not fill a batch, or a round, is dropped.

Lanes may be *packed* (``unroll``, the steps of a row): where an example ends inside a row, its lane
goes on there with the oldest ready one that is at its first step.  Rows take these in the order of
steps, so which lane has which example does not depend on ``unroll``.  All that is counted in
segments is then counted in steps.

Turns count batches, or rounds, and go on over all lives and runs.  A rank *lacks* a round whose
other members were drafted: its trainer left with its states, or an earlier life drafted it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..leasing.protocol import ANYONE, EARLY, Batch, Order, Outlook, Slot, Token, Turn
from .admission import Admission
from .machine import MOST_AHEAD, TOO_LATE, Machine
from .plan import Plan, Read
from .slots import NO_NUMBERS, Rows, laid_out, read_place
from .stored_state import Key

#: Places of the states of segments.
AT_SERVER, AT_TRAINER, NOWHERE = "server", "trainer", "none"
#: Insertion indices and lanes of the examples of a seat.
Places = tuple[np.ndarray, np.ndarray]
#: Examples of a batch with their lanes, and which of them are the first of an empty lane.
_Seated = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(slots=True, eq=False)
class Out:
    """A batch that was drafted and is not committed."""

    batch: Batch
    rows: Rows
    seat: Seat | None  # of its lanes
    keys: Sequence[Key] = ()  # of its examples, once it is committed


@dataclass(slots=True, eq=False)
class Seat:
    """The lanes of a session or of a rank."""

    lanes: np.ndarray  # slots of examples; -1 is empty
    started: np.ndarray  # lanes that got an example since the last batch
    out: list[Out] = field(default_factory=list)  # the oldest first
    last: Out | None = None  # that was committed
    over: bool = False  # it gets no further batch


class Segments(Admission, Machine):
    """The machine of one partition.  The caller sets its ``input`` before the first step."""

    def __init__(
        self,
        number: int,
        batch_size: int,
        capacity: int | None = None,
        allow_small: bool = False,
        *,
        lanes: bool = False,
        states: str = AT_SERVER,
        unroll: int = 0,
        most: int = 0,
    ) -> None:
        """``unroll``: steps of a row of packed lanes, which has ``most`` examples at most."""
        Machine.__init__(self, number)
        Admission.__init__(self, batch_size, capacity, number, unroll)
        self.unroll, self._most = unroll, most
        self.batch_size, self.allow_small = batch_size, allow_small
        self.lanes, self.states = lanes, states
        self.chained = states == AT_SERVER
        self.rewound = 0  # number of committed segments that are handed out again
        self._next_number = self._index = 0  # of the next batch, or round
        #: The same, as far as commits go; by rank the first round that it has not committed.
        self._committed = (0, 0)
        self._rank_next: list[int] = []
        self._lacks: dict[Slot, list[int]] = {}  # by rank: rounds of which it lacks its member
        self._out: dict[tuple[int, int, bytes], Out] = {}  # by name, the oldest first
        self._seats: dict[Slot, Seat] = {}
        self._places_before: dict[Slot, Places] = {}  # of an earlier life, until a seat opens
        self._loose: set[int] = set()  # examples that left their lanes with a segment in a batch
        self._crowded = False  # more examples came back than there are places
        self._asking: Slot | None = None  # for whom a batch is drafted
        self._last_epoch = 0  # of a batch with rows

    # Steps

    @property
    def voids(self) -> bool:
        """Whether a batch is void when it comes back, with later ones of its lanes."""
        return self.lanes and (not self.world or self.states == AT_TRAINER)

    def step(self, slot: Slot, epoch: int, limit: int) -> Read | list[Plan] | Outlook:
        """Return batches for a slot, and perhaps for others; or what must come before."""
        if self._again:
            return self._take_again()
        while epoch >= (here := self.epoch):
            limit = self._up_to_order(limit)
            self._asking = slot if epoch == here or self.input.across_batches else None
            step = self.input.next_step(limit)
            if step is None:
                return Outlook.ENDED
            if isinstance(step, Read | list):
                return step
            if not self.input.at_border:
                return Outlook.IDLE
            if epoch == here:
                return Outlook.OVER
            self.input.begin_epoch()
        return Outlook.OVER

    def next_read(self, limit: int) -> Read | None:
        """Return a read though no batch is wanted; None at the end of the input or without room."""
        return self.input.next_read(self._up_to_order(limit))

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._index, self._committed = 0, (self._committed[0], 0)
        self._rank_next = [0] * self.world

    @property
    def done(self) -> bool:
        """Whether all examples of the epoch have ended, and no rank lacks a member of a round."""
        return self._closed and not (self._slots.live or self._out or any(self._lacks.values()))

    @property
    def _ended(self) -> bool:
        return self._closed and self.done and not self.input.at_border

    @property
    def finished(self) -> bool:
        return self._ended and not self._again

    @property
    def made_none(self) -> bool:
        return not self._next_number

    def next_turn(self, slot: Slot) -> Turn:
        """Return the least turn that is not made for a slot."""
        lacking = self._lacks.get(slot)
        turn = self.epoch, lacking[0] if lacking else self._index
        return min([turn, *(plan.batch.turn for plan in self._again if plan.batch.slot == slot)])

    def live(self, slot: Slot) -> bool:
        """Return whether the slot has lanes with examples that go on."""
        seat = self._seats.get(slot)
        return seat is not None and bool(np.count_nonzero(seat.lanes >= 0))

    def next_draft(self) -> list[Plan] | None:
        """Return batches for the slot that asks, if they are possible now."""
        slot = self._asking
        if slot is None:
            return None
        if self.world:
            drafts = self._members_for(slot)
        else:
            drafts = self._round(slot if self.lanes else ANYONE)
        return [Plan(out.batch, out.rows) for out in drafts] or None

    def _draft(
        self,
        slot: Slot,
        index: int,
        slots: np.ndarray,
        lanes: np.ndarray = NO_NUMBERS,
        starts: np.ndarray = NO_NUMBERS,
    ) -> Out:
        size = self.batch_size if self.world else 0
        rows = self._slots.rows(slots, lanes, starts, size)
        batch = Batch(
            self.number,
            self._next_number,
            slot,
            (self.epoch, index),
            size or rows.height,
            rows.place(),
            empty=size - rows.height if size else 0,
        )
        self._next_number += 1
        return self._hand_out(batch, rows)

    def _hand_out(self, batch: Batch, rows: Rows) -> Out:
        """Hand a batch out; free the places of examples that end with it."""
        self._slots.segment[rows.slots] = rows.after
        if len(rows):
            self._last_epoch = self._slots.key_of(int(rows.slots[0]))[0]
        batch.epoch = self._last_epoch
        seat = self._seats[batch.slot] if self.lanes else None
        out = self._out[batch.name] = Out(batch, rows, seat)
        if seat is not None:
            if self.unroll:  # the last example of a row stays
                seat.lanes[rows.lanes] = rows.slots
            seat.lanes[rows.lanes[rows.tails][rows.last[rows.tails]]] = -1
            seat.started[rows.lanes] = False
            seat.out.append(out)
        self._leave_capacity(rows.ended)
        self._admit()
        return out

    def _drop_leftovers(self) -> None:
        """Drop examples that can not fill a batch or a round any more, unless it may be smaller."""
        if self.allow_small or not self._closed or any(self._lacks.values()):
            return
        if self.lanes:
            going = self._slots.live
        else:
            out = (len(one.rows) - len(one.rows.ended) for one in self._out.values())
            going = self.ready + (0 if self.cancelled else sum(out))
        if going < self.batch_size * max(1, self.world):
            self._drop_ready("remainder")

    # Lanes

    @property
    def _places(self) -> int | None:
        """How many examples may be in flight.

        When more examples come back, begun seats are filled anyway; else they could deadlock.
        """
        if self.capacity is None or not self._crowded:
            return self.capacity
        begun = sum(bool((seat.lanes >= 0).any()) for seat in self._seats.values())
        return max(self.capacity, begun * self.batch_size)

    def _seat(self, slot: Slot, others: bool = False) -> Seat:
        """Return the lanes of a slot; new ones go on with those that it had in an earlier life.

        ``others``: or with those of another trainer, which has not come back.
        """
        seat = self._seats.get(slot)
        if seat is not None:
            return seat
        size = self.batch_size
        seat = self._seats[slot] = Seat(np.full(size, -1, np.int64), np.zeros(size, bool))
        before = self._places_before.pop(slot, None)
        if before is None and others and self._places_before:
            before = self._places_before.pop(next(iter(self._places_before)))
        if before is not None:
            indices, lanes = before
            slots = self.find(indices)
            there = np.isin(slots, self._back.first(self._back.count)[1]) & (lanes < size)
            self._put(seat, lanes[there], slots[there])
            seat.started[lanes[there]] = True
        return seat

    def _put(self, seat: Seat, lanes: np.ndarray, slots: np.ndarray) -> None:
        """Put ready examples in these lanes."""
        self._withdraw(slots)
        seat.lanes[lanes] = slots

    def _of_lanes(self, slots: Sequence[Slot], index: int, some: bool) -> list[Out]:
        """Draft a batch for each of these slots, from their lanes."""
        for rank in range(self.world):
            self._seat(rank)  # each has its own examples again
        seats = [self._seat(slot, others=not self.world) for slot in slots]
        over = any(seat.over for seat in seats)
        if not (over or self._fill(seats, some)):
            return []
        if not some:
            rows = sum(int(np.count_nonzero(seat.lanes >= 0)) for seat in seats)
            small = rows < self.batch_size * len(seats)
            if over or not rows or (small and not self.allow_small):
                if not any(seat.out for seat in seats):
                    self._end_seats(slots)
                return []
        if (seated := self._rows_of(seats)) is None:
            return []
        for seat in seats:
            seat.over = self.cancelled
        return [self._draft(slot, index, *one) for slot, one in zip(slots, seated, strict=True)]

    def _end_seats(self, slots: Sequence[Slot]) -> None:
        """Drop the examples in lanes that can not all be filled any more."""
        for slot in slots:
            lanes = self._seats.pop(slot).lanes
            self._drop(lanes[lanes >= 0], "cancelled" if self.cancelled else "remainder")
        self._drop_leftovers()

    def _rows_of(self, seats: list[Seat]) -> list[_Seated] | None:
        """Return the next rows of seats; None if packed ones have to wait for more input.

        Where examples wait that are not at their first step, as many rows stay open at their end,
        so that these get their lanes.
        """
        rows = []
        for seat in seats:
            lanes = (seat.lanes >= 0).nonzero()[0]
            rows.append((seat.lanes[lanes], lanes, seat.started[lanes].nonzero()[0]))
        if not self.unroll:
            return rows
        while True:
            tables, (indices, back) = self._slots, self._back.first(self._back.count)
            begun = tables.segment[back] > 0
            waiting = back[~begun][indices[~begun].argsort()]
            count = len(waiting)
            most = self.unroll * sum(len(lanes) for _, lanes, _ in rows)
            waiting = np.concatenate([waiting, self._fresh.first(most)])
            packed, lacking = self._packed(rows, waiting, int(np.count_nonzero(begun)))
            if not lacking or self._closed:
                break
            self._claimed = max(self._claimed, self.next_index + lacking)
            before = self._fresh.count, self.next_index
            self._admit()  # those that an earlier process began get indices only
            if before == (self._fresh.count, self.next_index):
                return None
        taken = sum(len(slots) for slots, _, _ in packed) - sum(len(slots) for slots, _, _ in rows)
        if count and taken:
            self._withdraw(waiting[:taken][:count])
        self._fresh.get(max(0, taken - count))
        return packed

    def _packed(
        self, rows: list[_Seated], waiting: np.ndarray, left_open: int = 0
    ) -> tuple[list[_Seated], int]:
        """Let rows go on with waiting examples where theirs end.

        Return them, and the number of further examples that they need: at least one for each open
        row, else the number that fills them with examples of the mean length.
        """
        tables = self._slots
        ends = []  # first step without an example, lane, number of the seat
        for at, (slots, lanes, _) in enumerate(rows):
            steps = (tables.count[slots] - tables.segment[slots]).tolist()
            ends += [(n, lane, at) for n, lane in zip(steps, lanes.tolist(), strict=True)]
        ends = sorted(end for end in ends if end[0] < self.unroll)
        ends = ends[: max(0, len(ends) - left_open)]
        fills: list[list[tuple[int, int]]] = [[] for _ in rows]
        held = dict.fromkeys((end[1:] for end in ends), 1)
        filled = 0  # steps
        for slot in waiting:  # mostly a few of very many
            if not ends:
                break
            steps = int(tables.count[slot])
            step, lane, at = ends[0]
            fills[at].append((lane, slot))
            filled += min(steps, self.unroll - step)
            held[lane, at] += 1
            if step + steps < self.unroll and held[lane, at] < self._most:
                heapq.heapreplace(ends, (step + steps, lane, at))
            else:
                heapq.heappop(ends)
        packed = []
        for (slots, lanes, starts), more in zip(rows, fills, strict=True):
            added = np.array(more, np.int64).reshape(-1, 2)
            order = np.concatenate([lanes, added[:, 0]]).argsort(kind="stable")
            slots, lanes = np.concatenate([[slots, lanes], added[:, ::-1].T], axis=1)[:, order]
            packed.append((slots, lanes, order.argsort()[starts]))
        room, count = sum(self.unroll - step for step, _, _ in ends), sum(map(len, fills))
        return packed, max(len(ends), room * count // max(1, filled))

    def _fill(self, seats: list[Seat], some: bool = False) -> bool:
        """Put examples in empty lanes, fewest used first; ``some``: allow a partial fill.

        Return False if that has to wait for more input.
        """
        empty = [(seat.lanes < 0).nonzero()[0].tolist() for seat in seats]
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
            seats[at].lanes[lane] = slot
            seats[at].started[lane] = True
        return True

    def seat(self, slot: Slot) -> None:
        """Give a slot the lanes that it had in an earlier life, before others fill theirs."""
        if slot in self._places_before and not self.world:
            self._seat(slot)

    def places(self) -> dict[Slot, Places]:
        """Return the lanes in which examples go on after what is committed, for a later life."""
        places = dict(self._places_before)
        for slot, seat in self._seats.items():
            lanes = seat.lanes.copy()
            for rows in (out.rows for out in reversed(seat.out)):
                lanes[rows.lanes[rows.heads]] = rows.slots[rows.heads]
            going = (lanes >= 0).nonzero()[0]
            going = going[self._slots.kept[lanes[going]] > 0]
            if len(going):
                places[slot] = self._slots.index[lanes[going]], going
        return places

    def leave(self, slot: Slot, since: Turn = (0, -1)) -> None:
        """Void the lanes of a slot, with its batches from a turn on.

        Their examples go on in other lanes, from the states that are kept here.  A trainer that
        only returns a batch keeps its lanes, but those whose examples would all begin there.
        """
        if not self.voids:
            return
        of_slot = [out for out in self._out.values() if out.batch.slot == slot]
        void = [out for out in of_slot if out.batch.turn >= since]
        seat = self._seats.get(slot)
        for out in void:
            self._take_back(out)
        slots = []
        keeps = self.states == AT_TRAINER or not self.cancelled
        if keeps and since > (0, -1) and seat is not None:
            displaced = self._undo(seat, void)
            if seat.out or ((seat.lanes >= 0) & ~seat.started).any():
                self._come_back(displaced)
                return
            slots.append(displaced)  # another trainer may have them
        if self.states == AT_TRAINER:
            for out in of_slot:
                if out not in void:
                    self._take_back(out)
            void = of_slot
        slots += [out.rows.slots for out in void]
        if seat is not None:
            del self._seats[slot]
            slots.append(seat.lanes[seat.lanes >= 0])
        if slots:
            self._put_back(np.unique(np.concatenate(slots)))

    def _put_back(self, slots: np.ndarray) -> None:
        """Let examples that have left their lanes go on in others."""
        tables = self._slots
        # An example also follows its segments in batches that may still be committed.
        after = np.zeros(tables.size, np.int64)
        for out in self._out.values():
            after[out.rows.slots] = out.rows.after
        first, count = np.maximum(tables.kept[slots], after[slots]), tables.count[slots]
        waits, ended = first > tables.done[slots], tables.segment[slots] == count
        if self.cancelled:
            self._end(slots[ended & ~waits])
            self._drop(slots[~ended & ~waits], "cancelled")
            slots, first, count, ended = (of[waits] for of in (slots, first, count, ended))
            waits = waits[waits]
        self._crowd(slots[ended & (first < count)])
        self.rewound += int(np.maximum(tables.done[slots] - first, 0).sum())
        tables.segment[slots] = first
        tables.done[slots] = np.minimum(tables.done[slots], first)
        self._loose.difference_update(slots.tolist())
        self._loose.update(slots[waits & (first < count)].tolist())
        self._come_back(slots[~waits])
        self._drop_leftovers()

    def _undo(self, seat: Seat, void: list[Out]) -> np.ndarray:
        """Put the rows of returned batches in their lanes again; return those that were there."""
        displaced: list[int] = []
        for out in reversed(void):
            rows = out.rows
            heads, lanes = rows.slots[rows.heads], rows.lanes[rows.heads]
            now = seat.lanes[lanes]
            displaced += now[(now >= 0) & ~np.isin(now, rows.slots)].tolist()
            displaced += rows.slots[~np.isin(rows.slots, heads)].tolist()
            self._crowd(rows.ended)
            seat.lanes[lanes] = heads
            self._slots.segment[rows.slots] = rows.segments
            seat.started[rows.lanes] = False
            seat.started[rows.lanes[rows.starts]] = True
        return np.array(displaced, np.int64)

    def _crowd(self, slots: np.ndarray) -> None:
        """Count examples as in flight again whose last segments were handed out."""
        self._reenter(slots)
        self._crowded |= self.capacity is not None and self.in_flight > self.capacity

    def _take_back(self, out: Out) -> None:
        """Take a batch out of all books that is not committed."""
        batch = out.batch
        del self._out[batch.name]
        if out.seat is not None:
            out.seat.out.remove(out)
        if self.world:
            self._lack(batch.slot, batch.turn[1])

    def returned(self, batch: Batch) -> bool:
        """Return whether a batch that came back has its bytes; else they are written again."""
        out = self._out.get(batch.name)
        if out is None:  # its commit was refused, and counts
            return False
        if batch.body is None:  # an earlier life had them
            self._again.append(Plan(out.batch, out.rows))
        return batch.body is not None

    def keep(self, batch: Batch, places: np.ndarray) -> tuple[Rows, np.ndarray, np.ndarray] | None:
        """Note kept states of these places of the last committed batch of a slot.

        Return its rows, and which of them have states that are still of use, with their positions
        in ``places``.  None where the lanes are gone.
        """
        seat = self._seats.get(batch.slot)
        if seat is None or seat.last is None or seat.last.batch.name != batch.name:
            return None
        known, tables = seat.last.rows, self._slots
        row_of = np.full(batch.rows, -1, np.int64)
        tails = np.arange(len(known))[known.tails]
        row_of[known.lanes[tails] if known.size else np.arange(len(tails))] = tails
        inside = places.size and 0 <= places.min() <= places.max() < len(row_of)
        if not inside or len(np.unique(places)) != len(places):
            return None
        rows = row_of[places]
        positions = (rows >= 0).nonzero()[0]
        rows = rows[positions]
        slots, after = known.slots[rows], known.after[rows]
        fits = (after < known.counts[rows]) & (tables.index[slots] == known.indices[rows])
        fits &= tables.done[slots] == after
        tables.kept[slots[fits]] = after[fits]
        return known, rows[fits], positions[fits]

    # Rounds of ranks

    def _lack(self, rank: Slot, index: int) -> None:
        self._lacks[rank] = sorted({*self._lacks.get(rank, ()), index})

    def _members_for(self, slot: Slot) -> list[Out]:
        if lacking := self._lacks.get(slot):
            index = lacking[0]
            ranks = [rank for rank in range(self.world) if self._lacks.get(rank, ())[:1] == [index]]
            drafts = self._members(ranks, index, some=True)
            for rank in ranks if drafts else ():
                self._lacks[rank].remove(index)
            return drafts
        if any(self._lacks.values()) or (self._out and self.chained):
            return []
        return self._round(*range(self.world))

    def _round(self, *slots: Slot) -> list[Out]:
        """Draft a round, or a batch for a session or for ANYONE."""
        seats = [self._seats[slot] for slot in slots if slot in self._seats]
        if any(seat.out and (self.chained or seat.over) for seat in seats):
            return []
        drafts = self._members(slots, self._index)
        if drafts:
            self._index += 1
            self._drop_leftovers()
        return drafts

    def _members(self, ranks: Sequence[Slot], index: int, some: bool = False) -> list[Out]:
        """Draft a batch for each slot, or with ``some`` the members of a round that ranks lack."""
        if self.lanes:
            return self._of_lanes(ranks, index, some)
        rows = len(ranks) * self.batch_size
        n = min(rows, self.ready)
        if n < rows and not (self._closed and (some or (self.allow_small and n))):
            return []
        slots = self._take_ready(n)
        drafts = []
        for at, rank in enumerate(ranks):
            own = slots[at :: len(ranks)]
            places = np.arange(len(own)) if self.world else NO_NUMBERS
            drafts.append(self._draft(rank, index, own, places))
        return drafts

    def deal(self, run: int, world: int) -> list[Plan]:
        """Deal all that is not committed anew: for ``world`` ranks, or 0: for anyone.

        The first round is the first that not all ranks have committed.  Examples stay in their
        lanes if there are as many ranks as before.
        """
        places = self.places() if world and world == self.world else {}
        index = min(self._rank_next) if self.world else self._committed[1]
        self.world = 0  # ranks of the run before lack nothing any more
        for slot in {*self._seats, *(out.batch.slot for out in self._out.values())}:
            self.leave(slot)
        for out in list(self._out.values()):
            self._take_back(out)
            if not self.lanes:
                self._crowd(out.rows.ended)
                self._slots.segment[out.rows.slots] = out.rows.segments
                self._come_back(out.rows.slots)
        self._again = []
        self.run, self.world, self._places_before = run, world, places
        self._lacks, self._rank_next = {}, [index] * world
        self._index, self._committed = index, (self._next_number, index)
        self._adapt()
        return []

    def _adapt(self) -> None:
        """Adapt to another number of rows that are drafted together."""
        rows = self.batch_size * max(1, self.world)
        self._read_ahead = max(self._read_ahead, 4 * rows)
        self._drop_leftovers()

    # Trainers

    def commit(self, batch: Batch, token: Token) -> Out | tuple[str, str]:
        """Take a commit; return what counts now, or a fault's code and text."""
        out = self._out.get(batch.name)
        if out is None:
            lost = "its lanes went to another trainer" if self.lanes else "other trainers have it"
            return "stale", f"batch {batch.number} is not out: {lost}"
        if out.seat is not None:
            if out.seat.out[0] is not out:
                return EARLY, f"batch {out.seat.out[0].batch.number} of its lanes comes before"
            out.seat.out.pop(0)
            out.seat.last = out
        self._count(out, token)
        self._drop_leftovers()
        if self.cancelled and len(out.rows.ended) < len(out.rows):
            return "cancelled", "the feed was drained with cancel=True: states are not saved"
        return out

    def _count(self, out: Out, token: Token) -> None:
        batch, rows, tables = out.batch, out.rows, self._slots
        del self._out[batch.name]
        number, index = self._committed
        number = max(number, batch.number + 1)
        if batch.turn[0] == self.epoch:
            index = max(index, batch.turn[1] + 1)
            if self.world and isinstance(batch.slot, int):
                self._rank_next[batch.slot] = batch.turn[1] + 1
        self._committed = number, index
        out.keys = tables.keys_of(rows.slots)
        going = ~rows.last
        slots = rows.slots[going]
        if self.chained:
            tables.version[rows.slots] = rows.versions[:] = token
        if self.lanes:
            tables.done[rows.slots] = rows.after
            if self.states != AT_TRAINER:
                tables.kept[rows.slots] = rows.after
            slots = self._fixed(slots) if self._loose else NO_NUMBERS
        self._end(rows.ended)
        if self.cancelled:
            self._drop(slots, "cancelled")
        elif self.lanes:
            self._come_back(slots)
        else:
            self._back.put(rows.indices[going], slots)

    def _fixed(self, slots: np.ndarray) -> np.ndarray:
        """Return those that left their lanes, and of which no segment is in a batch any more."""
        loose = np.array([slot for slot in slots.tolist() if slot in self._loose], np.int64)
        fixed: np.ndarray = loose[self._slots.segment[loose] == self._slots.done[loose]]
        self._loose.difference_update(fixed.tolist())
        return fixed

    # A batch of an earlier life

    def reclaim(self, batch: Batch) -> bool | None:
        """Take out a batch of an earlier life, if that is still possible.

        None: rows of it are still to be read.
        """
        place = read_place(batch.place, self.unroll)
        ahead = max(batch.number - self._next_number, batch.turn[1] - self._index)
        if place is None or ahead >= MOST_AHEAD:
            return False
        filled = len(np.unique(place["lane"]))
        size = self.batch_size if self.world else filled
        if batch.rows != size or filled > size:
            return False
        batch.empty = size - filled
        if (out := self._out.get(batch.name)) is not None:  # this life has drafted the same one
            if (out.batch.slot, out.batch.turn) != (batch.slot, batch.turn):
                return False
            self._again = [plan for plan in self._again if plan.batch is not out.batch]
            return out.batch.body is None  # its bytes are not written
        if batch.turn[0] != self.epoch:
            if batch.turn[0] != self.epoch + 1 or self._slots.live or self._out:
                return False
            if not self.input.all_read:
                return None
            self._asking = None
            self.input.next_step(0)
            if not self.input.at_border:
                return False
            self.input.begin_epoch()
        indices = place["index"].astype(np.int64)
        if len(place) and int(indices.max()) - self.next_index >= MOST_AHEAD * self.batch_size:
            return False  # reading up to it might not end
        if len(place) and int(indices.max()) >= self.next_index:
            self._claimed = max(self._claimed, int(indices.max()) + 1)
            self._admit()
            if self.next_index < self._claimed and not self.input.all_read:
                return None
            self._claimed = self.next_index
        slots, lanes = self.find(indices), place["lane"].astype(np.int64)
        if not self._are_free(batch.slot, slots, lanes, place):
            return False
        if self.world and not self._may_have(batch):
            return False
        self._take_claimed(batch, slots, lanes, place)
        return True

    def _may_have(self, batch: Batch) -> bool:
        """Let a rank have its member of a round that it lacks; begin the round if it is the next.

        Return False where it has had that, or where the round before is not committed.
        """
        rank, index = batch.slot, batch.turn[1]
        if index not in self._lacks.get(rank, ()):
            waits = self._out or any(self._lacks.values())
            if index < self._index or (self.chained and waits):
                return False
            for other in range(self.world):
                self._lack(other, index)
        self._lacks[rank].remove(index)
        return True

    def _are_free(
        self, slot: Slot, slots: np.ndarray, lanes: np.ndarray, place: np.ndarray
    ) -> bool:
        """Return whether segments are the next of their examples, which no other batch has."""
        if len(np.unique(slots)) != len(slots) or (slots < 0).any():
            return False
        tables, segments = self._slots, place["segment"].astype(np.int64)
        if (segments >= tables.count[slots]).any():
            return False
        if self.states == AT_TRAINER:  # it has the state, which is not here
            wrong = (segments < tables.kept[slots]) | (tables.segment[slots] > segments)
        else:
            wrong = tables.segment[slots] != segments
        if self.chained:
            wrong |= tables.version[slots] != place["version"].astype(np.int64)
        elsewhere = [*self._loose]
        mine = np.full(len(slots), -1)  # the examples of its lanes now
        heads = np.ones(len(slots), bool)
        if self.unroll:
            left = tables.count[slots] - segments
            begins = laid_out(lanes, left)[2]
            heads = begins == 0
            wrong |= begins >= self.unroll
        if self.lanes:
            if len(np.unique(lanes)) != np.count_nonzero(heads) or (lanes < 0).any():
                return False
            if len(lanes) and lanes.max() >= self.batch_size:
                return False
            seat = self._seat(slot)
            if self.chained and seat.out:
                return False
            mine = np.where(heads, seat.lanes[lanes], -1)
            wrong |= (mine >= 0) & (mine != slots)
            wrong |= (mine < 0) & np.isin(slots, seat.lanes)
            for other in self._seats.values():
                if other is not seat:
                    elsewhere += other.lanes.tolist()
        for out in self._out.values():
            wrong |= np.isin(slots, out.rows.slots) & (mine != slots)
        return not (wrong.any() or np.isin(slots, elsewhere).any())

    def _take_claimed(
        self, batch: Batch, slots: np.ndarray, lanes: np.ndarray, place: np.ndarray
    ) -> None:
        starts = NO_NUMBERS
        if self.lanes:
            seat = self._seats[batch.slot]
            begins = seat.started[lanes] | (place["segment"] == 0)
            begins[1:] &= lanes[1:] != lanes[:-1]
            self._put(seat, lanes, slots)
            starts = begins.nonzero()[0]
        else:
            self._withdraw(slots)
        self._slots.segment[slots] = place["segment"]
        size = self.batch_size if self.world else 0
        if not (self.lanes or self.world):
            lanes = NO_NUMBERS
        self._hand_out(batch, self._slots.rows(slots, lanes, starts, size))
        self._next_number = max(self._next_number, batch.number + 1)
        self._index = max(self._index, batch.turn[1] + 1)

    # Orders

    def _place(self, kind: str) -> tuple[int, int]:
        if kind != "close" and self._ended:
            raise ValueError(TOO_LATE)
        return self._next_number, self._next_number

    def resume_orders(self, orders: Sequence[Order]) -> None:
        """Carry out the orders of an earlier process.

        All batches from now on have the last size.  The other orders wait for their places; the
        state of the stages includes the orders before the first row that is read again.
        """
        self.orders = list(orders)
        for order in orders:
            if order.kind == "batch_size":
                (self.batch_size,) = order.what
            elif order.kind == "close" or order.read >= self.input.read:
                self._pending.append(order)
        self._adapt()
        self._carry_out()

    def _resize(self, batch_sizes: Sequence[int], formed: bool) -> None:
        (self.batch_size,) = batch_sizes
        self._adapt()

    def _close(self, cancel: bool) -> None:
        """Read nothing more; with ``cancel`` drop what waits, and save no further states."""
        super()._close(cancel)
        if cancel and self.lanes:
            self._drop_ready("cancelled")
            for seat in self._seats.values():
                seat.over = seat.over or bool(self._out if self.world else seat.out)
        self._drop_leftovers()

    def finish(self, drop: bool = False) -> None:
        super().finish(drop)
        self._drop_leftovers()

    # What outlives a process, beside examples

    def turns(self) -> list[Any]:
        """Return run, ranks, and whose turn it is: plain data from which another machine resumes.

        That is the epoch, the number of the next batch, and its index in the epoch: for each rank.
        """
        number, index = self._committed
        return [self.run, self.world, self.epoch, number, self._rank_next or [index]]

    def resume_turns(self, turns: Sequence[Any], places: Mapping[Slot, Places]) -> None:
        """Go on with the turns and the lanes of an earlier process, after ``resume``."""
        self.run, self.world, epoch, number, indices = turns
        if epoch != self.epoch:  # the next one has begun, and nothing of it is committed
            indices = [0] * len(indices)
        self._next_number, self._index = number, max(indices)
        self._committed = number, self._index
        self._rank_next = list(indices) if self.world else []
        self._lacks = {
            rank: list(range(at, self._index)) for rank, at in enumerate(self._rank_next)
        }
        self._places_before = dict(places)
        self.input.resume_epoch(self._index)
        self._adapt()

    # The expected batch

    def expected(self) -> Rows | None:
        """Return the next full batch if the oldest one out is committed first; None if unknown."""
        if self.world:
            return None
        out = next(iter(self._out.values()), None)
        return self._expected_of_lanes(out) if self.lanes else self._expected_first(out)

    def _expected_first(self, out: Out | None) -> Rows | None:
        slots = NO_NUMBERS if out is None else out.rows.slots[~out.rows.last]
        if self._back.count:
            indices, waiting = self._back.first(self.batch_size)
            if out is not None:
                waiting = np.concatenate([waiting, slots])
                indices = np.concatenate([indices, out.rows.indices[~out.rows.last]])
            slots = waiting[indices.argsort(kind="stable")]
        slots = slots[: self.batch_size]
        missing = self.batch_size - len(slots)
        if self._fresh.count < missing:
            return None
        if missing:
            slots = np.concatenate([slots, self._fresh.first(missing)])
        return self._slots.expected(slots)

    def _expected_of_lanes(self, out: Out | None) -> Rows | None:
        slot = next(iter(self._seats), None) if out is None else out.batch.slot
        seat = None if slot is None else self._seats.get(slot)
        if seat is None or seat.over or self._back.count:
            return None
        slots, empty = seat.lanes.copy(), (seat.lanes < 0).nonzero()[0]
        if self._fresh.count < len(empty):
            return None
        slots[empty] = self._fresh.first(len(empty))
        rows = slots, np.arange(len(slots)), (seat.started | (seat.lanes < 0)).nonzero()[0]
        if self.unroll:
            waiting = self._fresh.first(len(empty) + self.unroll * len(slots))[len(empty) :]
            (rows,), lacking = self._packed([rows], waiting)
            if lacking:
                return None
        return self._slots.expected(*rows)

    # Queries

    @property
    def takeable(self) -> int:
        """Number of segments that could be taken now."""
        going = (s.lanes for s in self._seats.values() if not (self.chained and s.out))
        return self.ready + sum(int(np.count_nonzero(lanes >= 0)) for lanes in going)

    def standing(self) -> dict[str, int]:
        """Return the number of segments by the reason of their wait.

        ``ready`` wait for nothing, ``leased`` for the states of a trainer; ``full`` counts examples
        that wait for a place of the capacity.
        """
        return {
            "ready": self.ready,
            "leased": sum(len(out.rows) for out in self._out.values()),
            "full": sum(stop - start for _, start, stop in self._waiting),
        }

    def sizes(self) -> dict[str, int]:
        """Return the number of ready and of incomplete segments, and of examples in flight.

        A segment of an admitted example is ready when it only waits for a batch, and
        incomplete until the state before it is saved.
        """
        takeable = self.takeable
        incomplete = self._slots.left() - takeable
        return {"ready": takeable, "incomplete": incomplete, "in_flight": self.in_flight}

    def due(self) -> int | None:
        """Return the epoch of the first uncommitted rows; None where none is left."""
        least = min((key[0] for key in self._slots.all_keys()), default=None)
        return self.input.epoch if least is None and not self._ended else least

    def waits_for(self) -> str:
        """Describe what the next batch lacks; may be empty."""
        out = next(iter(self._out.values()), None)
        if out is None:
            return ""
        rows, number = out.rows, out.batch.number
        if not len(rows):
            return f"it waits for save_state of an empty batch (batch {number})"
        segment, count = int(rows.segments[0]), int(rows.counts[0])
        key = self._slots.key_of(int(rows.slots[0]))[1]
        name = f"{segment:05d}_of_{count:05d}:{key.decode(errors='backslashreplace')}"
        others = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        ready = ""
        if not self.lanes:
            of = self.batch_size * max(1, self.world)
            ready = f"{self.ready} of {of} rows are ready; "
        return f"{ready}it waits for save_state of {name[:300]}{others} (batch {number})"

    def seek(self, key: bytes) -> list[list[Any]]:
        """Return a key's examples: epoch, segment, number of segments, place, batch number."""
        return self.seek_in(key, ((one.batch.number, one.rows) for one in self._out.values()))
