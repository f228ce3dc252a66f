"""Which ready segments are in the next batch: an object for each order decides it.

    Arrival    the ready segments with the smallest insertion indices
    Lanes      one of each lane of a *seat*, the lanes of a session or of a rank, which keep their
               examples.  Empty lanes take examples at the next batch: those that came back before
               fresh ones, the oldest first

Examples may be *assigned* to lanes, by numbers below ``batch_size`` times the number of ranks: lane
l of rank r is number r · batch_size + l.  An example then waits for its lane, and has a place of
the capacity meanwhile.  Where all places are taken a lane without an example is left out of
batches, if these may be small, until others have caught up.

Lanes may be packed: where an example ends inside a row, its lane goes on there with the oldest
ready one that is at its first step.  Rows take these in the order of steps, so which lane has which
example does not depend on the length of a row.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace_proto.errors import DataError

from ..leasing.words import ANYONE, Slot
from .admission import Admission
from .entries import Entries
from .log_admission import RESTING, LogAdmission
from .plan import Plan
from .spans import NO_NUMBERS, Spans
from .stored_state import Key

#: Insertion indices and lanes of the examples of a seat.
Places = tuple[np.ndarray, np.ndarray]
#: Examples of a batch with their lanes, and which of them are the first of an empty lane.
Seated = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(eq=False)
class Out(Plan):
    """A batch that was drafted and is not committed."""

    draft: Spans
    seat: Seat | None = field(default=None, init=False)  # of its lanes
    keys: Sequence[Key] = field(default=(), init=False)  # of its examples, once it is committed


@dataclass(slots=True, eq=False)
class Seat:
    """The lanes of a session or of a rank."""

    lanes: np.ndarray  # entries of examples; -1 is empty
    started: np.ndarray  # lanes that got an example since the last batch
    out: list[Out] = field(default_factory=list)  # the oldest first
    last: Out | None = None  # that was committed
    over: bool = False  # it gets no further batch
    left: bool = False  # its trainer is gone

    @property
    def going(self) -> np.ndarray:
        """The lanes that have an example."""
        return (self.lanes >= 0).nonzero()[0]

    @property
    def rows(self) -> Seated:
        """The examples of the next batch."""
        going = self.going
        return self.lanes[going], going, self.started[going].nonzero()[0]

    def put(self, lanes: np.ndarray, entries: np.ndarray) -> None:
        """Let examples begin or go on in lanes that had none."""
        self.lanes[lanes], self.started[lanes] = entries, True


class Arrival:
    """Batches of the ready segments with the smallest insertion indices."""

    def __init__(self, admission: Admission, entries: Entries, small: bool) -> None:
        self._admission = admission
        self._entries = entries
        self._small = small

    def seated(self, slots: Sequence[Slot], size: int, some: bool) -> list[Seated]:
        """Return the examples of a batch for each slot; none where that is not possible now.

        ``some``: as many as there are are enough.
        """
        admission, many = self._admission, len(slots)
        n = min(many * size, admission.ready)
        if n < many * size and not (admission.closed and (some or (self._small and n))):
            return []
        entries = admission.take(n)
        if slots[0] == ANYONE:
            return [(entries, NO_NUMBERS, NO_NUMBERS)]
        dealt = [entries[at::many] for at in range(many)]
        return [(own, np.arange(len(own)), NO_NUMBERS) for own in dealt]

    def expected(self, out: Out | None, size: int) -> Spans | None:
        """Return the next full batch if ``out`` is committed first; None if unknown."""
        admission, entries = self._admission, NO_NUMBERS
        if out is not None:
            going = ~out.draft.last
            entries = out.draft.entries[going]
        if admission.back.count:
            indices, waiting = admission.back.first(size)
            if out is not None:
                waiting = np.concatenate([waiting, entries])
                indices = np.concatenate([indices, out.draft.indices[going]])
            entries = waiting[indices.argsort(kind="stable")]
        entries = entries[:size]
        missing = size - len(entries)
        if admission.fresh.count < missing:
            return None
        if missing:
            entries = np.concatenate([entries, admission.fresh.first(missing)])
        return self._entries.expect(entries)


class Lanes:
    """Batches of one segment of each lane of a seat."""

    def __init__(
        self,
        admission: Admission,
        entries: Entries,
        size: int,
        small: bool,
        most: int,
        assigned: bool,
    ) -> None:
        """``most``: examples of a packed row.  ``assigned``: whether examples have lanes."""
        self._admission = admission
        self._entries = entries
        self._size = size  # lanes of a seat
        self._small = small
        self._most = most
        self._assigned = assigned
        self.ranks = 0
        self.of: dict[Slot, Seat] = {}
        self.before: dict[Slot, Places] = {}  # of an earlier life, until a seat opens
        #: The lane in which each resting example of a log was.  It goes to another if the batch is
        #: possible without the example; else that goes on there.
        self.rests: dict[int, tuple[Seat, int]] = {}
        self.short = False  # whether packed rows lack examples, which may come without a place
        admission.least_places = self._least_places
        if isinstance(admission, LogAdmission):
            admission.sit, admission.unseat = self._sit, self._unseat

    def _least_places(self) -> int:
        return sum(len(seat.going) > 0 for seat in self.of.values()) * self._size

    # Seats

    def seat(self, slot: Slot, others: bool = False) -> Seat:
        """Return the seat of a slot; a new one goes on with the lanes of an earlier life.

        ``others``: or with those of another trainer, which has not come back.
        """
        seat = self.of.get(slot)
        if seat is not None:
            return seat
        size = self._size
        seat = self.of[slot] = Seat(np.full(size, -1, np.int64), np.zeros(size, bool))
        before = self.before.pop(slot, None)
        if before is None and others and self.before:
            before = self.before.pop(next(iter(self.before)))
        if before is not None:
            indices, lanes = before
            entries, back = self._entries.find(indices), self._admission.back
            there = np.isin(entries, back.first(back.count)[1])
            self.put(seat, lanes[there], entries[there])
            seat.started[lanes[there]] = True
            rest = (entries >= 0) & (lanes < size) & (self._entries.standing[entries] == RESTING)
            if isinstance(self._admission, LogAdmission):
                pairs = zip(entries[rest].tolist(), lanes[rest].tolist(), strict=True)
                self.rests |= {entry: (seat, lane) for entry, lane in pairs}
        return seat

    def resume(self, places: Mapping[Slot, Places]) -> None:
        """Note the places that an earlier life has stored."""
        self.before = dict(places)
        indices, lanes = self.before.pop(ANYONE, (NO_NUMBERS, NO_NUMBERS))
        entries = self._entries.find(indices)
        self._entries.lane[entries[entries >= 0]] = lanes[entries >= 0]

    def stay(self, seat: Seat, lanes: np.ndarray, entries: np.ndarray) -> None:
        """Keep in their lanes the examples of a log whose next segment is whole; others rest."""
        assert isinstance(self._admission, LogAdmission)
        here = seat.lanes[lanes] == entries
        lanes, entries = lanes[here], entries[here]
        rests = ~np.isin(entries, self._admission.fresh_enough(entries))
        for lane, entry in zip(lanes[rests].tolist(), entries[rests].tolist(), strict=True):
            seat.lanes[lane] = -1
            self.rests[entry] = seat, lane
        self._admission.rest(entries[rests])

    def _sit(self, entry: int) -> bool:
        """Let an example go on in the lane in which it rested, if that is free."""
        seat, lane = self.rests.get(entry, (None, -1))
        if seat is None or seat.lanes[lane] >= 0:
            return False
        if all(seat is not one for one in self.of.values()):
            return False
        del self.rests[entry]
        seat.put(np.array([lane]), np.array([entry]))
        return True

    def _unseat(self, entry: int) -> None:
        self.rests.pop(entry, None)
        for seat in self.of.values():
            seat.lanes[seat.lanes == entry] = -1

    def put(self, seat: Seat, lanes: np.ndarray, entries: np.ndarray) -> None:
        """Put ready examples in these lanes."""
        self._admission.withdraw(entries)
        seat.lanes[lanes] = entries

    def places(self) -> dict[Slot, Places]:
        """Return the lanes in which examples go on after what is committed, for a later life."""
        places = dict(self.before)
        for slot, seat in self.of.items():
            lanes = seat.lanes.copy()
            for entry, (of, lane) in self.rests.items():
                if of is seat and lanes[lane] < 0:
                    lanes[lane] = entry
            for spans in (out.draft for out in reversed(seat.out)):
                lanes[spans.lanes[spans.heads]] = spans.entries[spans.heads]
            going = (lanes >= 0).nonzero()[0]
            going = going[self._entries.kept[lanes[going]] > 0]
            if len(going):
                places[slot] = self._entries.index[lanes[going]], going
        if self._assigned:  # of examples in no lane, too
            begun = self._entries.used()
            begun = begun[self._entries.kept[begun] > 0]
            places[ANYONE] = self._entries.index[begun], self._entries.lane[begun]
        return places

    # Batches

    def seated(self, slots: Sequence[Slot], size: int, some: bool) -> list[Seated]:
        """Return the examples of a batch for each slot; none where that is not possible now.

        ``some``: as many as there are are enough.
        """
        admission, seats, empty = self._admission, list[Seat](), list[np.ndarray]()
        self.short = False
        over, left = False, 0
        for slot in slots:
            seats.append(seat := self.of[slot])
            empty.append(lanes := (seat.lanes < 0).nonzero()[0])
            over, left = over or seat.over, left + len(lanes)
        if self._assigned and left and not over:
            own = self._own(slots, empty)
            lacking = any((entries < 0).any() for entries in own)
            admission.lacking = lacking and not admission.closed
            if admission.lacking and not (admission.full and self._small):
                self._check_places()
                return []
            for seat, lanes, entries in zip(seats, empty, own, strict=True):
                there = entries >= 0
                if not lacking or self._small or some:
                    left -= int(np.count_nonzero(there))
                    admission.withdraw(entries[there])
                    seat.put(lanes[there], entries[there])
        elif left and not over:
            if admission.ready < left and not admission.closed:
                return []
            if admission.ready >= left or self._small or some:
                left -= self._fill(seats, empty, min(left, admission.ready))
        partly = self._small and left < size * len(seats)
        if not some and (over or (left and not partly)):
            if not any(seat.out for seat in seats):  # they get no further batch
                for slot in slots:
                    entries = self.of.pop(slot).lanes
                    reason = "cancelled" if admission.cancelled else "remainder"
                    admission.drop(entries[entries >= 0], reason)
                if self._assigned and not self.of:
                    admission.drop_ready(reason)
            return []
        rows = [seat.rows for seat in seats]
        if self._entries.cut.packed:
            rows = self._filled(rows)
        if admission.cancelled:
            for seat in seats if rows else ():
                seat.over = True
        return rows

    def _own(self, slots: Sequence[Slot], lanes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the oldest ready example that is assigned to each of these lanes; -1: none."""
        tables, ready = self._entries, self._admission.all_ready()
        ready = ready[np.lexsort((tables.index[ready], tables.lane[ready]))]
        numbers, most = tables.lane[ready], self._size * max(1, self.ranks)
        if len(numbers) and numbers[-1] >= most:
            ranks = f" and {self.ranks} ranks" if self.ranks else ""
            raise DataError(
                f"key {tables.keys[ready[-1]][1]!r:.200}: lane is {numbers[-1]}; with batch_size="
                f"{self._size}{ranks} it must be an integer between 0 and {most - 1}"
            )
        numbers, ready = np.append(numbers, most), np.append(ready, -1)
        found = []
        for slot, of_slot in zip(slots, lanes, strict=True):
            wanted = of_slot + (self._size * slot if isinstance(slot, int) else 0)
            at = numbers.searchsorted(wanted)
            found.append(np.where(numbers[at] == wanted, ready[at], -1))
        return found

    def _check_places(self) -> None:
        """Raise DataError where no example can come, and no seat can go on without one."""
        empty = {slot: (seat.lanes < 0).nonzero()[0] for slot, seat in self.of.items()}
        lacking = [own < 0 for own in self._own([*empty], [*empty.values()])]
        if self._admission.full and all(own.any() for own in lacking):
            raise DataError(
                f"lane {next(iter(empty.values()))[lacking[0]][0]} has no example, and those in "
                f"flight, capacity={self._admission.capacity}, are all of other lanes: raise it, "
                "have lanes take turns in the source, or declare allow_small_batch=True, which "
                "leaves the lane out until others have caught up"
            )

    def _fill(self, seats: list[Seat], empty: list[np.ndarray], count: int) -> int:
        """Put so many examples in empty lanes, fewest used first; return the number."""
        entries = self._admission.take(count)
        if len(seats) == 1:
            seats[0].put(empty[0][:count], entries)
            return count
        lanes, of = np.concatenate(empty), np.arange(len(seats)).repeat([*map(len, empty)])
        used = np.concatenate([self._size - len(e) + np.arange(len(e)) for e in empty])
        order = np.lexsort((of, used))[:count]
        for at, seat in enumerate(seats):
            mine = of[order] == at
            seat.put(lanes[order[mine]], entries[mine])
        return count

    def _filled(self, rows: list[Seated]) -> list[Seated]:
        """Return packed rows, which go on with others where examples end; [] to wait for input.

        Where examples wait that are not at their first step, as many rows stay open at their end,
        so that these get their lanes.
        """
        admission = self._admission
        while True:
            indices, back = admission.back.first(admission.back.count)
            begun = self._entries.at[back] > 0
            waiting = back[~begun][indices[~begun].argsort()]
            count = len(waiting)
            most = self._entries.cut.unroll * sum(len(lanes) for _, lanes, _ in rows)
            waiting = np.concatenate([waiting, admission.fresh.first(most)])
            packed, lacking = self._packed(rows, waiting, int(np.count_nonzero(begun)))
            if not lacking or admission.closed:
                break
            if isinstance(admission, LogAdmission):  # an event may end what lanes have
                self.short = True
                return []
            if not admission.admit_claimed(admission.next_index + lacking):
                return []
        taken = sum(len(own) for own, _, _ in packed) - sum(len(own) for own, _, _ in rows)
        if count and taken:
            admission.withdraw(waiting[:taken][:count])
        admission.fresh.get(max(0, taken - count))
        return packed

    def _packed(
        self, rows: list[Seated], waiting: np.ndarray, left_open: int = 0
    ) -> tuple[list[Seated], int]:
        """Let rows go on with waiting examples where theirs end.

        Return them, and the number of further examples that they need: at least one for each open
        row, else the number that fills them with examples of the mean length.
        """
        tables, unroll = self._entries, self._entries.cut.unroll
        ends = []  # first step without an example, lane, number of the seat
        for at, (entries, lanes, _) in enumerate(rows):
            steps = (tables.end[entries] - tables.at[entries]).tolist()
            ends += [(n, lane, at) for n, lane in zip(steps, lanes.tolist(), strict=True)]
        ends = sorted(end for end in ends if end[0] < unroll)
        ends = ends[: max(0, len(ends) - left_open)]
        fills: list[list[tuple[int, int]]] = [[] for _ in rows]
        held = dict.fromkeys((end[1:] for end in ends), 1)
        filled = 0  # steps
        for entry in waiting:  # mostly a few of very many
            if not ends:
                break
            steps = int(tables.end[entry])
            step, lane, at = ends[0]
            fills[at].append((lane, entry))
            filled += min(steps, unroll - step)
            held[lane, at] += 1
            if step + steps < unroll and held[lane, at] < self._most:
                heapq.heapreplace(ends, (step + steps, lane, at))
            else:
                heapq.heappop(ends)
        packed = []
        for (entries, lanes, starts), more in zip(rows, fills, strict=True):
            added = np.array(more, np.int64).reshape(-1, 2)
            order = np.concatenate([lanes, added[:, 0]]).argsort(kind="stable")
            entries, lanes = np.concatenate([[entries, lanes], added[:, ::-1].T], axis=1)[:, order]
            packed.append((entries, lanes, order.argsort()[starts]))
        room, count = sum(unroll - step for step, _, _ in ends), sum(map(len, fills))
        return packed, max(len(ends), room * count // max(1, filled))

    def hand_out(self, out: Out) -> None:
        """Let the lanes of a batch go on after it; those of examples that end are empty."""
        spans = out.draft
        out.seat = seat = self.of[out.batch.slot]
        lanes, last = spans.lanes, spans.last
        if self._entries.cut.packed:  # the last example of a row stays
            seat.lanes[lanes] = spans.entries
            lanes, last = lanes[spans.tails], last[spans.tails]
        seat.lanes[lanes[last]] = -1
        seat.started[lanes] = False
        seat.out.append(out)

    def undo(self, seat: Seat, void: list[Out]) -> np.ndarray:
        """Put the rows of returned batches in their lanes again; return those that were there."""
        displaced: list[int] = []
        for out in reversed(void):
            spans = out.draft
            heads, lanes = spans.entries[spans.heads], spans.lanes[spans.heads]
            now = seat.lanes[lanes]
            displaced += now[(now >= 0) & ~np.isin(now, spans.entries)].tolist()
            displaced += spans.entries[~np.isin(spans.entries, heads)].tolist()
            seat.lanes[lanes] = heads
            seat.started[spans.lanes] = False
            seat.started[spans.lanes[spans.starts]] = True
        return np.array(displaced, np.int64)

    # The expected batch

    def expected(self, out: Out | None, size: int) -> Spans | None:
        """Return the next full batch if ``out`` is committed first; None if unknown."""
        slot = next(iter(self.of), None) if out is None else out.batch.slot
        seat = None if slot is None else self.of.get(slot)
        fresh = self._admission.fresh
        if slot is None or seat is None or seat.over or self._admission.back.count:
            return None
        entries, empty = seat.lanes.copy(), (seat.lanes < 0).nonzero()[0]
        if fresh.count < len(empty):
            return None
        own = self._own([slot], [empty])[0] if self._assigned else fresh.first(len(empty))
        if (own < 0).any():
            return None
        entries[empty] = own
        rows = entries, np.arange(len(entries)), (seat.started | (seat.lanes < 0)).nonzero()[0]
        cut = self._entries.cut
        if cut.packed:
            waiting = fresh.first(len(empty) + cut.unroll * len(entries))[len(empty) :]
            (rows,), lacking = self._packed([rows], waiting)
            if lacking:
                return None
        return self._entries.expect(*rows)

    def takeable(self, chained: bool) -> int:
        """Return the number of segments in lanes that could be taken now."""
        seats = (seat for seat in self.of.values() if not (chained and seat.out))
        return sum(len(seat.going) for seat in seats)
