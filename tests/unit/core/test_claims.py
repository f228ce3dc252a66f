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
    Finish,
    Freed,
    Send,
    StoreCommit,
)
from headrace_server.core.transitions import IllegalEvent
from tests.examples import some
from tests.footprint import entries

from .anew import OLD, TTL, At, committed, place, stale


def test_a_batch_of_an_earlier_server_is_committed_under_its_old_token():
    at = At()
    at.join(1)
    at.claim(1, 5, 0)
    assert at.take() == [Claim(0, place(5, 0))]
    at.d.claimed(OLD + 5, "yes", 0)
    batch = at.make(0)
    assert at.take(Send) == []
    at.d.commit(1, (OLD + 5,))
    assert at.take() == [StoreCommit(batch, None, OLD + 5), Freed(batch)]
    at.d.stored(0, [(0, "", "")])
    assert at.take() == [committed(1, 5)]


@pytest.mark.parametrize("verdict_first", [False, True])
def test_a_claimed_batch_goes_to_no_other_trainer_whether_it_or_the_verdict_comes_first(
    verdict_first,
):
    at = At()
    at.join(1, 2, window=9)
    at.claim(1, 5, 0)
    if verdict_first:
        at.d.claimed(OLD + 5, "yes", 0)
    at.make(0), at.make(1)
    if not verdict_first:
        at.d.claimed(OLD + 5, "yes", 0)
    assert [e.batch.number for e in at.take(Send)] == [1]
    assert at.d.holder(0, 0) == (1, 0.0)


def test_a_batch_that_is_there_already_is_set_aside_and_its_worker_may_make_another():
    at = At()
    batch, other = at.make(0), at.make(1)
    at.join(1)
    at.claim(1, 5, 0)
    assert at.take() == [Claim(0, place(5, 0))] and at.d.untaken.count == 1
    at.join(2, window=9)
    assert [e.batch for e in at.take(Send)] == [other]
    at.d.claimed(OLD + 5, "yes", 0)
    at.d.commit(1, (OLD + 5,))
    assert at.take(StoreCommit) == [StoreCommit(batch, None, OLD + 5)]


def test_a_claimed_batch_that_is_made_later_is_taken_too():
    at = At()
    at.join(1)
    at.claim(1, 5, 0)
    at.take()
    at.make(0)
    assert at.take() == [] and at.d.untaken.count == 0


def test_a_batch_stored_under_the_earlier_server_is_committed_and_not_done_again():
    at = At(made=1)
    at.join(1)
    at.claim(1, 5, 0)
    at.d.commit(1, (OLD + 5,))
    assert at.take() == [Claim(0, place(5, 0))], "it is answered when the worker has spoken"
    at.d.claimed(OLD + 5, "done", 0)
    assert at.take() == [committed(1, 5)]
    at.d.commit(1, (OLD + 5,))
    assert at.take() == [committed(1, 5)]


def test_a_claim_that_its_partition_refuses_is_stale():
    at = At()
    at.join(1)
    at.claim(1, 5, 0)
    at.d.commit(1, (OLD + 5,))
    at.d.claimed(OLD + 5, "no", 0)
    assert at.take(Answer) == [stale(1, 5)]
    assert at.d.counts["stale"] == 1
    at.d.commit(1, (OLD + 5,))  # said again: its answer was lost
    assert at.take(Answer) == [stale(1, 5)] and at.d.counts["stale"] == 1


def test_a_claim_that_comes_after_the_batch_went_to_another_is_stale_and_waits_for_nothing():
    at = At()
    at.join(2, window=1)
    at.make(0)
    (send,) = at.take(Send)
    at.join(1)
    at.claim(1, 5, 0)
    at.d.commit(1, (OLD + 5,))
    at.d.claimed(OLD + 5, "yes", 0)
    assert at.take(Answer) == [stale(1, 5)]
    at.d.commit(2, (send.token,))
    assert len(at.take(StoreCommit)) == 1


def test_a_token_of_this_server_is_no_claim():
    at = At()
    at.join(1, window=1)
    at.make(0)
    (send,) = at.take(Send)
    at.d.leave(1)
    at.join(2, window=1)
    at.take()
    at.join(3)
    at.d.claim(3, Handed(send.token, 0, 0, 4))
    at.d.commit(3, (send.token,))
    assert at.take() == [Answer(3, (), (send.token,))]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("order", [(5, 6), (6, 5)])
