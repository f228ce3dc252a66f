"""Trainers and servers in simulated time: the real machines, with a model of network and failures.

    trainer: Trainer ── Hello, Step, Renew ──► owner: Desk, partitions without payload
                     ◄── Give, Idle, Over, Answer, Pulse ──
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

from headrace.trainer import Held
from headrace.trainer import Trainer as Machine
from headrace_proto.messages import (
    Answer,
    Give,
    Given,
    Idle,
    Over,
    Pulse,
    Renew,
    Step,
    Unknown,
)
from headrace_proto.placement import next_term
from headrace_server.leasing import protocol
from headrace_server.leasing.desk import SESSIONS, Desk

from ..world.journal import Stored
from ..world.synthetic import Plain, Slab

__all__ = ["Shape", "World"]

LEASE_S, HEARTBEAT_S = 30.0, 1.0
_TICK_S, _LOOK_S = 0.1, 0.25
#: Time that answers to commits wait for a batch, and time after which a commit is stored.
_MOMENT_S, _STORED_S = 0.005, 0.001
#: Heartbeats without an answer after which a server counts as lost.
_SILENT = 2.5


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
        self._arrives: dict[tuple[object, object, object], float] = {}  # by way: its last message
        self.journal = {p: Stored() for p in range(shape.partitions)}
        self.known: list[dict[bytes, tuple[int, int, int]]] = [{} for _ in range(shape.servers)]
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
    """One server with one worker, and its journal (``world.journal``)."""

    def __init__(self, world: World, server: int, term: int) -> None:
        self.world, self.server, self.term = world, server, term
        shape, stored = world.shape, world.journal
        slab = Slab(1 << 30)
        self.partitions = {
            p: Plain(p, stored[p], slab, rows=shape.batches, size=1)
            for p in range(server, shape.partitions, shape.servers)
        }
        tokens = {token for p in self.partitions for token in stored[p].tokens}
        self.desk = Desk(
            self.partitions,
            term,
            known=dict(world.known[server]),
            tokens=tokens,
            now=world.now,
            ttl=LEASE_S,
        )
        self._entries: list[tuple[int, Any]] = []  # to be stored: a partition, or joins and leaves
        self._stored: Counter[int] = Counter()
        self._answers: dict[int, tuple[list[int], list[int]]] = {}  # by trainer
        world.later(_TICK_S, self._tick)

    def hear(self, trainer: int, message: Any) -> None:
        began = time.thread_time()
        desk, name, now = self.desk, trainer.to_bytes(16), self.world.now
        if isinstance(message, protocol.Hello):
            desk.hello(message, now)
        else:
            desk.seen(name, now)
            if isinstance(message, Step):
                for token in message.commits:
                    desk.commit(name, token)
                desk.give_back(name, message.returned)
                desk.withdraw(name, message.withdrawn)
                desk.ask(name, message.gets)
            elif isinstance(message, Renew):
                self._tell(trainer, Pulse(0, 0, desk.describe(now)))
        self._act()
        self.world.seen.cpu_s["owner"] += time.thread_time() - began

    def _tell(self, trainer: int, message: Any) -> None:
        self.world.send(self.server, trainer, False, message)

    @property
    def _lives(self) -> bool:
        return self.world.owners[self.server] is self and self.server not in self.world.away

    def _tick(self) -> None:
        if not self._lives:
            return
        began = time.thread_time()
        self.desk.tick(self.world.now)
        self._act()
        self.world.seen.cpu_s["owner"] += time.thread_time() - began
        self.world.later(_TICK_S, self._tick)

    def _act(self) -> None:
        """Make what is wanted, send what the desk says, and store what it logs."""
        desk = self.desk
        while desk.work():
            pass
        gives: dict[int, list[Any]] = {}
        idle: dict[int, list[int]] = {}
        for name, message in desk.sent:
            trainer = int.from_bytes(name)
            if isinstance(message, protocol.Give):
                gives.setdefault(trainer, []).append(_given(message))
            elif isinstance(message, protocol.Idle):
                idle.setdefault(trainer, []).append(message.request)
            elif isinstance(message, protocol.Answer):
                if trainer not in self._answers:
                    self._answers[trainer] = [], []
                    self.world.later(_MOMENT_S, self._answer, trainer)
                self._answers[trainer][0].extend(message.committed)
                self._answers[trainer][1].extend(message.stale)
            elif isinstance(message, protocol.Over):
                epoch = -1 if message.epoch is None else message.epoch
                over = Over(0, message.request, message.partition, epoch, message.also)
                self._tell(trainer, over)
            elif isinstance(message, protocol.Unknown):
                self._tell(trainer, Unknown(0))
            else:
                assert isinstance(message, protocol.Welcome), message
                self._tell(trainer, message)
        desk.sent.clear()
        for trainer, items in gives.items():
            committed, stale = self._answers.pop(trainer, ((), ()))
            self._tell(trainer, Give(0, tuple(items), tuple(committed), tuple(stale)))
            if self.term > self.world.shape.servers:  # not its first
                self.world.seen.sent_again.append(self.world.now)
        for trainer, requests in idle.items():
            self._tell(trainer, Idle(0, tuple(requests)))
        if desk.log:
            if not self._entries:
                self.world.later(_STORED_S, self._store)
            for kind, key, *rest in desk.log:
                sessions = kind in ("join", "leave")
                what = (kind, key, *rest) if sessions else self.partitions[key].take_records()
                self._entries.append((SESSIONS if sessions else key, what))
            desk.log.clear()
        desk.gone.clear()

    def _store(self) -> None:
        if not self._lives:
            return
        world, touched = self.world, set()
        entries, self._entries = self._entries, []
        for p, what in entries:
            self._stored[p] += 1
            touched.add(p)
            if p == SESSIONS:
                known = world.known[self.server]
                if what[0] == "join":
                    known[what[1]] = what[2:]
                else:
                    known.pop(what[1], None)
                continue
            for kind, *values in what:
                getattr(world.journal[p], kind)(*values)
                if kind == "commit":
                    world.seen.committed[values[0], p] += 1
        began = time.thread_time()
        for p in touched:
            self.desk.stored(p, self._stored[p])
        self._act()
        world.seen.cpu_s["owner"] += time.thread_time() - began

    def _answer(self, trainer: int) -> None:
        answers = self._answers.pop(trainer, None)
        if answers is not None and self._lives:
            self._tell(trainer, Answer(0, *map(tuple, answers)))


def _given(give: protocol.Give) -> Given:
    batch = give.batch
    order = give.request, give.token, batch.partition, batch.number, *batch.turn, batch.epoch
    return Given(*order, batch.rows, batch.nbytes, [], batch.place, live=give.live)


class Trainer:
    """A trainer; it commits a batch by taking the next one."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        shape = world.shape
        self._rank, self._of = (number, shape.trainers) if shape.ranks else (-1, 0)
        owner_of = [p % shape.servers for p in range(shape.partitions)]
        self.machine = Machine(
            shape.partitions,
            owner_of,
            shape.servers,
            rank=self._rank,
            prefetch=shape.prefetch,
            lazy=True,
        )
        self.lost = self.ended = False
        self._heard = [world.now] * shape.servers
        self._beat = [-HEARTBEAT_S] * shape.servers
        self._greets = [True] * shape.servers  # a greeting is due
        self._waits_since = 0.0
        self._in_hand: Held | None = None
        world.later(world.chance.random(), self._look)

    @property
    def held(self) -> tuple[int, int] | None:
        """Number and partition of the batch in hand."""
        held = self._in_hand
        return None if held is None else (held.given.number, held.given.partition)

    def lose(self) -> None:
        """Let the trainer die without a message."""
        self.lost = True

    def _look(self) -> None:
        """Do the work of the lazy thread: notice silence, send due messages."""
        if self.lost or self.ended:
            return
        now = self.world.now
        for server, heard in enumerate(self._heard):
            if not self._greets[server] and now - heard > _SILENT * HEARTBEAT_S:
                self.world.seen.noticed.append(now)
                self.machine.lost(server)
                self._greets[server] = True
            if self._greets[server]:
                self._greet(server)
            elif now - self._beat[server] >= HEARTBEAT_S:
                self._beat[server] = now
                self.world.send(server, self.number, True, Renew(0, 0))
        self._say()
        self.world.later(_LOOK_S, self._look)

    def _greet(self, server: int) -> None:
        if self.world.now - self._beat[server] < HEARTBEAT_S:
            return
        self._beat[server] = self.world.now
        began = time.thread_time()
        held, commits, gets = self.machine.greeting(server)
        name, slot = self.number.to_bytes(16), self._rank
        hello = protocol.Hello(
            name,
            self._rank,
            self._of,
            held=[(one.token, _batch(one, slot)) for one in held],
            commits=[(one.token, _batch(one, slot), load) for one, load in commits],
            gets=gets,
        )
        self.world.seen.cpu_s["trainer"] += time.thread_time() - began
        self.world.send(server, self.number, True, hello)

    def _say(self) -> None:
        began = time.thread_time()
        machine = self.machine
        for server in range(self.world.shape.servers):
            if machine.due(server):
                commits, returned, withdrawn, gets = machine.outgoing(server)
                tokens = tuple(token for token, _ in commits)
                step = Step(0, tokens, (), tuple(returned), tuple(withdrawn), tuple(gets))
                self.world.send(server, self.number, True, step)
        self.world.seen.cpu_s["trainer"] += time.thread_time() - began

    def hear(self, server: int, message: Any) -> None:
        if self.lost or self.ended:
            return
        began = time.thread_time()
        machine, self._heard[server] = self.machine, self.world.now
        if isinstance(message, protocol.Welcome):
            self._greets[server] = False
            machine.welcome(server, message.next, message.stale, message.others)
        elif isinstance(message, Give):
            machine.answer(server, message.committed, message.stale)
            for given in message.items:
                machine.give(server, given, None)
        elif isinstance(message, Answer):
            machine.answer(server, message.committed, message.stale)
        elif isinstance(message, Idle):
            machine.idle(server, message.requests)
        elif isinstance(message, Over):
            machine.over(server, message.request, message.partition, message.epoch, message.also)
        elif isinstance(message, Unknown):
            machine.lost(server)
            self._greets[server] = True
        self.world.seen.cpu_s["trainer"] += time.thread_time() - began
        if self._in_hand is None:
            self._take()

    def _take(self) -> None:
        """Take the next batch if it is there, else ask for it."""
        began, seen = time.thread_time(), self.world.seen
        held = self.machine.take()
        seen.cpu_s["trainer"] += time.thread_time() - began
        self._say()
        if held is None:
            if self.machine.ended:
                self.ended = True
                seen.ended.append(self.world.now)
            return
        self._in_hand, given = held, held.given
        seen.waited_s += self.world.now - self._waits_since
        seen.taken.append((self.world.now, self.number, given.number, given.partition))
        seen.held_ahead = max(seen.held_ahead, len(self.machine.hands) - 1)
        if self.world.shape.ranks:
            self.world.has_batch(self)
        else:
            chance = 0.5 + self.world.chance.random()
            self.world.later(self.world.shape.step_s * chance, self.finish_step)

    def finish_step(self) -> None:
        if self.lost:
            return
        assert self._in_hand is not None
        self.machine.commit(self._in_hand.given.token)
        self._in_hand = None
        self._waits_since = self.world.now
        self._take()


def _batch(given: Given, slot: int) -> protocol.Batch:
    turn = given.turn_epoch, given.turn_index
    return protocol.Batch(
        given.partition, given.number, slot, turn, given.rows, given.place, given.epoch
    )
