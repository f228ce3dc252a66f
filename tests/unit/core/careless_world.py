"""Trainers that do anything at any time, at a dispatcher of segments with real machines behind it.

    trainers ──► Dispatcher ──orders──► partition: ArrivalOrder or LaneOrder
        ▲              │                    ◄───words────
        └── deliveries ┘

A trainer saves batches in any order, and tokens of others; it returns batches, loses deliveries,
asks for them again, names sizes, sleeps and leaves.  No order of messages raises, and once all
behave the feed ends.
"""

from __future__ import annotations

from collections import Counter, deque
from random import Random

from headrace_proto.messages import Passed
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import (
    Batch,
    Deal,
    JoinRefused,
    Leave,
    Release,
    Send,
    StoreCommit,
    StoreLanes,
    Want,
)
from headrace_server.core.lane_order import LaneOrder
from headrace_server.core.trainers import LATE_S

CHUNK = 3


class Partition:
    """One partition, which takes orders one by one, and works."""

    def __init__(self, number, counts, order, states, small):
        self.number, self.counts = number, counts
        kind = LaneOrder if order == "lanes" else ArrivalOrder
        self.machine = kind(2, 8, small, number, states)
        self.input = deque(range(0, len(counts), CHUNK))
        self.read = False  # whether the machine knows that all is read
        self.orders, self.words, self.out = deque(), deque(), {}
        self.made, self.finished, self.starved = 0, False, False

    def obey(self):
        order, machine = self.orders.popleft(), self.machine
        if isinstance(order, StoreLanes):
            return
        if isinstance(order, StoreCommit):
            number = order.batch.number
            batch = self.out.pop(number, None)
            rows = None if batch is None else machine.saved(batch)
            self.words.append(("stored", number, "stale" if rows is None else ""))
        elif isinstance(order, Release):
            if order.number in self.out:
                machine.release(self.out.pop(order.number))
        elif self.finished:
            return
        elif isinstance(order, Want):
            machine.want(order.more, order.stripe)
            self.starved = False
        elif isinstance(order, Deal):
            machine.deal(order.world, order.run, order.stripe, at=order.at)
            self.out.clear()
        elif isinstance(order, Leave):
            machine.leave(order.stripe, order.instead)
            self.out = {n: b for n, b in self.out.items() if b.stripe != order.stripe}

    def work(self):
        """Do one step; return False where there is no work."""
        machine = self.machine
        draft = None if self.finished else machine.next_draft()
        self.words += [("dry", stripe) for stripe in machine.take_dry()]
        if draft is not None:
            meta, rows = {"stripe": draft.stripe}, len(draft)
            if draft.member is not None:
                at, rank, rows = draft.member
                meta |= {"round": at, "rank": rank, "empty": rows - len(draft)}
            self.out[self.made] = draft
            self.words.append(("made", self.made, rows, meta))
            self.made += 1
            self.starved = False
        elif machine.hungry and self.input:
            start = self.input.popleft()
            counts = self.counts[start : start + CHUNK]
            keys = [(0, start + i) for i in range(len(counts))]
            machine.offer(start, len(counts), {"key": keys, "count": counts, "line": start})
        elif not self.input and not self.read:
            self.read = True
            machine.finish()
        elif machine.done and not self.finished:
            self.finished = True
            self.words.append(("finished",))
        else:
            if not self.finished and machine.starved and not self.starved:
                self.starved = True
                self.words.append(("starved",))
            return False
        return True


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        self.wire, self.hands = deque(), {}  # deliveries; batches by token
        self.got = 0


