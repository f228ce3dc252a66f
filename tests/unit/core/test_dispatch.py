"""Every batch is settled exactly once, in order, with any behaviour of trainers."""

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace_proto.messages import Following
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Finish,
    Freed,
    JoinRefused,
    Send,
)
from headrace_server.core.trainers import MAX_WORLD
from tests.examples import some

from .prompt import Prompt

TTL = 10.0


def kinds(effects, kind):
    return [e for e in effects if isinstance(e, kind)]


def filled(numbers=4, partitions=1, **options):
    d = Prompt(range(partitions), TTL, **options)
    for number in range(numbers):
        for partition in range(partitions):
            d.made(Batch(partition, number, 1))
    return d


def seen_from_outside(d):
    return (d.describe(0.0), d.leased, d.ended, dict(d.counts), dict(d.dropped), d.take_effects())


# The order of the stream


@given(data=st.data(), numbers=st.lists(st.integers(0, 6), min_size=1, max_size=5))
def test_one_trainer_gets_the_order_of_number_and_partition_however_batches_arrive(data, numbers):
    d = Prompt(range(len(numbers)), TTL)
    d.join(1, 0.0)
    d.window(1, 2)
    arrivals = [p for p, n in enumerate(numbers) for _ in range(n + 1)]  # the last one is the end
    made = [0] * len(numbers)
    got, seq = [], 0
    for partition in data.draw(st.permutations(arrivals)):
        if made[partition] < numbers[partition]:
            d.made(Batch(partition, made[partition], 1))
            made[partition] += 1
        else:
            d.partition_ended(partition)
        while sends := kinds(d.take_effects(), Send):
            for e in sends:
                got.append(e.batch.order)
                seq = e.seq
                d.commit(1, (e.token,))
            d.window(1, seq + 2)
    assert got == sorted((n, p) for p, count in enumerate(numbers) for n in range(count))
    assert d.ended


# Windows


# Leases


# Memory


# The end


# Joining


@pytest.mark.parametrize(
    ("present", "asked", "text"),
    [
        ((-1, 0), (0, 2), "shared by trainers without rank: all or none"),
        ((0, 2), (-1, 0), "coordinated mode with world_size=2: connect with rank="),
        ((0, 2), (0, 2), "rank=0 is taken"),
        ((0, 2), (1, 3), "world_size=3 differs from 2"),
        ((0, 2), (2, 2), "rank=2 does not lie in 0 … world_size-1 = 1"),
        ((0, 2), (-1, 2), "rank=-1 does not lie in"),
        ((0, 2), (0, 0), "rank=0 does not lie in"),
        ((0, 2), (0, MAX_WORLD + 1), "world_size=65537 is more than 65536"),
    ],
)
def test_a_trainer_that_does_not_fit_is_refused_and_nothing_changes(present, asked, text):
    d = filled(3)
    d.join(1, 0.0, *present)
    d.take_effects()
    before = seen_from_outside(d)
    with pytest.raises(JoinRefused, match=text):
        d.join(2, 0.0, *asked)
    assert seen_from_outside(d) == before and not d.seen(2, 0.0)


# Any history


