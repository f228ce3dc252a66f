"""Examples on their way through a feed of segments: admitted in order, cut, finished.

    offer ─► waiting ──capacity──► fresh ──first taken──► started ──last one done──► finished

An admitted example gets a *slot*, its row in all tables (slots.py), and the next insertion index;
its key is then in flight.  Its place in ``capacity`` is free when its last segment is taken, its
slot when that segment is done.
Subclasses decide the order of segments: `ArrivalOrder` (order of arrival) and `LaneOrder`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import calcsize, unpack
from typing import Any, cast

import numpy as np

from ..shaping.input import TURN_BITS
from ..shaping.plan import Shaper
from ..shaping.stored_state import CHUNK, INDEX, Examples
from .slots import RoundMember, Segments, Slots


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


@dataclass(frozen=True, slots=True)
class FoundExample:
    """One example: ``segment``, of ``segments``, is the next or is out.

    ready          its next segment waits for a batch
    not begun      its first segment waits for a batch, or for a place of the capacity
    out            it is in a batch that was made and is not saved
    """

    epoch: int
    segments: int
    segment: int = 0
    out: Segments | None = None

    @property
    def where(self) -> str:
        """The state in words."""
        if self.out is not None:
            return "out"
        return "ready" if self.segment else "not begun"


@dataclass(frozen=True, slots=True)
class OfferedExamples:
    """Facts of a chunk's examples while some of them wait."""

    keys: Sequence[Hashable]
    counts: np.ndarray
    columns: np.ndarray  # columns of the tables
    line: int  # of its first example
    known: np.ndarray | None  # by row: BEGUN or REFUSED (admitted_examples.py); None: all are new

    def left(self, start: int, stop: int) -> int:
        """Return the number of segments of examples that no earlier process has handled."""
        counts = self.counts[start:stop]
        return int(
            counts.sum() if self.known is None else counts[self.known[start:stop] == 0].sum()
        )

    def seek(self, key: Hashable, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Return epoch and number of segments of each example with this key."""
        for row in range(start, stop):
            epoch, name = cast("tuple[int, Hashable]", self.keys[row])
            if name == key and (self.known is None or not self.known[row]):
                yield epoch, int(self.counts[row])


def found_in(slots: Slots, key: Hashable, out: Iterable[Segments]) -> Iterator[FoundExample]:
    """Return a key's examples that have a slot; ``out``: batches that are out, oldest first."""
    batches = list(out)
    for slot, epoch in slots.of_name(key):
        count, segment = int(slots.count[slot]), int(slots.segment[slot])
        for batch in batches:
            at = (batch.slots == slot).nonzero()[0]
            if len(at):
                yield FoundExample(epoch, count, int(batch.segments[at[0]]), batch)
                break
        else:
            yield FoundExample(epoch, count, segment)


#: First insertion index, as in TensorFlow …
FIRST_INDEX = -(2**63)
#: … with the partition in these bits after the sign.
PARTITION_BITS = 12
#: Number of admitted, unbegun examples above which no reads happen ahead.
READ_AHEAD = 1024


#: Places of the states of segments.
AT_SERVER, AT_TRAINER, NOWHERE = "server", "trainer", "none"
#: Marks of an example that an earlier process began or ended, and of one that it refused.
BEGUN, REFUSED = 1, 2


#: Number of a round, and the rank that gets the member.
RoundRank = tuple[int, int]
#: Form in which a trainer's claim names a round and a rank.
_CLAIM = "<qq"


def place_of(claim: bytes) -> RoundRank | None:
    """Return the round and rank that a claim names; None where it names segments."""
    if len(claim) != calcsize(_CLAIM):
        return None
    at, rank = unpack(_CLAIM, claim)
    return at, rank


@dataclass(frozen=True, slots=True, eq=False)
class MemberRows:
    """The rows of a member, by which a later process finds them."""

    indices: np.ndarray
    segments: np.ndarray
    lanes: np.ndarray  # their places in the block

    def to_plain(self) -> list[bytes]:
        return [a.astype("<i8").tobytes() for a in (self.indices, self.segments, self.lanes)]

    @classmethod
    def from_plain(cls, plain: Iterable[bytes]) -> MemberRows:
        return cls(*(np.frombuffer(column, "<i8").astype(np.int64) for column in plain))


def _place(batch: Segments) -> RoundRank:
    """Return the place of a batch that is a member."""
    assert batch.member is not None
    return batch.member.round, batch.member.rank


class RoundMembers:
    """The rounds of one partition, and the members that are to be planned or drafted again.

        ready rows ─► a round, a member for each rank ─► drafted ─► out ─► done
                                                            ▲        │ its lanes were left
             an earlier process: its members ─► again ──────┴────────┘

    A *member* is the batch of one rank in one round: a block of ``batch_size`` rows, of which those
    without an example are empty.  The members of a round are drafted together, and a round that was
    drafted never changes.  The next round is drafted when all members of the last one are done, so
    it depends only on the rows read and the states saved.  Where a batch needs no states of the
    server, it is drafted as soon as trainers want it.  Where no batch crosses the border of an
    epoch, the number of a round begins with its epoch, so all partitions' rounds of an epoch come
    before those of the next.
    """

    def __init__(
        self, world: int, run: int, stripe: int, size: int, epoch: int = 0, at: int = 0
    ) -> None:
        """``size``: rows of a member's block.  Ranks have the stripes from ``stripe`` on.

        ``epoch``: that is read, where no batch crosses its border; else 0.  ``at``: the least
        number of a round.
        """
        self.world = world
        self.run = run
        self.size = size
        self.stripes = list(range(stripe, stripe + world))
        self.epoch = epoch
        self.next_round = max(epoch << TURN_BITS, at)
        self.wanted = 0  # number of rounds that are wanted and not drafted
        self.begun = False  # whether anything was ever wanted
        self.drafted: deque[Segments] = deque()  # not planned yet
        #: To be drafted again; None: with any rows.
        self.again: dict[RoundRank, MemberRows | None] = {}
        self.over = False  # whether no round follows
        self.newest: list[Segments] = []  # the members of the last round that was drafted
        self.moved = False  # whether members were drafted or done since that was stored

    @property
    def rows(self) -> int:
        """Number of rows of a whole round."""
        return self.world * self.size

    @property
    def next_again(self) -> RoundRank | None:
        """The first member to draft again, unless it is of an epoch that is not read yet."""
        first = min(self.again, default=None)
        return first if first is not None and first[0] >> TURN_BITS <= self.epoch else None

    def want(self, more: int) -> None:
        """Allow more rounds, and all members of ``again``."""
        self.wanted, self.begun = self.wanted + more, True

    def add(self, batch: Segments) -> None:
        """Add a member that was drafted."""
        self.drafted.append(batch)
        self.moved = True

    def next_member(self, rank: int) -> RoundMember:
        """Return the place of a rank's batch in the round that is being drafted."""
        return RoundMember(self.next_round, rank, self.size)

    def leave(self, stripe: int, instead: int, out: Iterable[Segments]) -> None:
        """Give a rank another stripe; its members that are out are drafted again."""
        self.stripes[self.stripes.index(stripe)] = instead
        self.again.update((_place(batch), None) for batch in out)
        self.drafted = deque(batch for batch in self.drafted if batch.stripe != stripe)

    def newest_rows(self) -> list[list[Any]]:
        """Return round, rank and rows of each member of the last round, as plain data."""
        rows = []
        for batch in self.newest:
            found = MemberRows(batch.indices, batch.segments, batch.lanes)
            rows.append([*_place(batch), *found.to_plain()])
        return rows


class AdmittedExamples(Shaper):
    """The common part of both orders: admission, capacity, counts.

    ``capacity`` None is unbounded, ``states`` says where they are kept.  A shaper whose drafts are
    Segments; see ``plan.Shaper``.
    """

    kind = "sequences"
    rewound = 0  # number of done segments that are handed out again
    through: Sequence[int] = ()  # see ``take_through``
    members: RoundMembers | None = None  # None: batches are for any trainer
    first_stripe = 0  # of batches for any trainer in the order of arrival
    ahead = False  # whether a batch is drafted before the one before it is done
    #: Insertion indices and lanes of unfinished examples, for the stripes that open next.
    places: Sequence[tuple[np.ndarray, np.ndarray]] = ()

    def __init__(
        self,
        batch_size: int,
        capacity: int | None = None,
        allow_small_batch: bool = False,
        partition: int = 0,
        states: str = AT_SERVER,
    ) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.capacity = capacity
        self.allow_small = allow_small_batch
        self.in_flight = 0  # examples that hold a place of the capacity
        self._read_ahead = max(READ_AHEAD, 4 * batch_size)
        #: Insertion index of the next example.
        self.next_index = FIRST_INDEX + (partition << (63 - PARTITION_BITS))
        self._waiting: deque[tuple[int, int, int]] = deque()  # chunk, start, stop
        self._offered: dict[int, OfferedExamples] = {}
        self._fresh = Fifo()
        self._back = OldestFirst()  # examples that were handed out and whose next segment is ready
        self.cancelled = False
        self._uses: dict[int, int] = {}  # chunk → examples of it that still need its payload
        self.refused: list[tuple[int, int]] = []  # see ``take_refused``
        self._out: dict[int, Segments] = {}  # in trainers' hands, the oldest first
        self.dry: list[int] = []  # see ``take_dry``
        self._slots = Slots(min(capacity or READ_AHEAD, READ_AHEAD))
        self.find, self.key_of = self._slots.find, self._slots.key_of
        self.keys_of = self._slots.keys_of
        self.states = states
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Begin without batches."""

    # Input

    @property
    def hungry(self) -> bool:
        """Whether more examples are wanted now."""
        if self._waiting or self._finished or self._fresh.count >= self._read_ahead:
            return False
        places = self._places
        return places is None or self.in_flight < places

    def offer(self, chunk: int, rows: int, facts: Mapping[str, Any]) -> None:
        """Take a chunk's examples, in order: the ``key`` of each and its ``count`` of segments.

        ``line`` is the number of the first, and ``known`` marks those that an earlier process
        handled: they are not admitted again, and already have their insertion index.
        """
        self._check_open(chunk)
        if rows:
            counts, line = np.asarray(facts["count"], np.int64), facts.get("line", 0)
            columns = self._slots.columns(chunk, counts, line)
            self._offered[chunk] = OfferedExamples(
                facts["key"], counts, columns, line, facts.get("known")
            )
            self._waiting.append((chunk, 0, rows))
            self._uses[chunk] = rows
            self._admit()

    def finish(self, drop: bool = False) -> None:
        """End the input.  With ``drop`` waiting examples are dropped."""
        self._finished = True
        if drop:
            self.cancelled = True
            for chunk, start, stop in self._waiting:
                self._note_dropped("cancelled", self._offered[chunk].left(start, stop))
                self._release(chunk, stop - start)
            self._waiting.clear()
            self._offered.clear()

    def take_refused(self) -> list[tuple[int, int]]:
        """Return chunk and row of examples that were refused because their key was in flight."""
        refused, self.refused = self.refused, []
        return refused

    @property
    def _places(self) -> int | None:
        """How many examples may be in flight."""
        return self.capacity

    @property
    def _closed(self) -> bool:
        """Whether no more examples will be admitted."""
        return self._finished and not self._waiting

    def _admit(self) -> None:
        """Admit examples in order, while there is room."""
        places = self._places
        while self._waiting:
            chunk, start, stop = self._waiting[0]
            end = stop if places is None else min(stop, start + places - self.in_flight)
            offered = self._offered[chunk]
            if end <= start:
                return
            if end < stop:
                self._waiting[0] = chunk, end, stop
            else:
                self._waiting.popleft()
                del self._offered[chunk]
            columns, keys = offered.columns[:, start:end], offered.keys[start:end]
            if offered.known is None and self._slots.are_new(keys):
                first, self.next_index = self.next_index, self.next_index + len(keys)
                columns[INDEX] = np.arange(first, self.next_index)
            else:
                rows = self._let_in(chunk, offered, start, end)
                columns, keys = offered.columns[:, rows], [offered.keys[row] for row in rows]
            if len(keys):
                self._fresh.put(self._slots.enter(columns, keys))
                self.in_flight += len(keys)

    def _let_in(self, chunk: int, offered: OfferedExamples, start: int, end: int) -> list[int]:
        """Admit rows out of a range, each with its insertion index; return them."""
        keys, known, reserve = offered.keys, offered.known, self._slots.reserve
        rows = []
        for row in range(start, end):
            mark = 0 if known is None else known[row]
            if not mark and not reserve(keys[row], offered.line + row):
                self.refused.append((chunk, row))
                mark = REFUSED
            if mark != REFUSED:
                self.next_index += 1
            if mark:
                self._release(chunk, 1)
            else:
                rows.append(row)
                offered.columns[INDEX, row] = self.next_index - 1
        return rows

    def resume(self, begun: Examples) -> np.ndarray:
        """Resume examples that an earlier process began; return their slots."""
        slots = self._slots.resume(begun)
        self.in_flight += len(slots)
        for chunk, uses in Counter(begun.numbers[CHUNK].tolist()).items():
            self._uses[chunk] = self._uses.get(chunk, 0) + uses
        self._come_back(slots)
        return slots

    def _come_back(self, slots: np.ndarray) -> None:
        """Make the next segments of these examples ready; indices ascend."""
        self._back.put(self._slots.index[slots], slots)

    def _take_ready(self, n: int) -> np.ndarray:
        """Take ``n`` ready examples: the oldest that came back, then fresh ones."""
        if not self._back.count:
            return self._fresh.get(n)
        back = self._back.get(min(n, self._back.count))
        return back if len(back) == n else np.concatenate([back, self._fresh.get(n - len(back))])

    def _withdraw(self, slots: np.ndarray) -> None:
        """Remove these from the ready examples."""
        back = self._back.get(self._back.count)
        back = back[~np.isin(back, slots)]
        self._back.put(self._slots.index[back], back)
        self._fresh.remove(slots)

    def _drop_ready(self, reason: str) -> None:
        """Drop all ready examples."""
        self._drop(self._back.get(self._back.count), reason)
        self._drop(self._fresh.get(self._fresh.count), reason)

    @property
    def slots(self) -> int:
        """Size of the tables, above all slots.  It only grows."""
        return self._slots.size

    # Segments

    @abstractmethod
    def want(self, more: int, stripe: int = 0) -> None:
        """Allow more batches."""

    @abstractmethod
    def saved(self, batch: Segments) -> np.ndarray | None:
        """Mark a batch as done: places of the rows whose states are wanted.

        Return None if saves are not possible any more.
        """

    @property
    def starved(self) -> bool:
        """Whether a batch is wanted that needs states which trainers have."""
        return False

    def leave(self, stripe: int, instead: int = -1) -> None:
        """Close the stripe of a trainer that left; its rank, if any, gets stripe ``instead``."""
        return

    def keep(self, batch: Segments, rows: np.ndarray) -> np.ndarray:
        """Note states of rows after a batch; the rows whose states are still of use."""
        return rows[:0]

    def take_dry(self) -> list[int]:
        """Return stripes of lanes that ran dry since the last call; they are closed."""
        dry, self.dry = self.dry, []
        return dry

    def take_through(self) -> list[int]:
        """Return slots of examples in lanes that ended or were dropped since the last call."""
        return []

    def _hand_out(self, batch: Segments) -> Segments:
        """Hand a batch out; free the places of examples that end with it."""
        self._out[id(batch)] = batch
        self._leave_capacity(batch.ended)
        self._admit()
        return batch

    def _take_back(self, batch: Segments) -> None:
        if self._out.pop(id(batch), None) is None:
            raise ValueError("a batch is saved that is not out: it was saved before")

    def _leave_capacity(self, slots: np.ndarray) -> None:
        """Free the places of examples whose last segments are taken."""
        self.in_flight -= len(slots)
        self._slots.land(slots)

    def _reenter(self, slots: np.ndarray) -> None:
        """Take examples back into the capacity, whose last segments were handed out."""
        self.in_flight += len(slots)
        self._slots.reenter(slots)

    def _end(self, slots: np.ndarray) -> None:
        """Free the slots of examples whose segments are all done, and need their chunks no more."""
        self._need_no_payload(slots)
        self._free_slots(slots)

    def _free_slots(self, slots: np.ndarray) -> None:
        """Free the slots of examples that ended or were dropped."""
        self._slots.free(slots)

    def _need_no_payload(self, slots: np.ndarray) -> None:
        uses = self._uses
        for chunk in self._slots.chunk[slots].tolist():
            uses[chunk] -= 1
            if not uses[chunk]:
                del uses[chunk]

    def _release(self, chunk: int, rows: int) -> None:
        self._uses[chunk] -= rows
        if not self._uses[chunk]:
            del self._uses[chunk]

    def _drop(self, slots: np.ndarray, reason: str) -> None:
        """Drop examples in flight, and count their remaining segments."""
        left = self._slots.count[slots] - self._slots.segment[slots]
        self._note_dropped(reason, int(left.sum()))
        self._leave_capacity(slots)
        self._need_no_payload(slots)
        self._free_slots(slots)

    @abstractmethod
    def expected(self) -> Segments | None:
        """Return the next full batch if the oldest one out is saved first; None if unknown."""

    # Queries

    def chunks(self) -> set[int]:
        """Return the chunks whose payload is still needed."""
        return set(self._uses)

    def standing(self) -> dict[str, int]:
        """Return the number of segments by the reason of their wait.

        ``ready`` wait for nothing, ``leased`` for the states of a trainer; ``full`` counts examples
        that wait for a place of the capacity.
        """
        return {
            "ready": self.ready,
            "leased": sum(len(batch) for batch in self._out.values()),
            "full": sum(stop - start for _, start, stop in self._waiting),
        }

    def sizes(self) -> dict[str, int]:
        """Return the number of ready and of incomplete segments, and of examples in flight.

        A segment of an admitted example is ready when it only waits for a batch, and
        incomplete until the state before it is saved.
        """
        incomplete = self._slots.left() - self._next_out - self.takeable
        return {"ready": self.takeable, "incomplete": incomplete, "in_flight": self.in_flight}

    @property
    def ready(self) -> int:
        """Number of segments that can be taken now, except those of begun lanes."""
        return self._back.count + self._fresh.count

    @property
    def takeable(self) -> int:
        """Number of segments that could be taken now."""
        return self.ready

    @property
    def _next_out(self) -> int:
        """Number of examples whose next segment is in a trainer's hands."""
        return 0

    def seek(self, key: Hashable) -> list[FoundExample]:
        """Return the examples of a key in all epochs."""
        waiting = ((self._offered[chunk], start, stop) for chunk, start, stop in self._waiting)
        return [
            *found_in(self._slots, key, self._out.values()),
            *(
                FoundExample(*known)
                for offered, *rows in waiting
                for known in offered.seek(key, *rows)
            ),
        ]

    def oldest_out(self) -> Segments | None:
        """Return the batch that has been out for the longest time."""
        return next(iter(self._out.values()), None)

    @property
    def done(self) -> bool:
        """Whether all examples have ended and no more can come."""
        members = self.members
        if members is not None and (
            members.drafted or members.next_again or (self.ahead and self._out)
        ):  # a member without rows, too, is made again when its rank leaves
            return False
        return self._closed and not self._slots.live

    # Rounds of ranks

    def deal(self, world: int, run: int, stripe: int, epoch: int = 0, at: int = 0) -> None:
        """Draft rounds, from number ``at`` on, for ``world`` ranks; 0: batches for any trainer.

        All batches that are out become ready again, with the states that are kept here.
        """
        self.members = None
        self._recall()
        self.first_stripe = stripe
        if world:
            self.members = RoundMembers(world, run, stripe, self.batch_size, epoch, at)
            self._open_stripes()
        self._adapt_to_rows()

    def resume_rounds(self, members: RoundMembers, rows: dict[RoundRank, MemberRows]) -> None:
        """Resume the rounds of an earlier process; ``rows``: of the last round.

        Unfinished members go to ``again``.
        """
        self.members = members
        self._open_stripes()
        self._adapt_to_rows()
        if self.ahead:
            return
        for place, known in rows.items():
            if place in members.again:
                members.again[place] = known
            else:
                self._keep_lanes(place[1], known)

    def _adapt_to_rows(self) -> None:
        self._read_ahead = max(READ_AHEAD, 4 * self.most_rows)
        self._drop_leftovers()

    @property
    def _ranks(self) -> RoundMembers:
        """The members, where batches are for ranks."""
        assert self.members is not None
        return self.members

    @property
    def most_rows(self) -> int:
        """Number of rows that are drafted together: those of a batch, or of a round."""
        return self.batch_size if self.members is None else self.members.rows

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        members = self.members
        if members is not None:  # an earlier process may have drafted rounds of this epoch
            members.epoch = epoch
            members.next_round = max(members.next_round, epoch << TURN_BITS)

    def places_after(self, saved: Mapping[int, Segments]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ``places`` for a later life; none in the order of arrival."""
        return []

    # Members

    def _next_member(self) -> Segments | None:
        members = self._ranks
        if not members.drafted and not (members.begun and self._draft_more()):
            return None
        return members.drafted.popleft()

    def _draft_more(self) -> bool:
        """Draft the next batch or round; return False if it has to wait for states or input."""
        members = self._ranks
        again = members.next_again
        if again is not None:
            return self._draft_again(again)
        waits = self._out and not self.ahead
        if waits or not members.wanted:
            return False
        parts = self._round()
        if parts:
            members.newest = parts
            members.next_round += 1
            members.wanted -= 1
            for batch in parts:
                members.add(batch)
            self._drop_leftovers()
        return bool(parts)

    def _draft_again(self, place: RoundRank) -> bool:
        """Draft a member of ``again``; return False if its rows must be read first."""
        members = self._ranks
        rows = members.again[place]
        member = RoundMember(*place, members.size)
        if rows is None:
            batch = self._any_rows(member)
            if batch is None:
                return False
        else:
            slots = self.find(rows.indices)
            if (slots < 0).any() and not self._closed:
                return False
            there = (slots >= 0).nonzero()[0]  # others have been left out since
            there = there[self._slots.segment[slots[there]] == rows.segments[there]]
            batch = self._same_rows(member, slots[there], rows.lanes[there])
        del members.again[place]
        members.add(batch)
        return True

    def will_make(self, place: RoundRank) -> bool:
        """Return whether a member is or will be drafted again with the same rows."""
        if self.members is None or self.ahead:
            return False
        return place in self.members.again or place in map(_place, self._out.values())

    @property
    def left(self) -> list[list[int]]:
        """Round and rank of members that are not done."""
        out = map(_place, self._out.values())
        return sorted([*place] for place in (*out, *self._ranks.again))

    # The order

    @abstractmethod
    def _recall(self) -> None:
        """Take back all batches that are out."""

    @abstractmethod
    def _drop_leftovers(self) -> None:
        """Drop examples that can not fill a batch or a round any more, unless it may be smaller."""

    @abstractmethod
    def _round(self) -> list[Segments]:
        """Return the members of the next round; empty if it has to wait, or there is none."""

    @abstractmethod
    def _same_rows(self, member: RoundMember, slots: np.ndarray, lanes: np.ndarray) -> Segments:
        """Make a member of exactly these rows, which are ready."""

    def _any_rows(self, member: RoundMember) -> Segments | None:
        """Make a member of the rows that its rank has now."""
        raise ValueError(f"the rows of {member} are not known")

    def _open_stripes(self) -> None:
        """Open the stripes of ranks, where rows have lanes."""
        return

    def _keep_lanes(self, rank: int, rows: MemberRows) -> None:
        """Put the unfinished rows of a done member in its lanes."""
        return
