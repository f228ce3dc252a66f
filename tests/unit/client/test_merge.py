"""Batches of several owners come in the order of the feed, in any order of arrival."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.merge import AsTheyCome, Merge, merge_of
from headrace.session import Session
from headrace_proto.messages import (
    Deliver,
    Delivery,
    Ended,
    EpochBegun,
    Following,
    Idle,
    Outcome,
    Passed,
    Step,
    Welcome,
)
from headrace_proto.placement import WHOLE, Share, partitions_of
from headrace_server.core.admitted_examples import AT_SERVER, AT_TRAINER, NOWHERE
from tests.examples import some

from .lane_servers import Run

SEED = 5
#: Partitions with the numbers of segments of their examples.
COUNTS = st.lists(st.lists(st.integers(1, 3), max_size=4), min_size=2, max_size=4)
steadily = settings(max_examples=some(15), deadline=None, derandomize=True)
PLAIN: dict[str, Any] = {}
ARRIVAL = {"shape": "sequences", "order": "arrival"}
LANES = {"shape": "sequences", "order": "lanes"}


class Owner:
    """One owner of a feed, as trainers see it: hands out its batches in order to any that asks.

    No more than ``room`` of them at once.
    """

    def __init__(
        self,
        owner: int,
        counts: list[int],
        owners: int,
        turns: bool = False,
        room: int = 1000,
        share: Share = WHOLE,
    ) -> None:
        self._room = room
        self._of = partitions_of(owner, owners, len(counts), share)
        mine = [(n, p) for p in self._of for n in range(counts[p])]
        self.waiting = deque(sorted(mine))
        self._left = {p: counts[p] for p in self._of}
        self._turn = 0
        self._turns = turns
        self.out: dict[int, tuple[int, int]] = {}  # by token
        self._tokens = 1000 * owner + 100_000 * share[0]
        self._seqs: dict[int, int] = {}
        self._windows: dict[int, int] = {}
        self._told: set[int] = set()

    def serve(self, session: Session) -> None:
        """Receive a trainer's messages, and answer."""
        number = id(session)
        assert session.welcome is not None
        for message in session.outgoing(0.0):
            if isinstance(message, Step):
                self._windows[number] = max(message.window, self._windows.get(number, 0))
                for token in message.commits:
                    del self.out[token]
                session.receive(Outcome(session.welcome.session, message.commits), [], 0.0)
        while self._may_give(number) and self.waiting:
            if len(self.out) >= self._room:
                session.receive(Following(7, *self.waiting[0]), [], 0.0)
                break
            self._seqs[number] = seq = self._seqs.get(number, 0) + 1
            if self._turns and not self._left[self._of[self._turn]]:
                session.receive(Passed(7, seq, self._of[self._turn]), [], 0.0)
                self._turn = (self._turn + 1) % len(self._of)
                continue
            place = self._next()
            self._tokens += 1
            self.out[self._tokens] = place
            d = Delivery(seq, self._tokens, place[1], place[0], 1, 0, [], {}, "", 0, 1)
            session.receive(Deliver(7, (d,)), [b""], 0.0)
        if self._may_give(number) and not self.waiting and self.out:
            session.receive(Idle(7, self._seqs.get(number, 0)), [], 0.0)
        if not self.waiting and not self.out and not session.finished:
            session.receive(Ended(7), [], 0.0)

    def _may_give(self, number: int) -> bool:
        return self._seqs.get(number, 0) < self._windows.get(number, 0)

    def _next(self) -> tuple[int, int]:
        if not self._turns:
            return self.waiting.popleft()
        partition = self._of[self._turn]
        self._turn = (self._turn + 1) % len(self._of)
        self._left[partition] -= 1
        place = next(place for place in self.waiting if place[1] == partition)
        self.waiting.remove(place)
        return place


class Trainer:
    """A trainer that commits a batch when it asks for the next."""

    def __init__(
        self,
        owners: int | list[int],
        partitions: int,
        prefetch: int,
        told: dict[str, Any],
        order: str = "feed",
    ) -> None:
        """``owners``: their number at each server."""
        self.sessions = []
        servers = [owners] if isinstance(owners, int) else owners
        for share, of_server in enumerate(servers):
            for owner in range(of_server):
                session = Session("f", b"nonce", prefetch, owner=owner, order=order)
                session.share, session.shares = share, len(servers)
                welcome = Welcome(1, "t", 7, "f", [], 1e9, 30.0, 64, properties=told)
                session.receive(_with(welcome, owner, of_server, partitions), [], 0.0)
                self.sessions.append(session)
        self.merge: Merge = merge_of(self.sessions, self.sessions[0])
        self.took: list[tuple[int, int]] = []
        self._in_hand: tuple[Session, int] | None = None

    @property
    def over(self) -> bool:
        return all(session.ended for session in self.sessions)

    def step(self) -> bool:
        """Take the next batch, if it is there."""
        if self._in_hand is not None:
            session, token = self._in_hand
            session.commit(token)
            self._in_hand = None
        received = self.merge.take(Session.take)
        if received is None:
            self.merge.want()
            return False
        delivery = received.delivery
        holder = next(s for s in self.sessions if s.holds(delivery.token))
        self._in_hand = holder, delivery.token
        self.took.append((delivery.number, delivery.partition))
        return True


