"""Segments come in TensorFlow's order; nothing is lost, and every segment sees its own state."""

from itertools import cycle
from random import Random
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import BEGUN, REFUSED
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.partition import Partition, Rest
from headrace_server.core.plan import Plan, Read
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


def test_a_larger_size_reads_as_much_as_it_needs_and_drops_what_can_not_fill_it():
    machine = ArrivalOrder(2)
    feed = Feed(machine, [1] * 3000, [100])
    machine.set_batch_size(2500)
    machine.want(2)
    assert len(feed.next_draft()) == 2500
    assert feed.next_draft() is None and machine.dropped() == {"remainder": 500}


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


def test_leftovers_are_dropped_though_nobody_asks_for_them():
    machine = ArrivalOrder(2)
    feed = Feed(machine, [1, 1, 1])
    machine.want(1)
    batch = feed.next_draft()
    assert feed.next_draft() is None and feed.closed and machine.dropped() == {"remainder": 1}
    assert not machine.done
    machine.saved(batch)
    assert machine.done and machine.chunks() == set()

    machine = ArrivalOrder(2)
    feed = Feed(machine, [2, 2, 1, 1, 1])
    machine.want(1)
    batch = feed.next_draft()
    feed.cancel()
    machine.want(1)
    other = feed.next_draft()
    assert machine.dropped() == {"remainder": 1}, "what is out never comes back"
    assert machine.saved(batch) is None and machine.saved(other).tolist() == []
    assert machine.done and machine.dropped() == {"remainder": 1, "cancelled": 2}


def test_a_waiting_trainer_gets_small_batches_at_the_end_and_waits_for_those_of_others():
    machine = ArrivalOrder(2, allow_small_batch=True)
    feed = Feed(machine, [2, 2, 2])
    machine.want(9)
    first, second = feed.next_draft(), feed.next_draft()
    assert [len(first), len(second)] == [2, 1]
    assert feed.next_draft() is None and machine.starved and not machine.done
    machine.saved(second)
    third = feed.next_draft()
    assert feed.rows(third) == [(FIRST + 2, 2, 1)]
    machine.saved(third)
    assert feed.next_draft() is None and machine.starved
    machine.saved(first)
    machine.saved(last := feed.next_draft())
    assert feed.rows(last) == [(FIRST, 0, 1), (FIRST + 1, 1, 1)] and machine.done


@pytest.mark.parametrize("allow_small", [False, True])
def test_examples_of_one_and_of_a_thousand_segments_go_together(allow_small):
    counts = [1] * 40 + [1000, 1, 2, 1000] + [1] * 40
    trainers = Trainers((4, 4, allow_small), counts, [11], 5)
    trainers.to_the_end()
    dropped = sum(trainers.machine.dropped().values())
    assert trainers.handed_out + dropped == sum(counts)
    assert bool(dropped) is not allow_small


def test_a_place_is_free_when_the_last_segment_is_taken_and_a_slot_when_it_is_saved():
    machine = ArrivalOrder(2, 2)
    feed = Feed(machine, [1, 2, 3, 3, 3], [5])
    machine.want(9)
    first = feed.next_draft()
    assert feed.rows(first) == [(FIRST, 0, 0), (FIRST + 1, 1, 0)]
    assert machine.in_flight == 2 and machine.chunks() == {0}
    ended = int(first.slots[0])
    assert machine.key_of(ended) == "key 0"
    machine.saved(first)
    with pytest.raises(KeyError):
        machine.key_of(ended)
    second = feed.next_draft()
    assert feed.rows(second) == [(FIRST + 1, 1, 1), (FIRST + 2, 2, 0)]
    assert ended not in second.slots.tolist() and machine.in_flight == 2
    machine.saved(second)
    third = feed.next_draft()
    assert feed.rows(third) == [(FIRST + 2, 2, 1), (FIRST + 3, 3, 0)]
    assert third.slots[1] == ended


