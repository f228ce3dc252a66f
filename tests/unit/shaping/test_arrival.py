"""Segments come in TensorFlow's order, and keys that come again are refused as there."""

from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.leasing.words import Order, Outlook
from headrace_server.shaping.admission import BEGUN
from headrace_server.shaping.segments import NOWHERE, Segments
from headrace_server.shaping.spans import SEGMENT_PLACE
from tests.examples import some
from tests.unit.changes import begun

from .original_queue import COUNTS, CUTS, FIRST, Feed, original_stream, sizes

SIZES = sizes(5)
steadily = settings(max_examples=some(150), deadline=None, derandomize=True)


@steadily
@given(SIZES, COUNTS, CUTS, st.lists(st.integers(1, 11), min_size=1, max_size=5))
def test_batches_of_other_sizes_are_those_of_the_original(sizes, counts, cuts, rows):
    """TensorFlow's ``batch_size`` may be a tensor, which has another value for each batch."""
    rows = [min(n, sizes[1] or n) for n in rows]
    batches, _, _ = original_stream(*sizes[:2], True, counts, takes=rows)
    machine = Segments(0, *sizes[:2], True)
    feed = Feed(machine, counts, cuts)
    for batch, n in zip(batches, cycle(rows), strict=False):
        feed.order("batch_size", [n])
        mine = feed.draft()
        assert feed.rows(mine.draft) == batch
        machine.commit(mine.batch, 1)
    assert feed.step() is Outlook.ENDED and not machine.dropped()


@settings(steadily, max_examples=some(200))
@given(SIZES, st.data())
def test_keys_that_come_again_are_refused_and_let_in_as_by_the_original(sizes, data):
    batch_size, capacity, small = sizes
    counts = data.draw(COUNTS)
    keys = data.draw(st.lists(st.sampled_from("abcd"), min_size=len(counts), max_size=len(counts)))
    batches, refused, left = original_stream(batch_size, capacity, small, counts, keys)
    machine = Segments(0, *sizes)
    feed = Feed(machine, counts, [len(counts) or 1], keys)
    mine = []
    while (plan := feed.draft()) is not None:
        mine.append(feed.rows(plan.draft))
        machine.commit(plan.batch, 1)
    assert (mine, machine.admission.take_refused()) == (batches, [(0, row) for row in refused])
    assert machine.done and sum(machine.dropped().values()) == left
    assert machine.chunks() == set()


def test_the_end_without_small_batches_comes_when_no_full_batch_can_be_formed_any_more():
    """TensorFlow would wait for ever: one example is left, with more segments than a batch has."""
    machine = Segments(0, 2, 2)
    feed = Feed(machine, [1, 9])
    plan = feed.draft()
    assert feed.step() is Outlook.IDLE and feed.closed
    machine.commit(plan.batch, 1)
    assert feed.step() is Outlook.ENDED and machine.dropped() == {"remainder": 8}


# Other lives


def test_a_batch_with_the_states_of_another_commit_is_not_reclaimed():
    """The server was put back, and the segment before was committed again."""
    lives = []
    for _ in range(2):
        machine = Segments(0, 1, None, True)
        lives.append(Feed(machine, [3], known={0: BEGUN}))
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        machine.admission.resume(
            begun(99 * one, zero, 3 * one, one, zero + FIRST, zero, [(0, "key 0")]), FIRST, 0
        )
    held, feed = lives[0].draft().batch, lives[1]
    place = np.frombuffer(held.place, SEGMENT_PLACE, offset=8).copy()
    place["version"] += 1
    other = replace(held, place=held.place[:8] + place.tobytes())
    while (possible := feed.machine.reclaim(other)) is None:
        feed.answer(feed.machine.input.next_read(9))
    assert not possible and feed.machine.reclaim(replace(held))


def test_a_batch_is_not_reclaimed_while_another_trainer_has_the_segments_before():
    earlier, feed = (Feed(Segments(0, 1, states=NOWHERE), [3]) for _ in range(2))
    earlier.machine.commit(earlier.draft().batch, 1)
    held = earlier.draft().batch
    out = feed.draft().batch
    assert not feed.machine.reclaim(held)
    feed.machine.commit(out, 2)
    assert feed.machine.reclaim(held)


def test_an_order_comes_after_those_of_an_earlier_life_whose_place_is_not_reached():
    machine = Segments(0, 2)
    machine.input = SimpleNamespace(read=0, reading=lambda: {"read": 0})
    machine.resume_orders([Order(1, 4, 2, "weights", [0, 4, [1.0]], 2)])
    order = machine.propose("weights", [0, 0, [2.0]])
    assert (order.count, order.read) == (2, 4)