def _with(welcome: Welcome, owner: int, owners: int, partitions: int) -> Welcome:
    welcome.owner, welcome.owners, welcome.partitions = owner, owners, partitions
    return welcome


def turns(counts: list[int]) -> Iterator[tuple[int, int]]:
    """Partitions in turn; those that have no more are passed over."""
    for number in range(max(counts)):
        for partition, count in enumerate(counts):
            if number < count:
                yield number, partition


def run(
    chance: random.Random, trainers: list[Trainer], owners: list[Owner], most: int = 100_000
) -> None:
    """Let trainers and owners act in any order until all is done."""
    for _ in range(most):
        if all(trainer.over for trainer in trainers):
            return
        trainer = chance.choice(trainers)
        if chance.random() < 0.5:
            number = chance.randrange(len(owners))
            owners[number].serve(trainer.sessions[number])
        else:
            trainer.step()
    raise AssertionError(f"a trainer waits for {[t.merge.awaited.owner for t in trainers]}")


@pytest.mark.parametrize(
    ("told", "prefetch"),
    [(PLAIN, 0), (PLAIN, 1), (PLAIN, 2), (PLAIN, 7), (ARRIVAL, 0)],
    ids=["plain-0", "plain-1", "plain-2", "plain-7", "arrival-0"],
)
def test_one_trainer_gets_the_order_of_the_feed_however_arrivals_interleave(
    told: dict[str, Any], prefetch: int
) -> None:
    for seed in range(60):
        chance = random.Random(SEED + seed)
        owners = chance.randint(1, 4)
        counts = [chance.randint(0, 6) for _ in range(chance.randint(owners, 9))]
        counts[0] += 1
        trainer = Trainer(owners, len(counts), prefetch, told)
        served = [Owner(k, counts, owners, told is ARRIVAL) for k in range(owners)]
        run(chance, [trainer], served)
        assert trainer.took == list(turns(counts)), (counts, owners)
        assert trainer.took == sorted(trainer.took)


def owners_of(servers: list[int], counts: list[int], turns: bool = False) -> list[Owner]:
    """The owners of several servers, in the order of a trainer's sessions."""
    return [
        Owner(owner, counts, owners, turns, share=(share, len(servers)))
        for share, owners in enumerate(servers)
        for owner in range(owners)
    ]


@pytest.mark.parametrize(
    ("told", "prefetch"), [(PLAIN, 0), (PLAIN, 3), (ARRIVAL, 0)], ids=["plain-0", "plain-3", "arr"]
)
def test_one_trainer_gets_the_feeds_own_order_of_servers_with_any_numbers_of_workers(
    told: dict[str, Any], prefetch: int
) -> None:
    for seed in range(40):
        chance = random.Random(SEED + seed)
        servers = [chance.randint(1, 3) for _ in range(chance.randint(2, 4))]
        least = len(servers) * max(servers)  # each owner has a partition
        counts = [chance.randint(0, 6) for _ in range(chance.randint(least, least + 5))]
        counts[0] += 1
        trainer = Trainer(servers, len(counts), prefetch, told)
        run(chance, [trainer], owners_of(servers, counts, told is ARRIVAL))
        assert trainer.took == list(turns(counts)), (counts, servers)


