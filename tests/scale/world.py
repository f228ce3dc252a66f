"""Trainers and servers in simulated time: the real machines, with a model of network and failures.

    trainer: Session of each owner, Merge ── Hello, Step, Renew ──► owner: Dispatcher, Ahead
                                         ◄── Deliver, Outcome … ──
             a message takes a while, or is lost where its server is away

Both sides are what trainers and workers run: only sockets, bytes and threads are replaced, here
by a heap of events.  Processor time of the machines is measured as they are called.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.merge import merge_of
from headrace.session import Session
from headrace_proto import limits
from headrace_proto.messages import (
    Bye,
    Deliver,
    Delivery,
    Ended,
    EpochBegun,
    Following,
    Hello,
    Idle,
    Outcome,
    Passed,
    Pulse,
    Renew,
    Step,
    Unknown,
    Welcome,
)
from headrace_proto.placement import next_term, partitions_of
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Answer, Batch, Claim, Finish, Send, StoreCommit
from headrace_server.core.partition_turns import PartitionTurns

__all__ = ["Shape", "World"]

LEASE_S, HEARTBEAT_S, CREDITS = 30.0, 1.0, 64
_TICK_S, _LOOK_S = 0.1, 0.25
#: Time that answers to commits wait for a batch, and time after which a commit is stored.
_MOMENT_S, _STORED_S = 0.005, 0.001
_AHEAD, _NBYTES = 64, 1000
_FEED = "feed"


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a world is, and how fast."""

    trainers: int
    servers: int
    partitions: int
    batches: int  # of each partition
    ranks: bool = False  # all take a step together
    prefetch: int = 2
    step_s: float = 0.2
    latency_s: float = 0.0002  # of a message, at least; up to twice as long


@dataclass(slots=True)
class _Partition:
    """The batches that one partition still makes: those that no earlier life has committed."""

    numbers: list[int]  # the next one last
    capacity: int | None = None
    made_ahead = True

    @property
    def next_turn(self) -> int:
        return self.numbers[-1]


@dataclass(slots=True)
class Seen:
    """All that is counted."""

    messages: Counter[str] = field(default_factory=Counter)
    cpu_s: dict[str, float] = field(default_factory=lambda: {"trainer": 0.0, "owner": 0.0})
    committed: Counter[tuple[int, int]] = field(default_factory=Counter)
    held_ahead: int = 0  # the most that one trainer had, not yet taken
    waited_s: float = 0.0  # by all trainers, for batches
    noticed: list[float] = field(default_factory=list)  # when a trainer took a server for lost
    taken: list[tuple[float, int, int, int]] = field(default_factory=list)  # when, by whom, what
    sent_again: list[float] = field(default_factory=list)  # when a server that is back sent a batch
    ended: list[float] = field(default_factory=list)  # when trainers knew that all is done
    steps: list[float] = field(default_factory=list)  # of ranks: when all had theirs