class World:
    def __init__(self, seed, counts, order, states, small, world, shared):
        self.random, self.counter = Random(seed), 0
        self.order, self.states = order, states
        self.world = world
        self.partitions = [Partition(p, c, order, states, small) for p, c in enumerate(counts)]
        self.d = Dispatcher(range(len(counts)), 10.0, 4, 1, order, shared, states)
        self.trainers, self.tokens, self.now = {}, set(), 0.0
        self.fill()

    def act(self):
        while effects := self.d.take_effects():
            for effect in effects:
                if isinstance(effect, (Send, Passed)):
                    self.tokens |= {effect.token} if isinstance(effect, Send) else set()
                    if effect.session in self.trainers:
                        self.trainers[effect.session].wire.append(effect)
                elif isinstance(effect, (Want, Deal, Leave, Release, StoreCommit)):
                    commits = isinstance(effect, StoreCommit)
                    partition = effect.batch.partition if commits else effect.partition
                    self.partitions[partition].orders.append(effect)

    def word(self, partition):
        kind, *rest = partition.words.popleft()
        if kind == "made":
            number, rows, meta = rest
            self.d.made(Batch(partition.number, number, rows, "bytes", meta))
        elif kind == "stored":
            self.d.stored(partition.number, [(*rest, "", "")[:3]])
        elif kind == "dry":
            self.d.dry(*rest)
        elif kind == "starved":
            self.d.starved(partition.number)
        else:
            self.d.partition_ended(partition.number)
        self.act()

    # Trainers

    def fill(self):
        """Let trainers join in place of those that have left."""
        there = Counter(trainer.rank for trainer in self.trainers.values())
        for rank in range(max(1, self.world)):
            for _ in range((1 if self.world else 2) - there[rank]):
                self.join(rank)

    def join(self, rank):
        self.counter += 1
        session, of = self.counter, (rank, self.world, 1)
        self.trainers[session] = Trainer(rank)
        try:
            self.d.join(session, self.now, *(of if self.world else ()))
        except JoinRefused:
            del self.trainers[session]
        self.act()

    def leave(self, session):
        del self.trainers[session]
        self.d.leave(session)
        self.act()

    def ask(self, session, most=3):
        upto = self.trainers[session].got + self.random.randint(1, most)
        self.d.window(session, upto)
        self.act()

    def receive(self, session):
        trainer = self.trainers[session]
        if not trainer.wire:
            return
        came = trainer.wire.popleft()
        trainer.got = max(trainer.got, came.seq)
        if isinstance(came, Send):
            trainer.hands[came.token] = came.batch

    def save(self, session):
        hands = self.trainers[session].hands
        if hands:
            self.save_token(session, min(hands))

    def save_any(self, session):
        tokens = [*self.trainers[session].hands, *self.tokens]
        if tokens:
            self.save_token(session, self.random.choice(sorted(tokens)))

    def save_token(self, session, token):
        mine = self.trainers[session].hands.pop(token, None)
        self.d.save(session, token)
        self.act()
        batch = self.d.last_saved(session, token)
        if mine is not None and batch is not None and self.random.random() < 0.3:
            self.d.flush(batch, "states")
            self.act()

    def give_back(self, session, token=0):
        hands = self.trainers[session].hands
        token = token or self.random.choice([0, *hands])
        hands.pop(token, None)
        self.d.give_back(session, (token,))
        self.act()

    def renew(self, session):
        trainer = self.trainers[session]
        self.d.renew(session, trainer.got, frozenset(trainer.hands), self.now)
        self.act()

    def lose(self, session):
        """A delivery gets lost; the next heartbeat shows it."""
        trainer = self.trainers[session]
        if trainer.wire and isinstance(trainer.wire[0], Send):
            trainer.got = trainer.wire.popleft().seq
            self.renew(session)

    def reconnect(self, session):
        trainer = self.trainers[session]
        trainer.wire.clear()
        self.d.resend(session, trainer.got)
        self.act()

    def resize(self, session):
        if self.order == "arrival" and not self.world:
            for partition in self.partitions:
                partition.machine.set_batch_size(self.random.randint(1, 4))

    def sleep(self, session):
        self.now += self.random.random() * 5.0
        for one in self.d.tick(self.now):
            if one in self.trainers:
                self.leave(one)
        self.act()

    # Runs

    def step(self):
        partition = self.random.choice(self.partitions)
        deed = self.random.randrange(8)
        if deed < 2 and partition.orders:
            partition.obey()
        elif deed < 4 and partition.words:
            self.word(partition)
        elif deed < 5:
            partition.work()
        elif not self.trainers or self.random.random() < 0.05:
            self.fill()
        else:
            session = self.random.choice(sorted(self.trainers))
            self.d.seen(session, self.now)
            common = [self.ask, self.receive, self.save] * 7
            rare = [self.save_any, self.give_back, self.renew, self.lose, self.reconnect]
            rare += [self.resize, self.sleep, self.leave]
            self.random.choice(common + rare)(session)

    def to_the_end(self):
        """From here on all behave; a few rounds without news mean that it is stuck."""
        quiet = 0
        while not (self.d.ended and all(p.finished for p in self.partitions)):
            before = self.state()
            self.now += LATE_S
            for session in self.trainers:
                self.d.seen(session, self.now)
            self.fill()
            for partition in self.partitions:
                while partition.words or partition.orders or partition.work():
                    if partition.words:
                        self.word(partition)
                    elif partition.orders:
                        partition.obey()
            for session in sorted(self.trainers):
                self.ask(session, 1)
                while self.trainers[session].wire:
                    self.receive(session)
                self.renew(session)
                while self.trainers[session].hands:
                    self.save(session)
            quiet = quiet + 1 if self.state() == before else 0
            assert quiet < 12, f"it is stuck: {self.d.describe(self.now)}"

    def state(self):
        of = [(p.made, len(p.out), p.finished) for p in self.partitions]
        return of, [(session, t.got) for session, t in self.trainers.items()]
