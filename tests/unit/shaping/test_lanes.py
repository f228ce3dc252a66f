"""Lanes by hand; the simulated world shows that none of their segments is lost or repeated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.seats import Lanes
from headrace_server.shaping.segments import AT_TRAINER, NOWHERE, Segments
from headrace_server.shaping.spans import Cut, Spans, read_place
from tests.examples import some

from .original_queue import Feed

steadily = settings(max_examples=some(150), deadline=None, derandomize=True)


def test_a_commit_before_that_of_an_earlier_batch_of_its_lanes_is_early():
    machine = Segments(0, 1, lanes=True, states=NOWHERE)
    feed = Feed(machine, [3])
    first, second = feed.draft(b"a"), feed.draft(b"a")
    assert machine.commit(second.batch, 2)[0] == "early"
    assert machine.commit(first.batch, 1).batch is first.batch
    assert machine.commit(second.batch, 2).batch is second.batch
    assert machine.commit(first.batch, 1)[0] == "stale"


def test_batches_that_follow_each_other_in_lanes_are_reclaimed_for_these_lanes_alone():
    earlier, feed = (Feed(Segments(0, 2, lanes=True, states=NOWHERE), [3] * 2) for _ in range(2))
    first, second = (earlier.draft(b"a").batch for _ in range(2))
    assert feed.machine.reclaim(first) is None, "its rows are to be read"
    feed.answer(feed.machine.input.next_read(9))
    assert feed.machine.reclaim(first)
    assert not feed.machine.reclaim(replace(second, slot=b"b"))
    assert feed.machine.reclaim(second)


def test_two_trainers_go_on_with_examples_that_one_has_returned_beyond_the_capacity():
    """Each has an empty lane in the end: a place in it is found, or both would wait for ever."""
    machine = Segments(0, 2, 2, lanes=True, states=NOWHERE)
    feed = Feed(machine, [2, 3] * 3)
    assert all(feed.draft(b"a") for _ in range(3))
    machine.leave(b"a")
    for _ in range(3):
        assert feed.draft(b"a") and feed.draft(b"b")


def test_after_a_cancel_a_trainer_gets_one_more_batch_of_its_lanes():
    machine = Segments(0, 2, lanes=True, states=NOWHERE)
    feed = Feed(machine, [9] * 2)
    machine.commit(feed.draft(b"a").batch, 1)
    feed.order("close", True)
    assert feed.draft(b"a") and feed.draft(b"a") is None


def test_after_a_cancel_a_trainer_that_leaves_with_a_last_segment_lets_the_feed_end():
    machine = Segments(0, 2, lanes=True, states=NOWHERE)
    feed = Feed(machine, [1, 3])
    feed.draft(b"a")
    feed.order("close", True)
    machine.leave(b"a")
    assert (
        machine.done and not machine.chunks() and machine.dropped() == {"cancelled": 4}
    )  # as none is committed


@pytest.mark.parametrize(("states", "again"), [(AT_TRAINER, 4), (NOWHERE, 0)])
def test_batches_of_a_trainer_count_its_turns_and_what_it_did_not_keep_comes_again(states, again):
    machine = Segments(0, 2, lanes=True, states=states)
    feed = Feed(machine, [4, 4])
    for turn in range(2):
        batch = feed.draft(b"a").batch
        assert batch.turn == (0, turn)
        machine.commit(batch, turn)
    machine.leave(b"a")
    assert machine.rewound == again


def test_a_packed_batch_beyond_the_capacity_is_tried_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try goes over the examples that are there: 4 lanes of 500 steps take 1000 of 2 steps."""

    tries, packed = [], Lanes._packed
    monkeypatch.setattr(Lanes, "_packed", lambda *given: tries.append(1) or packed(*given))
    cut = Cut(500, 500, packed=True)
    machine = Segments(0, 4, 4, lanes=True, states=NOWHERE, cut=cut, most=500)
    plan = Feed(machine, [2] * 3000, (3000,)).draft(b"a")
    assert len(plan.draft) == 1000 and len(tries) < 10 and machine.admission.in_flight < 1100


def packed_rows() -> Spans:
    """Three rows of four steps, as in the picture of ``Spans``: of three, one and two examples."""
    lanes = np.array([0, 0, 0, 2, 5, 5])
    segments = np.array([3, 0, 0, 4, 0, 0])
    counts = np.array([4, 1, 9, 20, 3, 1])
    numbers = np.zeros((7, 6), np.int64)
    numbers[1], numbers[4], numbers[5] = [7, 9, 10, 8, 11, 12], segments, counts
    numbers[6, 0] = 77
    return Spans(np.arange(6), numbers, Cut(4, 4, packed=True), lanes, np.array([4]))


def test_the_place_of_packed_rows_is_read_back() -> None:
    rows = packed_rows()
    place = read_place(rows.place(), packed=True)
    assert place is not None
    assert place["lane"].tolist() == rows.lanes.tolist()
    assert place["index"].tolist() == rows.indices.tolist()
    assert place["first"].tolist() == rows.first.tolist()
    assert place["after"].tolist() == [-4, 0, 0, 8, -3, 0], "negative where an example ends"
    assert place["version"].tolist() == rows.versions.tolist()


@steadily
@given(st.binary(max_size=90), st.integers(-1, 4))
def test_any_bytes_are_a_place_with_a_first_example_for_each_lane_or_none(
    data: bytes, number: int
) -> None:
    count = number.to_bytes(8, "little", signed=True)
    for whole in (data, bytes(8) + count + data):
        place = read_place(whole, packed=True)
        if place is not None:
            assert (np.diff(place["lane"]) >= 0).all()
    lost = packed_rows().place()[:-8]
    assert read_place(lost[:16] + lost[17:], packed=True) is None