def test_the_last_of_two_holders_has_the_batch(made, order):
    at = At()
    at.join(5, 6)
    if made:
        at.make(0)
    for token in order:
        at.claim(token, token, 0)
        at.d.commit(token, (OLD + token,))
    for token in order:
        at.d.claimed(OLD + token, "yes", 0)
    if not made:
        at.make(0)
    assert [e.token for e in at.take(StoreCommit, Answer) if isinstance(e, StoreCommit)] == [
        OLD + 6
    ]
    at.d.stored(0, [(0, "", "")])
    at.d.partition_ended(0)
    assert at.take(Answer) == [committed(6, 6)]
    assert at.d.ended and at.d.counts["stale"] == 1


def test_a_later_holder_takes_the_claim_of_one_that_waits_for_the_batch():
    at = At()
    at.join(5, 6)
    at.claim(5, 5, 0)
    at.d.claimed(OLD + 5, "yes", 0)
    at.d.commit(5, (OLD + 5,))
    assert at.take(Answer) == []
    at.claim(6, 6, 0)
    assert at.take(Answer) == [stale(5, 5)]
    at.d.claimed(OLD + 6, "yes", 0)
    batch = at.make(0)
    at.d.commit(6, (OLD + 6,))
    assert at.take(StoreCommit) == [StoreCommit(batch, None, OLD + 6)]


def test_a_claimed_batch_of_a_trainer_that_left_goes_to_others_and_may_still_be_committed_before():
    at = At()
    at.join(1, 2)
    at.claim(1, 5, 0)
    at.d.leave(1)
    batch = at.make(0)
    at.d.claimed(OLD + 5, "yes", 0)
    at.d.commit(3, (OLD + 5,))
    assert at.take(StoreCommit) == [StoreCommit(batch, None, OLD + 5)]
    at.claim(2, 8, 1)
    at.d.claimed(OLD + 8, "yes", 0)
    at.d.leave(2)
    at.make(1)
    at.join(4, window=1)
    (send,) = at.take(Send)
    assert send.batch.number == 1
    at.d.commit(3, (OLD + 8,))
    assert at.take(Answer) == [stale(3, 8)]


def test_a_commit_before_the_trainer_left_counts_when_the_worker_has_spoken():
    at = At()
    at.join(1)
    at.claim(1, 5, 0)
    at.d.commit(1, (OLD + 5,))
    at.d.leave(1)
    batch = at.make(0)
    at.d.claimed(OLD + 5, "yes", 0)
    assert at.take(StoreCommit) == [StoreCommit(batch, None, OLD + 5)]


def test_a_claim_moves_to_the_trainers_next_session_and_nobody_else_commits_it():
    at = At()
    at.join(1, 2, 3)
    at.claim(1, 5, 0)
    at.claim(2, 5, 0)
    assert len(at.take(Claim)) == 1
    at.d.commit(3, (OLD + 5,))
    assert at.take(Answer) == [stale(3, 5)]
    at.make(0)
    at.d.claimed(OLD + 5, "yes", 0)
    assert at.d.holder(0, 0) == (2, 0.0)


def test_a_claimed_batch_that_is_never_made_is_stale_at_the_end_and_the_end_waits_for_the_word():
    at = At(partitions=2)
    at.join(1)
    at.claim(1, 5, 4)
    at.claim(1, 6, 0, partition=1)
    at.d.commit(1, (OLD + 5, OLD + 6))
    at.d.claimed(OLD + 5, "yes", 0)
    at.d.partition_ended(0)
    at.d.partition_ended(1)
    assert at.take(Answer, Finish) == [stale(1, 5)] and not at.d.ended
    at.d.claimed(OLD + 6, "yes", 0)
    assert at.take(Answer, Finish) == [stale(1, 6), Finish(1)] and at.d.ended


def test_words_on_claims_that_are_over_mean_nothing():
    at = At()
    at.d.claimed(OLD + 5, "yes", 0)
    at.d.claimed(OLD + 5, "done", 0)
    assert at.take() == []


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


@pytest.mark.parametrize("verdict", ["no", "done"])
def test_claims_that_have_ended_leave_nothing_behind_but_tokens_that_are_done(verdict):
    at, kept = At(), []
    for number in range(50):
        at.join(number)
        at.claim(number, number, number)
        at.take()
        at.d.claimed(OLD + number, verdict, number)
        at.d.leave(number)
        at.take()
        kept.append(entries(at.d) - (number if verdict == "done" else 0))
    assert kept == kept[:1] * 50


def test_a_verdict_that_was_not_asked_for_is_an_error_with_the_history_of_the_claim():
    claim = ClaimedBatch(2, place(5, 7))
    for event in ("ask", "made", "yes, to be made"):
        assert not claim.ends(event)
    what = f"the claim of trainer 2 on token {OLD + 5} was not asked about: ask, made, yes, to be"
    with pytest.raises(IllegalEvent, match=what):
        claim.on("no")
    assert claim.state == "allowed" and claim.ends("made") and claim.end is STANDS
