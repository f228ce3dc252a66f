"""Ranks in step over partitions with lazy channels: real machines behind a real dispatcher.

    ranks ──► Dispatcher ──orders──► partition: ArrivalOrder or LaneOrder ──► what it has stored
      ▲           │        ◄───words────
      └ deliveries┘

Ranks train synchronously: a rank saves its batch when every rank has one of the same round, and
asks for the next when it has saved.  All that is on its way waits in queues until it is its turn.
"""

from __future__ import annotations

import struct
from collections import deque
from random import Random

import numpy as np

from headrace_proto.messages import Handed
from headrace_server.core.admitted_examples import BEGUN, MemberRows, RoundMembers, place_of
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Deal,
    Dealt,
    Leave,
    Release,
    Send,
    StoreCommit,
    Want,
)
from headrace_server.core.lane_order import LaneOrder
from headrace_server.core.rounds import DealtRounds
from headrace_server.shaping.stored_state import Examples

FIRST = -(2**63)
CHUNK = 3


class Partition:
    """One partition: takes orders one by one, works, and stores all that it has taken."""

    def __init__(self, number, counts, order, small):
        self.number, self.counts = number, counts
        self.order, self.small = order, small
        self.next = [0] * len(counts)  # of each example the next segment, as it is stored
        self.dealt = None  # world, run, next round, members that are not done
        self.rows = []  # of the last round
        self.tokens = set()  # of commits
        self.begin()

    def begin(self):
        """Begin a life from the stored state."""
        size = 2, 6 + self.number, self.small, self.number
        self.machine = ArrivalOrder(*size) if self.order == "arrival" else LaneOrder(*size)
        self.index = self.machine.next_index
        self.input = deque(range(0, len(self.counts), CHUNK))
        self.read = False  # whether the machine knows that all is read
        self.orders, self.words, self.out = deque(), deque(), {}
        self.made, self.chunk, self.finished, self.starved = 0, 100, False, False
        going = [e for e, n in enumerate(self.next) if 0 < n < self.counts[e]]
        self.known = {e for e, n in enumerate(self.next) if n}
        numbers = [[e, self.index + e, 0, e, self.next[e], self.counts[e]] for e in going]
        columns = np.array(numbers, np.int64).reshape(-1, 6).T
        self.machine.resume(Examples(columns, [(0, b"%d" % e) for e in going], ()))
        if self.dealt is not None and self.dealt[0]:
            world, run, next_round, left = self.dealt
            members = RoundMembers(world, run, 0, 2)
            members.next_round = next_round
            members.again = dict.fromkeys((at, rank) for at, rank in left)
            rows = {(at, rank): MemberRows.from_plain(plain) for at, rank, *plain in self.rows}
            self.machine.resume_rounds(members, rows)

    def store(self):
        """All that was taken is stored at once, as in one record of the journal."""
        members = self.machine.members
        if members is not None:
            self.dealt = members.world, members.run, members.next_round, self.machine.left
            self.rows = members.newest_rows() or self.rows

    def obey(self):
        order = self.orders.popleft()
        if isinstance(order, Want):
            self.machine.want(order.more, order.stripe)
            self.starved = False
        elif isinstance(order, Deal):
            self.machine.deal(order.world, order.run, order.stripe, at=order.at)
            self.out.clear()
            self.dealt, self.rows = (order.world, order.run, order.at, []), []
        elif isinstance(order, Claim):
            self.words.append(("claimed", order.place.token, *self.claim(order.place)))
        elif isinstance(order, Release):
            if order.number in self.out:
                self.machine.release(self.out.pop(order.number))
        elif isinstance(order, StoreCommit):
            self.words.append(("stored", order.batch.number))
            if order.token in self.tokens:
                return
            self.tokens.add(order.token)
            batch = self.out.pop(order.batch.number)
            assert self.machine.saved(batch) is not None
            for index, segment in zip(batch.indices.tolist(), batch.segments, strict=True):
                assert self.next[index - self.index] == segment, "once, and in order"
                self.next[index - self.index] += 1
            self.store()
        elif isinstance(order, Leave):
            self.machine.leave(order.stripe, order.instead)
            self.out = {n: b for n, b in self.out.items() if b.stripe != order.stripe}

    def claim(self, place):
        if place.token in self.tokens:
            return "done", 0
        return "yes" if self.machine.will_make(place_of(place.segments)) else "no", 0

    def offer(self):
        start = self.input.popleft()
        rows = range(start, min(start + CHUNK, len(self.counts)))
        facts = {"key": [(0, b"%d" % e) for e in rows], "line": start}
        facts["count"] = self.counts[rows.start : rows.stop]
        facts["known"] = np.array([BEGUN * (e in self.known) for e in rows])
        self.machine.offer(self.chunk, len(rows), facts)
        self.chunk += 1

    def work(self):
        """Do one step; return False where there is no work."""
        if self.finished:
            return False
        machine = self.machine
        draft = machine.next_draft()
        self.words += [("dry", stripe) for stripe in machine.take_dry()]
        if draft is not None:
            meta, size = {"stripe": draft.stripe}, len(draft)
            if draft.member is not None:
                at, rank, size = draft.member
                meta |= {"round": at, "rank": rank, "empty": size - len(draft)}
            self.out[self.made] = draft
            self.words.append(("made", self.made, size, meta))
            self.made += 1
            self.starved = False
        elif machine.hungry and self.input:
            self.offer()
        elif not self.input and not self.read:
            self.read = True
            machine.finish()
        elif machine.done:
            self.finished = True
            self.store()
            self.words.append(("finished",))
        else:
            if machine.starved and not self.starved:
                self.starved = True
                self.words.append(("starved",))
            return False
        return True