class SharedHistories(RuleBasedStateMachine):
    """Trainers that act at random, against a plain account of the batches that each holds."""

    PARTITIONS = 2
    MOST = 6  # batches of a partition

    def __init__(self):
        super().__init__()
        self.d = Prompt(range(self.PARTITIONS), TTL, max_window=3)
        self.now = 0.0
        self.batches = {}
        self.made = [0] * self.PARTITIONS
        self.ended = [False] * self.PARTITIONS
        self.sessions = itertools.count(1)
        self.present = set()
        self.window = {}
        self.seq = {}  # the last that the session was sent …
        self.got = {}  # … and the last that it received
        self.wire = {}  # sent, not received
        self.seen = {}
        self.holder = {}  # token → session, of leases that stand
        self.deadline = {}
        self.token_seq = {}
        self.batch_of = {}
        self.last = {}  # batch → its last token
        self.settled = {}  # batch → its token
        self.hands = {}  # session → tokens that the trainer believes it holds
        self.lost_hands = []  # of trainers that were given up
        self.finished = {}
        self.freed = set()
        self.pinned = set()
        self.taken = []  # batches in the order of their first delivery

    # What happens

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def make(self, partition):
        number = self.made[partition]
        if self.ended[partition] or number == self.MOST:
            with pytest.raises(ValueError, match="next is"):
                self.d.made(Batch(partition, number if self.ended[partition] else number + 1, 1))
            assert self.d.take_effects() == []
            return
        batch = self.batches[number, partition] = Batch(partition, number, number + 1)
        self.made[partition] += 1
        self.d.made(batch)
        self.absorb()

    @rule(partition=st.integers(0, PARTITIONS - 1), sure=st.integers(0, 3))
    def end(self, partition, sure):
        if sure == 0:
            self.ended[partition] = True
            self.d.partition_ended(partition)
            self.absorb()

    @precondition(lambda self: len(self.present) < 3)
    @rule(back=st.booleans())
    def join(self, back):
        session = next(self.sessions)
        self.d.join(session, self.now)
        self.present.add(session)
        self.window[session] = self.seq[session] = self.got[session] = 0
        self.wire[session], self.hands[session] = [], set()
        self.seen[session] = self.now
        self.absorb()
        if back and self.lost_hands:
            held = self.lost_hands.pop()
            self.d.adopt(session, tuple(sorted(held)), self.now)
            for token in held:
                if self.is_free(token):
                    self.holder[token] = session
                    self.deadline[token] = self.now + TTL
                    self.token_seq[token] = 0
            self.hands[session] = held
            self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data(), more=st.integers(-1, 5))
    def ask(self, data, more):
        session = self.someone(data)
        upto = max(0, self.got[session] + more)
        self.window[session] = max(self.window[session], upto)
        self.d.window(session, upto)
        self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def receive(self, data):
        session = self.someone(data)
        for send in self.wire[session]:
            self.got[session] = send.seq
            self.hands[session].add(send.token)
        self.wire[session].clear()

    @precondition(lambda self: self.present and self.batch_of)
    @rule(data=st.data(), own=st.booleans())
    def commit(self, data, own):
        session = self.someone(data)
        candidates = sorted(self.hands[session] if own else self.batch_of)
        tokens = tuple(
            data.draw(st.lists(st.sampled_from(candidates), max_size=3)) if candidates else ()
        )
        committed, stale = [], []
        for token in tokens:
            batch = self.batch_of[token]
            if self.settled.get(batch.order) == token:
                committed.append(token)
            elif self.is_free(token) or self.holder.get(token) == session:
                committed.append(token)
                self.settled[batch.order] = token
                self.holder.pop(token, None)
                self.wire[session] = [s for s in self.wire[session] if s.token != token]
            else:
                stale.append(token)
        self.hands[session] -= set(tokens)
        self.d.commit(session, tokens)
        expected = [Answer(session, tuple(committed), tuple(stale))] if tokens else []
        assert kinds(self.absorb(), Answer) == expected

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def give_back(self, data):
        session = self.someone(data)
        tokens = (
            data.draw(st.sets(st.sampled_from(sorted(self.hands[session]))))
            if self.hands[session]
            else set()
        )
        self.hands[session] -= tokens
        for token in tokens:
            if self.holder.get(token) == session:
                del self.holder[token]
        self.d.give_back(session, tuple(tokens))
        self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data(), forgets=st.booleans())
    def renew(self, data, forgets):
        session = self.someone(data)
        self.seen[session] = self.now
        if forgets and self.hands[session]:
            self.hands[session].pop()
        for token, holder in list(self.holder.items()):
            if holder == session:
                self.deadline[token] = self.now + TTL
                if self.token_seq[token] <= self.got[session] and token not in self.hands[session]:
                    del self.holder[token]
        assert self.d.renew(session, self.got[session], frozenset(self.hands[session]), self.now)
        self.absorb()

    @precondition(lambda self: self.present)
    @rule(data=st.data())
    def reconnect(self, data):
        session = self.someone(data)
        self.seen[session] = self.now
        self.d.seen(session, self.now)
        self.wire[session].clear()
        missed = {}
        for token, holder in self.holder.items():
            if holder == session:
                self.deadline[token] = self.now + TTL
                if self.token_seq[token] > self.got[session]:
                    missed[token] = self.token_seq[token]
        self.seq[session] = max(missed.values(), default=self.got[session])
        self.finished.pop(session, None)
        self.d.resend(session, self.got[session])
        self.absorb(resent=missed)

    @precondition(lambda self: self.present)
    @rule(data=st.data(), dies=st.booleans())
    def leave(self, data, dies):
        session = self.someone(data)
        self.go(session)
        if not dies:
            self.lost_hands.append(self.hands[session])
        self.d.leave(session)
        self.absorb()

    @rule(seconds=st.floats(0, 1.5 * TTL), give_up=st.booleans())
    def tick(self, seconds, give_up):
        self.now += seconds
        for token in [t for t, deadline in self.deadline.items() if deadline <= self.now]:
            self.holder.pop(token, None)
        silent = self.d.tick(self.now)
        self.absorb()
        assert set(silent) == {s for s in self.present if self.seen[s] + TTL <= self.now}
        for session in silent if give_up else ():
            self.go(session)
            self.lost_hands.append(self.hands[session])
            self.d.leave(session)
            self.absorb()

    @rule(paused=st.booleans())
    def pause(self, paused):
        self.d.paused = paused
        self.d.tick(self.now)
        for token in [t for t, deadline in self.deadline.items() if deadline <= self.now]:
            self.holder.pop(token, None)
        self.absorb()

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data):
        order, holder = data.draw(st.sampled_from(sorted(self.pinned)))
        self.pinned.discard((order, holder))
        self.d.unpin(self.batches[order], holder)
        self.absorb()

    # The account

    def someone(self, data):
        return data.draw(st.sampled_from(sorted(self.present)))

    def go(self, session):
        self.present.discard(session)
        for token in [t for t, holder in self.holder.items() if holder == session]:
            del self.holder[token]

    def is_free(self, token):
        batch = self.batch_of.get(token)
        return (
            batch is not None
            and self.last[batch.order] == token
            and token not in self.holder
            and batch.order not in self.settled
        )

    def absorb(self, resent=()):
        effects = self.d.take_effects()
        for e in effects:
            if isinstance(e, Send):
                self.on_send(e, resent)
            elif isinstance(e, Freed):
                order = e.batch.order
                assert order in self.settled and order not in self.freed
                assert not any(pinned == order for pinned, _ in self.pinned)
                self.freed.add(order)
            elif isinstance(e, Finish):
                assert e.session in self.present and e.session not in self.finished
                assert all(self.ended) and set(self.settled) == set(self.batches)
                self.finished[e.session] = True
        return effects

    def on_send(self, e, resent):
        session, order = e.session, e.batch.order
        assert session in self.present and order not in self.settled
        if e.token in resent:
            assert resent[e.token] == e.seq and self.batch_of[e.token] is e.batch
        else:
            assert not self.d.paused
            assert e.token > max(self.batch_of, default=0)
            assert e.seq == self.seq[session] + 1 <= self.window[session]
            assert self.last.get(order) not in self.holder, "two trainers hold it"
            if order not in self.last:
                self.taken.append(order)
            self.seq[session] = e.seq
            self.batch_of[e.token] = e.batch
            self.last[order] = e.token
            self.holder[e.token] = session
            self.deadline[e.token] = self.seen[session] + TTL
            self.token_seq[e.token] = e.seq
        self.wire[session].append(e)
        if order[0] % 2:
            self.pinned.add((order, e.token))
            self.d.pin(e.batch, e.token)

    @invariant()
    def the_dispatcher_knows_what_is_so(self):
        assert self.taken == sorted(self.taken)
        assert self.d.leased == len(self.holder)
        assert self.d.counts["batches"] == len(self.settled)
        assert self.d.counts["rows"] == sum(n + 1 for n, _ in self.settled)
        for session in self.present:
            mine = [token for token, holder in self.holder.items() if holder == session]
            adopted = [token for token in mine if self.token_seq[token] == 0]
            assert len(mine) <= 3 or adopted
        assert self.d.ended == (all(self.ended) and len(self.settled) == len(self.batches))
        if self.d.ended:
            assert set(self.finished) >= self.present

    @invariant()
    def nobody_waits_for_what_is_there(self):
        """No trainer waits for a batch that is there, unless the stream's next batch is missing."""
        if self.d.paused:
            return
        leased = list(self.holder.values())
        asking = [s for s in self.present if self.seq[s] < self.window[s] and leased.count(s) < 3]
        if asking:
            out = {self.batch_of[t].order for t in self.holder}
            idle = sorted(o for o in self.batches if o not in out and o not in self.settled)
            assert all(order not in self.taken for order in idle)
            if idle:
                number, partition = idle[0]
                before = [
                    p
                    for p in range(self.PARTITIONS)
                    if not self.ended[p] and (self.made[p], p) < (number, partition)
                ]
                assert before, f"{idle[0]} is there, {asking} ask, and nothing is before it"

    def teardown(self):
        """All others are given up; one good trainer brings the feed to its end."""
        d = self.d
        d.paused = False
        self.now += 2 * TTL
        d.tick(self.now)
        self.holder.clear()
        for session in sorted(self.present):
            self.go(session)
            d.leave(session)
        for partition in range(self.PARTITIONS):
            self.ended[partition] = True
            d.partition_ended(partition)
        session = next(self.sessions)
        d.join(session, self.now)
        self.present = {session}
        self.seq[session], self.wire[session], self.seen[session] = 0, [], self.now
        self.window[session] = 1000
        d.window(session, 1000)
        while True:
            sends = kinds(self.absorb(), Send)
            if not sends:
                break
            for e in sends:
                del self.holder[e.token]
                self.settled[e.batch.order] = e.token
                d.commit(session, (e.token,))
        assert set(self.settled) == set(self.batches) and d.ended
        assert self.taken == sorted(self.batches)
        for order, holder in sorted(self.pinned):
            self.pinned.discard((order, holder))
            d.unpin(self.batches[order], holder)
        self.absorb()
        assert self.freed == set(self.batches) and session in self.finished


