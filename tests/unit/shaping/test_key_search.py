"""An example is found by its key at any place on its way."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_server.core.admitted_examples import FoundExample
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.lane_order import LaneOrder


def offered(
    machine: ArrivalOrder | LaneOrder,
    chunk: int,
    keys: list[bytes],
    counts: list[int],
    epoch: int = 0,
) -> None:
    facts = {"key": [(epoch, key) for key in keys], "count": np.array(counts)}
    machine.offer(chunk, len(keys), facts)


def places(machine: ArrivalOrder | LaneOrder, key: bytes) -> list[tuple[int, int, int, str]]:
    return [(f.epoch, f.segment, f.segments, f.where) for f in machine.seek(key)]


def test_a_sequence_is_not_begun_then_out_then_ready_and_out_again():
    queue = ArrivalOrder(2)
    offered(queue, 0, [b"a", b"b"], [3, 1])
    assert places(queue, b"a") == [(0, 0, 3, "not begun")]
    queue.want(1)
    batch = queue.next_draft()
    assert batch is not None
    assert queue.seek(b"a") == [FoundExample(0, 3, 0, batch)] and places(queue, b"b") == [
        (0, 0, 1, "out")
    ]
    queue.saved(batch)
    assert places(queue, b"a") == [(0, 1, 3, "ready")] and places(queue, b"b") == []


def test_a_key_that_was_never_read_is_nowhere():
    queue = ArrivalOrder(1)
    offered(queue, 0, [b"a"], [1])
    assert queue.seek(b"c") == []


def test_one_that_finds_no_place_in_the_capacity_is_not_begun():
    queue = ArrivalOrder(1, capacity=1)
    offered(queue, 0, [b"a", b"b"], [1, 5])
    assert places(queue, b"b") == [(0, 0, 5, "not begun")]


def test_the_same_key_of_two_epochs_is_found_in_both():
    queue = ArrivalOrder(1)
    offered(queue, 0, [b"a"], [2])
    queue.want(1)
    queue.next_draft()
    offered(queue, 1, [b"a"], [2], epoch=1)
    assert places(queue, b"a") == [(0, 0, 2, "out"), (1, 0, 2, "not begun")]


@pytest.mark.parametrize("ahead", [False, True])
def test_in_lanes_the_segment_is_that_of_the_oldest_batch_that_is_out(ahead: bool):
    lanes = LaneOrder(1, states="trainer" if ahead else "server")
    offered(lanes, 0, [b"a"], [3])
    lanes.want(2, 7)
    first = lanes.next_draft()
    assert (lanes.next_draft() is not None) is ahead
    assert lanes.seek(b"a") == [FoundExample(0, 3, 0, first)]


def test_reasons_for_which_segments_wait_are_counted():
    queue = ArrivalOrder(2, capacity=3)
    offered(queue, 0, [b"a", b"b", b"c", b"d", b"e"], [2, 2, 2, 2, 2])
    assert queue.standing() == {"ready": 3, "leased": 0, "full": 2}
    queue.want(1)
    queue.next_draft()
    assert queue.standing() == {"ready": 1, "leased": 2, "full": 2}
    lanes = LaneOrder(2, capacity=3)
    offered(lanes, 0, [b"a", b"b", b"c", b"d"], [2, 2, 2, 2])
    lanes.want(1, 0)
    lanes.next_draft()
    assert lanes.standing() == {"ready": 1, "leased": 2, "full": 1}
