"""Trainers over two owners, ranks too, in simulated time: real machines on both sides.

    trainer: Session with each owner, ByNumber ── messages, some late ──► owner (played_owner.py)
             takes a batch, commits it                                ◄──
             until both owners have ended

Trainers die, leave, sleep and are interrupted, each with others after it in its slot; owners die
alone or all at once.  Faults come in bursts.  Once no more come, the feed must come to its end.
"""

from __future__ import annotations

import heapq
import itertools
import struct
import tempfile
from collections import deque
from random import Random
from types import SimpleNamespace
from unittest import mock

import headrace_server as hs
from headrace.merge import merge_of
from headrace.session import Session
from headrace.shares import agree_on_run
from headrace_proto.messages import FROM_TRAINER, Step
from headrace_proto.placement import next_term
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.worker import outbox

from .played_owner import FEED, OWNERS, PARTITIONS, Owner

#: The refusal of a trainer that slept while others began another run; it joins again.
_EXCUSE = "is of a run that is over"
_LOOK_S, _STEP_S, _WAIT_S = 0.25, 0.2, 0.02
#: Time of a burst of faults, of all bursts, and in which all must end after the last one.
_BURST_S, _FAULTS_S, _END_S = 2.0, 4.0, 120.0
_TWICE = 0.05  # share of steps that are said twice


def _declaration(order):
    if not order:
        return hs.from_examples([{"x": 1}]).batch(1).declaration()
    pipeline = hs.from_examples([{"key": "a", "x": [1]}]).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"h": hs.zeros((1,), "int64")},
        num_unroll=1,
        batch_size=2,
        order=order,
        allow_small_batch=True,
    )
    return pipeline.declaration()


_DECLARATIONS = {order: _declaration(order) for order in ("", "arrival", "lanes")}


