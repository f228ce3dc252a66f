"""The pure machine of a partition of segments: which segments are in which batch.

    step() ─► Read ── arrived() ──► admission ──► a batch ─► out ─► commit() ─► settled: the example
                                        ▲                     │      goes on, in its lane or not,
                                        └───── leave(), deal()┘      or has ended

                 who may get a batch          its rows
    arrival      anyone                       the ready segments with the smallest insertion indices
    lanes        the session of the lanes     one of each of its lanes, which keep their examples
    ranks        a rank                       a *round* has a member for each rank, drafted together

Steps are the one unit: a segment is the steps [first, after) of an example (``spans.py``), which
may grow (``log_admission.py``).  The next one is ready when no batch has the example; with states
at the server (``chained``) it needs the commit of the one before it.  So a session has one batch of
its lanes, and ranks one round, until that is committed.  Else several may be out.  With states at
the trainers (AT_TRAINER) an example goes on elsewhere from its last state that was *kept* here,
without states (NOWHERE) after its last committed segment.

Once no example can come any more a batch may be smaller, if ``allow_small``; else what can not fill
a batch, or a round, is dropped.

Turns count batches, or rounds, and go on over all lives and runs.  A rank *lacks* a round whose
other members were drafted: its trainer left with its states, or an earlier life drafted it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..leasing.words import ANYONE, EARLY, Batch, Order, Outlook, Slot, Token, Turn
from .admission import READ_AHEAD, Admission
from .entries import Entries
from .log_admission import NEVER, RESTING, Growth, LogAdmission
from .machine import MOST_AHEAD, TOO_LATE, Machine
from .plan import Plan, Read, Shaper, State
from .seats import Arrival, Lanes, Out, Places
from .spans import NO_NUMBERS, Cut, Spans, laid_out, read_place
from .stored_state import OPEN, Key

#: Places of the states of segments.
AT_SERVER, AT_TRAINER, NOWHERE = "server", "trainer", "none"


class Segments(Machine, Shaper):
    """The machine of one partition.  The caller sets its ``input`` before the first step."""

    kind = "sequences"

    def __init__(
        self,
        number: int,
        batch_size: int,
        capacity: int | None = None,
        allow_small: bool = False,
        *,
        lanes: bool = False,
        states: str = AT_SERVER,
        cut: Cut | None = None,
        most: int = 1,
        growth: Growth | None = None,
        assigned: bool = False,
    ) -> None:
        """``most``: examples of a packed row.  ``growth``: of sequences of a log.

        ``assigned``: whether each example has a declared lane.
        """
        super().__init__(number)
        self.batch_size, self.allow_small = batch_size, allow_small
        self.lanes, self.states = lanes, states
        self.chained = states == AT_SERVER
        self.cut = cut or Cut()
        self.entries = entries = Entries(self.cut, min(capacity or READ_AHEAD, READ_AHEAD))
        admission = Admission(entries, number, batch_size, capacity)
        #: Of sequences that grow; None: all steps of an example come at once.
        self.log: LogAdmission | None = None
        if growth is not None:
            admission = self.log = LogAdmission(
                entries, number, batch_size, capacity, growth, self.chained
            )
        self.admission = admission
        self._lanes: Lanes | None = None
        if lanes:
            self._lanes = Lanes(admission, entries, batch_size, allow_small, most, assigned)
        self._order = self._lanes or Arrival(admission, entries, allow_small)
        self.rewound = 0  # number of committed segments that are handed out again
        #: The last state of the input that an earlier life has stored; it reads again up to there.
        self.read_before: State = {"read": -1}
        self._next_number = self._index = 0  # of the next batch, or round
        #: The number after those committed, and the turn; by rank the first round that it has not
        #: committed.
        self._committed = 0, (0, 0)
        self._rank_next: list[int] = []
        self._lacks: dict[Slot, list[int]] = {}  # by rank: rounds of which it lacks its member
        self._out: dict[tuple[int, int, bytes], Out] = {}  # by name, the oldest first
        self._asking: Slot | None = None  # for whom batches are drafted …
        self._most = 1  # … and how many, where none needs a commit
        self._lacking = False  # whether the next batch of a log lacks rows, and no commit
        self._last_epoch = 0  # of a batch with rows

    # Examples come

    def offer(self, chunk: int, rows: int, facts: Mapping[str, Any]) -> None:
        self.admission.offer(chunk, rows, facts)

    @property
    def hungry(self) -> bool:
        return self.admission.hungry and (self.log is None or self._lacking)

    def finish(self, drop: bool = False) -> None:
        self.admission.finish(drop)
        self._drop_leftovers()

    def _drop_leftovers(self) -> None:
        """Drop examples that can not fill a batch or a round any more, unless it may be smaller."""
        admission = self.admission
        if self.allow_small or not admission.closed or any(self._lacks.values()):
            return
        if self._lanes:
            going = self.entries.live
        else:
            out = (len(out.draft) - len(out.draft.ended) for out in self._out.values())
            going = admission.ready + (0 if admission.cancelled else sum(out))
        if going < self.batch_size * max(1, self.world):
            admission.drop_ready("remainder")

    # Steps

    @property
    def voids(self) -> bool:
        """Whether a batch is void when it comes back, with later ones of its lanes."""
        return self.lanes and (not self.world or self.states == AT_TRAINER)

    def step(
        self, slot: Slot, epoch: int, limit: int, most: int = 1
    ) -> Read | list[Plan] | Outlook:
        """Return batches for a slot, and perhaps for others; or the read or event to come first.

        Where none of them needs a commit there are up to ``most``, or the round that exceeds it.
        """
        self._most = 1 if self.chained else most
        if self.log is not None:
            if self.log.judging:
                self.log.judged()
            if self.log.wanted_policy > self.log.policy:
                self._set_policy(self.log)
        while epoch >= (here := self.epoch):
            if self._pending:
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

    def _set_policy(self, log: LogAdmission) -> None:
        log.set_policy()
        if self._lanes and log.growth.skips:
            for seat in self._lanes.of.values():
                if not (self.chained and seat.out):
                    going = seat.going
                    self._lanes.stay(seat, going, seat.lanes[going])

    def next_read(self, limit: int) -> Read | None:
        """Return a read ahead of requests; None at the end of the input or without room."""
        return self.input.next_read(self._up_to_order(limit))

    def begin_epoch(self, epoch: int) -> None:
        self.admission.finished = False
        self._index = 0
        self._rank_next = [0] * self.world

    @property
    def done(self) -> bool:
        """Whether all examples of the epoch have ended, and no rank lacks a member of a round."""
        open_ = self.entries.live or self._out or any(self._lacks.values())
        return self.admission.closed and not open_

    @property
    def _ended(self) -> bool:  # type: ignore[override]
        return self.done and not self.input.at_border

    @property
    def made_none(self) -> bool:
        return not self._next_number

    def next_turn(self, slot: Slot) -> Turn:
        """Return the turn of the next batch to be made for a slot."""
        lacking = self._lacks.get(slot)
        turn = self.epoch, lacking[0] if lacking else self._index
        return min([turn, *self._unwritten_turns(slot)]) if self.unwritten else turn

    def live(self, slot: Slot) -> bool:
        """Return whether the slot has lanes with examples that go on, or an unwritten batch."""
        seat = self._lanes.of.get(slot) if self._lanes else None
        if seat is not None and len(seat.going):
            return True
        return bool(self.unwritten and self._unwritten_turns(slot))

    # Drafts

    def next_draft(self) -> list[Plan] | None:
        """Return batches for the slot that asks, if they are possible now."""
        slot, drafts = self._asking, list[Plan]()
        if slot is None:
            return None
        while len(drafts) < self._most and (more := self._next_round(slot) or self._later(slot)):
            drafts += more
        return drafts or None

    def _later(self, slot: Slot) -> list[Out]:
        """Apply events of a log until another batch becomes possible."""
        if self.log is None:
            return []
        while self._lacking and self._advance(self._lanes is not None and self._lanes.short):
            if drafts := self._next_round(slot):
                return drafts
        if self._lacking and self.log.closed:
            self._drop_leftovers()
            return self._next_round(slot)
        return []

    def _advance(self, forced: bool = False) -> bool:
        """Apply events of a log, up to the place of an order; return whether that changes much."""
        assert self.log is not None
        news = self.log.advance(self._pending[0].read if self._pending else NEVER, forced)
        self.input.read = self.log.seen + 1
        if self._pending:
            self._carry_out()
        return news

    @property
    def claimed(self) -> bool:
        """Whether a trainer has a batch whose bytes are not here."""
        outs = self._out.values()
        return any(out.batch.body is None and out not in self.unwritten for out in outs)

    def lose(self, upto: int) -> None:
        """Go on after a position of a log, which has the rest no more; batches stay."""
        assert self.log is not None
        self.log.judged()
        self.log.lose(upto)
        self.input.read = self.log.seen + 1
        self._carry_out()

    def _next_round(self, slot: Slot) -> list[Out]:
        """Draft a batch, or the round that a rank gets next."""
        self._lacking = False
        if not self.world:
            return self._round([slot if self.lanes else ANYONE], self._index)
        if lacking := self._lacks.get(slot):
            index = lacking[0]
            ranks = [rank for rank in range(self.world) if self._lacks.get(rank, ())[:1] == [index]]
            drafts = self._round(ranks, index)
            for rank in ranks if drafts else ():
                self._lacks[rank].remove(index)
            return drafts
        if any(self._lacks.values()) or (self._out and self.chained):
            return []
        return self._round(range(self.world), self._index)

    def _round(self, slots: Sequence[Slot], index: int) -> list[Out]:
        """Draft a batch for each slot, of which ranks may lack some of an earlier round."""
        lanes, some = self._lanes, index < self._index
        if lanes:
            if len(lanes.of) < self.world or slots[0] not in lanes.of:
                for slot in (*range(self.world), *slots):  # each has its own examples again
                    lanes.seat(slot, others=not self.world)
            if self.chained and lanes.of[slots[0]].out:
                return []
        seated = self._order.seated(slots, self.batch_size, some)
        self._lacking = not seated
        if not seated:
            if lanes and slots[0] not in lanes.of:  # they had no more
                self._drop_leftovers()
            return []
        size, drafts = self.batch_size if self.world else 0, list[Out]()
        for slot, rows in zip(slots, seated, strict=True):
            spans = self.entries.cut_next(*rows, size)
            if not self.chained and self.log is not None and self.log.growth.skips:
                spans.versions[:] = self.log.policy  # tells a later life which were left out
            height, turn = spans.height, (self.epoch, index)
            place, number = spans.place(), self._next_number
            batch = Batch(self.number, number, slot, turn, size or height, place)
            batch.empty = batch.rows - height
            self._next_number += 1
            drafts.append(self._hand_out(batch, spans))
        if not some:
            self._index += 1
            if self.admission.finished:
                self._drop_leftovers()
        return drafts

    def _hand_out(self, batch: Batch, spans: Spans) -> Out:
        """Hand a batch out; free the places of examples that end with it."""
        entries = spans.entries
        self.entries.at[entries] = spans.after
        if len(entries):
            self._last_epoch = self.entries.keys[entries[0]][0]
        batch.epoch = self._last_epoch
        out = self._out[batch.name] = Out(batch, spans)
        if self._lanes:
            self._lanes.hand_out(out)
        if self.log is not None:
            self.log.handed_out(entries)
        self.admission.land(spans.ended)
        if self.log is not None and self._lanes and not self.chained:
            going = ~spans.last
            self._lanes.stay(self._lanes.of[batch.slot], spans.lanes[going], entries[going])
        return out

    # Commits

    def commit(self, batch: Batch, token: Token) -> Out | tuple[str, str]:
        """Take a commit; return its effect, or a fault's code and text."""
        name = batch.name
        out = self._out.get(name)
        if out is None:
            lost = "its lanes went to another trainer" if self.lanes else "other trainers have it"
            return "stale", f"batch {batch.number} is not out: {lost}"
        if out.seat is not None:
            if out.seat.out[0] is not out:
                return EARLY, f"batch {out.seat.out[0].batch.number} of its lanes comes before"
            out.seat.out.pop(0)
            out.seat.last = out
        del self._out[name]
        epoch, index = out.batch.turn
        number, turn = self._committed
        self._committed = max(number, batch.number + 1), max(turn, (epoch, index + 1))
        if self.world and epoch == self.epoch and isinstance(batch.slot, int):
            self._rank_next[batch.slot] = index + 1
        spans, tables, cancelled = out.draft, self.entries, self.admission.cancelled
        entries = spans.entries
        if self.states != AT_TRAINER:
            out.keys = tables.keys_of(entries)
        if self.chained:
            tables.version[entries] = spans.versions[:] = token
        if self.log is not None:
            self._commit_log(out, cancelled)
        elif out.seat is None:
            self.admission.settle(entries, cancelled)
        else:
            tables.done[entries] = spans.after
            if self.states != AT_TRAINER:
                tables.kept[entries] = spans.after
            tables.free(spans.ended)
            if out.seat.left:  # what goes on, does so in other lanes
                left = entries[~spans.last]
                self.admission.settle(left[tables.at[left] == tables.done[left]], cancelled)
        if self.admission.finished:
            self._drop_leftovers()
        if cancelled and len(spans.ended) < len(spans):
            return "cancelled", "the feed was drained with cancel=True: states are not saved"
        return out

    def _commit_log(self, out: Out, cancelled: bool) -> None:
        """Make the sequences of a committed batch ready again; they may have grown or ended."""
        assert self.log is not None
        spans = out.draft
        self.log.committed(spans.entries, spans.after)
        if out.seat is None or self._lanes is None:
            self.log.settle(spans.entries, cancelled)
            return
        idle = spans.entries[self.entries.out[spans.entries] == 0]
        if out.seat.left:
            self.log.settle(idle, cancelled)
        elif self.chained:
            going = ~spans.last
            self._lanes.stay(out.seat, spans.lanes[going], spans.entries[going])
            self.log.end_over(spans.ended)
        else:
            self.log.settle(idle[self.entries.standing[idle] == RESTING])

    def keep(self, batch: Batch, places: np.ndarray) -> tuple[Spans, np.ndarray, np.ndarray] | None:
        """Note kept states of these places of the last committed batch of a slot.

        Return its segments, and which of them have states that are still of use, with their
        positions in ``places``.  None where the lanes are gone.
        """
        seat = self._lanes.of.get(batch.slot) if self._lanes else None
        if seat is None or seat.last is None or seat.last.batch.name != batch.name:
            return None
        known, tables = seat.last.draft, self.entries
        row_of = np.full(batch.rows, -1, np.int64)
        tails = np.arange(len(known))[known.tails]
        row_of[known.lanes[tails] if known.size else np.arange(len(tails))] = tails
        inside = places.size and 0 <= places.min() <= places.max() < len(row_of)
        if not inside or len(np.unique(places)) != len(places):
            return None
        rows = row_of[places]
        positions = (rows >= 0).nonzero()[0]
        rows = rows[positions]
        entries, after = known.entries[rows], known.after[rows]
        fits = ~known.last[rows] & (tables.index[entries] == known.indices[rows])
        fits &= tables.done[entries] == after
        tables.kept[entries[fits]] = after[fits]
        return known, rows[fits], positions[fits]

    # Batches and lanes that come back

    def seat(self, slot: Slot) -> None:
        """Give a slot the lanes of its earlier life back, before other slots fill theirs."""
        if self._lanes and not self.world and slot in self._lanes.before:
            self._lanes.seat(slot)

    def places(self) -> dict[Slot, Places]:
        """Return, for a later life, the lanes of examples with segments that are not committed."""
        return self._lanes.places() if self._lanes else {}

    def returned(self, batch: Batch) -> bool:
        """Return whether a batch that came back has its bytes; else they are written again."""
        out = self._out.get(batch.name)
        if out is None:  # its commit was refused, and counts
            return False
        if batch.body is None:  # an earlier life had them
            self.unwritten.append(out)
        return batch.body is not None

    def leave(self, slot: Slot, since: Turn = (0, -1)) -> None:
        """Void the lanes of a slot, with its batches from a turn on.

        Their examples go on in other lanes, from the states that are kept here.  A trainer that
        only returns a batch keeps its lanes, but those whose examples would all begin there.
        """
        if self._lanes is None or not self.voids:
            return
        of_slot = [out for out in self._out.values() if out.batch.slot == slot]
        void = [out for out in of_slot if out.batch.turn >= since]
        seat, entries = self._lanes.of.get(slot), list[np.ndarray]()
        self._take_back(void)
        keeps = self.states == AT_TRAINER or not self.admission.cancelled
        if keeps and since > (0, -1) and seat is not None:
            displaced = self._lanes.undo(seat, void)
            if seat.out or ((seat.lanes >= 0) & ~seat.started).any():
                self.admission.settle(displaced)
                return
            entries.append(displaced)  # another trainer may have them
        if self.states == AT_TRAINER:
            self._take_back([out for out in of_slot if out not in void])
            void = of_slot
        entries += [out.draft.entries for out in void]
        if seat is not None:
            del self._lanes.of[slot]
            seat.left = True
            entries.append(seat.lanes[seat.lanes >= 0])
        if entries:
            self._put_back(np.unique(np.concatenate(entries)))

    def _take_back(self, void: Sequence[Out]) -> None:
        """Undo the drafts of batches; their examples are as they were before them."""
        for out in reversed(void):
            batch, spans = out.batch, out.draft
            del self._out[batch.name]
            if out in self.unwritten:
                self.unwritten.remove(out)
            if out.seat is not None:
                out.seat.out.remove(out)
            if self.world:
                self._lack(batch.slot, batch.turn[1])
            self.admission.reenter(spans.ended)
            self.entries.at[spans.entries] = spans.first
            if self.log is not None:
                self.log.taken_back(spans.entries)

    def _put_back(self, entries: np.ndarray) -> None:
        """Make examples that have left their lanes ready for other lanes.

        They go on from the state that is kept here, or after segments that may still be committed.
        """
        tables = self.entries
        done = tables.done[entries]
        first = (tables.kept if self.states == AT_TRAINER else tables.at)[entries]
        waits = first > done if self.log is None else tables.out[entries] > 0
        if not self.admission.cancelled:
            again = self.cut.before(done) - self.cut.before(first)
            self.rewound += int(np.maximum(again, 0).sum())
            tables.at[entries], tables.done[entries] = first, np.minimum(done, first)
        self.admission.settle(entries[~waits], self.admission.cancelled)
        self._drop_leftovers()

    def _lack(self, rank: Slot, index: int) -> None:
        self._lacks[rank] = sorted({*self._lacks.get(rank, ()), index})

    def deal(self, run: int, world: int) -> list[Batch]:
        """Deal all uncommitted rows anew to ``world`` ranks; 0: to anyone.

        The first round is the first that not all ranks have committed.  Examples stay in their
        lanes if there are as many ranks as before.
        """
        places = self.places() if world and world == self.world else {}
        index = min(self._rank_next) if self.world else self._committed_index
        self.world = 0  # ranks of the run before lack nothing any more
        seats = self._lanes.of if self._lanes else ()
        for slot in {*seats, *(out.batch.slot for out in self._out.values())}:
            self.leave(slot)
        void = list(self._out.values())  # none of lanes
        self._take_back(void)
        for out in void:
            self.admission.settle(out.draft.entries)
        self.run, self.world = run, world
        if self._lanes:
            self._lanes.resume(places)
        self._lacks, self._rank_next = {}, [index] * world
        self._index, self._committed = index, (self._next_number, (self.epoch, index))
        self._adapt()
        return []

    def _adapt(self) -> None:
        """Adapt the limits to another number of rows that are drafted together."""
        rows = self.batch_size * max(1, self.world)
        if self._lanes:
            self._lanes.ranks = self.world
        self.admission.read_ahead = max(self.admission.read_ahead, 4 * rows)
        self._drop_leftovers()

    # A batch of an earlier life

    def reclaim(self, batch: Batch) -> bool | None:
        """Take out a batch of an earlier life, if that is still possible.

        None: rows of it are still to be read.
        """
        place = read_place(batch.place, self.cut.packed)
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
            self.unwritten = deque(plan for plan in self.unwritten if plan is not out)
            return out.batch.body is None  # its bytes are not written
        if batch.turn[0] != self.epoch:
            if batch.turn[0] != self.epoch + 1 or self.entries.live or self._out:
                return False
            if not self.input.all_read:
                return None
            self._asking = None
            self.input.next_step(0)
            if not self.input.at_border:
                return False
            self.input.begin_epoch()
        indices, lanes, admission = place["index"], place["lane"], self.admission
        if self.log is not None:
            if not (there := self._reach(place)):
                return there
        elif (
            len(place) and int(indices.max()) - admission.next_index >= MOST_AHEAD * self.batch_size
        ):
            return False  # reading up to it might not end
        if self.log is None and len(place) and int(indices.max()) >= admission.next_index:
            admission.admit_claimed(int(indices.max()) + 1)
            if admission.next_index < admission.claimed and not self.input.all_read:
                return None
            admission.claimed = admission.next_index
        entries = self.entries.find(indices)
        if not self._are_free(batch.slot, entries, lanes, place):
            return False
        if self.world and not self._may_have(batch):
            return False
        self._take_claimed(batch, entries, lanes, place)
        return True

    def _reach(self, place: np.ndarray) -> bool | None:
        """Apply the log up to the point at which an earlier life handed out these segments.

        None: more of it is to be read.
        """
        assert self.log is not None
        tables, known = self.entries, -1
        while True:
            if known != (known := self.log.next_index):
                entries = tables.find(place["index"])
            missing = entries < 0
            if (missing & (place["index"] < known)).any():
                return False
            closed = tables.end[entries] < OPEN
            there = np.where(place["after"] < 0, closed, closed | self.log.holds(entries, place))
            if (there & ~missing).all():
                break
            if not self._advance(forced=True):
                self._lacking = True
                return False if self.log.closed else None
        for entry, first, version in zip(
            entries.tolist(), place["first"].tolist(), place["version"].tolist(), strict=True
        ):
            if self.log.growth.skips and not tables.out[entry] and not (self.chained and version):
                self.log.skip_to(entry, first, version)
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
        self, slot: Slot, entries: np.ndarray, lanes: np.ndarray, place: np.ndarray
    ) -> bool:
        """Return whether segments are the next of their examples, which no other batch has."""
        if len(np.unique(entries)) != len(entries) or (entries < 0).any():
            return False
        tables, first = self.entries, place["first"]
        end = tables.end[entries]
        if (first >= end).any():
            return False
        if self.log is not None:  # a sequence that grew when it was handed out may have ended
            end = np.where(place["after"] > 0, OPEN, end)
        heads, room = np.ones(len(entries), bool), None
        if self.cut.packed:
            begins = laid_out(lanes, end - first)[2]
            heads, room = begins == 0, self.cut.unroll - begins
            if (room <= 0).any():
                return False
        after = self.cut.after(first, end, tables.openings(entries), room)
        wrong = place["after"] != np.where(after == end, -after, after)
        wrong &= place["after"] != 0
        if self.states == AT_TRAINER:  # it has the state, which is not here
            wrong |= (first < tables.kept[entries]) | (tables.at[entries] > first)
        else:
            wrong |= tables.at[entries] != first
        if self.chained:
            wrong |= tables.version[entries] != place["version"]
        mine = np.full(len(entries), -1)  # the examples of its lanes now
        if self._lanes:
            if len(np.unique(lanes)) != np.count_nonzero(heads) or (lanes < 0).any():
                return False
            if len(lanes) and lanes.max() >= self.batch_size:
                return False
            seat = self._lanes.seat(slot)
            if self.chained and seat.out:
                return False
            mine = np.where(heads, seat.lanes[lanes], -1)
            if self.log is None:  # else the other one grew since then, and had left its lane
                wrong |= (mine >= 0) & (mine != entries)
        if self.log is None:
            wrong |= (mine != entries) & ~np.isin(entries, self.admission.all_ready())
        else:  # one that rested comes back to the lanes that have its batches, else after these
            outs = [out.draft.entries for out in seat.out] if self._lanes else []
            own = sum((np.isin(entries, one).astype(np.int64) for one in outs), np.int64(0))
            wrong |= (mine != entries) & (tables.out[entries] > own)
        return not wrong.any()

    def _take_claimed(
        self, batch: Batch, entries: np.ndarray, lanes: np.ndarray, place: np.ndarray
    ) -> None:
        starts = NO_NUMBERS
        if self._lanes:
            seat = self._lanes.of[batch.slot]
            begins = seat.started[lanes] | (place["first"] == 0)
            begins[1:] &= lanes[1:] != lanes[:-1]
            if self.log is not None:  # others rested there then, or these did elsewhere
                others = seat.lanes[lanes]
                others = np.setdiff1d(others[others >= 0], entries)
                for entry in (*others.tolist(), *entries.tolist()):
                    self.log.unseat(entry)
                self.log.settle(others)
            self._lanes.put(seat, lanes, entries)
            starts = begins.nonzero()[0]
        else:
            self.admission.withdraw(entries)
        self.entries.at[entries] = place["first"]
        ends = self.entries.end[entries]
        if self.log is not None:
            self.entries.end[entries] = np.where(place["after"] > 0, OPEN, ends)
        size = self.batch_size if self.world else 0
        if not (self.lanes or self.world):
            lanes = NO_NUMBERS
        spans = self.entries.cut_next(entries, lanes, starts, size)
        self.entries.end[entries] = ends
        self._hand_out(batch, spans)
        self._next_number = max(self._next_number, batch.number + 1)
        self._index = max(self._index, batch.turn[1] + 1)

    # Orders

    def reading(self) -> State:
        """Return the state of the input where an order that comes now takes effect."""
        before = self.read_before
        return before if before["read"] > self.input.read else self.input.reading()

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

    def apply(self, order: Order) -> None:
        """Carry out an order, which is stored; one of a size does not wait for rows."""
        if order.kind == "batch_size" and order in self._pending:
            self._pending.remove(order)
            self._resize(order.what)
        self._carry_out()

    def _resize(self, batch_sizes: Sequence[int]) -> None:
        (self.batch_size,) = batch_sizes
        self._adapt()

    def _close(self, cancel: bool) -> None:
        """Read nothing more; with ``cancel`` drop what waits, and save no further states."""
        super()._close(cancel)
        if self.log is not None:
            self.log.stop(cancel)
        if cancel and self._lanes:
            self.admission.drop_ready("cancelled")
            for seat in self._lanes.of.values():
                seat.over = seat.over or bool(self._out if self.world else seat.out)
        self._drop_leftovers()

    # What outlives a process, beside examples

    def turns(self) -> list[Any]:
        """Return run, ranks, and whose turn it is: plain data from which another machine resumes.

        The turn has the epoch, the number of the next batch, and its index in the epoch: for each
        rank.
        """
        indices = [*self._rank_next] or [self._committed_index]
        return [self.run, self.world, self.epoch, self._committed[0], indices]

    @property
    def _committed_index(self) -> int:
        """The index after the last committed batch of this epoch."""
        epoch, index = self._committed[1]
        return index if epoch == self.epoch else 0

    def resume_turns(self, turns: Sequence[Any], places: Mapping[Slot, Places]) -> None:
        """Restore the turns and the lanes of an earlier process, after ``resume``."""
        self.run, self.world, epoch, number, indices = turns
        if epoch != self.epoch:  # the next one has begun, and nothing of it is committed
            indices = [0] * len(indices)
        self._next_number, self._index = number, max(indices)
        self._committed = number, (epoch, self._index)
        self._rank_next = list(indices) if self.world else []
        self._lacks = {
            rank: list(range(at, self._index)) for rank, at in enumerate(self._rank_next)
        }
        if self._lanes:
            self._lanes.resume(places)
        self.input.resume_epoch(self._index)
        self._adapt()

    # Queries

    def expected(self) -> Spans | None:
        """Return the next full batch if the oldest one out is committed first; None if unknown."""
        if self.world or self.log is not None:
            return None
        return self._order.expected(next(iter(self._out.values()), None), self.batch_size)

    def chunks(self) -> set[int]:
        """Return the chunks whose payload is still needed."""
        return self.admission.chunks()

    def dropped(self) -> Mapping[str, int]:
        return self.admission.dropped

    @property
    def drops(self) -> Sequence[object]:
        """Examples that fill no batch at the end, until they are stored."""
        return self.admission.drops

    def standing(self) -> dict[str, int]:
        """Return the number of segments by the reason of their wait.

        ``ready`` wait for nothing, ``leased`` for the states of a trainer; ``full`` counts examples
        that wait for a place of the capacity.
        """
        return {
            "ready": self.admission.ready,
            "leased": sum(len(out.draft) for out in self._out.values()),
            "full": self.admission.waiting,
        }

    def sizes(self) -> dict[str, int]:
        """Return the number of ready and of incomplete segments, and of examples in flight.

        A segment of an admitted example is ready when it only waits for a batch, and
        incomplete until the state before it is saved.
        """
        entries = self.entries.used()
        ready = self.admission.ready + (self._lanes.takeable(self.chained) if self._lanes else 0)
        incomplete = int(self.entries.left(entries).sum()) - ready
        in_flight = self.admission.in_flight
        return {"ready": ready, "incomplete": incomplete, "in_flight": in_flight}

    def unfinished(self) -> tuple[int, int]:
        left = int(self.entries.left(self.entries.used()).sum())
        return self.admission.waiting, left + sum(len(out.draft) for out in self._out.values())

    def due(self) -> int | None:
        """Return the epoch of the first uncommitted rows; None where none is left."""
        keys = self.entries.keys_of(self.entries.used())
        least = min((key[0] for key in keys), default=None)
        return self.input.epoch if least is None and not self._ended else least

    def waits_for(self) -> str:
        """Describe what the next batch lacks; may be empty."""
        out, ready = next(iter(self._out.values()), None), ""
        if not self.lanes:
            of = self.batch_size * max(1, self.world)
            ready = f"{self.admission.ready} of {of} rows are ready; "
        if out is None:
            return ready[:-2] if self.admission.ready else ""
        spans, number = out.draft, out.batch.number
        if not len(spans):
            return f"it waits for save_state of an empty batch (batch {number})"
        entry = int(spans.entries[0])
        segment, count = self._numbered(entry, int(spans.first[0]))
        key = self._key_of(entry)[1]
        name = f"{segment:05d}_of_{count:05d}:{key.decode(errors='backslashreplace')}"
        others = f" and {len(spans) - 1} more" if len(spans) > 1 else ""
        return f"{ready}it waits for save_state of {name[:300]}{others} (batch {number})"

    def _key_of(self, entry: int) -> Key:
        """Return epoch and key of an example."""
        if self.log is not None:
            return 0, self.log.key(int(self.entries.line[entry]))
        key: Key = self.entries.keys[entry]
        return key

    def _numbered(self, entry: int, first: int) -> tuple[int, int]:
        """Return the number of the segment that begins at a step, and the count of segments."""
        tables, at = self.entries, np.array([first])
        entries = np.array([entry])
        before = self.cut.before(at)
        openings = tables.opening[entries] if tables.opening[entry] else None
        end = tables.available[entries] if tables.end[entry] == OPEN else tables.end[entries]
        left = self.cut.left(at, end, openings)
        return int(before[0]), int((before + left)[0])

    def seek(self, key: bytes) -> list[list[object]]:
        """Return a key's examples of all epochs: epoch, segment, number of segments, place, batch.

        The place is "ready" where the next segment waits for a batch, "not begun" where the first
        one does, or "out"; of several batches the oldest counts.
        """
        found: list[list[object]] = []
        used = self.entries.used()
        for entry in used.tolist():
            epoch, name = self._key_of(entry)
            if name != key:
                continue
            first, number = int(self.entries.at[entry]), -1
            for out in self._out.values():
                at = (out.draft.entries == entry).nonzero()[0]
                if len(at):
                    first, number = int(out.draft.first[at[0]]), out.batch.number
                    break
            where = "out" if number >= 0 else "ready" if first else "not begun"
            found.append([epoch, *self._numbered(entry, first), where, number])
        for epoch, count in self.admission.seek(key):
            found.append([epoch, 0, count, "not begun", -1])
        return found
