"""Servers of one feed of lanes, and their one trainer: the machines of both sides, and slow ways.

    Session of each server, Merge ══ messages wait on each way ══► Dispatcher, Lanes of partitions

Each way keeps the order of its messages and may delay them.  A cut loses the messages on a way, and
the trainer greets again.  A server may die: its next life has what its partitions have stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

from headrace.merge import merge_of
from headrace.session import Session
from headrace_proto import messages
from headrace_proto.messages import (
    Deliver,
    Delivery,
    Ended,
    Hello,
    Idle,
    Outcome,
    Passed,
    Renew,
    Step,
    Welcome,
)
from headrace_proto.placement import next_term, partitions_of
from headrace_server.core.admitted_examples import AT_SERVER, AT_TRAINER, NOWHERE
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Finish,
    Leave,
    Release,
    Send,
    StoreCommit,
    Want,
)
from headrace_server.core.lane_order import LaneOrder
from tests.unit.core.segment_world import Worker

__all__ = ["Run"]

_LEASE_S, _CREDITS = 30.0, 64
_BATCH_SIZE, _CAPACITY = 2, 5

#: Partition, and the segments of a batch: which example, and which of its segments.
Taken = tuple[int, list[tuple[int, int]]]


class _Partition(Worker):
    """The lanes of one partition, with states in any place."""

    def __init__(self, number: int, counts: Sequence[int], states: str) -> None:
        self._states = states
        at_trainer = states == AT_TRAINER
        super().__init__(number, counts, "lanes", at_trainer, _BATCH_SIZE, _CAPACITY, True)

    def begin(self, made: int) -> None:
        super().begin(made)
        if self._states == NOWHERE:
            self.machine = LaneOrder(*self.options, NOWHERE)


class _Server:
    """One server with one worker."""

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._number, self._lives = run, number, 0
        share = number, run.servers
        numbers = partitions_of(0, 1, len(run.counts), share)
        self.partitions = [_Partition(p, run.counts[p], run.states) for p in numbers]
        self.said: deque[Any] = deque()  # to the trainer, by its last connection
        self._connected = False
        self._sessions = 0
        self._begin(next_term(0, share))

    def _begin(self, term: int) -> None:
        of = [partition.number for partition in self.partitions]
        shared = self._run.servers > 1
        self._term = term
        self.desk = Dispatcher(
            of, _LEASE_S, _CREDITS, term, "lanes", shared=shared, states=self._run.states
        )
        self._session = 0

    def die(self) -> None:
        """Restart the server, which hands out nothing before the trainer has greeted it."""
        for partition in self.partitions:
            partition.die()
            partition.begin(0)
        self._begin(next_term(self._term, (self._number, self._run.servers)))
        self.desk.wait_for_others(True)
        self.desk.paused = True

    def lose(self) -> None:
        """Lose the connection, with all that is on its way, until the trainer greets again."""
        self.said.clear()
        self._connected = False

    def _tell(self, message: Any) -> None:
        if self._connected:
            self.said.append(message)

    def know_all_are_back(self) -> None:
        if self._session:
            self.desk.wait_for_others(False)
            self.desk.paused = False
            self._act()

    def hear(self, message: Any) -> None:
        self._connected = True
        if isinstance(message, Hello):
            self._greet(message)
        elif message.session == self._session:
            self._handle(message)
        else:
            self._tell(messages.Unknown(message.session))
        self._act()

    def _greet(self, hello: Hello) -> None:
        file, resumed = f"{self._term}", self._session > 0
        if resumed:
            self.desk.resend(self._session, hello.last_seq if hello.known == file else 0)
        else:
            self._sessions += 1
            self._session = self._sessions
            self.desk.join(self._session, 0.0)
            self.desk.adopt(self._session, tuple(hello.held), 0.0)
            for place in hello.batches:
                self.desk.claim(self._session, place, place.token not in hello.held)
        told = {"shape": "sequences", "order": "lanes", "recovers": True, "epoch": self._term}
        welcome = Welcome(4, "t", self._session, "f", [], 1e9, _LEASE_S, _CREDITS)
        welcome.session_file, welcome.resumed, welcome.properties = file, resumed, told
        welcome.partitions = len(self._run.counts)
        self._tell(welcome)

    def _handle(self, message: Any) -> None:
        session, desk = self._session, self.desk
        if isinstance(message, Step):
            desk.commit(session, message.commits)
            for save in message.saves:
                desk.save(session, save.token, "states")
            desk.give_back(session, message.returned)
            desk.window(session, message.window)
        else:
            assert isinstance(message, Renew)
            desk.window(session, message.window)
            desk.renew(session, message.last_seq, frozenset(message.held), 0.0)

    def work(self, chance: Random) -> None:
        """Let a partition do something, if there is anything to do."""
        partition = chance.choice(self.partitions)
        deed = chance.randrange(4)
        if deed == 0 and partition.orders:
            partition.obey()
        elif deed == 1 and partition.words:
            self._hear_of(partition, *partition.words.popleft())
        elif deed == 2:
            partition.store(1)
        else:
            partition.work()

    def _hear_of(self, partition: _Partition, kind: str, *of: Any) -> None:
        desk = self.desk
        if kind == "made":
            number, rows, stripe, which = of
            batch = Batch(partition.number, number, rows, which, {"stripe": stripe})
            desk.made(batch)
        elif kind == "stored":
            desk.stored(partition.number, [(*of, "", "")[:3]])
        elif kind == "claimed":
            desk.claimed(*of)
        elif kind == "dry":
            desk.dry(*of)
        else:
            desk.partition_ended(partition.number)
        self._act()

    def _act(self) -> None:
        for effect in self.desk.take_effects():
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, StoreCommit):
                self._partition(effect.batch.partition).orders.append(effect)
            elif isinstance(effect, (Want, Leave, Claim, Release)):
                self._partition(effect.partition).orders.append(effect)
            elif isinstance(effect, Answer):
                answer = effect.committed, effect.stale, [list(f) for f in effect.faults]
                self._tell(Outcome(effect.session, *answer))
            elif isinstance(effect, Finish):
                self._tell(Ended(effect.session))
            elif isinstance(effect, (Idle, Passed)):
                self._tell(effect)

    def _partition(self, number: int) -> _Partition:
        return next(one for one in self.partitions if one.number == number)

    def _send(self, send: Send) -> None:
        batch, partition = send.batch, self._partition(send.batch.partition)
        place = batch.meta.get("claimed")
        draft = partition.after[batch.number]
        cells = list(zip(partition.examples(draft), draft.segments.tolist(), strict=True))
        self._run.cells[send.token] = cells, batch.body if place is None else place.segments
        order = send.seq, send.token, batch.partition, batch.number, batch.rows
        delivery = Delivery(*order, 0, [], {}, "", 0, 1)
        self._tell(Deliver(send.session, (delivery,)))


class Run:
    """One trainer that takes all of a feed from several servers."""

    def __init__(
        self, counts: Sequence[Sequence[int]], servers: int, states: str, prefetch: int, seed: int
    ) -> None:
        """``counts``: number of segments of each example, by partition."""
        self.counts, self.servers, self.states = counts, servers, states
        self.cells: dict[int, tuple[list[tuple[int, int]], bytes]] = {}  # by token
        self.took: list[Taken] = []
        self._chance = Random(seed)
        self._servers = [_Server(self, number) for number in range(servers)]
        self._heard: list[deque[Any]] = [deque() for _ in range(servers)]  # on their way there
        self._sessions = []
        for share in range(servers):
            session = Session("f", b"nonce", 0)
            session.owner, session.owners, session.share, session.shares = 0, 1, share, servers
            self._sessions.append(session)
        self._merge: Any = None
        self._prefetch = prefetch
        self._in_hand: tuple[Session, int] | None = None

    def to_the_end(self, cuts: float = 0.0, deaths: float = 0.0) -> list[Taken]:
        """Let anything happen that can, until all is done; a cut or a death with this chance."""
        chance = self._chance
        for _ in range(60_000):
            if all(session.ended for session in self._sessions):
                return self.took
            at = chance.randrange(self.servers)
            server, session = self._servers[at], self._sessions[at]
            deed = chance.random()
            if deed < deaths:
                server.die()
                self._cut(at)
            elif deed < deaths + cuts:
                self._cut(at)
            elif deed < 0.05:
                server.know_all_are_back()
            elif deed < 0.2 and self._heard[at]:
                server.hear(self._heard[at].popleft())
            elif deed < 0.35 and server.said:
                message = server.said.popleft()
                session.receive(message, [b""] if isinstance(message, Deliver) else [], 0.0)
            elif deed < 0.5:
                self._heard[at] += session.outgoing(0.0)
            elif deed < 0.6:
                self._step()
            else:
                server.work(chance)
        raise AssertionError(f"it is stuck after {len(self.took)} batches: {self._why()}")

    def _cut(self, at: int) -> None:
        self._heard[at].clear()
        self._servers[at].lose()
        self._sessions[at].greet()

    def _step(self) -> None:
        """The trainer saves the batch in its hands, or takes the next one."""
        if self._merge is None:
            if all(session.welcome for session in self._sessions):
                self._sessions[0].prefetch = self._prefetch
                self._merge = merge_of(self._sessions, self._sessions[0])
            return
        if self._in_hand is not None:
            session, token = self._in_hand
            if self.states == NOWHERE:
                session.commit(token)
            else:
                session.save(token, [], None)
            self._in_hand = None
            return
        received = self._merge.take(Session.take)
        if received is None:
            self._merge.want()
            return
        token, partition = received.delivery.token, received.delivery.partition
        cells, which = self.cells[token]
        session = self._sessions[partition % self.servers]
        if session.place(token, which if self.states == AT_SERVER else b""):
            self.took.append((partition, cells))
            self._in_hand = session, token

    def _why(self) -> str:
        return "; ".join(server.desk.describe(0.0) for server in self._servers)