class Trainer:
    """One process of a trainer; the next one in its slot has another nonce."""

    def __init__(self, world, slot):
        self.world, self.slot, self.number = world, slot, len(world.every)
        self.rank = slot if world.ranks else -1
        nonce = b"nonce of %d" % self.number
        session = Session(FEED, nonce, 0, self.rank, world.ranks, nonce, owner=0)
        session.heard_at = world.now
        self.sessions, self.merge = [session], None
        self.prefetch = world.random.randrange(3)
        self.hand, self.places = None, []
        self.gone = self.over = self.asleep = False
        self._inbox = deque()
        world.every.append(self)
        world.slots[slot] = self
        self.look()

    # Time

    def look(self):
        if self.gone:
            return
        if not self.asleep:
            for session in self.sessions:
                if session.connected and session.silence(self.world.now):
                    session.lose()
            agree_on_run(self.sessions)
            self.step()
        self.world.later(_LOOK_S, self.look)

    def hear(self, owner, message, frames):
        if self.asleep:
            self._inbox.append((owner, message, frames))
        elif not self.gone:
            self.sessions[owner].receive(message, frames, self.world.now)
            self.step()

    def sleep(self):
        self.asleep = True
        seconds = self.world.random.choice([0.5, 4.0, 8.0, 25.0]) * self.world.random.random()
        self.world.later(seconds, self.wake)

    def wake(self):
        self.asleep = False
        for session in self.sessions:
            session.hurry()
        while self._inbox:
            self.hear(*self._inbox.popleft())

    def interrupt(self):
        """Press Ctrl-C amid a receipt: messages that were just received are lost."""
        for owner, session in enumerate(self.sessions):
            session.greet()
            if self.world.random.random() < 0.5:
                self.world.lost_at[self.connection(owner)] = self.world.now
        self.step()

    # Work

    def step(self):
        if self.gone or self.asleep:
            return
        if failure := next((one.failure for one in self.sessions if one.failure), None):
            assert _EXCUSE in str(failure), failure
            self.leave()
            return
        if self.merge is None:
            self._open()
        if self.merge is not None and self.hand is None:
            self._take()
        self._say(self.sessions)
        if self.merge is not None and not self.hand and all(one.ended for one in self.sessions):
            self.gone = self.over = True
            self._say_goodbye()

    def _open(self):
        first = self.sessions[0]
        if first.welcome is not None and len(self.sessions) == 1:
            self.sessions += [first.beside(owner) for owner in range(1, OWNERS)]
            for session in self.sessions[1:]:
                session.heard_at = self.world.now
        if len(self.sessions) == OWNERS and all(one.welcome for one in self.sessions):
            first.prefetch = self.prefetch
            self.merge = merge_of(self.sessions, first)

    def _take(self):
        received = self.merge.take(Session.take)
        if received is None:
            self.merge.want()
            return
        delivery = received.delivery
        place = delivery.meta.get("round", delivery.number), delivery.partition
        session = self.sessions[self.merge.placement.owner_of(delivery.partition)]
        if self.world.order and self.world.ranks:
            assert delivery.meta["rank"] == self.rank
            assert session.place(delivery.token, struct.pack("<qq", place[0], self.rank))
        self.world.check_place(self, place)
        self.hand = session, delivery.token
        self.places.append(place)
        self.world.later(self.world.random.random() * _STEP_S, self._finish)

    def _finish(self):
        if self.gone:
            return
        if self.asleep or not self.world.all_have(self.places[-1]):
            self.world.later(_WAIT_S, self._finish)
            return
        session, token = self.hand
        self.hand = None
        if self.world.order:
            session.save(token, [], b"")
        else:
            session.commit(token)
        self.step()

    # Messages

    def connection(self, owner):
        return b"%d.%d" % (self.number, owner)

    def _say(self, sessions):
        for session in sessions:
            for message in session.outgoing(self.world.now):
                frames = session.frames_of(message)
                twice = isinstance(message, Step) and self.world.random.random() < _TWICE
                for _ in range(1 + twice):
                    self._post(session, message, frames)

    def _post(self, session, message, frames):
        packed = [FROM_TRAINER.encode(message), *map(bytes, frames)]
        owner = self.world.owners[session.owner]
        self.world.send(owner, self.connection(session.owner), True, packed, None)

    def _say_goodbye(self):
        for session in self.sessions:
            if bye := session.goodbye():
                self._post(session, bye, [])

    def leave(self):
        self._say([session for session in self.sessions if session.connected])
        self._say_goodbye()
        self.die()

    def die(self):
        """End; another trainer comes in its slot."""
        self.gone = True
        self.world.later(self.world.random.random() * 3, Trainer, self.world, self.slot)

    def __str__(self):
        told = [
            f"with {one.owner}: connected {one.connected}, finished {one.finished}, run {one.run}, "
            f"idle {one.idle}, following {one.following}, settled {one.settled}, {one.waiting!r}"
            for one in self.sessions
        ]
        return "\n  ".join([f"trainer {self.number} of rank {self.rank}, {self.places}", *told])


