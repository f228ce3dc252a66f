"""Batches of an earlier server are claimed once, by the last trainer that had them."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.messages import Handed
from headrace_server.core.claims import STANDS, ClaimedBatch
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Send,
    StoreCommit,
)
from headrace_server.shaping.transitions import IllegalEvent
from tests.examples import some

from .anew import OLD, TTL, place

# Any history


class Worlds:
    """Servers one after the other, workers that make batches, trainers that outlive them."""

    def __init__(self, seed, counts):
        self.chance = random.Random(seed)
        self.counts = counts
        self.done = [set() for _ in counts]  # stored
        self.tokens = set()
        self.trainers = [{} for _ in range(3)]  # token → batch and whether it is saved
        self.sessions = [0, 0, 0]
        self.session = 0
        self.term = 0
        self.told = {}
        self.start()

    def start(self):
        self.term += 1
        self.d = Dispatcher(range(len(self.counts)), TTL, 4, self.term)
        self.next = []
        for partition, done in enumerate(self.done):
            first = next(n for n in range(len(done) + 1) if n not in done)
            self.d.started(partition, first)
            self.next.append(first)
        self.sessions = [0, 0, 0]
        self.ended = [False for _ in self.counts]
        self.orders = [deque() for _ in self.counts]
        self.words = deque()

    def greet(self, i):
        if self.sessions[i]:
            self.d.leave(self.sessions[i])
        self.session += 1
        self.sessions[i] = self.session
        self.d.join(self.session, 0.0)
        self.d.window(self.session, 1 << 20)
        hand = self.trainers[i]
        self.d.adopt(self.session, tuple(hand), 0.0)
        for token, (order, _) in hand.items():
            self.d.claim(self.session, Handed(token, order[1], order[0], 1))
        self.d.commit(self.session, tuple(t for t, (_, saved) in hand.items() if saved))

    def work(self, partition):
        orders = self.orders[partition]
        if orders and self.chance.random() < 0.6:
            self.obey(partition, orders.popleft())
            return
        number = self.next[partition]
        while number in self.done[partition]:
            number += 1
        if number < self.counts[partition]:
            self.next[partition] = number + 1
            self.d.made(Batch(partition, number, 1, "bytes"))
        elif not self.ended[partition]:
            self.ended[partition] = True
            self.d.partition_ended(partition)

    def obey(self, partition, order):
        if isinstance(order, Claim):
            token, number = order.place.token, order.place.number
            verdict = "no" if number in self.done[partition] else "yes"
            verdict = "done" if token in self.tokens else verdict
            self.words.append((partition, "claimed", (token, verdict, number)))
            return
        number = order.batch.number
        if order.token not in self.tokens:
            assert number not in self.done[partition], "kept once"
            self.done[partition].add(number)
            self.tokens.add(order.token)
        self.words.append((partition, "stored", (partition, [(number, "", "")])))

    def hear(self):
        if self.words:
            _, what, values = self.words.popleft()
            getattr(self.d, what)(*values)

    def act(self):
        for effect in self.d.take_effects():
            if isinstance(effect, Send):
                hand = self.trainers[self.sessions.index(effect.session)]
                hand[effect.token] = effect.batch.order, False
            elif isinstance(effect, StoreCommit | Claim):
                save = isinstance(effect, StoreCommit)
                partition = effect.batch.partition if save else effect.partition
                self.orders[partition].append(effect)
            elif isinstance(effect, Answer):
                assert not effect.faults
                told = [(t, "committed") for t in effect.committed]
                for token, what in told + [(t, "stale") for t in effect.stale]:
                    assert self.told.setdefault(token, what) == what, "an answer stands"
                    assert what != "committed" or token in self.tokens
                    for hand in self.trainers:
                        hand.pop(token, None)

    def step(self):
        i = self.chance.randrange(3)
        deed = self.chance.random()
        if deed < 0.4:
            self.work(self.chance.randrange(len(self.counts)))
        elif deed < 0.6:
            self.hear()
        elif deed < 0.85 and self.sessions[i]:
            self.commit(i)
        elif deed < 0.95:
            if not self.sessions[i] or self.chance.random() < 0.2:
                self.greet(i)
        elif deed < 0.97:
            self.start()
        elif self.sessions[i]:
            self.d.leave(self.sessions[i])
            self.sessions[i] = 0
            self.trainers[i] = self.trainers[i] if self.chance.random() < 0.7 else {}
        self.act()
        orders = [(p, n) for p, count in enumerate(self.counts) for n in range(count)]
        held = [order for order in orders if self.d.holder(*order)]
        assert len(held) == self.d.standing()["leased"], "a batch is in one trainer's hands"

    def commit(self, i):
        hand = self.trainers[i]
        ready = [token for token, (_, saved) in hand.items() if not saved]
        if ready:
            token = self.chance.choice(ready)
            hand[token] = hand[token][0], True
            self.d.commit(self.sessions[i], (token,))

    def settle(self):
        for i in range(3):
            self.greet(i)
        for _ in range(60 + 12 * sum(self.counts)):
            self.act()
            for i in range(3):
                self.commit(i)
            self.act()
            for partition in range(len(self.counts)):
                self.work(partition)
                self.act()
            while self.words:
                self.hear()


@settings(max_examples=some(300), deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(0, 12), min_size=1, max_size=3))
def test_after_any_deaths_every_batch_is_stored_once_and_every_commit_is_answered(seed, counts):
    world = Worlds(seed, counts)
    for _ in range(150):
        world.step()
    world.settle()
    assert world.done == [set(range(count)) for count in counts]
    assert world.d.ended, world.d.describe(0.0)
    assert not any(world.trainers)
    assert not world.d.in_doubt


def test_a_verdict_that_was_not_asked_for_is_an_error():
    claim = ClaimedBatch(2, place(5, 7))
    for event in ("ask", "made", "yes, to be made"):
        assert not claim.ends(event)
    what = f"the claim of trainer 2 on token {OLD + 5} was not asked about: it is allowed"
    with pytest.raises(IllegalEvent, match=what):
        claim.ends("no")
    assert claim.state == "allowed" and claim.ends("made") and claim.end is STANDS