def test_a_look_at_partitions_in_turn_ends_when_each_owner_was_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would go through all 4,096 for each batch."""
    trainer = Trainer([2, 2], 4096, 0, ARRIVAL)
    looked: list[int] = []
    is_over = Merge._is_over
    monkeypatch.setattr(
        Merge,
        "_is_over",
        lambda merge, session, partition: (
            looked.append(partition) or is_over(merge, session, partition)
        ),
    )
    trainer.step()
    assert 0 < len(looked) <= 4 * 4 and max(looked) < 4


@pytest.mark.parametrize("told", [PLAIN, LANES], ids=["plain", "lanes"])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_several_trainers_share_all_and_none_waits_for_ever(
    told: dict[str, Any], prefetch: int
) -> None:
    for seed in range(40):
        chance = random.Random(SEED + seed)
        owners = chance.randint(2, 4)
        counts = [chance.randint(0, 9) for _ in range(chance.randint(owners, 9))]
        trainers = [Trainer(owners, len(counts), prefetch, told) for _ in range(3)]
        served = [Owner(k, counts, owners) for k in range(owners)]
        run(chance, trainers, served)
        took = sorted(place for trainer in trainers for place in trainer.took)
        assert took == sorted(turns(counts)) if any(counts) else not took
        if told is PLAIN:
            assert all(trainer.took == sorted(trainer.took) for trainer in trainers)


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_trainers_that_hold_all_that_owners_have_room_for_do_not_wait_for_each_other(
    prefetch: int,
) -> None:
    for seed in range(40):
        chance = random.Random(SEED + seed)
        owners = chance.randint(2, 4)
        counts = [chance.randint(0, 9) for _ in range(chance.randint(owners, 9))]
        trainers = [Trainer(owners, len(counts), prefetch, PLAIN) for _ in range(3)]
        served = [Owner(k, counts, owners, room=chance.randint(1, 3)) for k in range(owners)]
        run(chance, trainers, served)
        took = sorted(place for trainer in trainers for place in trainer.took)
        assert took == sorted(turns(counts)) if any(counts) else not took
        assert all(trainer.took == sorted(trainer.took) for trainer in trainers)


@pytest.mark.parametrize("states", [AT_SERVER, AT_TRAINER, NOWHERE])
@pytest.mark.parametrize("cuts", [0.0, 0.004])
@steadily
@given(seed=st.integers(0, 2**32), counts=COUNTS, prefetch=st.sampled_from([0, 1, 2, 5]))
def test_one_trainer_gets_the_lanes_of_one_server_though_messages_cross_or_are_lost(
    states: str, cuts: float, seed: int, counts: list[list[int]], prefetch: int
) -> None:
    one = Run(counts, 1, states, prefetch=0, seed=0).to_the_end()
    for servers in range(2, len(counts) + 1):
        assert Run(counts, servers, states, prefetch, seed).to_the_end(cuts) == one


@steadily
@given(seed=st.integers(0, 2**32), counts=COUNTS, prefetch=st.sampled_from([0, 1, 2, 5]))
def test_one_trainer_gets_the_lanes_of_one_server_though_servers_die(
    seed: int, counts: list[list[int]], prefetch: int
) -> None:
    """The examples of a batch that was ready and not taken may go on in other rows."""
    one = Run(counts, 1, AT_SERVER, prefetch=0, seed=0).to_the_end()
    for servers in range(1, len(counts) + 1):
        again = Run(counts, servers, AT_SERVER, prefetch, seed).to_the_end(0.002, 0.002)
        assert [(p, sorted(cells)) for p, cells in again] == [(p, sorted(c)) for p, c in one]


def deliver(session: Session, seq: int, partition: int, epoch: int) -> None:
    batch = Delivery(seq, 100 * session.owner + seq, partition, seq - 1, 1, 0, [], {}, "", 0, 1)
    batch.epoch = epoch
    session.receive(Deliver(7, (batch,)), [b""], 0.0)


# Segments whose batches end with their epoch


@pytest.mark.parametrize("told", [ARRIVAL, LANES], ids=["arrival", "lanes"])
def test_an_owner_in_a_later_epoch_waits_for_the_others(told: dict[str, Any]) -> None:
    """1. Owner 1 has all of epoch 0 behind it.  2. Owner 0 still has a batch of it."""
    trainer = Trainer(2, 2, 1, {**told, "across_batches": False})
    zero, one = trainer.sessions
    one.receive(EpochBegun(7, 1), [], 0.0)
    deliver(one, 1, 1, epoch=1)
    assert not trainer.step() and trainer.merge.awaited is zero
    deliver(zero, 1, 0, epoch=0)
    assert trainer.step() and trainer.took == [(0, 0)]
    assert not trainer.step(), "it may have another one of epoch 0"
    zero.receive(EpochBegun(7, 1), [], 0.0)
    assert not trainer.step(), "the epoch begins with the first partition"
    deliver(zero, 2, 0, epoch=1)
    assert trainer.step() and trainer.took == [(0, 0), (1, 0)]


@pytest.mark.parametrize("told", [PLAIN, ARRIVAL], ids=["plain", "arrival"])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_in_any_order_all_comes_once_and_an_owner_that_is_away_delays_its_own_alone(
    told: dict[str, Any], prefetch: int
) -> None:
    for seed in range(30):
        chance = random.Random(SEED + seed)
        servers, counts = [1, 2], [chance.randint(1, 6) for _ in range(6)]
        trainer = Trainer(servers, len(counts), prefetch, told, order="any")
        assert isinstance(trainer.merge, AsTheyCome)
        owners = owners_of(servers, counts, told is ARRIVAL)
        away, *others = zip(owners, trainer.sessions, strict=True)
        away[1].lose()
        there = [(n, p) for p in (1, 3, 5) for n in range(counts[p])]
        for _ in range(1500):
            owner, session = chance.choice(others)
            owner.serve(session)
            trainer.step()
        assert sorted(trainer.took) == sorted(there)
        assert trainer.merge.awaited is away[1] and not trainer.over
        away[1].receive(away[1].welcome, [], 0.0)
        run(chance, [trainer], owners)
        assert sorted(trainer.took) == sorted(turns(counts))


def test_lanes_have_no_other_order() -> None:
    with pytest.raises(ValueError, match="order='any': the rows of feed 'f' stay in lanes"):
        Trainer(2, 4, 0, LANES, order="any")
    with pytest.raises(ValueError, match="stay in lanes"):
        Trainer(1, 4, 0, LANES, order="any")
    with pytest.raises(ValueError, match="order='any': batches of feed 'f' end with their epoch"):
        Trainer(2, 4, 0, {"across_batches": False}, order="any")
