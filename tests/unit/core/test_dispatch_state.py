"""Each batch that is made and not settled is counted in one place."""

from __future__ import annotations

import pytest

from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Batch

from .at_segments import At


def standing(dispatcher: Dispatcher) -> tuple[int, int, int, int]:
    told = dispatcher.standing()
    return told["ready"], told["returned"], told["leased"], told["saving"]


def test_a_batch_is_ready_then_leased_then_returned_then_settled():
    dispatcher = Dispatcher(range(1), 10.0)
    for number in range(3):
        dispatcher.made(Batch(0, number, 4))
    assert standing(dispatcher) == (3, 0, 0, 0)
    dispatcher.join(1, 0.0)
    dispatcher.window(1, 2)
    dispatcher.take_effects()
    assert standing(dispatcher) == (1, 0, 2, 0)
    assert dispatcher.standing_of(1) == {"rank": -1, "window": 0, "leases": 2}
    dispatcher.commit(1, (1,))
    assert standing(dispatcher) == (1, 0, 1, 1)
    dispatcher.stored(0, [(0, "", "")])
    dispatcher.leave(1)
    assert standing(dispatcher) == (1, 1, 0, 0) and dispatcher.standing_of(1) == {}


def test_batches_dealt_to_ranks_count_with_returned_ones():
    dispatcher = Dispatcher(range(1), 10.0)
    dispatcher.join(1, 0.0, 0, 2)
    dispatcher.join(2, 0.0, 1, 2)
    dispatcher.window(1, 1)
    for number in range(2):
        dispatcher.made(Batch(0, number, 4))
    dispatcher.take_effects()
    assert standing(dispatcher) == (0, 1, 1, 0)


def test_a_commit_that_its_worker_has_not_answered_is_saving():
    dispatcher = Dispatcher(range(1), 10.0)
    dispatcher.made(Batch(0, 0, 4))
    dispatcher.join(1, 0.0)
    dispatcher.window(1, 5)
    dispatcher.take_effects()
    dispatcher.commit(1, (1,))
    assert standing(dispatcher) == (0, 0, 0, 1)
    assert dispatcher.standing_of(1)["window"] == 4
    dispatcher.stored(0, [(0, "", "")])
    assert standing(dispatcher) == (0, 0, 0, 0)


def test_batches_of_segments_are_counted_in_both_orders():
    for order in ("arrival", "lanes"):
        dispatcher = Dispatcher(range(1), 10.0, order=order)
        dispatcher.join(1, 0.0)
        dispatcher.window(1, 2)
        dispatcher.take_effects()
        dispatcher.made(Batch(0, 0, 4, meta={"stripe": 0}))
        assert standing(dispatcher) == (1, 0, 0, 0)
        dispatcher.take_effects()
        assert standing(dispatcher) == (0, 0, 1, 0)


def test_counts_for_trainers_are_those_of_batches_that_nobody_has_and_that_trainers_have():
    dispatcher = Dispatcher(range(2), 10.0)
    assert dispatcher.sizes() == {"ready": 0, "in_flight": 0}
    for number in range(3):
        dispatcher.made(Batch(number % 2, number // 2, 4))
    dispatcher.join(1, 0.0)
    dispatcher.window(1, 2)
    dispatcher.take_effects()
    dispatcher.commit(1, (1,))
    assert dispatcher.sizes() == {"ready": 1, "in_flight": 2}, "a commit is not stored yet"
    dispatcher.leave(1)
    assert dispatcher.sizes() == {"ready": 2, "in_flight": 1}


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_segments_in_batches_that_nobody_has_are_ready(order):
    at = At(order=order)
    at.join(1, window=1)
    at.make(0, 0, rows=5)
    at.make(0, 1, rows=3)
    at.act()
    assert at.d.sizes() == {"ready": 3}
    at.d.window(1, 2)
    at.act()
    assert at.d.sizes() == {"ready": 0}