TestSharedHistories = SharedHistories.TestCase
TestSharedHistories.settings = settings(
    max_examples=some(200), stateful_step_count=50, deadline=None
)


# Coordinated mode


class Run:
    """A coordinated run: trainers that step, die and come back, all drawn from one seed.

    Bucketed batches of two partitions arrive in any order.  A step of a rank is: take the oldest
    delivery, commit it.
    """

    def __init__(self, seed, numbers=12, buckets=2):
        self.random = random.Random(seed)
        self.d = Prompt(range(2), TTL)
        self.todo = [(p, n) for p in range(2) for n in range(numbers)]
        self.buckets = {o: self.random.randrange(buckets) for o in self.todo}
        self.made = [0, 0]
        self.sessions = itertools.count(1)
        self.rank_of = {}  # of those present
        self.hands = {}  # session → deliveries in order
        self.got = {}  # session → number of its last delivery
        self.done = []  # per era: world, and what each rank committed: (partition, number)
        self.freed = Counter()
        self.finished = Counter()
        self.rounds = {}  # by rank: round and partition of its last batch

    def make(self):
        partition = self.random.randrange(2)
        number = self.made[partition]
        if (partition, number) in self.buckets:
            meta = {"bucket": self.buckets[partition, number]}
            self.made[partition] += 1
            self.d.made(Batch(partition, number, 1, meta=meta))
        else:
            self.d.partition_ended(partition)

    def start(self, world):
        self.world = world
        self.done.append((world, {rank: [] for rank in range(world)}))

    def join(self, rank):
        session = next(self.sessions)
        self.d.join(session, 0.0, rank, self.world, len(self.done))
        self.rank_of[session], self.hands[session], self.got[session] = rank, [], 0
        return session

    def die(self, session):
        del self.rank_of[session], self.hands[session]
        self.d.leave(session)

    def step(self, session):
        hand = self.hands[session]
        if hand and self.random.random() < 0.7:
            send = hand.pop(0)
            self.done[-1][1][self.rank_of[session]].append(
                (send.batch.partition, send.batch.number)
            )
            self.d.commit(session, (send.token,))
        if self.random.random() < 0.8:
            self.d.window(session, self.got[session] - len(hand) + self.random.randrange(4))

    def absorb(self):
        for e in self.d.take_effects():
            if isinstance(e, Send):
                assert e.batch.rank == self.rank_of[e.session]
                self.hands[e.session].append(e)
                place = e.batch.round, e.batch.partition
                self.rounds.setdefault(e.batch.rank, []).append(place)
                self.got[e.session] = e.seq
            elif isinstance(e, Freed):
                self.freed[e.batch.partition, e.batch.number] += 1
            elif isinstance(e, Finish):
                self.finished[e.session] += 1

    def some_steps(self, n, deaths):
        for _ in range(n):
            if self.random.random() < 0.5:
                self.make()
            absent = set(range(self.world)) - set(self.rank_of.values())
            if absent and self.random.random() < 0.5:
                self.join(self.random.choice(sorted(absent)))
            elif self.rank_of:
                session = self.random.choice(sorted(self.rank_of))
                if len(self.rank_of) > 1 and self.random.random() < deaths:
                    self.die(session)
                else:
                    self.step(session)
            self.absorb()

    def all_die(self):
        for session in sorted(self.rank_of):
            self.die(session)
        self.absorb()

    def to_the_end(self):
        for _ in range(1000):
            self.some_steps(10, 0.0)
            if self.d.ended:
                break
        assert self.d.ended, self.d.describe(0.0)
        for rank in sorted(set(range(self.world)) - set(self.rank_of.values())):
            self.join(rank)
        self.absorb()

    def check_rounds(self):
        for world, ranks in self.done:
            rounds = max(map(len, ranks.values()))
            for i in range(rounds):
                there = [done[i] for done in ranks.values() if len(done) > i]
                assert len({(order[0], self.buckets[order]) for order in there}) == 1, (
                    world,
                    ranks,
                )

    def check_nothing_lost(self):
        committed = [order for _, ranks in self.done for done in ranks.values() for order in done]
        dropped = self.d.dropped.get("incomplete_round", 0)
        assert len(committed) == len(set(committed))
        assert len(committed) + dropped == len(self.buckets)
        assert self.freed == Counter(self.buckets.keys())
        assert set(self.finished.values()) == {1}
        assert set(self.rank_of) <= set(self.finished)


