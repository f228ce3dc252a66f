"""Segments come in TensorFlow's order; nothing is lost, and every segment sees its own state."""

from itertools import cycle
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import BEGUN
from headrace_server.core.arrival_order import ArrivalOrder
from tests.examples import some
from tests.unit.changes import begun

from .original_queue import COUNTS, CUTS, FIRST, Feed, original_stream, sizes

SIZES = sizes(5)
steadily = settings(max_examples=some(400), deadline=None, derandomize=True)


class Trainers:
    """Any number of trainers that save their batches in any order, and the laws that must hold."""

    def __init__(self, sizes, counts, cuts, seed):
        self.machine = ArrivalOrder(*sizes)
        self.feed = Feed(self.machine, counts, cuts)
        self.counts = counts
        self.random = Random(seed)
        self.out = []
        self.next = [0] * len(counts)  # segment, by example
        self.holder = {}  # example by slot, until its last segment is saved
        self.states = {}  # by slot: what the segment before left there
        self.handed_out = 0
        self.short = 0

    def want(self, n):
        self.machine.want(n)

    def draft(self):
        batch = self.feed.next_draft()
        if batch is None:
            return False
        rows = self.feed.rows(batch)
        assert rows == sorted(rows) and len({e for _, e, _ in rows}) == len(rows) > 0
        for slot, (index, example, segment) in zip(batch.slots.tolist(), rows, strict=True):
            assert index == FIRST + example
            assert segment == self.next[example]
            self.next[example] += 1
            if segment == 0:
                assert slot not in self.holder, "a slot is free when its example is through"
                self.holder[slot] = example
            else:
                assert self.states[slot] == (example, segment)
            assert self.holder[slot] == example
            assert slot < self.machine.slots
        assert batch.counts.tolist() == [self.counts[e] for _, e, _ in rows]
        if len(rows) < self.machine.batch_size:
            assert self.machine.allow_small and self.feed.closed
            self.short += 1
        self.out.append(batch)
        self.handed_out += len(rows)
        self.check()
        return True

    def save(self, place):
        batch = self.out.pop(place)
        rows = self.machine.saved(batch)
        last = [self.counts[e] == s + 1 for _, e, s in self.feed.rows(batch)]
        if self.machine.cancelled and not all(last):
            assert rows is None
        else:
            assert rows.tolist() == [i for i, ends in enumerate(last) if not ends]
        for i, (slot, (_, example, segment)) in enumerate(
            zip(batch.slots.tolist(), self.feed.rows(batch), strict=True)
        ):
            if last[i]:
                del self.holder[slot]
            elif rows is not None:
                self.states[slot] = example, segment + 1
        self.check()

    def check(self):
        machine = self.machine
        assert machine.capacity is None or 0 <= machine.in_flight <= machine.capacity
        assert machine.oldest_out() is (self.out[0] if self.out else None)
        if not machine.dropped():
            offered = enumerate(self.feed.chunk_of)
            going = {e for e, _ in offered if self.next[e] < self.counts[e]}
            going.update(self.holder.values())
            needed = {self.feed.chunk_of[e] for e in going}
            assert machine.chunks() == needed
            admitted = range(machine.next_index - FIRST)
            sizes = machine.sizes()
            assert (sizes["ready"], sizes["in_flight"]) == (machine.ready, machine.in_flight)
            left = sum(self.counts[e] - self.next[e] for e in admitted)
            assert sizes["ready"] + sizes["incomplete"] == left, "in nobody's hands"

    def some_steps(self, steps):
        for _ in range(steps):
            act = self.random.randrange(4)
            if act == 0:
                self.want(self.random.randrange(3))
            elif act == 1 and self.out:
                self.save(self.random.randrange(len(self.out)))
            else:
                self.draft()

    def to_the_end(self):
        self.want(sum(self.counts) + 1)
        while True:
            if not self.draft():
                if not self.out:
                    break
                assert self.machine.starved
                self.save(self.random.randrange(len(self.out)))
        assert self.machine.done and not self.machine.starved and not self.machine.hungry
        assert self.machine.chunks() == set() and self.machine.in_flight == 0


@steadily
@given(SIZES, COUNTS, CUTS)
def test_one_trainer_without_prefetch_gets_the_batches_of_the_original(sizes, counts, cuts):
    batches, _, left = original_stream(*sizes, counts)
    machine = ArrivalOrder(*sizes)
    feed = Feed(machine, counts, cuts)
    for batch in batches:
        assert feed.next_draft() is None
        machine.want(1)
        mine = feed.next_draft()
        assert feed.rows(mine) == batch
        machine.saved(mine)
    machine.want(1)
    assert feed.next_draft() is None and machine.done
    assert machine.dropped() == ({"remainder": left} if left else {})


