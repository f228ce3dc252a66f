"""A save counts once and is answered when it is stored; trainers get batches by the order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.dispatch_effects import (
    JoinRefused,
    Want,
)
from headrace_server.shaping.input import TURN_BITS
from tests.examples import some

from .at_segments import At
from .segment_world import World

# What is asked for


def test_a_rank_without_a_world_and_a_mix_of_modes_are_refused():
    at = At()
    for rank, world in ((-1, 2), (1, 0), (2, 2)):
        with pytest.raises(JoinRefused, match=f"rank={rank}"):
            at.d.join(1, 0.0, rank, world)
    at.join(1)
    with pytest.raises(JoinRefused, match="all or none give one"):
        at.d.join(2, 0.0, 0, 2, 1)


def test_an_epoch_begins_with_the_first_partition_whichever_is_heard_of_first():
    at = At(3, across_batches=False)
    at.sent((0, 0), (1, 0), (2, 0), window=3)
    for partition in range(3):
        at.d.epoch_rests(partition, 0)
    asked = []
    for partition in (1, 0, 2):  # their notices of the new epoch
        at.d.epoch_begun(partition, 1, 1 << TURN_BITS)
        at.d.window(1, 4 + len(asked))
        asked += [want.partition for want in at.take(Want)]
    assert asked == [0, 1, 2]


# Saves


# Lanes


# Any history

COUNTS = st.lists(st.lists(st.integers(1, 4), max_size=12), min_size=1, max_size=3)
steadily = settings(max_examples=some(120), deadline=None, derandomize=True)


@pytest.mark.parametrize(
    ("order", "ahead"), [("arrival", False), ("lanes", False), ("lanes", True)], ids=str
)
@steadily
@given(seed=st.integers(0, 2**32), counts=COUNTS, size=st.integers(1, 3), tight=st.booleans())
def test_through_any_history_of_trainers_every_segment_is_stored_once_in_order_and_the_feed_ends(
    order, ahead, seed, counts, size, tight
):
    capacity = size if tight else None
    world = World(seed, counts, order, ahead, size, capacity)
    world.storm(150)
    world.settle()
    world.finish()
    assert [w.next for w in world.workers] == counts


@pytest.mark.parametrize("order", ["arrival", "lanes"])
@settings(steadily, max_examples=some(200))
@given(
    seed=st.integers(0, 2**32),
    counts=COUNTS,
    size=st.integers(1, 3),
    tight=st.booleans(),
    small=st.booleans(),
)
def test_through_any_deaths_every_segment_is_stored_once_in_order_and_the_feed_ends(
    order, seed, counts, size, tight, small
):
    world = World(seed, counts, order, False, size, size if tight else None, small)
    world.storm(200, deaths=True)
    world.settle()
    world.finish()
    for worker in world.workers:
        done = [worker.stored.get(e, (0, 0, 0, 0))[3] for e in range(len(worker.counts))]
        assert done == worker.next
        assert sum(done) + sum(worker.machine.dropped().values()) == sum(worker.counts)
        assert not small or done == worker.counts


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_the_histories_with_deaths_have_batches_that_go_on_under_another_server(order):
    admitted = 0
    for seed in range(30):
        world = World(seed, [[2, 3, 1, 4] * 3, [3] * 9], order)
        world.storm(200, deaths=True)
        world.settle()
        world.finish()
        admitted += world.admitted
    assert admitted > 10


@pytest.mark.parametrize("order", ["arrival", "lanes"])
@steadily
@given(seed=st.integers(0, 2**32), counts=COUNTS, size=st.integers(1, 4), cancel=st.booleans())
def test_a_feed_without_small_batches_or_that_is_cancelled_ends_and_counts_the_rest(
    order, seed, counts, size, cancel
):
    world = World(seed, counts, order, False, size, None, small=cancel)
    world.storm(60)
    if cancel:
        for worker in world.workers:
            worker.cancel()
        world.storm(20)
    world.settle()
    world.finish()
    for worker in world.workers:
        offered = worker.counts[: len(worker.counts) - sum(map(len, worker.left()))]
        dropped = sum(worker.machine.dropped().values())
        assert sum(worker.next) + worker.refused + dropped == sum(offered)


@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_one_trainer_without_prefetch_sees_the_same_order_however_slow_the_partitions_are(
    partitions,
):
    counts = [[1 + (7 * p + 3 * i) % 4 for i in range(9 + p)] for p in range(partitions)]
    streams = set()
    for seed in range(20):
        world = World(seed, counts)
        session = world.join(0)
        while not world.d.ended:
            world.ask(session)
            world.storm_of_workers()
            world.receive(session)
            world.save(session)
        streams.add(tuple(world.got))
    assert len(streams) == 1
    (stream,) = streams
    assert [p for p, _ in stream[: 2 * partitions]] == 2 * list(range(partitions))


# An owner that can give nothing