class World:
    """One run."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape, self.now, self.seen = shape, 0.0, Seen()
        self.chance = random.Random(seed)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._arrives: dict[tuple[object, object], float] = {}  # by way: when its last one arrives
        self.done: dict[int, set[int]] = {p: set() for p in range(shape.partitions)}
        self.away: set[int] = set()  # servers that are lost
        self.owners = [
            Owner(self, n, next_term(0, (n, shape.servers))) for n in range(shape.servers)
        ]
        self.trainers = [Trainer(self, n) for n in range(shape.trainers)]
        self._in_step: list[Trainer] = []  # ranks that have their batch of this step

    # Time

    def later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        event = (self.now + seconds, next(self._order), call, arguments)
        heapq.heappush(self._events, event)

    def run(self, until: Callable[[], object], most_s: float = 600.0) -> None:
        """Let time pass until something is so."""
        while not until():
            self.now, _, call, arguments = heapq.heappop(self._events)
            if self.now > most_s:
                raise RuntimeError(f"after {most_s:g} s of simulated time it is not so yet")
            call(*arguments)

    def run_to_the_end(self, most_s: float = 600.0) -> None:
        self.run(lambda: all(one.ended or one.lost for one in self.trainers), most_s)

    # The network

    def send(self, server: int, trainer: int, up: bool, message: Any) -> None:
        """A message between a trainer and a server, behind those that left before it."""
        self.seen.messages[type(message).__name__] += 1
        way = (server, trainer, up)
        at = max(
            self.now + self.shape.latency_s * (1 + self.chance.random()),
            self._arrives.get(way, 0.0),
        )
        self._arrives[way] = at
        self.later(at - self.now, self._arrive, *way, message)

    def _arrive(self, server: int, trainer: int, up: bool, message: Any) -> None:
        if server in self.away or self.trainers[trainer].lost:
            return
        if up:
            self.owners[server].hear(trainer, message)
        else:
            self.trainers[trainer].hear(server, message)

    # Failures

    def lose_server(self, server: int, seconds: float) -> None:
        """A host is lost, and another goes on with its journal some time later."""
        self.away.add(server)
        self.later(seconds, self._restart, server)

    def _restart(self, server: int) -> None:
        self.away.discard(server)
        term = next_term(self.owners[server].term, (server, self.shape.servers))
        self.owners[server] = Owner(self, server, term)

    # Ranks

    def has_batch(self, trainer: Trainer) -> None:
        """A rank has its batch: all begin the step when each has."""
        self._in_step.append(trainer)
        if len(self._in_step) == self.shape.trainers:
            ranks, self._in_step = self._in_step, []
            self.seen.steps.append(self.now)
            for rank in ranks:
                self.later(self.shape.step_s, rank.finish_step)


class Owner:
    """One server with one worker, and its journal (``world.done``)."""

    def __init__(self, world: World, server: int, term: int) -> None:
        self.world, self.server, self.term = world, server, term
        shape = world.shape
        numbers = partitions_of(0, 1, shape.partitions, (server, shape.servers))
        shared = shape.servers > 1
        self.dispatcher = Dispatcher([*numbers], LEASE_S, CREDITS, term, shared=shared)
        self._ahead = PartitionTurns([_FEED], _AHEAD, _AHEAD * _NBYTES, 1 << 30)
        self._ahead.follow(_FEED, self.dispatcher.untaken)
        self._running: dict[tuple[str, int], _Partition] = {}
        self._sessions: dict[int, int] = {}  # by trainer
        self._trainers: dict[int, int] = {}  # by session
        self._answers: dict[int, tuple[list[int], list[int]]] = {}  # by session
        for p in numbers:
            left = [n for n in range(shape.batches) if n not in world.done[p]]
            self.dispatcher.started(p, left[0] if left else shape.batches)
            if left:
                self._running[_FEED, p] = partition = _Partition(left[::-1])
                self._ahead.open((_FEED, p), partition)
            else:
                self.dispatcher.partition_ended(p)
        self._act()
        world.later(_TICK_S, self._tick)

    def hear(self, trainer: int, message: Any) -> None:
        began = time.thread_time()
        if isinstance(message, Hello):
            self._greet(trainer, message)
        else:
            session = self._sessions.get(trainer)
            if session is None or session != message.session:
                self._tell(trainer, Unknown(message.session))
            else:
                self._hear(session, message)
        self._act()
        self.world.seen.cpu_s["owner"] += time.thread_time() - began

    def _greet(self, trainer: int, hello: Hello) -> None:
        dispatcher, now = self.dispatcher, self.world.now
        session, resumed = self._sessions.get(trainer), True
        if session is None:
            session, resumed = len(self._trainers) + 1, False
            self._sessions[trainer], self._trainers[session] = session, trainer
            dispatcher.join(session, now, hello.rank, hello.world_size, int(hello.rank >= 0))
            dispatcher.adopt(session, tuple(hello.held), now)
            for place in hello.batches:
                dispatcher.claim(session, place, place.token not in hello.held)
        else:
            dispatcher.resend(session, hello.last_seq)
        welcome = Welcome(
            limits.PROTOCOL,
            "",
            session,
            _FEED,
            [],
            HEARTBEAT_S,
            LEASE_S,
            CREDITS,
            session_file=f"{self.term}/{session}",
            resumed=resumed,
            properties={"durable": True, "epoch": self.term},
            partitions=self.world.shape.partitions,
            run=int(hello.rank >= 0),
        )
        self._tell(trainer, welcome)

    def _hear(self, session: int, message: Any) -> None:
        dispatcher, now = self.dispatcher, self.world.now
        dispatcher.seen(session, now)
        if isinstance(message, Step):
            dispatcher.commit(session, message.commits)
            dispatcher.give_back(session, message.returned)
            dispatcher.window(session, message.window)
        elif isinstance(message, Renew):
            dispatcher.window(session, message.window)
            dispatcher.renew(session, message.last_seq, frozenset(message.held), now)
            exhausted = dispatcher.exhausted(session, message.last_seq)
            pulse = Pulse(session, dispatcher.describe(now), exhausted)
            self._tell(self._trainers[session], pulse)
        elif isinstance(message, Bye):
            self._leave(session)

    def _leave(self, session: int) -> None:
        del self._sessions[self._trainers[session]]
        self.dispatcher.leave(session)

    def _tell(self, trainer: int, message: Any) -> None:
        self.world.send(self.server, trainer, False, message)

    @property
    def _lives(self) -> bool:
        return self.world.owners[self.server] is self and self.server not in self.world.away

    def _tick(self) -> None:
        if not self._lives:
            return
        began = time.thread_time()
        for session in self.dispatcher.tick(self.world.now):
            self._leave(session)
        self._act()
        self.world.seen.cpu_s["owner"] += time.thread_time() - began
        self.world.later(_TICK_S, self._tick)

    def _act(self) -> None:
        """Carry out the effects, and make the batch that is wanted next."""
        while True:
            effects = self.dispatcher.take_effects()
            for effect in effects:
                self._carry_out(effect)
            if not effects and not self._make():
                return

    def _make(self) -> bool:
        name = self._ahead.turn()
        if name is None:
            return False
        partition = self._running[name]
        self.dispatcher.made(Batch(name[1], partition.numbers.pop(), 1, "bytes", nbytes=_NBYTES))
        if not partition.numbers:
            del self._running[name]
            self._ahead.end(name)
            self.dispatcher.partition_ended(name[1])
        return True

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, Send):
            committed, stale = self._answers.pop(effect.session, ([], []))
            batch = effect.batch
            meta = {"round": batch.round} if batch.round >= 0 else {}
            order = effect.seq, effect.token, batch.partition, batch.number
            delivery = Delivery(*order, 1, _NBYTES, [], meta, frame=1)
            deliver = Deliver(effect.session, (delivery,), tuple(committed), tuple(stale))
            self._tell(self._trainers[effect.session], deliver)
            if self.term > self.world.shape.servers:  # not its first
                self.world.seen.sent_again.append(self.world.now)
        elif isinstance(effect, Answer):
            if effect.session not in self._answers:
                self._answers[effect.session] = [], []
                self.world.later(_MOMENT_S, self._answer, effect.session)
            self._answers[effect.session][0].extend(effect.committed)
            self._answers[effect.session][1].extend(effect.stale)
        elif isinstance(effect, StoreCommit):
            self.world.later(_STORED_S, self._stored, effect.batch)
        elif isinstance(effect, (EpochBegun, Following, Idle, Passed)):
            self._tell(self._trainers[effect.session], effect)
        elif isinstance(effect, Finish):
            self._answer(effect.session)
            self._tell(self._trainers[effect.session], Ended(effect.session))
        elif isinstance(effect, Claim):
            done = effect.place.number in self.world.done[effect.partition]
            self.dispatcher.claimed(effect.place.token, "done" if done else "yes", 0)

    def _stored(self, batch: Batch) -> None:
        if not self._lives:
            return
        self.world.seen.committed[batch.order] += 1
        self.world.done[batch.partition].add(batch.number)
        self.dispatcher.stored(batch.partition, [(batch.number, "", "")])
        self._act()

    def _answer(self, session: int) -> None:
        answers = self._answers.pop(session, None)
        if answers is not None and session in self._trainers and self._lives:
            committed, stale = answers
            message = Outcome(session, tuple(committed), tuple(stale))
            self._tell(self._trainers[session], message)


class Trainer:
    """A trainer with a session for each owner; it commits a batch by taking the next one."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        shape = world.shape
        rank, of = (number, shape.trainers) if shape.ranks else (-1, 0)
        nonce = number.to_bytes(16)
        self.sessions = [Session("", nonce, shape.prefetch, rank, of) for _ in world.owners]
        for server, session in enumerate(self.sessions):
            session.owner, session.owners = 0, 1
            session.share, session.shares = server, shape.servers
        self._merge = merge_of(self.sessions[:1], self.sessions[0])
        self._opened = self.lost = self.ended = False
        self._waits_since = 0.0
        self._in_hand: Session | None = None
        self.held: tuple[int, int] | None = None  # number and partition of the batch in hand
        self._token = 0
        world.later(world.chance.random(), self._look)

    def lose(self) -> None:
        """Let the trainer die without a message."""
        self.lost = True

    def _look(self) -> None:
        """Do the work of the lazy thread: notice silence, send due messages."""
        if self.lost or self.ended:
            return
        now, noticed = self.world.now, self.world.seen.noticed
        for session in self.sessions:
            if session.connected and session.silence(now):
                noticed.append(now)
                session.lose()
        self._say()
        self.world.later(_LOOK_S, self._look)

    def _say(self) -> None:
        began = time.thread_time()
        now, up = self.world.now, True
        for server, session in enumerate(self.sessions):
            for message in session.outgoing(now):
                self.world.send(server, self.number, up, message)
        self.world.seen.cpu_s["trainer"] += time.thread_time() - began

    def hear(self, server: int, message: Any) -> None:
        if self.lost or self.ended:
            return
        began = time.thread_time()
        session = self.sessions[server]
        session.receive(message, [b""] if isinstance(message, Deliver) else [], self.world.now)
        self.world.seen.cpu_s["trainer"] += time.thread_time() - began
        if not self._opened:
            if all(one.welcome for one in self.sessions):
                self._opened = True
                self._merge = merge_of(self.sessions, self.sessions[0])
                self._take()
        elif self._in_hand is None:
            self._take()

    def _take(self) -> None:
        """Take the next batch if it is there, else ask for it."""
        began, seen = time.thread_time(), self.world.seen
        received = self._merge.take(Session.take)
        if received is None:
            self._merge.want()
        seen.cpu_s["trainer"] += time.thread_time() - began
        if received is None:
            self._say()
            if all(one.ended for one in self.sessions):
                self.ended = True
                seen.ended.append(self.world.now)
            return
        delivery = received.delivery
        self._token, self.held = delivery.token, (delivery.number, delivery.partition)
        self._in_hand = self.sessions[delivery.partition % self.world.shape.servers]
        seen.waited_s += self.world.now - self._waits_since
        seen.taken.append((self.world.now, self.number, delivery.number, delivery.partition))
        seen.held_ahead = max(seen.held_ahead, sum(len(one.ready) for one in self.sessions))
        if any(one.much_to_say for one in self.sessions):
            self._say()
        if self.world.shape.ranks:
            self.world.has_batch(self)
        else:
            chance = 0.5 + self.world.chance.random()
            self.world.later(self.world.shape.step_s * chance, self.finish_step)

    def finish_step(self) -> None:
        if self.lost:
            return
        assert self._in_hand is not None
        self._in_hand.commit(self._token)
        self._in_hand = self.held = None
        self._waits_since = self.world.now
        self._take()