@steadily
@given(SIZES, COUNTS, CUTS, st.lists(st.integers(1, 11), min_size=1, max_size=5))
def test_batches_of_other_sizes_are_those_of_the_original(sizes, counts, cuts, rows):
    """TensorFlow's ``batch_size`` may be a tensor, which has another value for each batch."""
    rows = [min(n, sizes[1] or n) for n in rows]
    batches, _, _ = original_stream(*sizes[:2], True, counts, takes=rows)
    machine = ArrivalOrder(*sizes[:2], True)
    feed = Feed(machine, counts, cuts)
    for batch, n in zip(batches, cycle(rows), strict=False):
        machine.set_batch_size(n)
        machine.want(1)
        mine = feed.next_draft()
        assert feed.rows(mine) == batch
        machine.saved(mine)
    machine.want(1)
    assert feed.next_draft() is None and machine.done and not machine.dropped()


@settings(steadily, max_examples=some(200))
@given(SIZES, st.data())
def test_keys_that_come_again_are_refused_and_let_in_as_by_the_original(sizes, data):
    batch_size, capacity, small = sizes
    counts = data.draw(COUNTS)
    keys = data.draw(st.lists(st.sampled_from("abcd"), min_size=len(counts), max_size=len(counts)))
    batches, refused, left = original_stream(batch_size, capacity, small, counts, keys)
    machine = ArrivalOrder(*sizes)
    feed = Feed(machine, counts, [len(counts) or 1], keys)
    machine.want(10**6)
    mine = []
    while (batch := feed.next_draft()) is not None:
        mine.append(feed.rows(batch))
        machine.saved(batch)
    assert (mine, machine.take_refused()) == (batches, [(0, row) for row in refused])
    assert machine.done and sum(machine.dropped().values()) == left
    assert machine.chunks() == set()


@steadily
@given(SIZES, COUNTS, CUTS, st.integers(0, 2**32))
def test_trainers_in_any_order_get_every_segment_once_with_its_state(sizes, counts, cuts, seed):
    trainers = Trainers(sizes, counts, cuts, seed)
    trainers.some_steps(40)
    trainers.to_the_end()
    dropped = trainers.machine.dropped()
    assert trainers.handed_out + sum(dropped.values()) == sum(counts)
    assert dropped.keys() <= (set() if trainers.machine.allow_small else {"remainder"})
    if not dropped:
        assert trainers.next == counts


@steadily
@given(SIZES, COUNTS, CUTS, st.integers(0, 2**32), st.integers(0, 60), st.booleans())
def test_a_cancel_hands_out_what_is_ready_and_counts_the_rest(
    sizes, counts, cuts, seed, steps, closed_before
):
    trainers = Trainers(sizes, counts, cuts, seed)
    machine, feed = trainers.machine, trainers.feed
    trainers.some_steps(steps)
    offered = feed.at
    if closed_before and not feed.closed:
        feed.closed = True
        machine.finish()
    ready, before = machine.ready, trainers.handed_out
    feed.cancel()
    assert machine.cancelled and not machine.hungry
    counted = dict(machine.dropped())
    machine.finish(drop=True)
    assert machine.dropped() == counted
    if not machine.allow_small and not closed_before:
        ready -= ready % machine.batch_size
    trainers.to_the_end()
    if machine.allow_small or not closed_before:
        assert trainers.handed_out - before == ready
    assert trainers.handed_out + sum(machine.dropped().values()) == sum(counts[:offered])


def test_the_end_without_small_batches_comes_when_no_full_batch_can_be_formed_any_more():
    """TensorFlow would wait for ever: one example is left, with more segments than a batch has."""
    machine = ArrivalOrder(2, 2)
    feed = Feed(machine, [1, 9])
    machine.want(2)
    batch = feed.next_draft()
    assert feed.next_draft() is None and feed.closed
    assert machine.saved(batch).tolist() == [1]
    assert machine.done and machine.dropped() == {"remainder": 8}


# What an earlier life has left


def indices(batch):
    return (batch.indices - FIRST).tolist()


@given(seed=st.integers(0, 2**32), size=st.integers(2, 5), n=st.integers(2, 12))
@steadily
def test_examples_that_began_before_older_ones_give_each_segment_once_and_in_order(seed, size, n):
    """The trainer with the older examples has died, and the other one has saved."""
    chance = Random(seed)
    began = np.array([chance.random() < 0.5 for _ in range(n)])
    machine, counts = ArrivalOrder(size, None, True), np.array([chance.randint(2, 5)] * n)
    left = [int(one) for one in began]  # segment that is next, by example
    old = np.flatnonzero(began)
    columns = old, counts[old], np.ones_like(old), FIRST + old, old
    machine.resume(begun(np.zeros_like(old), *columns, old.tolist()))
    machine.next_index = FIRST
    machine.offer(1, n, {"key": range(n), "count": counts, "known": began * BEGUN})
    machine.finish()
    machine.want(10 * n)
    out = []
    while not machine.done:
        batch = machine.next_draft()
        if batch is not None:
            assert indices(batch) == sorted(indices(batch)), "as a claim of it needs"
            for example, segment in zip(indices(batch), batch.segments.tolist(), strict=True):
                assert segment == left[example]
                left[example] += 1
            out.append(batch)
        if out and (batch is None or chance.random() < 0.5):
            machine.saved(out.pop(chance.randrange(len(out))))
    assert left == counts.tolist() and not machine.chunks()
