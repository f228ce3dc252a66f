"""One trainer: what it asks of whom, which batch its loop gets next, what is in its hands.  Pure.

    a cell for each partition: bound, the least turn that may still come
        ask: the cell with the least bound (and requests under way) ──► Get ──► its owner
        take: in the order of requests ─┬─ the batch is here ──► the loop ──► commit, give_back
                                        ├─ no answer yet: wait
                                        └─ Idle: pass it by; its batch is taken when it comes

| cell | Get sent | Give | Idle | Over (epoch e) | Over (all) | Welcome |
| --- | --- | --- | --- | --- | --- | --- |
| askable | asked | – | – | bound ≥ (e + 1, 0) | over | the first one: bound |
| asked | asked + 1 | bound ≥ turn + 1 | standing; ranks: asked | as above | over | – |
| standing | – | askable | – | askable, bound as above | over | – |

Bounds grow, so requests are in the order of (turn, partition).  A lone trainer, and each rank, gets
exactly the turns of its bounds, so its stream is in that order for any owners and any delays.  A
batch that the loop gives back lowers the bound again, and its partition is asked for it anew.

With lanes one partition is asked at a time, until it is over, or idle with none of this trainer's
lanes in it.  A batch of lanes that goes back makes the later ones of its partition void, also those
on their way: the loop gets none of these, and asks anew.  In any order, the loop takes what came
first, and an owner that others overtake has one open request.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_proto.step_messages import Get, Given, made

Token = int
Turn = tuple[int, int]

#: An epoch after all others.
_NEVER = 1 << 62
#: Fraction of the golden ratio: consecutive multiples of it lie far apart on a circle.
_GOLDEN = 0.6180339887498949
#: Requests are sent once a half of the prefetch is free, or none is under way: an owner makes the
#: batches that one message asks for in one step.
_PART = 2


@dataclass(eq=False)
class Held:
    """A batch that came and is not committed or given back."""

    given: Given
    source: Any  # of its bytes, until it has a block
    release: Callable[[], None] | None = None  # reports that nobody reads its bytes in memory
    # these are set later
    block: Any = field(default=None, init=False)  # of one that was taken and put back
    stale: bool = field(default=False, init=False)  # its owner has given it to another trainer
    taken: int = field(default=0, init=False)  # the loop's count of batches; 0: it has not this one
    shown: Any = field(default=None, init=False)  # once the loop has it: the batch, or True
    payload: Any = field(default=None, init=False)  # of its commit, until that is answered

    def __del__(self) -> None:
        if self.release is not None:
            self.release()  # its bytes were not read

    @property
    def turn(self) -> Turn:
        return self.given.turn_epoch, self.given.turn_index


@dataclass(slots=True, eq=False)
class _Cell:
    """One partition."""

    number: int
    rotated: int  # its place among partitions of equal bounds
    turn: Turn = (0, 0)  # the least turn that may still come
    asked: dict[int, int] = field(default_factory=dict)  # epochs by request
    standing: dict[int, int] = field(default_factory=dict)  # the same, of those that are idle
    back: list[Turn] = field(default_factory=list)  # turns of batches that were given back
    epoch: int = 0  # the least that may still come
    live: bool = False  # whether lanes of this trainer have examples there
    #: The last request before a batch went back that came too late: answers up to it may come after
    #: that, and in lanes they are void.
    void: int = 0
    over: bool = False
    key: tuple[int, int, int, int] | None = None  # its place among cells to ask, if it may be


@dataclass(slots=True, eq=False)
class _Owner:
    """Messages for one owner, and the requests to it that have no answer."""

    welcome: bool = False  # whether it has answered the greeting
    commits: list[Held] = field(default_factory=list)
    returned: list[Token] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    gets: list[Get] = field(default_factory=list)
    asked: dict[int, None] = field(default_factory=dict)  # requests under way, oldest first


class Trainer:
    """The machine of one trainer of a feed, over all owners.

    ``owner_of``: by partition, the number of its owner, of ``owners``.
    ``offset``: the partition that comes first among equal turns; for a trainer without a rank
    the first greeting of owner 0 may set it.
    ``lanes``: batches fill lanes of this trainer; ``chained``: each needs the states of the one
    before, so it is asked for after that one's commit.
    ``strict``: an epoch begins when all partitions have ended the one before.
    ``any_order``: the loop takes what came first; not with lanes.
    ``explicit``: the loop commits by name, so it ends where all that is left is in its hands.
    ``lazy``: commits wait for a request to the same owner, since nobody else waits for them.
    """

    def __init__(
        self,
        partitions: int,
        owner_of: Sequence[int],
        owners: int,
        *,
        rank: int = -1,
        prefetch: int = 1,
        offset: int = 0,
        lanes: bool = False,
        chained: bool = False,
        strict: bool = False,
        any_order: bool = False,
        explicit: bool = False,
        lazy: bool = False,
    ) -> None:
        self.partitions, self.rank = partitions, rank
        self.most = _NEVER
        self.set_prefetch(prefetch)
        self.any_order, self.explicit = any_order and rank < 0, explicit
        self.is_of(lanes=lanes, chained=chained, strict=strict, lazy=lazy)
        self.hands: dict[Token, Held] = {}
        self.commits: dict[Token, Held] = {}  # without an answer
        #: The greatest token of an answered commit, by partition.
        self.acknowledged: dict[int, Token] = {}
        self.epoch = 0  # of the loop
        self.waits = False  # whether the loop waits for a batch
        self.torn = False  # whether this rank lost a batch, and is out of step with the others
        self._taken = 0  # batches that the loop took
        self._flying = 0  # requests under way, and batches that the loop has not taken
        self._request = 0
        self._last = 0  # the request whose batch the loop has taken last
        self.asks: dict[int, _Cell] = {}  # requests without an answer
        self._idle: set[int] = set()  # requests of a rank that wait for trainers
        self._epochs = Counter({0: partitions})  # cells that are not over, by the bound's epoch
        self.least = 0  # the least epoch of which batches may still come; _NEVER: none
        self._open = partitions  # cells that are not over
        self._unknown = set(range(partitions))  # cells whose first bound has not come
        self._line: list[tuple[int, int]] = []  # a heap of epochs and requests
        self.ready: dict[int, Held] = {}  # not taken, by request, as they came
        self._asks: list[tuple[int, int, int, int]] = []  # a heap of the cells' keys
        self._cells = [_Cell(p, 0) for p in range(partitions)]
        self._rotate(offset)
        self.regroup(owner_of, owners)

    def _rotate(self, offset: int) -> None:
        partitions = len(self._cells)
        self._first = self._home = offset % partitions  # with lanes: where an epoch begins, and …
        self._home_since = 0  # … the partition to ask, in this epoch
        self._asks.clear()
        for cell in self._cells:
            cell.rotated, cell.key = (cell.number - offset) % partitions, None
            self._changed(cell)

    def regroup(self, owner_of: Sequence[int], owners: int) -> None:
        """Take other owners, as after a restart of the server.  Each is to be greeted."""
        self.owner_of = owner_of
        self._owners = [_Owner() for _ in range(owners)]
        for p, cell in enumerate(self._cells):
            self._owners[owner_of[p]].asked.update(dict.fromkeys(cell.asked))

    def is_of(self, *, lanes: bool, chained: bool, strict: bool, lazy: bool) -> None:
        """Take the kind of the feed, which its first Welcome tells."""
        self.lanes, self.chained, self.strict = lanes and self.rank < 0, chained, strict
        self.in_order = lanes  # each batch counts once the earlier ones of its lanes do
        self.lazy = lazy

    def set_prefetch(self, prefetch: int) -> None:
        """Change the number of batches that are asked for ahead of the loop."""
        self.prefetch = prefetch
        self._part = max(1, prefetch // _PART)

    def bound(self, most: int) -> None:
        """Let the loop have at most ``most`` batches, and so many commits without an answer."""
        self.most = most
        if self.prefetch > most:
            self.set_prefetch(most)

    # The order of cells

    def _changed(self, cell: _Cell) -> None:
        """Put a cell in its new place among those to ask; with lanes there is one at a time."""
        if cell.over or cell.standing or self.lanes:
            cell.key = None
            return
        epoch, at = cell.turn
        if cell.back:
            under_way, back = len(cell.asked), len(cell.back)
            epoch, at = sorted(cell.back)[under_way] if under_way < back else cell.turn
            at += max(0, under_way - back)
        elif cell.asked:
            asked = cell.asked.values()
            later = min(asked) >= epoch  # mostly: all are of one epoch
            at += len(asked) if later else sum(of >= epoch for of in asked)
        self._place(cell, (epoch, at, cell.rotated, cell.number))

    def _place(self, cell: _Cell, key: tuple[int, int, int, int]) -> None:
        before, cell.key = cell.key, key
        if self._asks and self._asks[0] == before:
            heapq.heapreplace(self._asks, key)
        elif key != before:
            heapq.heappush(self._asks, key)

    def _move(self, cell: _Cell, turn: Turn) -> None:
        """Raise a cell's bound: nothing before it comes."""
        if turn > cell.turn:
            cell.turn = turn
        back = cell.back
        while back and back[0] < turn:
            heapq.heappop(back)
        if back or cell.turn[0] != cell.epoch:
            self._count(cell)

    def _count(self, cell: _Cell) -> None:
        """Count a cell by the least epoch that may still come from it."""
        epoch = cell.back[0][0] if cell.back else cell.turn[0]
        if epoch != cell.epoch and not cell.over:
            self._epochs[epoch] += 1
            self._leave_epoch(cell)
            cell.epoch = epoch

    def _leave_epoch(self, cell: _Cell) -> None:
        """Count a cell no more by the epoch that it had."""
        self._epochs[cell.epoch] -= 1
        self._epochs = +self._epochs  # without those that no cell is in
        self.least = min(self._epochs, default=_NEVER)

    @property
    def next_epoch(self) -> int:
        """The least epoch of the batches that the loop has not taken, here or still to come."""
        return min([self.least, *(held.given.turn_epoch for held in self.ready.values())])

    # What is known, for the caller

    @property
    def latest(self) -> int:
        """The latest epoch that is known to have begun."""
        return max([self.epoch, *(cell.turn[0] for cell in self._cells)])

    @property
    def awaited(self) -> int | None:
        """The owner whose batch the loop waits for; None: trainers have to act."""
        request = self._next()
        cell = None if request is None else self.asks.get(request)
        return None if cell is None else self.owner_of[cell.number]

    def unanswered(self, owner: int) -> int:
        """Return the number of commits that an owner has not answered, and should soon.

        In lanes a commit waits for those of earlier batches, which may be in this loop's hands.
        """
        held = list(self.commits.values())
        if self.in_order and self.hands:
            held = [one for one in held if not self._waits_for_hands(one)]
        return sum(self.owner_of[one.given.partition] == owner for one in held)

    def _waits_for_hands(self, held: Held) -> bool:
        partition, turn = held.given.partition, held.turn
        return any(
            one.given.partition == partition and one.turn < turn and not one.stale
            for one in self.hands.values()
        )

    # The loop

    def _next(self) -> int | None:
        """Return the request whose batch is next; None: trainers have to act."""
        ready = self.ready
        if ready and (self.any_order or self.lanes):  # one of other lanes may have an older request
            request = next(iter(ready))
            if self.lanes and ready[request].given.turn_epoch > self.epoch:
                request = min(ready, key=lambda request: ready[request].given.turn_epoch)
            return request
        line, asks = self._line, self.asks
        while line:
            request = line[0][1]
            if request in ready or (request in asks and request in asks[request].asked):
                return request
            heapq.heappop(line)
        return None

    def take(self, accepts: Callable[[Held], bool] | None = None) -> Held | None:
        """Return the next batch, if it is here.  The loop goes from epoch to epoch by itself.

        ``accepts`` may leave it here, by False or an exception.
        """
        if not self.ready or (request := self._next()) not in self.ready or self.full:
            self.waits = True
            return None
        held = self.ready[request]
        epoch = held.given.turn_epoch
        if epoch > self.epoch:
            # others may have more of the epoch before
            if self.least <= self.epoch:
                self.waits = True
                return None
            self.epoch = epoch
        self.waits = False
        if accepts is not None and not accepts(held):
            return None
        self._last = request
        del self.ready[request]
        self._flying -= 1
        self._taken = held.taken = self._taken + 1
        line = self._line
        if line and line[0][1] == request:
            heapq.heappop(line)
        if not self.prefetch and self.rank < 0 and (self.asks or self.ready):
            # Others may wait meanwhile for what the loop has not taken.
            if self.lanes:
                self._withdraw([*self.asks])
            else:
                self.let_go()
        return held

    def untake(self, held: Held) -> None:
        """Put a batch back that the loop has not used: it is the next one again."""
        if held.given.token in self.hands:
            held.taken, held.shown = 0, None
            given = held.given
            self.ready = {given.request: held, **self.ready}
            heapq.heappush(self._line, (given.turn_epoch, given.request))
            self._flying += 1

    @property
    def ended(self) -> bool:
        """Whether all is committed and answered."""
        return not (self._open or self._flying or self.commits)

    @property
    def stuck(self) -> bool:
        """Whether the loop has batches, and no other comes before some trainer acts."""
        if self.full or not (self.waits and self.in_hand):
            return False
        self._pump()  # what may come is asked for first
        if self._idle:
            request = self._next()
            return request is None or request in self._idle
        return self._flying == len(self.ready)

    def commit(self, token: Token, payload: Any = None) -> bool:
        """Commit a batch; return False where it is not in hand, or is known to be stale."""
        if (held := self.hands.get(token)) is None:
            return False
        counts = not held.stale
        if counts:
            held.payload, self.commits[token] = payload, held
            self._owners[self.owner_of[held.given.partition]].commits.append(held)
        del self.hands[token]  # Ctrl-C may come before
        held.shown = None  # it would keep the memory of the batch
        return counts

    def give_back(self, token: Token) -> None:
        """Return a batch: other trainers may get it, and a lone one gets it again.

        Where the loop had it, it comes again before those that the loop has not taken.
        """
        held = self.hands.pop(token)
        given = held.given
        if not held.taken:
            del self.ready[given.request]
            self._flying -= 1
        if not held.stale:
            self._send_back(given)
            self._expect_again(held)
            if held.taken and not (self.lanes or self.any_order):
                self.let_go()

    def _send_back(self, given: Given) -> None:
        """Have a batch returned; of lanes, drop the later ones of its partition: they are void."""
        self._owners[self.owner_of[given.partition]].returned.append(given.token)
        if not self.lanes:
            return
        cell, turn = self._cells[given.partition], (given.turn_epoch, given.turn_index)
        cell.void = self._request  # further requests come to the owner with this return
        self._withdraw([*cell.asked, *cell.standing])
        for held in [*self.hands.values()]:
            if held.given.partition != given.partition or held.turn < turn:
                continue
            held.stale = True
            if not held.taken:
                del self.hands[held.given.token], self.ready[held.given.request]
                self._flying -= 1

    def _expect_again(self, held: Held) -> None:
        """Ask for a batch again that went back: it comes before all others of its partition."""
        cell = self._cells[held.given.partition]
        if not (self.lanes or cell.over):
            self._withdraw([*cell.asked, *cell.standing])
            heapq.heappush(cell.back, held.turn)
            self._count(cell)
            self._changed(cell)

    def let_go(self) -> None:
        """Return all that the loop has not taken, and ask for it anew, so in its order."""
        for held in reversed([*self.ready.values()]):
            if not held.stale:
                self.give_back(held.given.token)
            if self.lanes:  # its examples go on there
                self._home = held.given.partition
                self._cells[self._home].live = True
        if not (self.lanes or self.any_order):
            self._withdraw([*self.asks])

    # Requests

    def _to_ask(self) -> _Cell | None:
        if self.lanes:
            return self._home_to_ask()
        asks = self._asks
        overtaken: list[tuple[int, int, int, int]] = []
        found = None
        while asks:
            key = asks[0]
            cell = self._cells[key[3]]
            if key != cell.key:
                heapq.heappop(asks)
            elif self.any_order and self._lags(self._owners[self.owner_of[key[3]]]):
                overtaken.append(heapq.heappop(asks))
            else:
                found = None if self.strict and key[0] > self.least else cell
                break
        for key in overtaken:
            heapq.heappush(asks, key)
        return found

    def _lags(self, owner: _Owner) -> bool:
        """Return whether an owner has an open request that is older than a batch of another."""
        return bool(owner.asked) and (not owner.welcome or next(iter(owner.asked)) < self._last)

    def _home_to_ask(self) -> _Cell | None:
        """With lanes: stay while examples are in them, or some may come.

        Each epoch begins at the same partition, so one that is resumed goes on where it stood.
        """
        if self.least != self._home_since:
            self._home_since, self._home = self.least, self._first
        home = self._cells[self._home]
        if home.over or home.turn[0] > self.least or (home.standing and not home.live):
            for ahead in range(len(self._cells)):
                cell = self._cells[(self._home + ahead) % len(self._cells)]
                if not (cell.over or cell.standing) and cell.turn[0] <= self.least:
                    self._home, home = cell.number, cell
                    break
            else:
                return None
        if home.standing or (self.chained and (home.asked or self._in_hand(self._home))):
            return None
        return home

    def _in_hand(self, partition: int) -> bool:
        return any(held.given.partition == partition for held in self.hands.values())

    @property
    def full(self) -> bool:
        """Whether the trainer has as many batches, or commits without an answer, as it may."""
        return len(self.hands) - len(self.ready) >= self.most or len(self.commits) >= self.most

    @property
    def in_hand(self) -> int:
        """Number of batches that the loop has."""
        return len(self.hands) - len(self.ready)

    def _pump(self) -> None:
        """Ask for as many batches as are wanted."""
        waits, under_way = self.waits, self._flying
        free = self.prefetch + waits - under_way
        if self.any_order:
            behind = sum(len(owner.asked) for owner in self._owners if self._lags(owner))
            under_way, free = under_way - behind, free + behind
        gathers = free < self._part
        if gathers and (not waits or under_way > len(self.ready) or self.here is not None):
            return
        if self._unknown or self.full:
            return
        while free > 0 or (waits and self._flying == len(self.ready)):
            # what is here is of a later epoch, which the loop can not take yet: it does not count
            if (cell := self._to_ask()) is None:
                return
            epoch = cell.key[0] if cell.key else cell.turn[0]
            if free <= 0 and epoch > self.least:
                return
            self._get(cell, epoch)
            free -= 1

    @property
    def here(self) -> Held | None:
        """The batch that ``take`` would return now; None where the loop would wait."""
        held = None if self.full else self.ready.get(self._next() or 0)
        if held is None or held.given.turn_epoch > self.epoch >= self.least:
            return None
        return held

    def _get(self, cell: _Cell, epoch: int) -> None:
        self._request = request = self._request + 1
        p, key = cell.number, cell.key
        cell.asked[request] = epoch
        self.asks[request] = cell
        owner = self._owners[self.owner_of[p]]
        owner.gets.append(made(Get, (request, p, epoch)))
        if self.any_order:
            owner.asked[request] = None
        heapq.heappush(self._line, (epoch, request))
        self._flying += 1
        if cell.back:
            self._changed(cell)
        elif key is not None:
            self._place(cell, (epoch, key[1] + 1, cell.rotated, p))

    # Owners: what comes

    def recount(self) -> None:
        """Derive from hands and cells what follows from them: Ctrl-C may have come amid a change.

        Where it came amid a message of an owner, a greeting follows.
        """
        for token in [token for token, h in self.hands.items() if h.stale and not h.taken]:
            del self.hands[token]
        here = {held.given.request: held for held in self.hands.values() if not held.taken}
        self.ready = {**{r: here[r] for r in self.ready if r in here}, **here}
        self.asks.clear()
        for cell in self._cells:
            for held in [h for h in here.values() if h.given.partition == cell.number]:
                cell.asked.pop(held.given.request, None)
                cell.standing.pop(held.given.request, None)
                if not cell.back:
                    cell.turn = max(cell.turn, (held.turn[0], held.turn[1] + 1))
            self.asks.update(dict.fromkeys((*cell.asked, *cell.standing), cell))
            cell.epoch = cell.back[0][0] if cell.back else cell.turn[0]
        asked = [(epoch, r) for cell in self._cells for r, epoch in cell.asked.items()]
        self._flying = len(asked) + len(here)
        self._line = sorted([*asked, *((held.turn[0], r) for r, held in here.items())])
        epochs = [cell.epoch for cell in self._cells if not cell.over]
        self._open, self._epochs, self.least = len(epochs), Counter(epochs), min([*epochs, _NEVER])
        self._asks.clear()
        for cell in self._cells:
            cell.key = None
            self._changed(cell)

    def greeting(self, owner: int) -> tuple[list[Given], list[tuple[Given, Any]], list[Get]]:
        """Return what a greeting lists: batches in hand, commits without an answer, requests."""
        here = self._owners[owner] = _Owner()
        of = self.owner_of
        held = [
            h.given for h in self.hands.values() if of[h.given.partition] == owner and not h.stale
        ]
        commits = [
            (h.given, h.payload) for h in self.commits.values() if of[h.given.partition] == owner
        ]
        gets = []
        for cell in self._cells:
            if of[cell.number] == owner and (cell.asked or cell.standing):
                here.asked.update(dict.fromkeys(cell.asked))
                of_cell = {**cell.asked, **cell.standing}
                gets += [Get(request, cell.number, epoch) for request, epoch in of_cell.items()]
        return held, commits, gets

    def welcome(
        self, owner: int, next_turns: Mapping[int, Turn], stale: Iterable[Token], others: int = 0
    ) -> None:
        """Take the answer to a greeting: by partition the least turn that may still come."""
        self._owners[owner].welcome = True
        if owner == 0 and others and self.rank < 0 and not self._request:
            self._rotate(int(_GOLDEN * others % 1 * len(self._cells)))
        for p, turn in next_turns.items():
            cell = self._cells[p]
            if not (cell.asked or cell.standing or cell.back):
                self._move(cell, turn)
            self._changed(cell)
        self._unknown.difference_update(next_turns)
        for token in stale:
            held = self.hands.get(token)
            if held is not None and not held.stale:
                held.stale = True
                if held.taken:
                    self.torn = self.rank >= 0
                else:
                    del self.hands[token], self.ready[held.given.request]
                    self._flying -= 1
                    self._expect_again(held)
                    self.let_go()

    def later(self, owner: int, commits: list[Token], gets: list[Get]) -> None:
        """Send these after the Welcome: the greeting has no room for them."""
        here = self._owners[owner]
        here.commits[:0] = [self.commits[token] for token in commits]
        here.gets[:0] = gets

    def lost(self, owner: int) -> None:
        """Note that the connection with an owner ended: nothing is sent before it is greeted."""
        self._owners[owner].welcome = False

    def _answered(self, request: int) -> tuple[_Cell | None, int | None]:
        """Forget a request that has its answer; return its cell.

        Also return the epoch under which it is in the line; None where it is not.
        """
        if (cell := self.asks.pop(request, None)) is None:
            return None, None
        if (epoch := cell.asked.pop(request, None)) is not None:
            self._flying -= 1
            if self.any_order:
                self._owners[self.owner_of[cell.number]].asked.pop(request, None)
            if self._idle:
                self._idle.discard(request)
        else:
            del cell.standing[request]
        return cell, epoch

    def give(self, owner: int, given: Given, source: Any, release: Any = None) -> bool:
        """Take a batch; return False where it is returned at once."""
        epoch, index, request = given.turn_epoch, given.turn_index, given.request
        self.hands[given.token] = held = Held(given, source, release)  # before Ctrl-C may come
        cell, lined = self._answered(request)
        if cell is None:
            del self.hands[given.token]
            if not self.lanes or request > self._cells[given.partition].void:
                self._send_back(given)
            if not (self.lanes or self.any_order):
                self._cells[given.partition].void = self._request
            return False
        if self.lanes:
            home = self._cells[self._home]
            if cell is not home and (home.live or home.asked):  # it has lanes elsewhere
                del self.hands[given.token]
                self._send_back(given)
                return False
            self._home, cell.live = given.partition, given.live
        if lined == epoch and cell.turn == (epoch, index) and not cell.back:  # as mostly
            cell.turn = epoch, index + 1  # with one request less: its place among cells stays
        elif request <= cell.void and cell.turn < (epoch, index):
            del self.hands[given.token]
            self._send_back(given)
            self._changed(cell)
            if not (self.lanes or self.any_order):
                self.let_go()  # what others were asked for since comes after it
            return False
        else:
            if lined != epoch:
                heapq.heappush(self._line, (epoch, request))
            self._move(cell, (epoch, index + 1))
            self._changed(cell)
        self.ready[request] = held
        self._flying += 1
        if len(self.ready) > 2 * self.prefetch + 1:
            self._withdraw([r for one in self._cells for r in one.standing])
        return True

    def _withdraw(self, requests: Iterable[int]) -> None:
        """Take requests back that did not get a batch."""
        for request in requests:
            cell, _ = self._answered(request)
            assert cell is not None
            owner = self._owners[self.owner_of[cell.number]]
            owner.withdrawn.append(request)
            owner.gets = [get for get in owner.gets if get[0] != request]
            self._changed(cell)

    def idle(self, owner: int, requests: Iterable[int], live: Collection[int] = ()) -> None:
        """Pass requests by, which wait for trainers.  Ranks wait for them, to stay in step."""
        for request in requests:
            if (cell := self.asks.get(request)) is None:
                continue
            cell.live = request in live
            if self.rank >= 0:
                self._idle.add(request)
            elif request in cell.asked:
                cell.standing[request] = cell.asked.pop(request)
                self._owners[owner].asked.pop(request, None)
                self._flying -= 1
                self._changed(cell)

    def over(
        self, owner: int, request: int, partition: int, epoch: int, also: Iterable[int] = ()
    ) -> None:
        """Note that nothing more of an epoch comes from partitions; -1: nothing more at all.

        A batch that the owner did not have back by then still comes again.
        """
        asked, _ = self._answered(request)
        if asked is None:
            return
        if request <= asked.void:
            self._changed(asked)
            return
        for p in (partition, *also):
            cell = self._cells[p]
            if cell.back and p != partition:
                continue
            if not cell.over and epoch < 0:
                self._leave_epoch(cell)
                self._open -= 1
                cell.over = True
            elif not cell.over:
                self._move(cell, (epoch + 1, 0))
            cell.live = False
            self._changed(cell)

    def answer(
        self,
        committed: Iterable[Token],
        stale: Sequence[Token] = (),
        faults: Sequence[tuple[Token, str, str]] = (),
    ) -> list[tuple[Held, str, str]]:
        """Take answers to commits; return those that were refused, with code and text of why."""
        commits, acknowledged = self.commits, self.acknowledged
        for token in committed:
            if (held := commits.pop(token, None)) is not None:
                partition = held.given.partition
                acknowledged[partition] = max(token, acknowledged.get(partition, 0))
        every = [*((token, "stale", "") for token in stale), *faults]
        refused = [
            (held, code, text)
            for token, code, text in every
            if (held := commits.pop(token, None)) is not None
        ]
        if self.rank >= 0 and any(code != "cancelled" for _, code, _ in refused):
            self.torn = True
        return refused

    # Owners: what goes

    def due(self, owner: int) -> bool:
        """Return whether a message to an owner is due."""
        self._pump()
        return self._is_due(self._owners[owner])

    @property
    def any_due(self) -> bool:
        """Whether a message to some owner is due."""
        self._pump()
        return any(map(self._is_due, self._owners))

    def _is_due(self, owner: _Owner) -> bool:
        if not owner.welcome:
            return False
        if owner.gets or owner.returned or owner.withdrawn:
            return True
        if not owner.commits:
            return False
        starves = self.waits and self._flying == len(self.ready)
        return starves or not self.lazy or len(owner.commits) > self._part

    def owes(self, owner: int) -> bool:
        """Return whether there is something to send to an owner, now or later."""
        here = self._owners[owner]
        return here.welcome and bool(here.commits or here.gets or here.returned or here.withdrawn)

    def outgoing(self, owner: int) -> tuple[list[Held], list[Token], list[int], list[Get]]:
        """Return what to send now, and forget it: commits, returned, withdrawn, requests."""
        here = self._owners[owner]
        if not here.welcome:
            return [], [], [], []
        out = here.commits, here.returned, here.withdrawn, here.gets
        here.commits, here.returned, here.withdrawn, here.gets = [], [], [], []
        return out
