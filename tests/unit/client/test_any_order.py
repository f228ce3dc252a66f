"""Batches come in any order where the trainer takes any, those of its own host first."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace.any_order import AsTheyCome, LocalFirst
from headrace.session import Session

from .test_merge import ARRIVAL, LANES, PLAIN, SEED, Owner, Trainer, owners_of, run, turns


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


def local_first(
    counts: list[int], prefetch: int, told: dict[str, Any]
) -> tuple[Trainer, list[Owner]]:
    """A trainer on the host of the first of two servers, which have an owner each."""
    trainer = Trainer([1, 1], len(counts), prefetch, told, order="local-first", here=[0])
    assert isinstance(trainer.merge, LocalFirst)
    return trainer, owners_of([1, 1], counts, told is ARRIVAL)


@pytest.mark.parametrize("told", [PLAIN, ARRIVAL], ids=["plain", "arrival"])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_all_of_this_host_comes_before_the_balance(told: dict[str, Any], prefetch: int) -> None:
    for seed in range(20):
        chance = random.Random(SEED + seed)
        counts = [chance.randint(1, 6) for _ in range(4)]
        trainer, owners = local_first(counts, prefetch, told)
        run(chance, [trainer], owners)
        assert sorted(trainer.took) == sorted(turns(counts))
        hosts = [partition % 2 for _, partition in trainer.took]
        assert hosts == sorted(hosts)


def test_another_host_is_asked_once_this_one_has_let_the_trainer_wait() -> None:
    trainer, (here, there) = local_first([9, 9], 2, PLAIN)
    own, other = trainer.sessions
    assert other.yields and not own.yields and (own.prefetch, other.prefetch) == (2, 0)

    def wait(waited_s: float) -> None:
        trainer.merge.want(0.0)
        trainer.merge.want(waited_s)
        there.serve(other)

    def take() -> int:
        received = trainer.merge.take(Session.take)
        assert received is not None
        return received.delivery.partition

    wait(0.003)
    assert not other.ready
    here.serve(own)
    assert take() == 0
    wait(0.003)  # the waits add up
    assert len(other.ready) == 1
    assert [take(), take(), take()] == [0, 0, 1]
    wait(0.003)  # and count anew after each batch of another host
    assert not other.ready


def test_where_this_host_has_nothing_left_the_others_are_asked_as_much() -> None:
    trainer, (here, there) = local_first([1, 9], 2, PLAIN)
    own, other = trainer.sessions
    trainer.step()
    here.serve(own)
    trainer.step()
    trainer.step()  # commits it
    here.serve(own)
    assert own.finished
    trainer.step()
    assert not other.yields and other.prefetch == 2
    there.serve(other)
    assert len(other.ready) == 3


def test_batches_of_each_host_go_to_its_own_trainer_and_all_come_once() -> None:
    for seed in range(20):
        chance = random.Random(SEED + seed)
        counts = [chance.randint(0, 9) for _ in range(6)]
        owners = owners_of([1, 1], counts)
        trainers = [
            Trainer([1, 1], len(counts), 1, PLAIN, order="local-first", here=[host])
            for host in (0, 1)
        ]
        run(chance, trainers, owners)
        took = [place for trainer in trainers for place in trainer.took]
        assert sorted(took) == sorted(turns(counts) if any(counts) else [])


def test_lanes_and_epochs_have_an_order_also_where_this_host_is_first() -> None:
    with pytest.raises(ValueError, match="placement='local-first': the rows of feed 'f' stay in"):
        Trainer(2, 4, 0, LANES, order="local-first")
    with pytest.raises(ValueError, match="placement='local-first': batches of feed 'f' end with"):
        Trainer(2, 4, 0, {"across_batches": False}, order="local-first")