def test_a_partition_rests_while_states_are_with_trainers_and_ends_when_all_is_through():
    machine = ArrivalOrder(2, 2, allow_small_batch=True)
    partition = Partition(machine, 0)
    read = partition.next_step(3)
    partition.arrived(read, 3, None, {"key": list("abc"), "count": [2, 1, 1]})
    assert partition.next_step(3) is Rest
    machine.want(9)
    plan = partition.next_step(3)
    assert isinstance(plan, Plan) and plan.number == 0
    small = partition.next_step(3)
    assert small.number == 1 and small.draft.indices.tolist() == [FIRST + 2]
    assert partition.next_step(3) is Rest and machine.starved
    machine.saved(small.draft)
    assert machine.saved(plan.draft).tolist() == [0]
    last = partition.next_step(3)
    assert last.draft.segments.tolist() == [1] and partition.next_step(3) is Rest
    machine.saved(last.draft)
    assert partition.next_step(3) is None and partition.chunks() == set()


def test_a_partition_reads_no_more_than_capacity_lets_in():
    machine = ArrivalOrder(2, 4)
    partition = Partition(machine, 0, epochs=None)
    for position in (0, 3):
        read = partition.next_step(3)
        assert isinstance(read, Read)
        keys = [position, position + 1, position + 2]
        partition.arrived(read, 3, position + 3, {"key": keys, "count": [2] * 3})
    assert partition.next_step(3) is Rest and machine.in_flight == 4
    machine.want(2)
    plans = [partition.next_step(3), partition.next_step(3)]
    assert partition.next_step(3) is Rest and not machine.starved
    machine.want(1)
    assert partition.next_step(3) is Rest and machine.starved
    machine.saved(plans[1].draft)
    assert partition.next_step(3).draft.indices.tolist() == [FIRST + 2, FIRST + 3]


def test_a_batch_is_saved_once():
    machine = ArrivalOrder(1)
    feed = Feed(machine, [2, 2])
    machine.want(1)
    batch = feed.next_draft()
    machine.saved(batch)
    with pytest.raises(ValueError, match="is not out: it was saved before"):
        machine.saved(batch)
    assert machine.ready == 2


