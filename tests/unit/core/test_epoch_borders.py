"""Trainers learn of an epoch when earlier ones are committed; segments wait for all partitions."""

import pytest

from headrace_proto.messages import EpochBegun, Handed, Idle, Passed
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Batch, BeginEpoch, Send, Want
from headrace_server.core.partition import TURN_BITS


def feed(order="", partitions=(0, 1), shared=False):
    dispatcher = Dispatcher(partitions, 30.0, order=order, shared=shared, across_batches=False)
    dispatcher.join(7, 0.0)
    dispatcher.window(7, 1)
    return dispatcher


def effects(dispatcher, *kinds):
    return [effect for effect in dispatcher.take_effects() if isinstance(effect, kinds)]


def test_an_epoch_has_begun_for_trainers_when_all_before_it_is_committed():
    d = feed(partitions=(0,))
    d.made(Batch(0, 0, 1, turn=0))
    d.epoch_begun(0, 1, 1 << 32)
    (send,) = effects(d, Send, EpochBegun)
    d.commit(7, (send.token,))
    assert effects(d, EpochBegun) == [], "the commit is being stored"
    d.stored(0, [(0, "", "")])
    assert effects(d, EpochBegun) == [EpochBegun(7, 1)]
    d.epoch_begun(0, 2, 2 << 32)
    assert effects(d, EpochBegun) == [EpochBegun(7, 2)], "an epoch without a batch"
    assert effects(d, EpochBegun) == []


def test_a_trainer_that_joins_or_reconnects_gets_the_epoch():
    d = feed(partitions=(0,))
    d.epoch_begun(0, 3, 3 << 32)
    assert effects(d, EpochBegun) == [EpochBegun(7, 3)]
    d.join(8, 0.0)
    assert effects(d, EpochBegun) == [EpochBegun(8, 3)]
    d.resend(7, 0)
    assert effects(d, EpochBegun) == [EpochBegun(7, 3)]


def test_the_first_epoch_of_a_trainer_is_one_with_an_open_batch():
    d = feed(partitions=(0,))
    assert d.first_epoch(used=False) == 0 and d.first_epoch(used=True) is None
    d.started(0, 4, 2 << 32, 2)
    d.made(Batch(0, 4, 1, epoch=2, turn=2 << 32))
    assert d.first_epoch(used=True) == 2
    assert Dispatcher([0], 30.0).first_epoch(used=False) is None


def test_partitions_of_segments_are_asked_for_the_next_epoch_when_all_rest():
    d = feed("arrival")
    assert effects(d, Want) == [Want(0, 1)]
    d.epoch_rests(0, 0)
    assert effects(d, Want, BeginEpoch) == [Want(1, 1)], "in place of the one that rests"
    d.epoch_rests(1, 0)
    assert effects(d, Want, BeginEpoch, EpochBegun) == [
        BeginEpoch(0),
        BeginEpoch(1),
        EpochBegun(7, 1),
        Want(0, 1),
    ]


def test_a_trainer_of_several_owners_passes_over_partitions_that_rest():
    d = feed("arrival", partitions=(0, 2), shared=True)
    d.window(7, 2)
    effects(d)
    d.epoch_rests(0, 0)
    assert effects(d, Passed, Idle) == [Passed(7, 1, 0)]
    d.epoch_rests(2, 0)
    assert effects(d, Passed, EpochBegun) == [EpochBegun(7, 1)]


def test_lanes_get_no_stripe_where_a_partition_rests():
    d = feed("lanes")
    d.epoch_rests(0, 0)
    assert effects(d, Want) == [Want(1, 1, 0)]
    d.dry(0)
    assert effects(d, Want) == []
    d.epoch_rests(1, 0)
    assert effects(d, Want, BeginEpoch) == [BeginEpoch(0), BeginEpoch(1), Want(0, 1, 1)]


def test_a_partition_that_ends_lets_the_others_begin_their_next_epoch():
    d = feed("arrival")
    d.epoch_rests(0, 0)
    effects(d)
    d.partition_ended(1)
    assert effects(d, BeginEpoch) == [BeginEpoch(0)]


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_a_batch_that_a_trainer_has_claimed_is_of_the_epoch_of_its_partition(order: str) -> None:
    """Once it is committed, no batch of an earlier epoch is open."""
    d = Dispatcher([0], 30.0, order=order, across_batches=False, term=1)
    d.started(0, 0, 1 << TURN_BITS, 1)
    d.join(1, 0.0)
    d.claim(1, Handed(5, 0, 3, 2, b"s" * 24))
    d.take_effects()
    d.claimed(5, "yes", 0)
    assert (d.first_epoch(True), d.current_epoch) == (1, 1)
    d.save(1, 5, "states")
    d.stored(0, [(0, "", "")])
    d.take_effects()
    assert (d.first_epoch(True), d.current_epoch) == (None, 1)
