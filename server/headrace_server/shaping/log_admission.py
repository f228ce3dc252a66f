"""Sequences of a log on their way to batches: their steps come while they are trained.

    offer(events) ─► advance() ─► resting ◄─► ready ─► take() … a batch, or a lane … ─► settle()
                                     ▲          ▲                                          │
                                     └──────────┴──────────────────────────────────────────┴─► end

An example has ``available`` steps, which may grow, and an end once it is closed.  Its next segment
is *whole* when its steps and the context after them are there, or the example is closed.  It is
ready when it is whole and the state before it is here.  A resting example has no place of the
capacity, and no lane.

The *rank* of a segment is the position of the record that made it whole, and the least one goes
first: a sequence without an end can not go before others for ever.

An event is applied only where the next batch is not possible without it.  So batches follow from
the order of the log and of the commits, and not from when a step came.

A segment may turn out to have been the last one after it was handed out: then the example ends with
its commit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .admission import Admission
from .entries import Entries
from .positions import Positions
from .stored_state import NO_KEY, OPEN, Examples

#: How an event leaves its sequence.
GOING, END, ABORT, LOST = range(4)
#: Where an example stands; a taken one is in a batch or in a lane.
RESTING, READY, TAKEN = range(3)
#: A position beyond all records.
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Growth:
    """How a feed takes sequences that grow."""

    ahead: int = 0  # steps beyond a segment that must be there before it is whole
    max_staleness: int | None = None  # versions by which a policy may lag behind that of trainers
    skips: bool = False  # whether older segments are left out; else they are only marked


class Event(NamedTuple):
    """A record of the log, as far as it concerns segments."""

    position: int
    of: int  # position of the record that opened the sequence
    opens: bool = False  # whether this one does
    steps: int = 0  # that it adds
    close: int = GOING
    opening: int = 0  # steps of the first segment, where these are drawn


class LogAdmission(Admission):
    """The sequences of one partition of a log; ``capacity`` bounds those ready or taken."""

    def __init__(
        self,
        entries: Entries,
        partition: int,
        batch_size: int,
        capacity: int | None,
        growth: Growth,
        chained: bool = True,
    ) -> None:
        """``chained``: a segment waits for the commit of the one before."""
        super().__init__(entries, partition, batch_size, capacity)
        self.growth, self._chained = growth, chained
        self.seen = (
            self._read
        ) = -1  # position up to which events are applied; up to which they came
        self.policy = 0  # version of the policy that trains …
        self.wanted_policy = 0  # … and the one that counts from the next step on
        #: By sequence and step: position and version of the record with the last step before that
        #: one; the position of its end where there are fewer.
        self.newest: Callable[[int, int], tuple[int, int]] = lambda of, step: (of, 0)
        #: Returns the key of a sequence.
        self.key: Callable[[int], bytes] = lambda of: b""
        #: Puts an example back in the lane in which it rested, if that is free …
        self.sit: Callable[[int], bool] = lambda entry: False
        #: … and takes it out of its lane.
        self.unseat: Callable[[int], object] = lambda entry: None
        self._events: deque[Event] = deque()
        self._entry = Positions()  # by sequence
        self._news = False  # whether an example has become ready, or ended
        self.judging = False  # whether batches of an earlier life may still be claimed …
        self._aborted: list[tuple[int, int]] = []  # … and which entries and sequences end then
        #: Entries of examples that began, or went on, since they were stored; lines that ended.
        self.moved: set[int] = set()
        self.gone: list[int] = []

    # Events

    def take_events(self, events: Iterable[Event], read: int) -> None:
        """Take the events up to a position, in order."""
        self._events.extend(events)
        self._read = read
        self._note_seen()

    def _note_seen(self) -> None:
        if not self._events:
            self.seen = max(self.seen, self._read)

    @property
    def hungry(self) -> bool:
        return not (self.finished or self._events)

    @property
    def closed(self) -> bool:
        return self.finished and not self._events

    def finish(self, drop: bool = False) -> None:
        self.finished = True
        self.cancelled |= drop

    def stop(self, cancel: bool) -> None:
        """Take no further event: what grows ends where it is."""
        self._events.clear()
        for of, entry in list(self._entry.items()):
            if cancel:
                if self._entries.standing[entry] == RESTING and not self._entries.out[entry]:
                    self.drop(np.array([entry]), "cancelled")
            elif self._entries.end[entry] == OPEN:
                self._apply(Event(of, of, close=END), forced=True)

    @property
    def _full(self) -> bool:
        if self.capacity is None:
            return False
        return self.in_flight >= max(self.capacity, self.least_places())

    def advance(self, upto: int = NEVER, forced: bool = False) -> bool:
        """Apply events before a position until an example becomes ready, or ends.

        Return False where none does.  ``forced``: one event, though there is no place for it.
        """
        while self._events:
            event = self._events[0]
            if event.position >= upto:
                self.seen = max(self.seen, upto - 1)
                return False
            if not self._apply(event, forced):
                return False
            self._events.popleft()
            self.seen = max(self.seen, event.position)
            self._note_seen()
            if self._news or forced:
                self._news = False
                return True
        return False

    def _apply(self, event: Event, forced: bool) -> bool:
        """Apply an event; return False where it has to wait for a place."""
        position, of, opens, steps, close, opening = event
        entry, tables = self._entry.get(of), self._entries
        available, at, end, rests = steps, 0, OPEN, True
        if entry >= 0:
            available, at = steps + int(tables.available[entry]), int(tables.at[entry])
            opening, end = int(tables.opening[entry]), int(tables.end[entry])
            rests = tables.standing[entry] == RESTING
        elif not opens:
            return True  # it has ended here
        end = available if close == END else end
        whole = rests and close <= END and self._is_whole(at, available, end, opening)
        if whole and not forced and self._full:
            return False
        if opens:
            entry = self._begin(of, opening)
        tables.available[entry], tables.end[entry] = available, end
        if close > END:
            self._cut_off(entry, "aborted" if close == ABORT else "lost")
        elif whole:
            self._place([entry], [position])
        elif rests and end < OPEN:
            self.end_over(np.array([entry]))
        return True

    def _begin(self, of: int, opening: int) -> int:
        columns = self._entries.columns(0, np.array([OPEN]), of, None)
        (entry,) = self._entries.enter(columns, [NO_KEY]).tolist()
        self._entries.index[entry], self._entries.opening[entry] = self.next_index, opening
        self._entries.draws |= opening > 0
        self.next_index += 1
        self._entry[of] = entry
        self.moved.add(entry)
        return int(entry)

    # Segments

    def _is_whole(self, at: int, available: int, end: int, opening: int) -> bool:
        cut, first = self._entries.cut, at in (0, opening)
        if end < OPEN:
            return (at if first else at - cut.stride + cut.unroll) < end
        own = opening if opening and not at else cut.unroll
        return available >= at + own + self.growth.ahead

    def whole(self, entries: np.ndarray) -> np.ndarray:
        """Return a mask of the examples whose next segment is whole."""
        tables, cut = self._entries, self._entries.cut
        at, end, opening = tables.at[entries], tables.end[entries], tables.opening[entries]
        reach = np.where((at == 0) | (at == opening), at, at - cut.stride + cut.unroll)
        own = np.where((at == 0) & (opening > 0), opening, cut.unroll)
        there = tables.available[entries] >= at + own + self.growth.ahead
        whole: np.ndarray = np.where(end < OPEN, reach < end, there)
        return whole

    def _upto(self, entry: int) -> int:
        """Return the step after the own steps of the next segment, which is whole."""
        tables, cut = self._entries, self._entries.cut
        at, opening = int(tables.at[entry]), int(tables.opening[entry])
        own = opening if opening and not at else cut.unroll
        return min(at + own, int(tables.end[entry]))

    def _lags(self, entry: int, policy: int = 0) -> bool:
        growth = self.growth
        if growth.max_staleness is None or not growth.skips:
            return False
        version = self.newest(int(self._entries.line[entry]), self._upto(entry))[1]
        return max(policy, self.policy) - version > growth.max_staleness

    def _skip(self, entry: int) -> None:
        """Leave the next segment out: what follows begins from the initial state."""
        tables, one = self._entries, np.array([entry])
        self._note_dropped("stale", 1)
        tables.at[one] = tables.after(one, tables.at[one])
        tables.version[entry] = 0
        if not tables.out[entry]:
            tables.done[entry] = tables.kept[entry] = tables.at[entry]
        self.moved.add(entry)

    def fresh_enough(self, entries: np.ndarray) -> np.ndarray:
        """Leave out segments that are too old; return the examples whose next one is whole.

        One that follows on segments in batches waits for these first.
        """
        whole: np.ndarray = entries[self.whole(entries)]
        if not self.growth.skips:
            return whole
        fresh = []
        for entry in whole.tolist():
            lags = False
            while self.whole(np.array([entry]))[0] and (lags := self._lags(entry)):
                if self._entries.out[entry]:
                    break
                self._skip(entry)
                lags = False
            if not lags and self.whole(np.array([entry]))[0]:
                fresh.append(entry)
        return np.array(fresh, np.int64)

    def skip_to(self, entry: int, first: int, policy: int) -> None:
        """Leave segments out as the earlier life did that handed out the one from ``first`` on.

        Without states nothing but their age, beside the policy of then, tells them from those of a
        batch that is not claimed.
        """
        tables = self._entries
        while tables.at[entry] < min(first, tables.available[entry]):
            if not (self._chained or self._lags(entry, policy)):
                return
            self._skip(entry)

    def holds(self, entries: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return a mask of the segments of a batch of which all steps are there."""
        tables, cut = self._entries, self._entries.cut
        own = np.where(
            (place["first"] == 0) & (tables.opening[entries] > 0),
            tables.opening[entries],
            cut.unroll,
        )
        there: np.ndarray = tables.available[entries] >= place["first"] + own + self.growth.ahead
        return there

    def set_policy(self) -> None:
        """Leave ready segments out that have become too old."""
        self.policy = self.wanted_policy
        if self.growth.skips:
            ready = self.all_ready()
            self.withdraw(ready)
            self.settle(ready)

    # Where examples stand

    def _stand(self, entries: np.ndarray, standing: int) -> None:
        tables = self._entries
        before = int(np.count_nonzero(tables.standing[entries]))
        self.in_flight += (len(entries) if standing else 0) - before
        tables.standing[entries] = standing

    def _place(self, entries: list[int], ranks: list[int]) -> None:
        """Let the whole segments of resting examples be ready, or go on in their lanes."""
        self._news = True
        tables, run = self._entries, list[tuple[int, int]]()
        for entry, rank in zip(entries, ranks, strict=True):
            one = np.array([entry])
            if self._lags(entry):
                if not tables.out[entry]:
                    self.settle(one)
            elif self.sit(entry):
                self._stand(one, TAKEN)
            elif not tables.out[entry]:  # else another trainer could commit it first
                self.unseat(entry)
                self._stand(one, READY)
                tables.rank[entry] = rank
                run.append((rank, entry))
        if run:
            self.back.put(np.array(sorted(run)).T)

    def settle(self, entries: np.ndarray, cancel: bool = False) -> None:
        """Let examples that no batch and no lane has go on: they rest, are ready, or end."""
        self._stand(entries, RESTING)
        whole = self.fresh_enough(entries)
        self.end_over(entries)
        if cancel:
            self.drop(np.setdiff1d(entries, self._lost(entries)), "cancelled")
        elif len(whole):
            tables, ahead = self._entries, self.growth.ahead
            ranks = [
                self.newest(int(tables.line[e]), self._upto(e) + ahead)[0] for e in whole.tolist()
            ]
            self._place(whole.tolist(), ranks)

    def rest(self, entries: np.ndarray) -> None:
        """Let examples rest that lack steps, or end."""
        self._stand(entries, RESTING)
        self.end_over(entries)

    def end_over(self, entries: np.ndarray) -> None:
        """End the closed examples without a further segment that no batch has."""
        tables = self._entries
        over = (tables.end[entries] < OPEN) & (tables.out[entries] == 0) & ~self.whole(entries)
        self._free(entries[over])

    def _free(self, entries: np.ndarray) -> None:
        if not len(entries):
            return
        self._news = True
        lost = self._lost(entries)
        lines = self._entries.line[entries[~np.isin(entries, lost)]].tolist()
        self.gone += lines
        for of in lines:
            del self._entry[of]
        for entry in entries.tolist():
            self.moved.discard(entry)
            self.unseat(entry)
        self._stand(entries, RESTING)
        self._entries.land(entries)
        self._entries.free(entries)

    def lose(self, upto: int) -> None:
        """Drop what came up to a position, and what follows of its sequences, but for batches."""
        self._events = deque(one for one in self._events if one.of > upto)
        self._read, self.seen = max(self._read, upto), max(self.seen, upto)
        for of, entry in list(self._entry.items()):
            if of <= upto:
                self._cut_off(entry, "lost")
                if of in self._entry:  # a batch has it, and no later life
                    del self._entry[of]
                    self.gone.append(of)
                    self.moved.discard(entry)

    def _lost(self, entries: np.ndarray) -> list[int]:
        """Return those of which the log has nothing more."""
        lines = self._entries.line[entries].tolist()
        pairs = zip(entries.tolist(), lines, strict=True)
        return [entry for entry, of in pairs if self._entry.get(of) != entry]

    def _cut_off(self, entry: int, reason: str) -> None:
        """Drop what no batch has of a sequence, unless a claim comes first."""
        tables = self._entries
        if self.judging and reason == "aborted":
            self._aborted.append((entry, int(tables.line[entry])))
            return
        one = np.array([entry])
        self._note_dropped(reason, int(tables.left(one)[0]))
        if tables.standing[entry] == READY:
            self.withdraw(one)
        tables.end[entry] = tables.available[entry] = tables.at[entry]
        if not tables.out[entry]:
            self._free(one)
        elif not self._chained:  # else its lane would go on before its batches are committed
            self.unseat(entry)
            self._stand(one, RESTING)

    def judged(self) -> None:
        """Note that batches of an earlier life have been claimed, or are not."""
        self.judging = False
        aborted, self._aborted = self._aborted, []
        for entry, of in aborted:
            if self._entry.get(of) == entry:
                self._cut_off(entry, "aborted")

    def take(self, n: int) -> np.ndarray:
        entries = self.back.get(n)
        self._stand(entries, TAKEN)
        return entries

    def withdraw(self, entries: np.ndarray) -> None:
        """Take these, which are ready or rest."""
        back = self.back.get(self.back.count)
        back = back[~np.isin(back, entries)]
        self.back.put(np.array([self._entries.rank[back], back]))
        self._stand(entries, TAKEN)

    def handed_out(self, entries: np.ndarray) -> None:
        self._entries.out[entries] += 1

    def taken_back(self, entries: np.ndarray) -> None:
        """Take examples out of a batch that is void: they stand before it."""
        tables, lost = self._entries, self._lost(entries)
        tables.out[entries] -= 1
        tables.end[lost] = tables.available[lost] = tables.at[lost]
        self.withdraw(entries)

    def committed(self, entries: np.ndarray, after: np.ndarray) -> None:
        """Note that a batch is done."""
        tables = self._entries
        tables.out[entries] -= 1
        done = np.where(tables.out[entries] > 0, after, tables.at[entries])
        tables.done[entries] = tables.kept[entries] = done
        self.moved.update({*entries.tolist()}.difference(self._lost(entries)))

    def land(self, entries: np.ndarray) -> None:
        self._stand(entries, RESTING)

    def reenter(self, entries: np.ndarray) -> None:
        self._stand(entries, TAKEN)

    def drop(self, entries: np.ndarray, reason: str) -> None:
        if len(entries):
            self._note_dropped(reason, int(self._entries.left(entries).sum()))
            self._free(entries)

    # Another life

    def resume_log(
        self, begun: Examples, growing: np.ndarray, aborted: list[int], seen: int, index: int
    ) -> np.ndarray:
        """Go on with pending examples; return their entries.

        ``growing``: available steps and opening of each, as of ``seen``; ``index``: that of the
        next sequence that opens.
        """
        self.seen, self.next_index = seen, index
        tables, entries = self._entries, self._entries.resume(begun)
        tables.available[entries], tables.opening[entries] = growing
        tables.draws |= bool(growing[1].any())
        for of, entry in zip(begun.lines.tolist(), entries.tolist(), strict=True):
            self._entry[of] = entry
        self.judging = True
        self._aborted = [(self._entry.get(of), of) for of in aborted]
        self.settle(entries)
        return entries

    # Queries

    def chunks(self) -> set[int]:
        return set()

    def resting(self) -> tuple[int, int, bytes]:
        """Return how many open examples rest, the fewest steps that one of them lacks, its key."""
        tables = self._entries
        used = self._entry.numbers
        rest = used[(tables.end[used] == OPEN) & (tables.standing[used] == RESTING)]
        rest = rest[tables.out[rest] == 0]
        if not len(rest):
            return 0, 0, b""
        at, opening = tables.at[rest], tables.opening[rest]
        own = np.where((at == 0) & (opening > 0), opening, tables.cut.unroll)
        lacks = at + own + self.growth.ahead - tables.available[rest]
        least = int(lacks.argmin())
        return len(rest), int(lacks[least]), self.key(int(tables.line[rest[least]]))
