"""Partitions are asked for as many batches as trainers want, always in the same order."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.arrival_supply import ArrivalSupply
from headrace_server.core.batch_lifecycle import BatchLifecycle
from headrace_server.core.dispatch_effects import Batch, Want
from headrace_server.core.trainers import Trainers
from tests.examples import some

from .test_lane_supply import Queues


def batch(partition, number, stripe=0):
    return Batch(partition, number, 1, meta={"stripe": stripe})


def arrivals(partitions):
    return ArrivalSupply(partitions, BatchLifecycle(10.0, 0, Trainers(64, lambda session: 0)))


def asked(effects):
    return [(e.partition, e.more) for e in effects]


def test_as_many_batches_are_asked_for_as_all_trainers_together_can_take():
    a = arrivals(range(1))
    assert a.wants([(1, 2), (2, 3)]) == [Want(0, 5)]
    assert a.wants([(1, 2), (2, 3)]) == []
    assert a.wants([(1, 3), (2, 3)]) == [Want(0, 1)]


def test_batches_that_are_ready_or_came_back_are_not_requested_again():
    a = arrivals(range(1))
    a.wants([(1, 2)])
    a.made(batch(0, 0))
    a.put_back(1, batch(0, 9))
    assert a.wants([(1, 4)]) == [Want(0, 1)]  # one is ready, one came back, one is being made


def test_when_trainers_want_less_than_was_asked_for_nothing_is_asked_until_it_is_used_up():
    a = arrivals(range(1))
    a.wants([(1, 5)])
    assert a.wants([(2, 1)]) == []
    for number in range(5):
        a.made(batch(0, number))
        assert a.next(2).number == number
    assert a.wants([(2, 1)]) == [Want(0, 1)]


def test_partitions_are_asked_in_turn_and_the_turn_goes_on_where_it_stopped():
    a = arrivals(range(3))
    assert asked(a.wants([(1, 4)])) == [(0, 2), (1, 1), (2, 1)]
    assert asked(a.wants([(1, 6)])) == [(1, 1), (2, 1)]
    assert asked(a.wants([(1, 7)])) == [(0, 1)]


def test_some_partitions_of_a_feed_are_asked_in_turn_and_others_are_refused():
    a = arrivals([5, 2])
    assert asked(a.wants([(1, 3)])) == [(2, 2), (5, 1)]
    a.made(batch(5, 0))
    assert a.next(1).order == (0, 5) and a.missing() == (0, 2)
    with pytest.raises(ValueError, match=r"partition 0 is none of those here: \[2, 5\]"):
        a.made(batch(0, 0))
    assert arrivals([]).wants([(1, 3)]) == [] and not arrivals([]).open


def test_a_partition_that_waits_for_states_keeps_its_request_and_another_is_asked_too():
    a = arrivals(range(2))
    assert asked(a.wants([(1, 1)])) == [(0, 1)]
    a.starved(0)
    assert asked(a.wants([(1, 1)])) == [(1, 1)]
    assert a.wants([(1, 1)]) == []
    a.made(batch(0, 0))
    assert a.next(1).order == (0, 0)
    a.made(batch(1, 0))
    assert a.next(1).order == (0, 1)
    assert asked(a.wants([(1, 2)])) == [(0, 1), (1, 1)]  # it can be asked again


def test_when_all_partitions_wait_for_states_nothing_more_is_asked_for():
    a = arrivals(range(2))
    a.wants([(1, 2)])
    a.starved(0)
    a.starved(1)
    assert a.wants([(1, 9)]) == []
    assert a.missing() is None
    a.made(batch(1, 0))
    assert asked(a.wants([(1, 9)])) == [(1, 8)]  # one is ready


def test_a_partition_that_has_made_what_was_asked_for_is_not_starved_by_a_late_word():
    a = arrivals(range(1))
    a.wants([(1, 1)])
    a.made(batch(0, 0))
    a.starved(0)
    a.next(1)
    assert a.wants([(1, 1)]) == [Want(0, 1)]


def test_requests_of_an_ended_partition_go_to_the_others():
    a = arrivals(range(3))
    a.wants([(1, 3)])
    a.end(0)
    assert asked(a.wants([(1, 3)])) == [(1, 1)]
    a.end(1)
    a.end(2)
    assert a.wants([(1, 3)]) == [] and not a.open


def test_it_is_open_while_a_batch_is_there_or_a_partition_has_not_ended():
    a = arrivals(range(2))
    a.made(batch(0, 0))
    a.end(0)
    assert a.open
    a.end(1)
    assert a.open
    a.next(1)
    assert not a.open


def test_the_batch_that_is_waited_for_is_one_that_was_asked_for():
    a = arrivals(range(3))
    assert a.missing() is None
    a.wants([(1, 2)])
    assert a.missing() == (0, 0)
    a.starved(0)
    assert a.missing() == (0, 1)
    a.end(1)
    assert a.missing() is None


@pytest.mark.parametrize("kind", [arrivals, Queues])
def test_a_batch_out_of_its_order_is_refused_and_changes_nothing(kind):
    d = kind(range(2))
    d.wants([(1, 1)])
    d.made(batch(0, 0))
    d.end(1)
    for partition, number, text in (
        (0, 0, "partition 0 made batch 0; next is 1"),
        (0, 2, "partition 0 made batch 2; next is 1"),
        (1, 0, "partition 1 made batch 0; next is nothing"),
        (2, 0, "partition 2 is none of those here"),
        (-1, 0, "partition -1 is none of those here"),
    ):
        with pytest.raises(ValueError, match=text):
            d.made(batch(partition, number))
    with pytest.raises(ValueError, match="partition 7 is none of"):
        d.end(7)
    assert d.next(1).order == (0, 0) and d.next(1) is None


@given(data=st.data(), partitions=st.integers(1, 4))
@settings(max_examples=some(150), deadline=None)
def test_never_more_is_asked_for_than_trainers_can_take_and_never_less(data, partitions):
    a = arrivals(range(partitions))
    upto, made, ready, credits = [0] * partitions, [0] * partitions, 0, 0
    for _ in range(30):
        if data.draw(st.booleans()):
            credits += data.draw(st.integers(0, 3))
            for want in a.wants([(1, credits)]):
                assert want.more > 0
                upto[want.partition] += want.more
            assert sum(upto) - sum(made) + ready == credits
        pending = [p for p in range(partitions) if upto[p] > made[p]]
        if pending and data.draw(st.booleans()):
            p = data.draw(st.sampled_from(pending))
            a.made(batch(p, made[p]))
            made[p] += 1
            ready += 1
        if ready and credits and data.draw(st.booleans()):
            assert a.next(1) is not None
            ready, credits = ready - 1, credits - 1
    assert max(upto) - min(upto) <= 1


def test_a_batch_of_an_earlier_server_is_made_and_wanted_beside_the_others():
    hands = BatchLifecycle(10.0, 0, Trainers(64, lambda session: 0))
    a = ArrivalSupply(range(1), hands)
    a.wants([(1, 2)])
    claimed = batch(0, 0)
    assert a.claimed(claimed) is claimed
    assert hands.effects == [] and hands.open == 1
    assert a.wants([(1, 2)]) == []
    a.made(batch(0, 1))
    assert a.missing() == (2, 0)