@settings(max_examples=some(150), deadline=None)
@given(seed=st.integers(0, 10**6), world=st.integers(1, 4), deaths=st.sampled_from([0.0, 0.1]))
def test_each_rank_gets_one_batch_of_one_kind_in_each_round_and_all_finish_together(
    seed, world, deaths
):
    run = Run(seed)
    run.start(world)
    run.some_steps(100, deaths)
    run.to_the_end()
    run.check_rounds()
    run.check_nothing_lost()
    lengths = {len(done) for done in run.done[0][1].values()}
    assert len(lengths) == 1
    kinds = Counter((partition, bucket) for (partition, _), bucket in run.buckets.items())
    assert run.d.dropped.get("incomplete_round", 0) == sum(n % world for n in kinds.values())
    if not deaths:  # what comes back comes out of its turn
        for places in run.rounds.values():
            assert places == sorted(places) and len(places) == len(set(places))


@settings(max_examples=some(150), deadline=None)
@given(seed=st.integers(0, 10**6), worlds=st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_a_run_that_is_resumed_with_any_world_size_loses_incomplete_last_rounds_only(seed, worlds):
    run = Run(seed)
    for world in worlds:
        run.all_die()
        run.start(world)
        run.some_steps(40, 0.05)
    run.to_the_end()
    run.check_rounds()
    run.check_nothing_lost()
    lengths = {len(done) for done in run.done[-1][1].values()}
    assert len(lengths) == 1, "ranks did not finish together"


def coordinated(world, batches, bucket=lambda n: 0):
    d = Prompt(range(1), TTL)
    for n in range(batches):
        d.made(Batch(0, n, 1, meta={"bucket": bucket(n)}))
    for rank in range(world):
        d.join(rank + 1, 0.0, rank, world)
    return d


# Nothing is left


# An owner that can give nothing


@pytest.mark.parametrize("world", [0, 2])
def test_the_next_batch_number_is_sent_only_where_there_are_several_owners(world):
    d = filled(1)
    d.join(1, 0.0, 0 if world else -1, world)
    d.window(1, 9), d.starved(0)
    assert kinds(d.take_effects(), Following) == []
