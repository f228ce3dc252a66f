"""The desk of one feed at one owner: it decides which trainer gets which batch.  A pure machine.

    ask() ─┬─ a batch is in cell.heaps[slot], or port.make makes it ───────► a lease, port.give
           └─► cell.asking ─► next_work() ─► partition.make() ─► made() ─► the same
                                                 └─► port.idle, port.over
    commit() ─► partition.commit() ─► port.committed ─► stored() ─► port.answer
    returned, or its trainer left ─► the heap again, before all newer batches

A cell is one partition, as the desk knows it.  ``port`` sends messages, stores and frees.

| request | event | becomes |
| --- | --- | --- |
| new | a batch of its epoch or an earlier one is in the heap | answered: give |
| new | the heap has a later epoch, or make returns OVER, ENDED | over, when all is stored |
| new | make returns IDLE or FULL | idle: the trainer learns it, and the request stands |
| new | make returns FULL, and its session needs this batch before others | beyond the slab |
| new | make returns WAITS, or the partition has an order that is not stored | stands |
| idle | a commit, a return, a leave, an order, freed memory | considered again |
| any | its session leaves, withdraws it, or greets again | gone; a greeting asks anew |

| lease | event | becomes |
| --- | --- | --- |
| held | its session commits | over: to be stored, and answered when it is |
| held | its session commits before an earlier one of its lanes | held until that counts, or stale |
| held | its session commits, and that is refused | answered by a fault; the batch as if returned |
| held | returned; its session leaves, or is silent | in the heap again; lanes: void from it on |
| held | the session greets without it, with its request | held: sent again under the same token |
| held | the session greets without both | in the heap again |
| – | commit without a lease | answered if the token is known to be committed, else stale |

While ``partition.make`` runs in another thread, between ``begin`` and ``made``, the desk calls
nothing of that partition: commits, returns and leaves that concern it wait here, in order.

After a start the desk hands nothing out until all trainers of the process before have greeted, or
the grace period is over.  Then it judges the batches and commits that they name, by token:

| the token is … | then |
| --- | --- |
| leased to this session (it only lost its connection) | stays |
| of a stored commit | answered |
| larger than all that were issued | stale |
| of this life, of a batch that another one has | stale |
| of an earlier life, of a batch that another one has under a larger token | stale |
| of an earlier life, of a batch that another one has under a smaller token | taken over |
| of a batch in a heap, or one that the partition can reclaim | leased again under this token |
| else | stale |

A number names a run of ranks; it does not order runs.  At most one run is present, and the last 64
that were are over:

| a rank comes with the number | and of the present run | then |
| --- | --- | --- |
| of the present run | – | it joins that |
| of a run that is over | – | it is refused |
| of another run | no rank has a session | its run begins |
| of another run | one sends a message 1 s later or more | it is refused; until then it waits |
| none | no rank has a session, or only those that came too | a new run begins |
| none | there are ranks, and none of this number so far | it joins that |
| none | there are ranks, and an earlier process of this one | it joins that, once one speaks |

A rank without a number gets it with its Welcome, from one owner, and tells it to the others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import count, islice
from operator import attrgetter
from typing import Any, NamedTuple

from headrace_proto.errors import ProtocolError
from headrace_proto.limits import MAX_COUNT
from headrace_proto.step_messages import Get

from .words import (
    ANYONE,
    COUNTER_BITS,
    EARLY,
    Batch,
    Greeting,
    Machine,
    Order,
    Outlook,
    Partition,
    Port,
    Slot,
    Token,
    Turn,
)

#: An epoch after all others.
FOREVER = 1 << 62
#: Stands for the journal of joins and leaves where a partition is expected.
SESSIONS = -1
#: A repeated commit is answered as committed if it is among the last 65,536 to 131,072: its first
#: answer may have been lost.
_REMEMBERED = 65_536
#: A dead process's last message arrives within this time.
_SIGN_S = 1.0
#: Number of past runs of ranks that are remembered, so that a late process of one is refused.
_RUNS_OVER = 64
_RUN_OVER = (
    "this trainer is of a run that is over: another run of ranks has begun since.  Start all ranks "
    "again together, with a run= that was not used before where you give it"
)
_REPLACED = "another process has the rank of this trainer, which began later"
#: Maximum number of ranks that an error lists.
_LISTED = 8


class Work(NamedTuple):
    """The next call of the owner: ``partition.make(slot, epoch, beyond, most)``."""

    partition: int
    slot: Slot
    epoch: int
    asked: bool = False  # whether there are requests for it
    beyond: bool = False  # whether it is made even if there is no memory for it
    most: int = 1  # batches that it may make in one step


Call = Callable[[], object]


class _Stored:
    """Counts the entries sent to a journal, and holds answers until these are stored."""

    __slots__ = ("logged", "stored", "unstored")

    def __init__(self) -> None:
        self.logged = self.stored = 0  # calls
        #: Each answer: the entries to be stored first, the session, and a token or a call.
        self.unstored: deque[tuple[int, Any, Token | Call]] = deque()


class _Cell(_Stored):
    """One partition: its batches without a lease, the requests for them, and its state."""

    __slots__ = (
        *("number", "partition", "machine", "heaps", "ready", "asking", "remakes"),
        *("over", "ended", "ordered", "stands"),
    )

    def __init__(self, number: int, partition: Partition) -> None:
        super().__init__()
        self.number, self.partition, self.machine = number, partition, partition.machine
        self.heaps: dict[Slot, list[tuple[Turn, int, Batch]]] = {}
        self.ready = 0  # batches in heaps
        self.asking: dict[tuple[Slot, int], deque[_Request]] = {}
        self.remakes: set[Slot] = set()  # slots whose lost batches are made again before new ones
        self.over: dict[Slot, int] = {}  # epochs that are over; FOREVER: all
        self.ended = False  # whether all of its batches are made and committed
        self.ordered = False  # whether an order to it is not yet stored
        self.stands = self.machine.epoch, self.machine.finished  # after its last step


#: A partition, slot and epoch for which there are requests.
_Wanted = tuple[_Cell, Slot, int]


@dataclass(slots=True, eq=False)
class _Session:
    name: bytes
    to: Any  # the trainer, as the port knows it
    rank: int
    slot: Slot
    seen: float
    since: Token  # the last token before it began; a later one outside of leases is void
    leases: dict[Token, Batch] = field(default_factory=dict)
    asked: dict[int, _Request] = field(default_factory=dict)
    latest: int = -1  # the largest number of a request
    idle: int = 0  # requests that were answered by Idle
    unstored: int = 0  # commits
    early: dict[Token, object] = field(default_factory=dict)  # commits that wait for earlier ones
    #: Of lanes, by partition: token and batch of the last commit.
    last: dict[int, tuple[Token, Batch]] = field(default_factory=dict)
    greeting: Greeting | None = None  # its last one
    joined: int = 0  # number of entries of SESSIONS to be stored before it gets a batch


#: The requests of a session that were answered by Idle.
_IDLE_OF = attrgetter("idle")


@dataclass(slots=True, eq=False)
class _Request:
    session: _Session
    number: int
    cell: _Cell
    epoch: int
    idle: bool = False  # it waits for trainers …
    notified: bool = False  # … and its trainer knows …
    live: bool = True  # … that it has lanes there, which go on
    gone: bool = False


class Desk:
    """One feed at one owner.  All calls but ``Partition.make`` are made under the owner's lock.

    ``port``: what the desk calls to act.
    ``known``: sessions of the earlier life, with run, rank and birth of each.
    ``births``: run, rank and birth of the last process of each rank that had a session.
    ``runs``: the last runs of ranks, the present one last.
    ``tokens``: those of commits that are stored.
    ``ahead``: batches that a partition makes ahead, for each rank.
    ``max_open``: batches that a trainer may have without a commit, and commits without an answer.
    """

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        term: int,
        port: Port,
        *,
        known: Mapping[bytes, tuple[int, int, int]] | None = None,
        births: Iterable[tuple[int, int, int]] = (),
        runs: Iterable[int] = (),
        tokens: Container[Token] = (),
        now: float = 0.0,
        ttl: float = 10.0,
        grace: float = 3.0,
        ahead: int = 2,
        max_open: int = 64,
    ) -> None:
        self.partitions = partitions
        self._ahead, self.ttl = ahead, ttl
        # A prefetch may stand at each partition, another be under way; and as many batches are in
        # the loop's hands, and committed.  A trainer asks for no more.
        self._most_open = (max_open + 2) * (len(partitions) + 3)
        self.port = port
        self.counts = dict.fromkeys(("batches", "rows", "stale", "expired", "redelivered"), 0)
        self.sessions: dict[bytes, _Session] = {}
        self._now, self._grace_ends = now, now + grace
        self._token = self._since = term << COUNTER_BITS
        self._stored_tokens = tokens
        # of commits of this life: their partitions
        self._recent: dict[Token, int] = {}
        self._before: dict[Token, int] = {}
        # Batches and requests
        self._cells = {number: _Cell(number, partition) for number, partition in partitions.items()}
        self._joins = _Stored()  # joins and leaves
        machines = [partition.machine for partition in partitions.values()]
        self._lanes = any(machine.lanes for machine in machines)
        self._behind_orders: set[_Cell] = set()  # they take an order only after another step
        self._came_back: set[_Cell] = set()  # with batches that were put back
        self._ties = count()
        self._todo: dict[_Wanted, None] = {}
        self._held_up: set[_Cell] = set()  # with requests that wait for memory or rows
        # Making
        self._busy: _Cell | None = None  # the partition that makes now …
        self._again = False  # … whether it may have more memory or rows since it began …
        self._returns = False  # … and whether batches of it wait to go back, before later ones
        self._deferred: deque[Call] = deque()
        #: Greetings, Welcomes and leaves, which the desk handles after the calls in _deferred: a
        #: greeting may begin a new run, and that deals every batch that is not committed.
        self._deferred_sessions: deque[Call] = deque()
        self._greeting = Counter[bytes]()  # sessions whose greeting waits there
        self._behind: list[tuple[Turn, int]] = []  # partitions that make ahead
        self._full = False  # whether making ahead waits for free memory
        self._beyond: _Wanted | None = None  # the first of _todo, made though the slab is full
        self._paused, self._shut = False, True  # shut: paused, or recovering
        # An earlier life
        self._known = dict(known or {})
        self._greeted: dict[bytes, Greeting] | None = {}
        #: Those that do not go together with the present trainers, and wait for their end.
        self._newcomers: dict[bytes, Greeting] = {}
        self._newcomers_since = 0.0  # when the last one came
        deals = [(machine.run, machine.world) for machine in machines]
        #: Runs of ranks: the present one is the last, and those before it are over.  One that has a
        #: deal and is not among them began as the earlier life ended.  The caller stores these, and
        #: the births.
        self.runs = [*dict.fromkeys((*runs, *(run for run, _ in deals if run)))]
        self.run = self.runs[-1] if self.runs else 0
        self.world = min((world for run, world in deals if run == self.run), default=0)
        self._low = ahead * (self.world or 1)  # batches in heaps below which it makes ahead
        self.births: dict[int, int] = {}  # of the present run: that of each rank's last process
        for run, rank, birth in (*births, *self._known.values()):
            if run == self.run and rank >= 0:
                self.births[rank] = max(birth, self.births.get(rank, 0))
        self._make_all_ahead()
        for cell in self._cells.values():
            if (cell.machine.run, cell.machine.world) != (self.run, self.world):
                self._deal_one(cell)
        if not self._known:
            self._recover()

    # Greetings

    def hello(self, hello: Greeting, now: float) -> None:
        """Take a greeting.  The caller drops messages of the session's earlier connections."""
        self._now = now
        name = hello.session
        if self._busy is not None and not self._is_simple(hello):  # it concerns all partitions
            self._greeting[name] += 1
            self._deferred_sessions.append(partial(self._greet_deferred, hello))
            if (session := self.sessions.get(name)) is not None:
                self._forget_requests(session)  # the greeting names them again
        else:
            self._take_greeting(hello)

    def _is_simple(self, hello: Greeting) -> bool:
        """Return whether a greeting is of a new trainer without rank, batches and commits.

        Ranks must learn the same least turns to stay in step, also of the partition that makes.
        """
        if self.world or hello.rank >= 0 or self._greeted is not None or self._greeting:
            return False
        return hello.session not in self.sessions and not (hello.held or hello.commits)

    def _greet_deferred(self, hello: Greeting) -> None:
        self._greeting[hello.session] -= 1
        if not self._greeting[hello.session]:  # else it has greeted again
            del self._greeting[hello.session]
            self._take_greeting(hello)

    def _take_greeting(self, hello: Greeting) -> None:
        if self._greeted is None:
            if self._is_newcomer(hello):
                self._newcomers[hello.session] = hello
                self._newcomers_since = self._now
                self._look_at_newcomers()
            else:
                self._admit([hello])
            return
        self._greeted[hello.session] = hello
        if self._known.keys() <= self._greeted.keys():
            self._recover()

    def _recover(self) -> None:
        """End the grace period: judge the batches and commits named by the greetings so far."""
        assert self._greeted is not None
        hellos = [*self._greeted.values()]
        for name in self._known.keys() - self._greeted.keys():
            self._left(name)
        self._greeted, self._shut = None, self._paused
        others = [hello for hello in hellos if not self._goes_on(hello)]
        self._admit(hello for hello in hellos if self._goes_on(hello))
        self._known.clear()
        for hello in others:
            self._take_greeting(hello)

    def _goes_on(self, hello: Greeting) -> bool:
        """Return whether a trainer belongs to the present run, or to a feed without ranks."""
        return hello.run == self.run != 0 if self.world else hello.rank < 0

    def _admit(self, hellos: Iterable[Greeting]) -> None:
        admitted, port = [], self.port
        for hello in sorted(hellos, key=lambda hello: hello.birth):
            name = hello.session
            if refused := self._refusal(hello):
                port.refuse(hello.to, *refused)
                continue
            if (session := self.sessions.get(name)) is None:
                slot: Slot = hello.rank if self.world else name if self._lanes else ANYONE
                session = _Session(name, hello.to, hello.rank, slot, self._now, self._token)
                self.sessions[name] = session
                self._joins.logged += 1
                port.joined(name, hello.run, hello.rank, hello.birth)
                session.joined = self._joins.logged
            session.greeting, session.to, session.seen = hello, hello.to, self._now
            admitted.append((hello, session, len(self.sessions) - 1))
        admitted = [of for of in admitted if of[1].name in self.sessions]
        stale = self._judge(admitted)
        for _, session, _ in admitted if self._lanes else ():
            for cell in self._cells.values():
                if cell is not self._busy:
                    cell.machine.seat(session.slot)
        for hello, session, others in admitted:
            # The next life must know of it before it gets anything.
            welcome = partial(self._welcome, hello, session, stale, others)
            self._joins.unstored.append((session.joined, session, welcome))
        self._stored(self._joins, 0)

    def _refusal(self, hello: Greeting) -> tuple[str, str] | None:
        """Return why a trainer does not fit the others; begin its run, if that is new."""
        others = [other for other in self.sessions.values() if other.name != hello.session]
        if hello.rank < 0:
            if self.world and others:
                text = (
                    f"the feed is in coordinated mode with world_size={self.world}: "
                    "connect with rank= and world_size="
                )
                return "protocol", text
            if self.world:
                self._deal(self.run, 0)
            return None
        if any(other.rank < 0 for other in others):
            text = (
                "trainers without a rank use this feed: either all of its trainers connect with "
                "rank= and world_size=, or none does"
            )
            return "protocol", text
        if not hello.run:  # it goes on with this one unless all others are gone
            goes_on = others or not self._is_new(hello) or hello.session in self.sessions
            hello.run = self.run if goes_on and self.run else self._next_run()
        if hello.run in self.runs[:-1]:
            return "in_use", _RUN_OVER
        if hello.run != self.run:
            if others:
                return self._in_use(hello)
            self._deal(hello.run, hello.world)
        elif hello.world != self.world:
            if self.world:
                text = f"world_size={hello.world} differs from {self.world}, that of its run"
                return "protocol", text
            self._deal(hello.run, hello.world)
        if self.births.get(hello.rank, -1) > hello.birth:
            return "in_use", _REPLACED
        self.births[hello.rank] = hello.birth
        for rival in others:
            if rival.rank == hello.rank and rival.name in self.sessions:
                self.port.refuse(rival.to, "in_use", _REPLACED)
                self._leave(rival.name)
        return None

    def _is_new(self, hello: Greeting) -> bool:
        """Return whether another process had this rank, or there were other ranks."""
        return hello.world != self.world or self.births.get(hello.rank, hello.birth) != hello.birth

    def _is_newcomer(self, hello: Greeting) -> bool:
        """Return whether a trainer must wait until the present ranks send a message or time out."""
        if hello.session in self.sessions:
            return False
        if self._is_apart(hello):
            return bool(self.sessions)
        if hello.rank < 0:
            return False
        waits = hello.run not in self.runs if hello.run else self._is_new(hello)
        return waits and any(session.rank >= 0 for session in self.sessions.values())

    def _is_apart(self, hello: Greeting) -> bool:
        """Return whether a trainer has a rank and the present ones have none, or the reverse."""
        return (hello.rank < 0) == bool(self.world)

    def _look_at_newcomers(self, alive: bool = False) -> None:
        """Admit or refuse newcomers once the present trainers have sent a message, or are gone.

        If they are alive, ranks without a number join those, and the others are refused.  Else the
        run of the process that began last begins, or a new one for all without a number.  If a run
        begins, trainers without a rank are refused.
        """
        if not self._newcomers:
            return
        if self._busy is not None:
            self._deferred_sessions.append(partial(self._look_at_newcomers, alive))
            return
        alive = alive and bool(self.sessions)  # else the one that gave a sign has left since
        hellos = sorted(self._newcomers.values(), key=lambda hello: hello.birth)
        unnamed = {hello.rank for hello in hellos if not hello.run}
        if not (alive or all(session.rank in unnamed for session in self.sessions.values())):
            return
        self._newcomers = {}
        apart = [hello for hello in hellos if self._is_apart(hello)]
        if hellos := [hello for hello in hellos if hello not in apart]:
            first = 0 if self.sessions else hellos[-1].run
            joining = [hello for hello in hellos if hello.run == first]
            if not alive:
                self._deal(first or self._next_run(), joining[0].world)
            for hello in joining:
                hello.run = self.run
            self._admit(joining)
            for hello in hellos:
                if hello not in joining and alive:
                    self.port.refuse(hello.to, *self._in_use(hello))
                elif hello not in joining:
                    self._take_greeting(hello)
        for hello in apart:
            self._admit([hello])

    def _in_use(self, hello: Greeting) -> tuple[str, str]:
        ranks = sorted(session.rank for session in self.sessions.values())
        more = ", …" if len(ranks) > _LISTED else ""
        text = (
            f"another run of ranks uses this feed: run {self.run}, of which there are the ranks "
            f"{', '.join(map(str, ranks[:_LISTED]))}{more}; this trainer is of run {hello.run}.  "
            "End all ranks of that run first, or start this one with the others of its run"
        )
        return "in_use", text

    def _judge(self, admitted: list[tuple[Greeting, _Session, int]]) -> set[Token]:
        """Judge the batches and commits that greetings name; return held tokens that are void."""
        claims: list[tuple[Token, Batch, _Session, bool, object]] = []
        for hello, session, _ in admitted:
            claims += [(token, batch, session, False, None) for token, batch in hello.held]
            claims += [(token, batch, session, True, load) for token, batch, load in hello.commits]
        claims.sort(key=lambda claim: claim[0])
        stale: set[Token] = set()
        leases: dict[tuple[int, int, bytes], Batch] = {}
        if any(token not in session.leases for token, _, session, _, _ in claims):
            everyone = self.sessions.values()
            leases = {batch.name: batch for of in everyone for batch in of.leases.values()}
        for token, batch, session, committed, payload in claims:
            batch.slot = session.slot
            there = token in session.leases
            if not there and token <= session.since and not self._is_committed(token):
                there = self._reclaim(session, token, batch, leases)
            if committed:
                self._commit(session, token, payload)
            elif not there:
                stale.add(token)
        return stale

    def _reclaim(
        self,
        session: _Session,
        token: Token,
        batch: Batch,
        leases: dict[tuple[int, int, bytes], Batch],
    ) -> bool:
        """Lease a batch under a token that it had, if nobody has a later one."""
        cell = self._cells.get(batch.partition)
        if cell is None or token > self._token:  # which nobody was given
            return False
        rival = leases.get(batch.name)
        if rival is not None and rival.holder.leases.get(rival.token) is rival:
            if rival.token > token or token >= self._since:  # only recovery can settle that
                return False
            del rival.holder.leases[rival.token]
            self._forget_early(rival)
            batch = rival
        elif (waiting := self._take_out(cell, batch)) is not None:
            batch = waiting
        elif not cell.partition.reclaim(batch):
            return False
        batch.token, batch.holder, batch.request, batch.since = token, session, 0, self._now
        leases[batch.name] = session.leases[token] = batch
        return True

    @staticmethod
    def _take_out(cell: _Cell, batch: Batch) -> Batch | None:
        """Take a batch out of its heap, if it is there."""
        heap = cell.heaps.get(batch.slot, [])
        for at, (turn, _, there) in enumerate(heap):
            if turn == batch.turn and there.name == batch.name:
                del heap[at]
                heapify(heap)
                cell.ready -= 1
                return there
        return None

    def _welcome(self, hello: Greeting, session: _Session, stale: set[Token], others: int) -> None:
        if session.greeting is not hello or self._greeting[session.name]:
            return  # it has left, or greeted again
        gets = {request: (partition, epoch) for request, partition, epoch in hello.gets}
        kept = {of[0] for of in (*hello.held, *hello.commits)}
        again = []
        for token, batch in list(session.leases.items()):
            if token not in kept and batch.request in gets:
                del gets[batch.request]
                again.append(batch)  # it was lost on the way
            elif token not in kept:
                self._end(batch)
        self._forget_requests(session)
        places = {n: self._next_turn(cell, session.slot) for n, cell in self._cells.items()}
        void = [token for token, *_ in hello.held if token in stale]
        self.port.welcome(session.to, places, void, others, hello.run)
        for batch in again:
            self.counts["redelivered"] += 1
            self._send(session, batch)
        session.latest = max(session.latest, *gets, -1)
        for number in sorted(gets):
            partition, epoch = gets[number]
            self._ask(session, number, self._cells[partition], epoch)

    @staticmethod
    def _forget_requests(session: _Session) -> None:
        for request in session.asked.values():
            request.gone = True
        session.asked.clear()
        session.idle = 0

    def _next_turn(self, cell: _Cell, slot: Slot) -> Turn:
        # one that makes something changes now, and nothing comes before this
        turn = self._made_from if cell is self._busy else cell.machine.next_turn(slot)
        heap = cell.heaps.get(slot)
        return min(turn, heap[0][0]) if heap else turn

    # Sessions

    def seen(self, name: bytes, now: float) -> bool:
        """Renew the leases of a session that sent a message; False if it must greet again."""
        self._now = now
        session = self.sessions.get(name)
        if session is None:
            waits = self._greeted is not None or name in self._newcomers
            return waits or self._greeting[name] > 0
        session.seen = now
        # a dead process may have sent a message that came sooner
        self._look_at_newcomers(alive=now - self._newcomers_since >= _SIGN_S)
        return True

    def tick(self, now: float) -> list[bytes]:
        """End the sessions that were silent for too long, and return them.  Call it often."""
        self._now = now
        if self._greeted is not None and now >= self._grace_ends:
            self._recover()
        silent = [
            session.name for session in self.sessions.values() if session.seen + self.ttl <= now
        ]
        for name in silent:
            if (session := self.sessions.get(name)) is not None:  # else a new run has begun
                self.counts["expired"] += len(session.leases)
                self.leave(name)
        if self.world:
            self._notify_ranks()
        return silent

    def _notify_ranks(self) -> None:
        """Send Idle to ranks that hold batches, for requests that wait for trainers.

        Ranks wait all the same, to stay in step; but one that waits for its own batch can end.
        """
        for session in self.sessions.values():
            for request in session.asked.values() if session.leases else ():
                if request.idle and not request.notified:
                    request.notified = True
                    self.port.idle(session.to, request.number, True)

    def leave(self, name: bytes) -> None:
        """End a session: its batches go to others."""
        if self._greeting[name]:  # its greeting waits for a partition
            self._deferred_sessions.append(partial(self._leave, name))
        else:
            self._leave(name)

    def _leave(self, name: bytes) -> None:
        self._newcomers.pop(name, None)
        if self._greeted is not None:
            self._greeted.pop(name, None)
            if self._known.pop(name, None) is not None:
                self._left(name)
            if self._known.keys() <= self._greeted.keys():
                self._recover()
        elif (session := self.sessions.pop(name, None)) is not None:
            session.greeting = None
            self._forget_requests(session)
            for batch in list(session.leases.values()):
                self._end(batch)
            for cell in self._cells.values():
                if cell.machine.voids:
                    self._void(session, cell)
                if self._lanes:
                    cell.over.pop(session.slot, None)
            self._left(name)
            self._look_at_newcomers()

    # Leases

    def commit(self, name: bytes, token: Token, payload: object = None) -> None:
        """Commit a batch of a session, with states if the feed has them."""
        if (session := self.sessions.get(name)) is not None:
            self._commit(session, token, payload)

    def _commit(self, session: _Session, token: Token, payload: object) -> None:
        batch = session.leases.get(token)
        if batch is None:
            self._commit_again(session, token)
            return
        partition = batch.partition
        cell = self._cells[partition]
        if cell is self._busy:
            self._deferred.append(partial(self._commit, session, token, payload))
            return
        if fault := cell.partition.commit(batch, token, payload):
            if fault[0] == EARLY:
                session.early[token] = payload
            else:
                self._refuse(batch, *fault)
            return
        del session.leases[token]
        recent = self._recent
        recent[token] = partition
        if len(recent) > _REMEMBERED:
            self._before, self._recent = recent, {}
        if self._lanes:
            session.last[partition] = token, batch
        rows = batch.rows - batch.empty
        self.port.committed(partition, token, rows)
        cell.logged += 1
        cell.unstored.append((cell.logged, session, token))
        session.unstored += 1
        counts = self.counts
        counts["batches"] += 1
        counts["rows"] += rows
        self.port.gone(batch)
        if cell.machine.gone:
            self._take_gone(cell.machine)
        if cell.asking or self._held_up:  # one without memory may be the first now
            self._look(cell)
        if session.early:
            session.early.pop(token, None)
            waiting = [session.leases[of] for of in session.early]
            of_lanes = [commit for commit in waiting if commit.partition == partition]
            if of_lanes:
                first = min(of_lanes, key=lambda commit: commit.turn).token
                self._commit(session, first, session.early[first])

    def _forget_early(self, batch: Batch) -> None:
        """Answer a commit as stale that waited for an earlier batch, since that was returned."""
        session, token = batch.holder, batch.token
        if token in session.early:
            del session.early[token]
            self.counts["stale"] += 1
            if session.name in self.sessions:  # else it greets again, and its commit is judged
                self.port.answer(session.to, (), (token,))

    def _commit_again(self, session: _Session, token: Token) -> None:
        """Answer a commit without a lease."""
        partition = self._recent.get(token, self._before.get(token))
        if partition is not None:
            session.unstored += 1
            self._when_stored(self._cells[partition], session, token)
        elif self._is_committed(token):
            self.port.answer(session.to, (token,))
        else:
            self.counts["stale"] += 1
            self.port.answer(session.to, (), (token,))

    def _is_committed(self, token: Token) -> bool:
        return token in self._recent or token in self._before or token in self._stored_tokens

    def _refuse(self, batch: Batch, code: str, text: str) -> None:
        session, token = batch.holder, batch.token
        session.early.pop(token, None)
        self.port.answer(session.to, (), (), ((token, code, text),))
        self._end(batch)

    def give_back(self, name: bytes, tokens: Iterable[Token]) -> None:
        """End the leases of batches that a session returns."""
        if (session := self.sessions.get(name)) is None:
            return
        for token in tokens:
            if (batch := session.leases.get(token)) is not None:
                self._end(batch)

    def _end(self, batch: Batch) -> None:
        """End a lease without a commit; the batch goes back to its heap."""
        session, cell = batch.holder, self._cells[batch.partition]
        if cell is self._busy:
            self._returns = True
            self._deferred.append(partial(self._end, batch))
            return
        if session.leases.pop(batch.token, None) is None:
            return
        self._forget_early(batch)
        self.counts["redelivered"] += 1
        if cell.machine.voids:
            self.port.gone(batch)
            self._void(session, cell, batch.turn)
        elif cell.machine.returned(batch):
            self._push(cell, batch)
            self._came_back.add(cell)
        else:
            cell.remakes.add(batch.slot)
            self.port.gone(batch)
        self._look(cell)

    def _void(self, session: _Session, cell: _Cell, since: Turn = (0, -1)) -> None:
        """Void the lanes of a session, and the batches of them from a turn on."""
        if cell is self._busy:
            self._deferred.append(partial(self._void, session, cell, since))
            return
        for token, batch in list(session.leases.items()):
            if batch.partition == cell.number and batch.turn >= since:
                del session.leases[token]
                self._forget_early(batch)
                self.counts["redelivered"] += 1
                self.port.gone(batch)
        for _, _, batch in cell.heaps.pop(session.slot, ()):
            cell.ready -= 1
            self.port.gone(batch)
        session.last.pop(cell.number, None)
        cell.machine.leave(session.slot, since)
        self._look(cell)

    def _grant(self, session: _Session, request: int, batch: Batch) -> None:
        self._token = token = self._token + 1
        batch.token, batch.holder, batch.request, batch.since = token, session, request, self._now
        session.leases[token] = batch
        self._send(session, batch)

    def _send(self, session: _Session, batch: Batch) -> None:
        if not self._lanes or self.world:
            live = True
        else:
            cell = self._cells[batch.partition]
            live = cell.machine.live(batch.slot) or bool(cell.heaps.get(batch.slot))
            if not live:  # a batch that is sent again may have later ones of its lanes
                of_lanes = (b for b in session.leases.values() if b.partition == cell.number)
                live = any(other.turn > batch.turn for other in of_lanes)
        self.port.give(session.to, batch, live)

    # The journals

    def _write(self, kind: str, cell: _Cell) -> None:
        cell.logged += 1
        self.port.changed(cell.number, kind)

    def _left(self, session: bytes) -> None:
        self._joins.logged += 1
        self.port.left(session)

    def _when_stored(self, cell: _Cell, session: _Session, what: Token | Call) -> None:
        """Answer a session once all entries of a partition up to now are stored."""
        cell.unstored.append((cell.logged, session, what))
        self._stored(cell, cell.stored)

    def logged(self, partition: int) -> int:
        """Return the number of entries that were sent to the journal of a partition."""
        return (self._joins if partition == SESSIONS else self._cells[partition]).logged

    def stored(self, partition: int, number: int) -> None:
        """Send the answers that waited for the first ``number`` entries of a partition.

        ``SESSIONS`` stands for the journal of joins and leaves.
        """
        self._stored(self._joins if partition == SESSIONS else self._cells[partition], number)

    def _stored(self, of: _Stored, number: int) -> None:
        of.stored = number = max(number, of.stored)
        queue = of.unstored
        if not queue or queue[0][0] > number:
            return
        answers: dict[_Session, list[Token]] = {}
        while queue and queue[0][0] <= number:
            busy = of is self._joins and self._busy is not None
            deferred = self._deferred or self._deferred_sessions
            if busy and (self.world or queue[0][1].leases or deferred):
                self._deferred_sessions.append(partial(self._stored, of, number))
                break
            _, session, what = queue.popleft()
            if isinstance(what, int):
                session.unstored -= 1
                answers.setdefault(session, []).append(what)
            else:
                what()
        for session, tokens in answers.items():
            self.port.answer(session.to, tokens)

    # Orders

    def steer(self, partition: int, what: tuple[str, Any]) -> Order | None:
        """Give a partition an order and return it; None: ask again after its next step.

        The order takes effect once it is stored.  ValueError where it is not possible.
        """
        cell = self._cells[partition]
        if cell is self._busy or cell.ordered:
            return None
        order = cell.partition.propose(what)
        if order is None:
            self._behind_orders.add(cell)
        else:
            self._write("order", cell)
            cell.ordered = True
            cell.unstored.append((cell.logged, None, partial(self._apply, cell, order)))
        return order

    def _apply(self, cell: _Cell, order: Order) -> None:
        if cell is self._busy:
            self._deferred.append(partial(self._apply, cell, order))
            return
        cell.partition.apply(order)
        cell.ordered = cell.ended = False
        self._look(cell)
        if cell.machine.ahead:
            heappush(self._behind, ((0, 0), cell.number))

    # Runs of ranks

    def _next_run(self) -> int:
        """Return a number for a new run."""
        run = self.run
        while (run := run % MAX_COUNT + 1) in self.runs:
            pass
        return run

    def _deal(self, run: int, world: int) -> None:
        for session in list(self.sessions.values()):
            self.port.refuse(session.to, "in_use", _RUN_OVER)
            self._leave(session.name)  # at once, also if it has greeted again
        self.run, self.world, self._low = run, world, self._ahead * (world or 1)
        if [run] != self.runs[-1:]:
            self.runs = [*self.runs[-_RUNS_OVER:], run]
        self.births.clear()
        for cell in self._cells.values():
            for heap in () if cell.machine.ahead else cell.heaps.values():  # else it keeps them
                for _, _, batch in heap:
                    self.port.gone(batch)
            cell.heaps.clear()
            cell.over.clear()
            cell.ready, cell.ended = 0, False
        self._make_all_ahead()
        for cell in self._cells.values():
            self._deal_one(cell)

    def _deal_one(self, cell: _Cell) -> None:
        self._write("deal", cell)
        for batch in cell.partition.deal(self.run, self.world):
            self._push(cell, batch)
        self._take_gone(cell.machine)

    def _take_gone(self, machine: Machine) -> None:
        """Free the batches that a machine has dropped."""
        if machine.gone:
            for batch in machine.gone:
                self.port.gone(batch)
            machine.gone.clear()

    # Requests

    def ask(self, name: bytes, gets: Sequence[Get]) -> None:
        """Take requests of a session; ProtocolError, and none taken, if one of them is invalid."""
        if (session := self.sessions.get(name)) is None:
            return
        open_ = len(session.asked) + len(session.leases) + session.unstored + len(gets)
        if open_ > self._most_open:
            raise ProtocolError(
                f"more than {self._most_open} requests, batches and commits are open"
            )
        latest, cells = session.latest, self._cells
        for number, partition, _ in gets:
            if partition not in cells:
                raise ProtocolError(f"partition {partition} is not of this owner")
            if number <= latest:
                raise ProtocolError(f"request {number} comes after {latest}: numbers grow")
            latest = number
        session.latest = latest
        left = len(gets)
        alike = left == 1 or len({get[1:] for get in gets}) == 1
        for number, partition, epoch in gets:
            self._ask(session, number, cells[partition], epoch, left if alike else 1)
            left -= 1

    def _ask(self, session: _Session, number: int, cell: _Cell, epoch: int, alike: int = 1) -> None:
        """Take a request, the first of ``alike`` equal ones.

        Answer it at once if its batch is ready, or can be made at once.
        """
        slot, asking = session.slot, cell.asking
        if (slot, epoch) not in asking:
            heap = cell.heaps.get(slot)
            others = heap or asking or cell.ordered or cell.remakes or self._busy
            if not (others or self._todo or self._held_up or self._shut):
                made = self.port.make(cell.number, slot, epoch, alike)
                if made and made[0].slot == slot and made[0].turn[0] <= epoch:
                    for batch in made[1:]:
                        self._push(cell, batch)
                    cell.over.pop(slot, None)
                    self._grant(session, number, made[0])
                    return
                for batch in made or ():
                    self._push(cell, batch)
                heap = cell.heaps.get(slot)
            if heap and heap[0][0][0] <= epoch and self._is_open(cell, slot):
                self._grant(session, number, self._pop(cell, heap))
                return
            asking[slot, epoch] = deque()
        request = session.asked[number] = _Request(session, number, cell, epoch)
        asking[slot, epoch].append(request)
        self._todo[cell, slot, epoch] = None

    def withdraw(self, name: bytes, requests: Iterable[int]) -> None:
        """Forget requests of a session."""
        if (session := self.sessions.get(name)) is None:
            return
        for number in requests:
            if (request := session.asked.pop(number, None)) is not None:
                request.gone = True
                session.idle -= request.idle
        self._look_at_held_up()  # the next one of the session may be there

    def _is_open(self, cell: _Cell, slot: Slot) -> bool:
        """Return whether the next batch of a partition may be handed out now."""
        if self._shut:
            return False
        if slot in cell.remakes:
            heap = cell.heaps.get(slot)
            if not heap or cell is self._busy:
                return False
            return heap[0][0] < cell.machine.next_turn(slot)
        # while it makes something it can not be asked for its lanes, or take batches back
        return not ((self._lanes or self._returns) and cell is self._busy)

    def _look(self, cell: _Cell) -> None:
        """Have ``next_work`` examine the requests at a partition, and those that are held up."""
        todo = self._todo
        for slot, epoch in cell.asking:
            todo[cell, slot, epoch] = None
        if self._held_up:
            self._look_at_held_up()

    def _look_at_held_up(self) -> None:
        """Have ``next_work`` examine the requests that wait for memory or rows."""
        held_up, self._held_up = self._held_up, set()
        for cell in held_up:
            for slot, epoch in cell.asking:
                self._todo[cell, slot, epoch] = None

    def freed(self) -> None:
        """Note that memory was freed."""
        self._full, self._again = False, True
        self._look_at_held_up()

    def wake(self, partition: int) -> None:
        """Have a partition try again whose source had no example."""
        self._again = True
        cell = self._cells[partition]
        self._look(cell)
        if cell.machine.ahead:
            heappush(self._behind, ((0, 0), partition))

    @property
    def paused(self) -> bool:
        """Whether nothing is handed out; commits still count."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._paused, self._shut = paused, paused or self.recovering
        if not paused:
            for cell in self._cells.values():
                self._look(cell)

    def _push(self, cell: _Cell, batch: Batch) -> None:
        slot = batch.slot
        heap = cell.heaps.get(slot)
        if heap is None:
            heap = cell.heaps[slot] = []
        heappush(heap, (batch.turn, next(self._ties), batch))
        cell.ready += 1
        cell.over.pop(slot, None)
        cell.ended = False
        for of, epoch in cell.asking:
            if of == slot:
                self._todo[cell, slot, epoch] = None

    def _pop(self, cell: _Cell, heap: list[tuple[Turn, int, Batch]]) -> Batch:
        cell.ready -= 1
        if cell.machine.ahead and cell.ready == self._low - 1 and cell is not self._busy:
            heappush(self._behind, (cell.machine.next_turn(0), cell.number))
        return heappop(heap)[2]

    def _hand_out(self, cell: _Cell, slot: Slot, epoch: int) -> bool:
        """Answer requests with ready batches; return whether some remain open."""
        queue = cell.asking.get((slot, epoch))
        heap = cell.heaps.get(slot)
        while queue:
            request = queue[0]
            if not request.gone:
                if not (heap and self._is_open(cell, slot)):
                    return True
                if heap[0][0][0] > epoch:
                    self._answer_over(request, epoch)
                else:
                    session = request.session
                    del session.asked[request.number]
                    session.idle -= request.idle
                    self._grant(session, request.number, self._pop(cell, heap))
            queue.popleft()
        cell.asking.pop((slot, epoch), None)
        return False

    def _answer_over(self, request: _Request, epoch: int) -> None:
        session, cell = request.session, request.cell
        del session.asked[request.number]
        session.idle -= request.idle
        self._look_at_held_up()
        self._when_stored(cell, session, partial(self._over, request, epoch))

    def _over(self, request: _Request, epoch: int) -> None:
        session, cell = request.session, request.cell
        cell.over[session.slot] = FOREVER if epoch < 0 else epoch
        also = self._over_as_well(cell, session.slot)
        self.port.over(session.to, request.number, cell.number, epoch, also)

    def _over_as_well(self, cell: _Cell, slot: Slot) -> tuple[int, ...]:
        """Return the other partitions where this epoch is known to be over, too."""
        if self._lanes:
            return ()
        over, cells = cell.over[slot], self._cells.items()
        return tuple(n for n, of in cells if of is not cell and of.over.get(slot, -1) >= over)

    # Making

    @property
    def ahead(self) -> bool:
        """Whether ``work_ahead`` may return work."""
        return bool(self._behind) and self._busy is None

    def next_work(self) -> Work | None:
        """Hand out ready batches; return the next batch to make for a request, or None.

        The caller calls ``make`` of that partition, and then ``made``: at once, or after ``begin``
        without the lock.  It calls this after other events, too, also while a partition makes
        something.
        """
        if self._busy is not None:
            for cell in self._came_back:
                self._serve(cell)
            self._came_back.clear()
            return None
        self._came_back.clear()
        self._again = False
        if self._behind_orders:
            return Work(self._behind_orders.pop().number, ANYONE, FOREVER)
        while self._todo and not self._shut:
            wanted = self._beyond if self._beyond in self._todo else next(iter(self._todo))
            cell, slot, epoch = wanted
            del self._todo[wanted]
            if not self._hand_out(cell, slot, epoch):
                continue
            if cell.machine.next_turn(slot)[0] > epoch:  # later ones may wait for memory
                self._answer_made(cell, slot, epoch, Outlook.OVER)
                continue
            if cell.ordered:
                self._held_up.add(cell)
                continue
            beyond, self._beyond = wanted == self._beyond, None
            most = len(cell.asking[slot, epoch])
            return Work(cell.number, slot, epoch, True, beyond, most)
        return None

    def begin(self, work: Work) -> None:
        """Allow other events while a partition makes a batch, until ``made``.

        Without this call no event may come between ``next_work`` and ``made``.
        """
        self._busy, self._again, self._returns = self._cells[work.partition], False, False
        # the least turn of it for anyone, since nothing may be asked of it meanwhile
        self._made_from = (0, 0) if self.world else self._busy.machine.next_turn(ANYONE)

    def _make_all_ahead(self) -> None:
        self._behind = [((0, 0), p) for p, of in self._cells.items() if of.machine.ahead]

    def work_ahead(self) -> Work | None:
        """Return the next batch to make ahead of requests, the first in the order of the feed.

        The caller calls this when ``next_work`` has returned None.
        """
        if self._shut or self._full:
            return None
        behind = self._behind
        while behind:
            turn, number = heappop(behind)
            cell = self._cells[number]
            if cell.ready >= self._low or cell.ordered or cell.machine.finished:
                continue
            here = cell.machine.next_turn(0)
            if turn != here:
                heappush(behind, (here, number))
            else:
                slot = 0 if self.world else ANYONE
                return Work(number, slot, FOREVER, most=self._low - cell.ready)
        return None

    def made(self, work: Work, made: list[Batch] | Outlook) -> None:
        """Hand out the batches that a partition made, then make the calls that waited for it."""
        cell = self._cells[work.partition]
        machine = cell.machine
        self._busy = None
        remade = bool(cell.remakes) and made is not Outlook.WAITS
        if self._again and made in (Outlook.FULL, Outlook.WAITS):
            made = []  # try it again
        elif work.beyond and not made:  # it has only read
            self._beyond = cell, work.slot, work.epoch
        elif made is Outlook.FULL and not work.beyond and self._is_in_turn(cell, work):
            made, self._beyond = [], (cell, work.slot, work.epoch)
        stands = machine.epoch, machine.finished
        changed = cell.stands != stands or bool(machine.drops)
        cell.stands = stands
        ends = made is Outlook.ENDED and not cell.ended
        if changed or ends:  # it may have left batches or rows out
            self._write("made", cell)
        if isinstance(made, list):
            for batch in made:
                self._push(cell, batch)
        if remade:
            self._note_remade(cell)
        if machine.gone:
            self._take_gone(machine)
        if ends:
            cell.ended = True
        if changed or ends:  # for one trainer: the others' requests end, too
            self._look(cell)
        if not work.asked:
            if isinstance(made, list):
                if cell.ready < self._low:
                    heappush(self._behind, (machine.next_turn(0), cell.number))
            elif made is Outlook.FULL:
                self._full = True
                heappush(self._behind, (machine.next_turn(0), cell.number))
        else:
            self._answer_made(cell, work.slot, work.epoch, made)
        self._catch_up(cell)

    def begin_ahead(self, partition: int) -> None:
        """Begin writing a batch of a partition ahead without the lock; ``end_ahead`` ends it."""
        self.begin(Work(partition, ANYONE, FOREVER))

    def end_ahead(self, partition: int) -> None:
        """Make the calls that waited while a partition wrote a batch ahead."""
        self._busy = None
        self._catch_up(self._cells[partition])

    def _catch_up(self, cell: _Cell) -> None:
        while (deferred := self._deferred or self._deferred_sessions) and self._busy is None:
            deferred.popleft()()
        if cell.asking:
            self._serve(cell)

    @staticmethod
    def _note_remade(cell: _Cell) -> None:
        """Release the batches of a slot once all earlier ones are made again."""
        for slot in [*cell.remakes]:
            turn = cell.machine.next_turn(slot)
            if all(entry[0] < turn for entry in cell.heaps.get(slot, ())):
                cell.remakes.discard(slot)

    def _is_in_turn(self, cell: _Cell, work: Work) -> bool:
        """Return whether a session of this slot can use no earlier batch, and put this one first.

        All memory may be taken by batches that come after this one, be it in other partitions or
        for other sessions, and nobody frees these before: one thread may have several trainers.
        """
        slot, todo = work.slot, self._todo
        epochs = {of: of.machine.next_turn(slot)[0] for of in self._cells.values()}
        queue = cell.asking.get((slot, work.epoch), deque[_Request]())
        for request in queue:
            session, place = request.session, (epochs[cell], request.number)
            leases, asked = session.leases.values(), session.asked.values()
            before = [(of.turn[0], of.request) for of in leases if of.request]
            before += [  # the others wait for trainers
                (epochs[of.cell], of.number)
                for of in asked
                if of.cell in self._held_up or (of.cell, slot, of.epoch) in todo
            ]
            if not request.gone and place <= min(before, default=place):
                queue.remove(request)
                queue.appendleft(request)
                return True
        return False

    def _serve(self, cell: _Cell) -> None:
        """Answer the requests at a partition with ready batches."""
        for slot, epoch in list(cell.asking):
            if cell.heaps.get(slot) and not self._hand_out(cell, slot, epoch):
                self._todo.pop((cell, slot, epoch), None)

    def _answer_made(
        self, cell: _Cell, slot: Slot, epoch: int, made: list[Batch] | Outlook
    ) -> None:
        """Answer requests for which no batch was made."""
        if isinstance(made, list):
            if (slot, epoch) in cell.asking:
                self._todo[cell, slot, epoch] = None
            return
        queue = cell.asking.get((slot, epoch), ())
        if made in (Outlook.OVER, Outlook.ENDED):
            for request in queue:
                if not request.gone:
                    self._answer_over(request, -1 if made is Outlook.ENDED else epoch)
            cell.asking.pop((slot, epoch), None)
            return
        if made is Outlook.IDLE:
            self._look_at_held_up()
        else:
            self._held_up.add(cell)
        live = self.world or not self._lanes or cell.machine.live(slot)
        for request in queue if made is not Outlook.WAITS else ():
            if request.gone or (request.idle and request.live == live):
                continue
            request.session.idle += not request.idle
            request.idle, request.live = True, bool(live)
            if not self.world:
                request.notified = True
                self.port.idle(request.session.to, request.number, request.live)

    # Queries

    @property
    def wanted(self) -> bool:
        """Whether ``next_work`` has requests or orders to examine."""
        return bool(self._todo or self._behind_orders)

    @property
    def awaited(self) -> bool:
        """Whether requests or deferred calls wait for the end of a partition's step."""
        return bool(self._todo or self._deferred or self._deferred_sessions)

    @property
    def starved(self) -> bool:
        """Whether requests wait for trainers."""
        return any(map(_IDLE_OF, self.sessions.values()))

    @property
    def recovering(self) -> bool:
        """Whether trainers of the earlier life may still greet; nothing is handed out."""
        return self._greeted is not None

    @property
    def ended(self) -> bool:
        """Whether all batches are made, committed and stored."""
        if self._busy is not None:
            return False
        for session in self.sessions.values():
            if session.leases:  # as mostly: the caller asks after each step
                return False
        if self.saving:
            return False
        cells = self._cells.values()
        return not any(of.ready or not (of.ended or of.machine.finished) for of in cells)

    @property
    def leased(self) -> int:
        """Number of batches under a lease."""
        return sum(len(session.leases) for session in self.sessions.values())

    @property
    def saving(self) -> int:
        """Number of commits that are not stored."""
        unstored = (of.unstored for of in self._cells.values())
        return sum(isinstance(what, int) for of in unstored for _, _, what in of)

    def standing(self) -> dict[str, int]:
        """Return the number of made and uncommitted batches by their state."""
        ready = sum(cell.ready for cell in self._cells.values())
        return {"ready": ready, "leased": self.leased, "saving": self.saving}

    def standing_of(self, name: bytes) -> dict[str, int]:
        """Return the numbers of leases and requests of a trainer; empty if it has no session."""
        session = self.sessions.get(name)
        if session is None:
            return {}
        requests, leases = len(session.asked), len(session.leases)
        return {"rank": session.rank, "requests": requests, "leases": leases}

    def last_committed(self, name: bytes, token: Token) -> Batch | None:
        """Return the batch of a commit, if no later one of its session and partition came.

        The states of its lanes then belong to the session's trainer.
        """
        if (session := self.sessions.get(name)) is None:
            return None
        for of, batch in session.last.values():
            if of == token:
                return batch
        return None

    def holder(self, partition: int, number: int) -> tuple[bytes, float] | None:
        """Return the session that holds a batch, and the time of its grant."""
        for session in self.sessions.values():
            for batch in session.leases.values():
                if (batch.partition, batch.number) == (partition, number):
                    return session.name, batch.since
        return None

    def describe(self, now: float, named: Callable[[bytes], str] = bytes.hex) -> str:
        """Return why trainers get no batch, for people; "" where no reason is known.

        ``named`` names a session's trainer.
        """
        reasons = []
        if saving := self.saving:
            reasons.append(f"commits of batches that are being stored: {saving}")
        if self._paused:
            reasons.append("the server is stopping and hands out nothing more")
        elif self._greeted is not None:
            reasons.append(
                "batches wait until trainers from before the restart have reconnected, or a few "
                "seconds are over"
            )
        oldest_of = [next(iter(of.leases.values())) for of in self.sessions.values() if of.leases]
        if oldest_of:
            oldest = min(oldest_of, key=lambda batch: batch.since)
            trainer = oldest.holder
            rank = f" (rank {trainer.rank})" if trainer.rank >= 0 else ""
            many = self.leased
            which = f"{many} batches are leased, the longest" if many > 1 else "a batch is leased"
            reasons.append(f"{which} to {named(trainer.name)}{rank} for {now - oldest.since:.0f} s")
        if self._newcomers:
            reasons.append(
                f"{len(self._newcomers)} trainers have come that do not go together with those of "
                "before, and wait until one of these gives a sign, or all of them are gone"
            )
        if self._busy is not None:
            reasons.append(f"partition {self._busy.number} makes a batch")
        if ordered := sum(cell.ordered for cell in self._cells.values()):
            reasons.append(f"orders that are being stored: {ordered}")
        ranks = {session.rank for session in self.sessions.values()}
        if self.world and (missing := self.world - len(ranks)) > 0:
            absent = islice((rank for rank in range(self.world) if rank not in ranks), _LISTED)
            more = ", …" if missing > _LISTED else ""
            reasons.append(f"{missing} ranks have not joined: {', '.join(map(str, absent))}{more}")
        return "; ".join(reasons)