class World:
    """One feed over two owners, and its trainers.

    Without ``ranks`` each trainer gets batches of its own.  ``local``: owners
    notice the death of a trainer at once.  ``in_step``: all trainers have their batches of a round
    before any commits its own.
    """

    def __init__(self, seed, order, counts, trainers, ranks, local, in_step):
        self.random = Random(seed)
        self.order, self.counts, self.trainers = order, counts, trainers
        self.ranks = trainers if ranks else 0  # their world size
        self.local, self.in_step = local, in_step
        self.now, self._term = 0.0, 0
        self._events, self._ties = [], itertools.count()
        self._arrives = {}  # by connection and direction: when its last message arrives
        self.lost_at = {}  # by connection: messages to it that were sent before are lost
        self.every, self.slots = [], {}
        self._feed = FeedConfig(FEED, _DECLARATIONS[order], (), PARTITIONS)

    def clock(self):
        return self.now

    def config(self):
        """Return the configuration of the next start of an owner."""
        self._term = next_term(self._term)
        return RunConfig(
            (self._feed,),
            self._directory,
            (),
            workers=OWNERS,
            lease_ttl_s=10.0,
            max_credits=4,
            term=self._term,
        )

    # Events

    def later(self, seconds, call, *arguments):
        self._at(self.now + seconds, call, *arguments)

    def _at(self, time, call, *arguments):
        heapq.heappush(self._events, (time, next(self._ties), call, arguments))

    def _trainer(self, connection):
        return self.every[int(connection.partition(b".")[0])]

    def is_gone(self, connection):
        return self._trainer(connection).gone

    def send(self, owner, connection, up, message, frames):
        """Send a message, which arrives after those before it."""
        late = self.random.random() < 0.01
        delay = self.random.random() * 2 if late else self.random.random() ** 4 * 0.05
        at = max(self.now + delay, self._arrives.get((connection, up), 0.0))
        self._arrives[connection, up] = at
        self._at(at, self._arrive, owner, connection, up, message, frames, self.now)

    def _arrive(self, owner, connection, up, message, frames, sent):
        if up:
            owner.hear(connection, message)
        elif sent > self.lost_at.get(connection, -1.0):
            self._trainer(connection).hear(owner.number, message, frames)

    # Laws

    def all_have(self, place):
        """Return whether a trainer may go on: each slot has had this round, or a later one."""
        had = dict.fromkeys(range(self.trainers), (-1, 0))
        for one in self.every:
            had[one.slot] = max([had[one.slot], *one.places])
        return not (self.in_step and self.ranks) or min(had.values()) >= place

    def check_place(self, trainer, place):
        """Check that rounds come in order, but for batches of a trainer that has died."""
        again = trainer.places[:]
        for one in self.every:
            again += one.places if one.rank == trainer.rank and one.gone else []
        in_order = not (self.ranks and trainer.places) or place > trainer.places[-1]
        assert in_order or place in again, f"{place} after {trainer.places}"

    # Faults

    def _fault(self):
        what = self.random.choice(
            ["owner"] * 2 + ["server"] + ["die"] * 2 + ["leave"] + ["sleep"] * 2 + ["interrupt"]
        )
        trainer = self.slots.get(self.random.randrange(self.trainers))
        if what in ("owner", "server"):
            there = self.owners if what == "server" else [self.random.choice(self.owners)]
            back = self.random.random() * 2
            for owner in there if all(owner.alive for owner in there) else ():
                owner.die(told=what == "owner")
                self.later(back, owner.begin)
        elif trainer and not trainer.gone and (what == "die" or not trainer.asleep):
            getattr(trainer, what)()

    def run(self, faults):
        """Let so many faults happen, and all come to its end."""
        paths = tempfile.TemporaryDirectory(prefix="headrace-")
        times = mock.patch.object(outbox, "time", SimpleNamespace(monotonic=self.clock))
        with paths as self._directory, times:
            self.owners = [Owner(self, number) for number in range(OWNERS)]
            try:
                self._run(faults)
            finally:
                for owner in self.owners:
                    owner.table.close()
        for owner in self.owners:
            for partition in owner.partitions.values():
                partition.check()

    def _run(self, faults):
        for slot in range(self.trainers):
            self.later(self.random.random(), Trainer, self, slot)
        burst = until = 0.0
        for _ in range(faults):
            if self.random.random() < 0.4:
                burst = self.random.random() * _FAULTS_S
            at = burst + self.random.random() ** 3 * _BURST_S
            self.later(at, self._fault)
            until = max(until, at)
        while len(self.slots) < self.trainers or not all(one.over for one in self.slots.values()):
            self.now, _, call, arguments = heapq.heappop(self._events)
            if self.now > until + _END_S:
                told = map(str, (*self.owners, *self.slots.values()))
                raise AssertionError("\n".join(("all wait for each other", *told)))
            call(*arguments)
