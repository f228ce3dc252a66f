"""Segments come in TensorFlow's order, and keys that come again are refused as there."""

from dataclasses import replace
from itertools import cycle
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.leasing.protocol import Outlook
from headrace_server.shaping.admission import BEGUN, FIRST_INDEX
from headrace_server.shaping.segments import Segments
from headrace_server.shaping.slots import SEGMENT_PLACE
from tests.examples import some
from tests.unit.changes import begun

from .original_queue import COUNTS, CUTS, FIRST, Feed, original_stream, sizes

SIZES = sizes(5)
steadily = settings(max_examples=some(150), deadline=None, derandomize=True)


@steadily
@given(SIZES, COUNTS, CUTS)
def test_one_trainer_without_prefetch_gets_the_batches_of_the_original(sizes, counts, cuts):
    batches, _, left = original_stream(*sizes, counts)
    machine = Segments(0, *sizes)
    feed = Feed(machine, counts, cuts)
    for batch in batches:
        mine = feed.draft()
        assert feed.rows(mine.draft) == batch
        machine.commit(mine.batch, 1)
    assert feed.step() is Outlook.ENDED
    assert machine.dropped() == ({"remainder": left} if left else {})


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
    assert (mine, machine.take_refused()) == (batches, [(0, row) for row in refused])
    assert machine.done and sum(machine.dropped().values()) == left
    assert machine.chunks() == set()


@settings(max_examples=some(100), deadline=None, derandomize=True)
@given(COUNTS, CUTS, st.none() | st.integers(1, 4), st.data())
def test_no_two_examples_in_flight_have_one_key(counts, cuts, capacity, data):
    keys = data.draw(st.lists(st.sampled_from("abcd"), min_size=len(counts), max_size=len(counts)))
    machine = Segments(0, 1, capacity)
    feed, began, out = Feed(machine, counts, cuts, keys), [], []
    while (step := feed.step()) is not Outlook.ENDED:
        if step is not Outlook.IDLE:
            out += step
            in_flight = [plan.draft for plan in out if not plan.draft.last[0]]
            names = [keys[feed.rows(rows)[0][1]] for rows in in_flight]
            assert len(set(names)) == len(names)
            began += [e for _, e, segment in feed.rows(step[0].draft) if segment == 0]
        if step is Outlook.IDLE or data.draw(st.booleans()):
            machine.commit(out.pop(0).batch, 1)
    refused = {feed.example(*at) for at in machine.take_refused()}
    assert refused | set(began) == set(range(len(counts))) and not refused & set(began)
    assert machine.next_index - FIRST_INDEX == len(began) and began == sorted(began)


def test_the_end_without_small_batches_comes_when_no_full_batch_can_be_formed_any_more():
    """TensorFlow would wait for ever: one example is left, with more segments than a batch has."""
    machine = Segments(0, 2, 2)
    feed = Feed(machine, [1, 9])
    plan = feed.draft()
    assert feed.step() is Outlook.IDLE and feed.closed
    machine.commit(plan.batch, 1)
    assert feed.step() is Outlook.ENDED and machine.dropped() == {"remainder": 8}


# Other lives


@given(seed=st.integers(0, 2**32), size=st.integers(2, 5), n=st.integers(2, 12))
@steadily
def test_examples_that_began_before_older_ones_give_each_segment_once_and_in_order(seed, size, n):
    """The trainer with the older examples has died, and the other one has saved."""
    chance = Random(seed)
    began = np.array([chance.random() < 0.5 for _ in range(n)])
    machine, counts = Segments(0, size, None, True), np.array([chance.randint(2, 5)] * n)
    left = [int(one) for one in began]  # segment that is next, by example
    old = np.flatnonzero(began)
    columns = old, counts[old], np.ones_like(old), FIRST + old, old
    known = {int(one): BEGUN for one in old}
    feed = Feed(machine, counts.tolist(), known=known or {-1: 0})
    keys = [(0, f"key {one}") for one in old.tolist()]
    machine.resume(begun(np.full_like(old, 99), *columns, keys), FIRST, 0)
    out = []
    while (step := feed.step()) is not Outlook.ENDED:
        if step is not Outlook.IDLE:
            (plan,) = step
            indices = (plan.draft.indices - FIRST).tolist()
            assert indices == sorted(indices)
            for example, segment in zip(indices, plan.draft.segments.tolist(), strict=True):
                assert segment == left[example]
                left[example] += 1
            out.append(plan)
        if step is Outlook.IDLE or chance.random() < 0.5:
            machine.commit(out.pop(chance.randrange(len(out))).batch, 1)
    assert left == counts.tolist() and not machine.chunks()


def test_a_batch_with_the_states_of_another_commit_is_not_reclaimed():
    """The server was put back, and the segment before was committed again."""
    lives = []
    for _ in range(2):
        machine = Segments(0, 1, None, True)
        lives.append(Feed(machine, [3], known={0: BEGUN}))
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        machine.resume(
            begun(99 * one, zero, 3 * one, one, zero + FIRST, zero, [(0, "key 0")]), FIRST, 0
        )
    held, feed = lives[0].draft().batch, lives[1]
    place = np.frombuffer(held.place, SEGMENT_PLACE).copy()
    place["version"] += 1
    while (possible := feed.machine.reclaim(replace(held, place=place.tobytes()))) is None:
        feed.answer(feed.machine.input.next_read(9))
    assert not possible and feed.machine.reclaim(replace(held, body=None))
