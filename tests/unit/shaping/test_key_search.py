"""An example is found by its key at any place on its way."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_server.shaping.segments import AT_SERVER, AT_TRAINER, Segments

from .original_queue import Feed


def offered(machine: Segments, keys: list[bytes], counts: list[int], epochs: int = 1) -> Feed:
    """Let a machine read all examples."""
    feed = Feed(machine, counts, [len(counts)], keys, epochs)
    while (read := machine.input.next_read(100)) is not None:
        feed.answer(read)
    return feed


def places(machine: Segments, key: bytes) -> list[list[Any]]:
    return machine.seek(key)


def test_a_sequence_is_not_begun_then_out_then_ready_and_out_again():
    machine = Segments(0, 2)
    feed = offered(machine, [b"a", b"b"], [3, 1])
    assert places(machine, b"a") == [[0, 0, 3, "not begun", -1]]
    plan = feed.draft()
    assert places(machine, b"a") == [[0, 0, 3, "out", 0]]
    assert places(machine, b"b") == [[0, 0, 1, "out", 0]]
    machine.commit(plan.batch, 1)
    assert places(machine, b"a") == [[0, 1, 3, "ready", -1]] and places(machine, b"b") == []
    assert places(machine, b"c") == []


def test_one_that_finds_no_place_in_the_capacity_is_not_begun():
    machine = Segments(0, 1, capacity=1)
    offered(machine, [b"a", b"b"], [1, 5])
    assert places(machine, b"b") == [[0, 0, 5, "not begun", -1]]


def test_the_same_key_of_two_epochs_is_found_in_both():
    machine = Segments(0, 1)
    offered(machine, [b"a"], [2], epochs=2).draft()
    assert sorted(places(machine, b"a")) == [[0, 0, 2, "out", 0], [1, 0, 2, "not begun", -1]]


@pytest.mark.parametrize("states", [AT_SERVER, AT_TRAINER])
def test_in_lanes_the_segment_is_that_of_the_oldest_batch_that_is_out(states: str):
    machine = Segments(0, 1, lanes=True, states=states)
    feed = offered(machine, [b"a"], [3])
    assert feed.draft(b"me").batch.number == 0
    assert (feed.draft(b"me") is not None) is (states == AT_TRAINER)
    assert places(machine, b"a") == [[0, 0, 3, "out", 0]]


@pytest.mark.parametrize("lanes", [False, True])
def test_reasons_for_which_segments_wait_are_counted(lanes: bool):
    machine = Segments(0, 2, capacity=3, lanes=lanes)
    feed = offered(machine, [b"a", b"b", b"c", b"d", b"e"], [2, 2, 2, 2, 2])
    assert machine.standing() == {"ready": 3, "leased": 0, "full": 2}
    feed.draft()
    assert machine.standing() == {"ready": 1, "leased": 2, "full": 2}