class Rank:
    """A trainer: the batches that have come, the one in its hands, and how many it has saved."""

    def __init__(self):
        self.wire = deque()  # token and batch
        self.hand = None  # token, partition, round
        self.unanswered = {}  # by token: partition, round
        self.places = []  # that it has trained
        self.got = 0


class World:
    def __init__(self, seed, counts, order, small, world):
        self.random = Random(seed)
        self.partitions = [Partition(p, c, order, small) for p, c in enumerate(counts)]
        self.order = order
        self.session = self.run = self.term = 0
        self.sessions = {}
        self.ranks = {}
        self.start()
        self.begin_run(world)

    def start(self):
        self.term += 1
        numbers = range(len(self.partitions))
        self.d = Dispatcher(numbers, 10.0, 4, self.term, self.order, False)
        for p in self.partitions:
            if p.dealt is not None:
                world, run, next_round, left = p.dealt
                self.d.load_rounds(p.number, DealtRounds(world, run, next_round, left))

    def begin_run(self, world):
        for session in list(self.sessions):
            self.leave(session)
        self.run += 1
        self.world = world
        self.ranks = {trainer: Rank() for trainer in range(world)}
        for rank in self.ranks:
            self.join(rank)

    def join(self, rank):
        self.session += 1
        self.sessions[self.session] = rank
        self.d.join(self.session, 0.0, rank, self.world, self.run)
        self.act()
        return self.session

    def leave(self, session):
        del self.sessions[session]
        self.d.leave(session)
        self.act()

    def restart(self):
        """The owner dies with all that was not stored; the ranks greet the next life."""
        for partition in self.partitions:
            partition.begin()
        self.start()
        held = dict(self.ranks)
        self.sessions.clear()
        self.d.wait_for_others(True)
        self.d.paused = True
        ranks = list(held)
        self.random.shuffle(ranks)
        for rank in ranks:
            trainer = held[rank]
            trainer.wire.clear()
            trainer.got = 0
            session = self.join(rank)
            for token, place in dict(trainer.unanswered).items():
                self.claim(session, rank, token, place, saved=True)
            if trainer.hand is not None:
                self.claim(session, rank, trainer.hand[0], trainer.hand[1:], saved=False)
            for token in trainer.unanswered:
                self.d.save(session, token, rank)
            self.act()
        self.d.wait_for_others(False)
        self.d.paused = False
        self.act()

    def claim(self, session, rank, token, place, saved):
        partition, at = place
        claim = struct.pack("<qq", at, rank)
        handed = Handed(token, partition, 0, 2, claim)
        self.d.claim(session, handed, saved)

    def act(self):
        for effect in self.d.take_effects():
            if isinstance(effect, Send):
                trainer = self.ranks[self.sessions[effect.session]]
                trainer.wire.append((effect.seq, effect.token, effect.batch))
            elif isinstance(effect, Dealt):
                for partition in effect.partitions:
                    self.partitions[partition].store()  # before later messages are sent
            elif isinstance(effect, StoreCommit):
                assert effect.payload == effect.batch.rank
                self.partitions[effect.batch.partition].orders.append(effect)
            elif isinstance(effect, (Want, Deal, Claim, Release, Leave)):
                self.partitions[effect.partition].orders.append(effect)
            elif isinstance(effect, Answer):
                assert not effect.stale and not effect.faults, "no work of a rank is lost"
                for token in effect.committed if effect.session in self.sessions else ():
                    self.ranks[self.sessions[effect.session]].unanswered.pop(token, None)

    def word(self, partition):
        kind, *rest = partition.words.popleft()
        if kind == "made":
            number, rows, meta = rest
            self.d.made(Batch(partition.number, number, rows, "bytes", meta))
        elif kind == "stored":
            self.d.stored(partition.number, [(*rest, "", "")[:3]])
        elif kind == "claimed":
            self.d.claimed(*rest)
        else:
            self.d.partition_ended(partition.number)
        self.act()

    # Ranks

    def step(self, session):
        """A rank takes its next batch, or saves the one in its hands once all ranks have theirs."""
        rank = self.sessions[session]
        trainer = self.ranks[rank]
        if trainer.hand is None:
            self.d.window(session, trainer.got + 1 + rank % 3)  # some fetch ahead
            self.act()
            if trainer.wire:
                trainer.got, token, batch = trainer.wire.popleft()
                trainer.hand = token, batch.partition, batch.round
                trainer.places.append((batch.round, batch.partition))
                return True
            return any(partition.orders for partition in self.partitions)
        steps = len(trainer.places)
        if any(len(other.places) < steps for other in self.ranks.values()):
            return False  # it waits in the all-reduce
        assert {tuple(other.places[:steps]) for other in self.ranks.values()} == {
            tuple(trainer.places)
        }
        token, *place = trainer.hand
        trainer.hand = None
        trainer.unanswered[token] = tuple(place)
        self.d.save(session, token, rank)
        self.act()
        return True

    def dies(self, session):
        """A rank dies, and comes back with the model of its last step."""
        rank = self.sessions[session]
        before = self.ranks[rank]
        if before.unanswered:  # it would not know whether its last step counts
            return
        self.leave(session)
        trainer = self.ranks[rank] = Rank()
        trainer.places = before.places
        if before.hand is not None:  # it gets that batch again
            trainer.places = before.places[:-1]
        self.join(rank)

    def some_steps(self, steps):
        for _ in range(steps):
            act = self.random.randrange(40)
            if act == 0:
                self.begin_run(self.random.randrange(1, 4))
            elif act == 1:
                self.restart()
            elif act == 2:
                self.dies(self.random.choice(list(self.sessions)))
            else:
                self.any_step()

    def any_step(self):
        """Something that can be done; False where there is nothing."""
        steps = [lambda p=p: p.orders and (p.obey() or True) for p in self.partitions]
        steps += [lambda p=p: p.words and (self.word(p) or True) for p in self.partitions]
        steps += [lambda p=p: not p.orders and p.work() for p in self.partitions]
        steps += [lambda s=s: self.step(s) for s in list(self.sessions)]
        self.random.shuffle(steps)
        return any(step() for step in steps)

    def to_the_end(self):
        while self.any_step():
            pass
        assert self.d.ended, self.d.describe(0.0)
        assert len({tuple(rank.places) for rank in self.ranks.values()}) == 1
        assert all(not rank.unanswered and rank.hand is None for rank in self.ranks.values())