def _seconds_per_batch(examples, size=32):
    machine = ArrivalOrder(size, examples)
    machine.offer(0, examples, {"key": range(examples), "count": np.full(examples, 10**6)})
    machine.want(10**9)
    out = [machine.next_draft() for _ in range(examples // size)]
    returned = len(out) // 2
    for batch in Random(1).sample(out, returned):
        machine.saved(batch)
    best = 1e9
    for _ in range(8):
        start = perf_counter()
        for _ in range(20):
            machine.saved(machine.next_draft())
        best = min(best, perf_counter() - start)
    assert machine.ready >= returned * size and machine.in_flight == examples
    return best


def test_a_batch_costs_the_same_with_a_thousand_examples_in_flight_and_a_hundred_thousand():
    assert _seconds_per_batch(100_000) < 5 * _seconds_per_batch(1_000)


# What an earlier life has left


def resumed(segments, counts, size=2, small=True, offered=(), known=None):
    """A queue of examples that have begun, by index, and of a chunk of others."""
    machine = ArrivalOrder(size, None, small)
    n = len(segments)
    numbers = np.arange(n)
    keys = [f"key {i}" for i in range(n)]
    zeros = np.zeros(n, np.int64)
    given = np.array(counts), np.array(segments)
    slots = machine.resume(begun(zeros, numbers, *given, FIRST + numbers, numbers, keys))
    assert slots.tolist() == machine.find(FIRST + numbers).tolist()
    machine.next_index = FIRST + n
    if offered:
        keys = [f"key {n + i}" for i in range(len(offered))]
        machine.offer(1, len(offered), {"key": keys, "count": offered, "line": n, "known": known})
    return machine


def indices(batch):
    return (batch.indices - FIRST).tolist()


def test_examples_that_an_earlier_life_has_begun_go_on_before_the_others():
    machine = resumed([2, 1], [3, 3], offered=[1, 1])
    assert machine.chunks() == {0, 1} and machine.in_flight == 4
    machine.want(6)
    first, second = machine.next_draft(), machine.next_draft()
    assert (indices(first), first.segments.tolist()) == ([0, 1], [2, 1])
    assert (indices(second), second.lines.tolist()) == ([2, 3], [2, 3])
    machine.saved(second)
    assert machine.next_draft() is None and machine.chunks() == {0}


def test_nothing_that_was_begun_leaves_room_for_all():
    machine = resumed([], [])
    before = machine.slots
    machine.offer(1, before, {"key": range(before), "count": [1] * before})
    assert machine.slots == before


def test_examples_that_are_known_take_their_index_and_refused_ones_take_none():
    machine = resumed([], [], offered=[1] * 4, known=np.array([BEGUN, REFUSED, 0, 0]))
    machine.want(1)
    batch = machine.next_draft()
    assert indices(batch) == [1, 2] and batch.rows.tolist() == [2, 3]
    assert machine.take_refused() == [] and machine.next_index == FIRST + 3


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


def test_segments_that_a_trainer_has_are_given_to_nobody_else_and_go_on_after_their_save():
    machine = resumed([1, 1, 2], [2, 3, 4], offered=[2])
    slots = machine.find(FIRST + np.array([1, 3]))
    batch = machine.claim(slots, np.array([1, 0]))
    assert indices(batch) == [1, 3] and machine.oldest_out() is batch
    machine.want(9)
    other = machine.next_draft()
    assert indices(other) == [0, 2]
    machine.finish()
    assert machine.next_draft() is None and machine.starved
    assert machine.saved(batch).tolist() == [0, 1]
    assert indices(machine.next_draft()) == [1, 3]


def test_a_claim_does_not_use_up_what_is_wanted():
    machine = resumed([1, 1], [2, 2])
    machine.want(1)
    machine.claim(machine.find(FIRST + np.array([0])), np.array([1]))
    machine.want(2)  # the same wish, told by who has heard of the claim
    machine.finish()
    assert indices(machine.next_draft()) == [1] and machine.next_draft() is None


@pytest.mark.parametrize(
    ("which", "segments"),
    [([0], [0]), ([0], [2]), ([9], [1]), ([0, 0], [1, 1]), ([0, 1], [1, 0]), ([1, 0], [1, 1])],
    ids=["it is past", "it is to come", "not there", "twice", "one is past", "out of order"],
)
def test_segments_that_are_not_the_next_of_their_examples_are_not_claimed(which, segments):
    machine = resumed([1, 1], [3, 3])
    slots = machine.find(FIRST + np.array(which))
    assert machine.claim(slots, np.array(segments)) is None
    machine.want(1)
    assert indices(machine.next_draft()) == [0, 1]


def test_segments_that_were_handed_out_again_are_not_claimed():
    machine = resumed([1, 1, 1], [2, 2, 2])
    machine.want(1)
    machine.next_draft()
    assert machine.claim(machine.find(FIRST + np.array([0, 2])), np.array([1, 1])) is None


def test_a_released_claim_is_ready_again_with_its_payload_and_place():
    machine = resumed([1, 2, 1], [2, 4, 2])
    batch = machine.claim(machine.find(FIRST + np.array([0, 1])), np.array([1, 2]))
    assert machine.chunks() == {0} and machine.in_flight == 2
    machine.release(batch)
    assert machine.in_flight == 3 and machine.oldest_out() is None
    with pytest.raises(ValueError, match="saved before"):
        machine.saved(batch)
    machine.want(9)
    assert indices(machine.next_draft()) == [0, 1]


def test_the_payload_of_a_claimed_last_segment_is_let_go_when_it_is_saved():
    machine = resumed([1], [2])
    batch = machine.claim(machine.find(FIRST + np.array([0])), np.array([1]))
    machine.finish()
    assert machine.saved(batch).tolist() == []
    assert machine.chunks() == set() and machine.done


def test_released_examples_that_fill_no_batch_after_the_end_are_dropped():
    machine = resumed([1], [2], size=2, small=False)
    batch = machine.claim(machine.find(FIRST + np.array([0])), np.array([1]))
    machine.finish()
    assert not machine.done
    machine.release(batch)
    assert machine.done and machine.dropped() == {"remainder": 1}


def test_the_batch_expected_after_one_of_more_rows_has_the_new_size():
    machine = ArrivalOrder(6, None, True)
    feed = Feed(machine, [3] * 9, [9])
    machine.want(1)
    batch = feed.next_draft()
    assert len(batch) == 6
    machine.set_batch_size(4)
    expected = machine.expected()
    assert expected.slots.tolist() == batch.slots.tolist()[:4]
    assert expected.segments.tolist() == [1] * 4
