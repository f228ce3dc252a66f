"""Small synthetic partitions: rows without payload, formed as headrace forms them.

    Plain      rows ─► buckets ─► batches 0, 1, 2 …, ahead of requests ─► with ranks: rounds
    Segments   examples ─► ready ─► a batch for a request, or a round    (arrival, or lanes)

A batch is decided, then placed in the slab; one that has no room there is placed first by the next
``make``.  Its body is what its trainer sees: rows, or the states of segments.
"""

from __future__ import annotations

import heapq
import struct
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from headrace_server.leasing.protocol import ANYONE, EARLY, Batch, Outlook, Slot, Token, Turn

from .journal import Stored

#: A partition notes its cursor once in so many batches.
MARK = 4
_PLACE = struct.Struct("<iqiQ")
#: An insertion index has the number of the example below the partition.
_EXAMPLE = (1 << 51) - 1


def place_of(rows: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(_PLACE.pack(*row) for row in rows)


def rows_of(place: bytes) -> list[tuple[int, int, int, int]]:
    """Return lane, example, segment and version of each row."""
    return [(lane, e & _EXAMPLE, *rest) for lane, e, *rest in _PLACE.iter_unpack(place)]


class Slab:
    """The memory of an owner: room for some batches."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.bodies: set[int] = set()
        self.mapped: list[Any] = []  # bodies of batches that are gone

    def has_room(self, beyond: bool = False) -> bool:
        return beyond or len(self.bodies) < self.room

    def gone(self, batch: Batch) -> None:
        """Keep the body of a batch until its trainer has unmapped it."""
        if batch.body is not None:
            assert id(batch.body) in self.bodies, f"{batch} is freed twice"
            self.mapped.append(batch.body)
            batch.body = None

    def free(self) -> None:
        """Free the bodies of all batches that are gone."""
        self.bodies.difference_update(map(id, self.mapped))
        self.mapped.clear()


class _Placing:
    """Bodies of batches, and records for the journal."""

    slab: Slab

    def __init__(self) -> None:
        self.records: list[tuple] = []
        self.gone: list[Batch] = []
        self.unplaced: list[Batch] = []

    def take_records(self) -> list[tuple]:
        records, self.records = self.records, []
        return records

    def _place(
        self, batches: list[Batch], slot: Slot = ANYONE, beyond: bool = False
    ) -> list[Batch] | Outlook:
        """Place batches that were decided; return those that can go out."""
        placed = [batch for batch in batches if batch.body is not None]
        self.unplaced += [batch for batch in batches if batch.body is None]
        beyond = beyond and self._bring_forward(slot)
        while self.unplaced and self.slab.has_room(beyond and not placed):
            batch = self.unplaced.pop(0)
            batch.body = self.body(batch)
            self.slab.bodies.add(id(batch.body))
            placed.append(batch)
        return placed or (Outlook.FULL if self.unplaced else [])

    def _bring_forward(self, slot: Slot) -> bool:
        """Let a slot's first batch be placed next; return whether it has one that is not."""
        of_slot = (batch for batch in self.unplaced if batch.slot == slot)
        first = min(of_slot, key=lambda batch: batch.turn, default=None)
        if first is not None:
            self.unplaced.remove(first)
            self.unplaced.insert(0, first)
        return first is not None

    def _withdraw(self, batch: Batch) -> bool:
        """Take a batch out of those that wait for room, if it is there."""
        for at, one in enumerate(self.unplaced):
            if one.name == batch.name:
                del self.unplaced[at]
                return True
        return False

    def body(self, batch: Batch) -> Any:
        raise NotImplementedError

    def next_turn(self, slot: Slot) -> Turn:
        """Return the least turn that waits for room, or is not decided."""
        turns = [batch.turn for batch in self.unplaced if batch.slot == slot]
        return min([*turns, self._next_turn(slot)])

    def _next_turn(self, slot: Slot) -> Turn:
        raise NotImplementedError


@dataclass(slots=True)
class _Place:
    """Where a plain partition reads; from a copy of it another life goes on."""

    epoch: int = 0
    row: int = 0
    number: int = 0
    first: int = 0  # number of the first batch of the epoch
    size: int = 0
    waiting: dict[int, list] = field(default_factory=dict)  # rows by bucket
    run: tuple[int, int] = (0, 0)
    filled: dict[tuple, int] = field(default_factory=dict)  # by (epoch, bucket): of a round
    rounds: dict[int, int] = field(default_factory=dict)  # by epoch: rounds dealt


class Plain(_Placing):
    """A partition of ``rows`` rows in each of ``epochs``."""

    ahead, lanes, voids = True, False, False

    def __init__(
        self, number, stored: Stored, slab, *, rows, size, epochs=1, borders=False, buckets=1
    ):
        super().__init__()
        self.number, self.rows, self.epochs, self.slab = number, rows, epochs, slab
        self.borders, self.buckets = borders, buckets
        self.done: dict[int, Any] = dict(stored.done)  # tokens by number
        self.base = set(stored.base)  # done before this deal
        self.run, self.world = stored.run, stored.world
        self.after = dict(stored.after)  # by rank: the turn after its last commit
        self.at = deepcopy(stored.cursor) or _Place(size=size)
        if self.at.run != (self.run, self.world):
            self.at.run, self.at.filled, self.at.rounds = (self.run, self.world), {}, {}
        self.orders = [order for order in stored.orders if order[0] >= self.at.number]
        self.limit = min([o[0] for o in stored.orders if o[1] == "close"], default=None)
        self.contents: dict[int, tuple] = {}  # rows of batches that were made and are not done
        self.open: dict[int, Batch] = {}  # made and not done
        self.drafts: dict[int, tuple] = {}  # of open batches: epoch and number in it, bucket
        self.claimed: dict[int, Batch] = {}  # reclaimed and not made again
        self.groups: dict[tuple, list[Batch]] = {}  # incomplete rounds
        self.marks = [(self.at.number, deepcopy(self.at))]
        self.finished = False
        self.changed: int | None = None  # where an order of this life takes effect

    # Making

    @property
    def epoch(self) -> int:
        return self.at.epoch if self.borders else 0

    def body(self, batch: Batch) -> Any:
        return [self.contents[batch.number]]  # an object of its own

    def make(self, slot: Slot, epoch: int, beyond: bool = False) -> list[Batch] | Outlook:
        if self.unplaced and (not beyond or self._bring_forward(slot)):
            return self._place([], slot, beyond)
        if self.borders and self.at.epoch > epoch:
            return Outlook.OVER
        if not (self.slab.has_room(beyond) or self.finished):
            return Outlook.FULL
        at = self.at
        if (draft := None if self.finished else self._draft()) is None:
            self.finished = True
            self._drop(lambda _: True)
            self._note_cursor()
            busy = any(b.slot == slot for b in self.open.values()) or self.claimed
            return Outlook.IDLE if busy else Outlook.ENDED
        bucket, rows = draft
        if not rows:
            return []
        number, at.number = at.number, at.number + 1
        turn = (rows[0][0], number - at.first) if self.borders else (0, number)
        self.contents[number] = tuple(rows)
        made = self._deal(Batch(self.number, number, ANYONE, turn, len(rows)), bucket)
        if at.number % MARK == 0:
            self.marks.append((at.number, deepcopy(at)))
        return self._place(made, slot, beyond)

    def _draft(self) -> tuple[int, list] | None:
        at = self.at
        while self.orders and self.orders[0][0] <= at.number:
            _, kind, what = self.orders.pop(0)
            if kind == "size":
                at.size = what
        closed = self.limit is not None and at.number >= self.limit
        while at.epoch < self.epochs and not closed:
            if at.row < self.rows:
                row = (at.epoch, at.row)
                at.row += 1
                bucket = (self.number + at.row * at.row) % self.buckets
                rows = at.waiting.setdefault(bucket, [])
                rows.append(row)
                if len(rows) >= at.size:
                    return bucket, at.waiting.pop(bucket)
            elif self.borders and at.waiting:
                bucket = min(at.waiting)
                return bucket, at.waiting.pop(bucket)
            elif at.epoch + 1 < self.epochs:
                at.epoch, at.row = at.epoch + 1, 0
                if self.borders:
                    at.first = at.number
                    return -1, []  # the next step is of another epoch
            else:
                break
        if at.waiting:  # small ones at the end; those of a closed feed, too
            bucket = min(at.waiting)
            return bucket, at.waiting.pop(bucket)
        return None

    # Rounds of ranks: of each bucket the next `world` batches that are not done when the run begins

    def _deal(self, batch: Batch, bucket: int) -> list[Batch]:
        """Return the batches that can go out now: a batch, or a whole round."""
        number, epoch = batch.number, self.contents[batch.number][0][0]
        kind = (epoch, bucket)
        if number in self.base or (not self.world and number in self.done):
            self.contents.pop(number)
            return []
        if number not in self.done:
            self.open[number], self.drafts[number] = batch, (batch.turn, bucket)
        if not self.world:
            return self._out([batch])
        self._drop(lambda group: group[0] < epoch)
        group = self.groups.setdefault(kind, [])
        group.append(batch)
        self.at.filled[kind] = (self.at.filled.get(kind, 0) + 1) % self.world
        if self.at.filled[kind]:
            return []
        del self.groups[kind]
        # rounds are counted in their epoch, where batches end with theirs
        of = epoch if self.borders else 0
        at = self.at.rounds.get(of, 0)
        self.at.rounds[of] = at + 1
        first = self.world - len(group)  # members before the cursor are done
        for i, member in enumerate(group):
            member.slot, member.turn = first + i, (of, at)
        return self._out([member for member in group if member.number not in self.done])

    def _out(self, batches) -> list[Batch]:
        return [batch for batch in batches if self.claimed.pop(batch.number, None) is None]

    def _drop(self, which) -> None:
        """Leave out the batches of incomplete rounds."""
        for kind in [kind for kind in self.groups if which(kind)]:
            for batch in self.groups.pop(kind):
                if self.open.pop(batch.number, None) is not None:
                    self._withdraw(batch)
                    self.gone.append(batch)
                    self.records.append(("drop", batch.number))
                    self.done[batch.number] = None
                    self._forget(batch.number)
        for kind in [kind for kind in self.at.filled if which(kind)]:
            del self.at.filled[kind]

    def _forget(self, number: int) -> None:
        for of in (self.open, self.drafts, self.claimed, self.contents):
            of.pop(number, None)

    def deal(self, run: int, world: int) -> list[Batch]:
        self.records.append(("deal", run, world))
        left = [(self.open[number], *self.drafts[number]) for number in sorted(self.open)]
        self.run, self.world = self.at.run = run, world
        self.base = set(self.done)
        self.after.clear()
        self.open, self.drafts, self.groups, self.claimed = {}, {}, {}, {}
        self.unplaced = []
        self.at.filled, self.at.rounds = {}, {}
        dealt = []
        for old, turn, bucket in left:
            old.slot, old.turn = ANYONE, turn
            dealt += self._deal(old, bucket)
        self.marks[0][1].run = (-1, -1)  # it is of another run, and later ones lack this deal
        self.marks[1:] = [(self.at.number, deepcopy(self.at))]
        self._note_cursor()
        placed = self._place(dealt)
        return placed if isinstance(placed, list) else []

    def _next_turn(self, slot: Slot) -> Turn:
        if self.world:  # a new life has not yet made all rounds that the rank has done
            dealt = self.epoch, self.at.rounds.get(self.epoch, 0)
            return max(dealt, self.after.get(slot, dealt))
        at = self.at
        return (at.epoch, at.number - at.first) if self.borders else (0, at.number)

    # Trainers

    def seat(self, slot: Slot) -> None:
        pass

    def live(self, slot: Slot) -> bool:
        return True

    def commit(self, batch: Batch, token: Token, payload: Any) -> None:
        number = batch.number
        self.done[number] = token
        self.after[batch.slot] = batch.turn[0], batch.turn[1] + 1
        self._forget(number)
        self.records.append(("commit", number, batch.slot, batch.turn, token, None))
        self._note_cursor()

    def returned(self, batch: Batch) -> bool:
        if self.claimed.pop(batch.number, None) is not None:
            return False  # its number comes again
        if batch.body is None:
            self.unplaced.append(self.open[batch.number])
            return False
        return True

    def leave(self, slot: Slot, since: Turn = (0, -1)) -> None:
        pass

    def reclaim(self, batch: Batch) -> bool:
        number = batch.number
        if self._withdraw(batch):
            return True
        if number in self.done or number in self.claimed or number < self.at.number:
            return False
        if self.changed is not None and number >= self.changed:
            return False
        self.claimed[number] = batch
        return True

    def _note_cursor(self) -> None:
        first = min([*self.open, *self.claimed, self.at.number])
        moved = False
        while len(self.marks) > 1 and self.marks[1][0] <= first:
            del self.marks[0]
            moved = True
        if moved:
            self.records.append(("move", deepcopy(self.marks[0][1])))

    # Orders

    def propose(self, what: tuple) -> tuple | None:
        """Let it take effect after all batches that may be known; None: ask again later.

        With ranks it waits until a new life has made all rounds again of which a rank has a part.
        """
        begun = sum(self.at.filled.values()) > sum(
            batch.number not in self.done for group in self.groups.values() for batch in group
        )
        behind = max(self.done, default=-1) >= self.at.number
        if self.world and (self.claimed or begun or behind):
            return None
        places = [order[0] for order in self.orders]
        known = [number + 1 for number in (*self.done, *self.claimed)]
        self.changed = max([self.at.number, *known, *places])
        order = self.changed, *what
        self.records.append(("order", *order))
        return order

    def apply(self, order: tuple) -> None:
        if order[1] == "close":
            self.limit = order[0] if self.limit is None else min(self.limit, order[0])
        else:
            self.orders.append(order)


@dataclass(slots=True)
class _Example:
    done: int = 0  # segments committed
    handed: int = 0  # segments handed out
    version: int = 0  # the token of the commit that saved its state
    state: Any = None
    seated: bool = False  # in a lane


class Segments(_Placing):
    """A partition of examples with ``counts`` segments each, in each of ``epochs``."""

    ahead = False

    def __init__(
        self, number, stored: Stored, slab, *, counts, size, capacity, order="arrival",
        states=True, epochs=1, borders=False,
    ):  # fmt: skip
        super().__init__()
        self.number, self.counts, self.size, self.capacity = number, counts, size, capacity
        self.slab = slab
        self.lanes, self.with_states = order == "lanes", states
        self.per_epoch, self.epochs, self.borders = len(counts), epochs, borders
        self.total = len(counts) * epochs
        self.limit = min([o[0] for o in stored.orders], default=self.total)
        self.run, self.world = stored.run, stored.world
        self.going: dict[int, _Example] = {}
        self.through: set[int] = set()
        for e, (done, version, state) in stored.examples.items():
            if done == self._count(e):
                self.through.add(e)
            else:
                self.going[e] = _Example(done, done, version, state)
        self.ready = sorted(self.going)  # a heap
        self.fresh = 0
        self.seats: dict[Slot, list[int | None]] = {}
        self.number_next, self.turn = stored.number, stored.turn  # of the last batch or round
        self.lacking = set(range(self.world)) - stored.members if stored.members else set()
        # an epoch goes on while ranks lack members of its last round, be they empty
        self.epoch = self.turn[0] if self.lacking else self._first_epoch()
        if self.turn[0] < self.epoch:
            self.turn = self.epoch, -1
        self.open: dict[tuple, Batch] = {}  # by name

    def _count(self, e: int) -> int:
        return self.counts[e % self.per_epoch]

    def _first_epoch(self) -> int:
        if not self.borders:
            return 0
        left = next((e for e in range(self.limit) if e not in self.through), self.limit - 1)
        return max(0, left) // self.per_epoch

    # Which examples are ready

    def _fill(self, n: int) -> int:
        """Admit examples until ``n`` are ready; return how many are."""
        end = min(self.limit, (self.epoch + 1) * self.per_epoch if self.borders else self.total)
        while self.fresh < end:
            if self.fresh in self.going or self.fresh in self.through:
                self.fresh += 1
                continue
            if len(self.ready) >= n or self._in_flight() >= self.capacity:
                return len(self.ready)
            self.going[self.fresh] = _Example()
            heapq.heappush(self.ready, self.fresh)
            self.fresh += 1
        return len(self.ready)

    def _in_flight(self) -> int:
        """Count examples whose last segment is not handed out."""
        return sum(x.handed < self._count(e) for e, x in self.going.items())

    @property
    def _exhausted(self) -> bool:
        end = min(self.limit, (self.epoch + 1) * self.per_epoch if self.borders else self.total)
        return self.fresh >= end

    def _complete(self) -> bool:
        self._fill(1)
        return not self.going and self._exhausted

    @property
    def voids(self) -> bool:
        return self.lanes and not self.world

    @property
    def finished(self) -> bool:
        """Whether all is committed."""
        all_fresh = self.fresh >= min(self.limit, self.total)
        return all_fresh and not self.going and not self.lacking and not self.open

    # Making

    def make(self, slot: Slot, epoch: int, beyond: bool = False) -> list[Batch] | Outlook:
        if self.unplaced and (not beyond or self._bring_forward(slot)):
            return self._place([], slot, beyond)
        if epoch < self.epoch:
            return Outlook.OVER
        if not self.lacking and self._complete():
            last = (self.epoch + 1) * self.per_epoch >= self.limit if self.borders else True
            if last:
                return Outlook.ENDED
            if epoch == self.epoch:
                return Outlook.OVER
            self._begin(self.epoch + 1)
        elif epoch > self.epoch:
            return Outlook.IDLE
        made = self._round(slot) if self.world else self._one(slot)
        return self._place(made, slot, beyond) if made else Outlook.IDLE

    def _begin(self, epoch: int) -> None:
        self.epoch, self.turn, self.seats = epoch, (epoch, -1), {}

    def _one(self, slot: Slot) -> list[Batch]:
        if self.lanes:
            if self.with_states and any(batch.slot == slot for batch in self.open.values()):
                return []
            self.turn = self.turn[0], self.turn[1] + 1
            batch = self._seated(slot, [slot])
        else:
            n = self._fill(self.size)
            if not n or (n < self.size and not self._exhausted):
                return []
            self.turn = self.turn[0], self.turn[1] + 1
            taken = [heapq.heappop(self.ready) for _ in range(min(n, self.size))]
            batch = self._draft(slot, list(enumerate(taken)))
        if not batch.rows:
            del self.open[batch.name]
            self.turn = self.turn[0], self.turn[1] - 1
            self.seats.pop(slot, None)
            return []
        return [batch]

    def _round(self, rank: int) -> list[Batch]:
        if not self.lacking:
            if self.open:
                return []
            self.lacking, self.turn = set(range(self.world)), (self.turn[0], self.turn[1] + 1)
        if rank not in self.lacking:
            return []
        ranks = sorted(self.lacking)
        self.lacking = set()
        if self.lanes:
            self._seat(ranks)
            return [self._seated(r, ()) for r in ranks]
        n = min(self._fill(len(ranks) * self.size), len(ranks) * self.size)
        taken = [heapq.heappop(self.ready) for _ in range(n)]
        return [
            self._draft(r, list(enumerate(taken[i :: len(ranks)]))) for i, r in enumerate(ranks)
        ]

    def _seat(self, slots) -> None:
        """Put ready examples into empty lanes, in turn."""
        seats = [self.seats.setdefault(slot, [None] * self.size) for slot in slots]
        for lane in range(self.size):
            for mine in seats:
                if mine[lane] is None and self._fill(1):
                    mine[lane] = e = heapq.heappop(self.ready)
                    self.going[e].seated = True

    def _seated(self, slot: Slot, fill) -> Batch:
        self._seat(fill)
        mine = self.seats[slot]
        batch = self._draft(slot, [(lane, e) for lane, e in enumerate(mine) if e is not None])
        for lane, e, segment, _ in rows_of(batch.place):
            if segment + 1 == self._count(e):
                mine[lane], self.going[e].seated = None, False
        return batch

    def _draft(self, slot: Slot, rows: list[tuple[int, int]]) -> Batch:
        place = []
        for lane, e in rows:
            x = self.going[e]
            place.append((lane, e, x.handed, x.version if self.with_states else 0))
            x.handed += 1
        number, self.number_next = self.number_next, self.number_next + 1
        batch = Batch(self.number, number, slot, self.turn, len(rows), place_of(place))
        self.open[batch.name] = batch
        return batch

    def body(self, batch: Batch) -> Any:
        if not self.with_states:
            return []
        return [self.going[e].state for _, e, _, _ in rows_of(batch.place)]

    def _next_turn(self, slot: Slot) -> Turn:
        if isinstance(slot, int) and slot in self.lacking:
            return self.turn
        return self.turn[0], self.turn[1] + 1

    # Trainers

    def seat(self, slot: Slot) -> None:
        pass

    def live(self, slot: Slot) -> bool:
        return any(e is not None for e in self.seats.get(slot, ()))

    def commit(self, batch: Batch, token: Token, payload: Any) -> tuple[str, str] | None:
        place = rows_of(batch.place)
        if any(self.going[e].done != segment for _, e, segment, _ in place):
            return EARLY, "an earlier commit of these lanes is missing"
        rows = []
        for at, (_, e, segment, _) in enumerate(place):
            x = self.going[e]
            x.done, x.version, x.state = segment + 1, token, payload[at] if payload else None
            rows.append((e, segment, x.state))
            if x.done == self._count(e):
                self.through.add(e)
                del self.going[e]
            elif not x.seated and x.handed == x.done:
                heapq.heappush(self.ready, e)
        del self.open[batch.name]
        data = batch.number, batch.slot, batch.turn, token, tuple(rows)
        self.records.append(("commit", *data))
        return None

    def returned(self, batch: Batch) -> bool:
        if batch.body is None:
            self.unplaced.append(self.open[batch.name])
            return False
        return True

    def leave(self, slot: Slot, since: Turn = (0, -1)) -> None:
        """Void the lanes; segments before ``since`` may still be committed, and others follow."""
        batches = [one for one in self.open.values() if one.slot == slot and one.turn >= since]
        for batch in batches:
            del self.open[batch.name]
        self.unplaced = [one for one in self.unplaced if one.name in self.open]
        left = {e: self.going[e].handed for e in self.seats.pop(slot, ()) if e is not None}
        for _, e, segment, _ in (row for batch in batches for row in rows_of(batch.place)):
            left[e] = min(segment, left.get(e, segment))
        self._come_back(left)

    def _come_back(self, examples: dict[int, int]) -> None:
        for e, handed in examples.items():
            x = self.going[e]
            x.handed, x.seated = handed, False
            if handed == x.done:
                heapq.heappush(self.ready, e)

    def reclaim(self, batch: Batch) -> bool:
        if self._withdraw(batch):
            return True
        if batch.name in self.open:
            return False
        if batch.turn[0] == self.epoch + 1 and self.borders and self._complete():
            self._begin(batch.turn[0])
        if self.borders and batch.turn[0] != self.epoch:
            return False
        if self.world:
            if batch.turn > self.turn and not self.lacking and not self.open:
                self.turn, self.lacking = batch.turn, set(range(self.world))
            if batch.turn != self.turn or batch.slot not in self.lacking:
                return False
        mine = self.seats.get(batch.slot, [None] * self.size)
        place = rows_of(batch.place)
        if not all(self._possible(mine, *row) for row in place):
            return False
        if self.lanes:
            self.seats[batch.slot] = mine
        for lane, e, segment, _ in place:
            x = self.going.setdefault(e, _Example())
            if e in self.ready:
                self.ready.remove(e)
                heapq.heapify(self.ready)
            x.handed = segment + 1
            if self.lanes:
                x.seated = x.handed < self._count(e)
                mine[lane] = e if x.seated else None
        self.lacking.discard(batch.slot)
        self.open[batch.name] = batch
        self.number_next = max(self.number_next, batch.number + 1)
        if not self.world:
            self.turn = max(self.turn, batch.turn)
        return True

    def _possible(self, mine: list, lane: int, e: int, segment: int, version: int) -> bool:
        """Return whether a segment is the next of its example, from the state that is stored."""
        x = self.going.get(e)
        if x is None:
            free = e not in self.through and e < self.limit
            return free and segment == 0 and (not self.lanes or mine[lane] is None)
        if segment != x.handed or (self.with_states and version != x.version):
            return False
        if self.lanes and mine[lane] == e:
            return not self.with_states or x.handed == x.done
        return e in self.ready and (not self.lanes or mine[lane] is None)

    def deal(self, run: int, world: int) -> list[Batch]:
        self.records.append(("deal", run, world))
        self.run, self.world = run, world
        self.open.clear()
        self.unplaced.clear()
        self.seats.clear()
        self.lacking, self.turn = set(), (self.epoch, -1)
        self.ready = []
        self._come_back({e: x.done for e, x in self.going.items()})
        return []

    # Orders

    def propose(self, what: tuple) -> tuple:
        order = max([self.fresh, *(e + 1 for e in (*self.going, *self.through))]), *what
        self.records.append(("order", *order))
        return order

    def apply(self, order: tuple) -> None:
        self.limit = min(self.limit, order[0])
