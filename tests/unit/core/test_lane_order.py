"""A row stays in its lane until its example ends; examples of a trainer that left continue
elsewhere.

``World`` is any number of trainers that take, save, flush and leave at random, beside plain
books of where every example is.
"""

from random import Random
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.lane_order import LaneOrder
from headrace_server.core.partition import Partition, Rest
from headrace_server.core.round_forming import RoundMembers
from headrace_server.core.stored_state import Examples
from tests.examples import some

from .original_queue import COUNTS, CUTS, FIRST, Feed, sizes

SIZES = sizes(4)
steadily = settings(max_examples=some(400), deadline=None, derandomize=True)


class Stripe:
    def __init__(self):
        self.lanes = {}  # example by lane
        self.out = []


class World:
    def __init__(self, sizes, counts, cuts, seed, ahead, out_of_turn=False):
        self.machine = LaneOrder(*sizes, states="trainer" if ahead else "server")
        self.ahead, self.out_of_turn = ahead, out_of_turn
        self.feed = Feed(self.machine, counts, cuts)
        self.counts = counts
        self.random = Random(seed)
        self.stripes = {}
        self.opened = 0
        self.taken = [0] * len(counts)
        self.done = [0] * len(counts)
        self.kept = [0] * len(counts)
        self.begun = 0
        self.orphans = set()
        self.through = set()
        self.states = {}  # (example, segment) by slot, as it is kept
        self.slot = {}  # by example that is not through
        self.saved_batches = []
        self.rewound = 0
        self.repeated = 0
        self.crowded = False
        self.last_chance = None  # stripes that may get a batch after a cancel

    def open(self):
        self.stripes[self.opened] = Stripe()
        self.want(self.opened, self.random.randrange(3))
        self.opened += 1

    def want(self, number, n):
        self.machine.want(n, number)

    def next_examples(self, n):
        """Return the examples for ``n`` empty lanes: orphans, the oldest first, then fresh ones."""
        first = sorted(self.orphans)[:n]
        self.orphans -= set(first)
        fresh = range(self.begun, min(self.begun + n - len(first), self.feed.at))
        self.begun = max(self.begun, fresh.stop)
        return first + list(fresh)

    def draft(self):
        batch = self.feed.next_draft()
        for number in self.machine.take_dry():
            assert not self.stripes.pop(number).out
        if batch is None:
            self.check()
            return False
        stripe = self.stripes[batch.stripe]
        assert self.ahead or not stripe.out
        if self.last_chance is not None:
            self.last_chance.remove(batch.stripe)
        rows = self.feed.rows(batch)
        lanes = batch.lanes.tolist()
        assert lanes == sorted(set(lanes)) and set(lanes) <= set(range(self.machine.batch_size))
        starts = [place for place, lane in enumerate(lanes) if lane not in stripe.lanes]
        assert batch.starts.tolist() == starts
        assert [rows[place][1] for place in starts] == self.next_examples(len(starts))
        stays = {lane: rows[place][1] for place, lane in enumerate(lanes) if place not in starts}
        assert stays == stripe.lanes, "every lane that is not empty is there, as it was"
        if len(rows) < self.machine.batch_size:
            assert self.machine.allow_small and self.feed.closed and not self.orphans
            assert self.begun == self.feed.at or self.machine.cancelled
        for place, (index, example, segment) in enumerate(rows):
            slot, lane = int(batch.slots[place]), lanes[place]
            assert index == FIRST + example and segment == self.taken[example]
            assert self.slot.setdefault(example, slot) == slot
            if segment and (not self.ahead or place in starts):
                assert self.states[slot] == (example, segment)
            self.taken[example] += 1
            stripe.lanes[lane] = example
            if segment + 1 == self.counts[example]:
                del stripe.lanes[lane]
        assert len(set(self.slot.values())) == len(self.slot)
        stripe.out.append(batch)
        self.check()
        return True

    def save(self, number):
        stripe = self.stripes[number]
        batch = stripe.out.pop(self.random.randrange(len(stripe.out)) if self.out_of_turn else 0)
        places = self.machine.saved(batch)
        rows = self.feed.rows(batch)
        goes_on = [place for place, (_, e, s) in enumerate(rows) if s + 1 < self.counts[e]]
        refused = self.machine.cancelled and goes_on
        assert places is None if refused else places.tolist() == goes_on
        for place, (_, example, segment) in enumerate(rows):
            if not refused or place not in goes_on:
                self.done[example] = max(self.done[example], segment + 1)
                if not self.ahead:
                    self.kept[example] = segment + 1
                    self.states[int(batch.slots[place])] = example, segment + 1
        held = {e for other in stripe.out for _, e, _ in self.feed.rows(other)}
        ended = {e for _, e, _ in rows if self.done[e] == self.counts[e]} - held
        self.let_through(ended)
        self.saved_batches.append(batch)
        self.check()

    def let_through(self, examples):
        slots = sorted(self.slot.pop(example) for example in examples)
        self.through |= examples
        if not self.machine.dropped():
            assert sorted(self.machine.take_through()) == slots

    def keep(self):
        batch = self.random.choice(self.saved_batches)
        places = [place for place in range(len(batch)) if self.random.randrange(3)]
        kept = self.machine.keep(batch, np.array(places, np.int64)).tolist()
        expected = []
        for place, (_, example, segment) in enumerate(self.feed.rows(batch)):
            here = batch.stripe in self.stripes and place in places
            if here and self.done[example] == segment + 1 < self.counts[example]:
                expected.append(place)
                self.kept[example] = segment + 1
                self.states[int(batch.slots[place])] = example, segment + 1
        assert kept == expected

    def leave(self, number):
        stripe = self.stripes.pop(number)
        self.machine.leave(number)
        held = {e for batch in stripe.out for _, e, _ in self.feed.rows(batch)}
        held |= set(stripe.lanes.values())
        if self.machine.cancelled:
            self.let_through({e for e in held if self.taken[e] == self.counts[e]})
            return
        self.let_through({e for e in held if self.done[e] == self.counts[e]})
        held -= self.through
        for example in held:
            self.crowded |= self.taken[example] == self.counts[example]
            self.rewound += self.done[example] - self.kept[example]
            self.taken[example] = self.done[example] = self.kept[example]
        self.orphans |= held
        assert all(self.machine.saved(batch) is None for batch in stripe.out)
        self.check()

    def cancel(self):
        self.feed.cancel()
        self.orphans.clear()
        if self.last_chance is None:
            self.last_chance = {n for n, stripe in self.stripes.items() if not stripe.out}

    def check(self):
        machine = self.machine
        assert machine.rewound == self.rewound
        assert self.crowded or machine.capacity is None or machine.in_flight <= machine.capacity
        if not machine.dropped():
            offered = enumerate(self.feed.chunk_of)
            assert machine.chunks() == {c for e, c in offered if e not in self.through}

    def some_steps(self, steps):
        for _ in range(steps):
            act = self.random.randrange(16)
            number = self.random.choice(list(self.stripes)) if self.stripes else None
            if number is None or act == 0:
                self.open()
            elif act == 1:
                self.leave(number)
            elif act < 5:
                self.want(number, self.random.randrange(3))
            elif act < 7 and self.ahead and self.saved_batches:
                self.keep()
            elif act < 11 and self.stripes[number].out:
                self.save(number)
            else:
                self.draft()

    def to_the_end(self):
        for number in self.stripes:
            self.want(number, 10**6)
        while not self.machine.done:
            if not self.draft():
                out = [number for number, stripe in self.stripes.items() if stripe.out]
                if out:
                    self.save(self.random.choice(out))
                elif not self.machine.done:
                    assert not self.stripes, "stripes that hold nothing back are served or dry"
                    self.open()
                    self.want(self.opened - 1, 10**6)
                    assert self.opened < 500, "a new stripe finds what is left behind"
        machine = self.machine
        assert machine.chunks() == set() and machine.in_flight == 0 and not machine.hungry
        assert sum(self.taken) + sum(machine.dropped().values()) == sum(self.counts[: self.feed.at])
        assert machine.next_draft() is None and machine.oldest_out() is None


@pytest.mark.parametrize(("ahead", "out_of_turn"), [(False, False), (True, False), (True, True)])
def test_nothing_is_lost_and_only_what_was_not_kept_is_repeated(ahead, out_of_turn):
    @steadily
    @given(SIZES, COUNTS, CUTS, st.integers(0, 2**32), st.integers(0, 120))
    def check(sizes, counts, cuts, seed, steps):
        world = World(sizes, counts, cuts, seed, ahead, out_of_turn)
        world.some_steps(steps)
        world.to_the_end()
        dropped = world.machine.dropped()
        assert dropped.keys() <= (set() if world.machine.allow_small else {"remainder"})
        if not dropped:
            assert world.taken == world.done == counts
        if not ahead:
            assert world.machine.rewound == 0

    check()


@steadily
@given(SIZES, COUNTS, CUTS, st.integers(0, 2**32), st.integers(0, 60), st.booleans(), st.booleans())
def test_a_cancel_ends_soon_and_counts_what_was_not_handed_out(
    sizes, counts, cuts, seed, steps, ahead, closed_before
):
    world = World(sizes, counts, cuts, seed, ahead)
    world.some_steps(steps)
    if closed_before and not world.feed.closed:
        world.feed.closed = True
        world.machine.finish()
    world.cancel()
    assert not world.machine.hungry
    world.some_steps(10)
    before = dict(world.machine.dropped())
    world.cancel()
    assert world.machine.dropped() == before
    world.to_the_end()


def test_a_finished_lane_takes_the_next_example_at_once_and_the_others_stay():
    machine = LaneOrder(3, allow_small_batch=True)
    feed = Feed(machine, [2, 1, 3, 1, 2])
    machine.want(9, 4)
    seen = []
    while (batch := feed.next_draft()) is not None:
        rows = [(e, s) for _, e, s in feed.rows(batch)]
        seen.append((rows, batch.lanes.tolist(), batch.starts.tolist()))
        assert batch.stripe == 4 and machine.next_draft() is None
        machine.saved(batch)
    assert seen == [
        ([(0, 0), (1, 0), (2, 0)], [0, 1, 2], [0, 1, 2]),
        ([(0, 1), (3, 0), (2, 1)], [0, 1, 2], [1]),
        ([(4, 0), (2, 2)], [0, 2], [0]),
        ([(4, 1)], [0], []),
    ]
    assert machine.take_dry() == [4] and machine.take_dry() == [] and machine.done


def test_without_small_batches_the_end_comes_when_the_lanes_can_not_be_filled():
    machine = LaneOrder(2)
    feed = Feed(machine, [1, 5])
    machine.want(9)
    machine.saved(feed.next_draft())
    assert feed.next_draft() is None and machine.take_dry() == [0]
    assert machine.done and machine.dropped() == {"remainder": 4}


def test_a_stripe_that_can_not_be_filled_leaves_examples_to_one_that_can():
    machine = LaneOrder(2)
    feed = Feed(machine, [1, 2, 2], [3])
    machine.want(9, 0)
    machine.want(9, 1)
    first = feed.next_draft()
    assert feed.next_draft() is None and machine.take_dry() == [1]
    machine.saved(first)
    second = feed.next_draft()
    assert feed.rows(second) == [(FIRST + 2, 2, 0), (FIRST + 1, 1, 1)]
    machine.saved(second)
    assert feed.next_draft() is None and machine.take_dry() == [0]
    assert machine.done and machine.dropped() == {"remainder": 1}


def test_fewer_than_a_batch_that_nobody_holds_are_dropped_without_a_trainer():
    machine = LaneOrder(3)
    machine.offer(0, 2, {"key": "ab", "count": [4, 5]})
    machine.finish()
    assert machine.done and machine.dropped() == {"remainder": 9} and machine.chunks() == set()

    machine = LaneOrder(2)
    feed = Feed(machine, [1, 5])
    machine.want(1)
    batch = feed.next_draft()
    machine.saved(batch)
    assert feed.next_draft() is None and feed.closed and not machine.done
    machine.leave(0)
    assert machine.done and machine.dropped() == {"remainder": 4}


def test_leftover_examples_wait_for_others_that_may_come_back():
    machine = LaneOrder(2, states="trainer")
    feed = Feed(machine, [3, 3, 4], [3])
    machine.want(3, 0)
    batches = [feed.next_draft() for _ in range(3)]
    assert feed.next_draft() is None and feed.closed and machine.in_flight == 1
    for batch in batches[:2]:
        machine.saved(batch)
    assert machine.keep(batches[1], np.array([0])).tolist() == [0] and not machine.dropped()
    machine.leave(0)
    machine.want(9, 1)
    seen = []
    while (batch := feed.next_draft()) is not None:
        seen.append([(e, s) for _, e, s in feed.rows(batch)])
    assert seen == [[(0, 2), (1, 0)], [(2, 0), (1, 1)], [(2, 1), (1, 2)]]


def test_examples_of_a_trainer_that_left_continue_from_their_stored_segment_before_fresh_ones():
    machine = LaneOrder(2, allow_small_batch=True, states="trainer")
    feed = Feed(machine, [5, 5, 5, 5, 5], [5])
    machine.want(4, 0)
    batches = [feed.next_draft() for _ in range(4)]
    for batch in batches[:3]:
        machine.saved(batch)
    assert machine.keep(batches[1], np.arange(2)).tolist() == []
    assert machine.keep(batches[2], np.array([1])).tolist() == [1]
    assert machine.keep(batches[3], np.arange(2)).tolist() == []
    machine.leave(0)
    assert machine.rewound == 3, "segments 0, 1 and 2 of the first example, none of the second"
    machine.want(1, 1)
    resumed = feed.next_draft()
    assert feed.rows(resumed) == [(FIRST, 0, 0), (FIRST + 1, 1, 3)]
    assert resumed.starts.tolist() == [0, 1]
    assert machine.saved(batches[3]) is None and machine.keep(batches[2], np.arange(2)).size == 0
    machine.want(1, 2)
    assert [e for _, e, _ in feed.rows(feed.next_draft())] == [2, 3]


def test_a_stripe_begins_with_the_examples_that_a_snapshot_names_in_their_lanes():
    """Some of the named examples have ended, and one had a lane that no longer exists."""
    machine = LaneOrder(3, allow_small_batch=True)
    numbers = [[e, FIRST + e, 0, e, 1, 4] for e in (1, 3, 5, 6)]
    columns = np.array(numbers, np.int64).T
    machine.resume(Examples(columns, [(0, b"%d" % e) for e in (1, 3, 5, 6)], ()))
    machine.places = [(np.array([5, 2, 3]) + FIRST, np.array([0, 1, 2]))]
    machine.places += [(np.array([6, 1]) + FIRST, np.array([3, 1]))]
    machine.want(1, 7)
    batch = machine.next_draft()
    assert batch.indices.tolist() == [FIRST + 5, FIRST + 1, FIRST + 3]
    assert batch.starts.tolist() == [0, 1, 2] and batch.segments.tolist() == [1, 1, 1]
    machine.finish()
    machine.want(1, 8)
    assert machine.next_draft().indices.tolist() == [FIRST + 6]


def test_an_example_whose_last_segment_was_out_comes_back_though_its_key_was_used_again():
    machine = LaneOrder(1, 1, allow_small_batch=True)
    feed = Feed(machine, [1, 1], keys=["a", "a"])
    machine.want(1, 0)
    machine.want(1, 1)
    assert feed.rows(feed.next_draft()) == [(FIRST, 0, 0)]
    machine.leave(0)
    again = feed.next_draft()
    assert feed.rows(again) == [(FIRST, 0, 0)]
    machine.saved(again)
    machine.want(2, 1)
    machine.saved(feed.next_draft())
    feed.next_draft()
    assert machine.done and machine.take_refused() == []


def test_lanes_that_capacity_can_not_fill_wait_and_go_on_when_another_trainer_leaves():
    machine = LaneOrder(3, 4, allow_small_batch=True)
    feed = Feed(machine, [9] * 12)
    machine.want(9, 0)
    machine.want(9, 1)
    for _ in range(4):
        batch = feed.next_draft()
        assert batch.stripe == 0 and feed.next_draft() is None
        assert machine.in_flight == 4 and not machine.hungry and machine.take_dry() == []
        machine.saved(batch)
    machine.leave(0)
    batch = feed.next_draft()
    assert batch.stripe == 1
    assert feed.rows(batch) == [(FIRST, 0, 4), (FIRST + 1, 1, 4), (FIRST + 2, 2, 4)]


def test_stripes_with_a_lane_each_to_fill_get_examples_where_more_came_back_than_capacity_allows():
    """Of an example whose last segment was handed out the place is taken, and then it returns."""
    machine = LaneOrder(2, 2, allow_small_batch=True, states="trainer")
    feed = Feed(machine, [2, 1, 3, 1, 1])
    machine.want(2, 0)
    assert feed.next_draft() is not None and feed.next_draft() is not None
    machine.leave(0)
    assert machine.in_flight > machine.capacity
    machine.want(9, 1)
    machine.want(9, 2)
    for stripe in (1, 2):
        batch = feed.next_draft()
        assert batch.stripe == stripe
        machine.saved(batch)
    while (batch := feed.next_draft()) is not None:
        machine.saved(batch)
    assert machine.done and feed.closed


def test_a_stripe_that_ran_dry_stays_closed_and_a_new_one_takes_what_is_left_behind():
    machine = LaneOrder(1, allow_small_batch=True)
    feed = Feed(machine, [3])
    machine.want(9, 0)
    machine.want(9, 1)
    machine.saved(feed.next_draft())
    assert machine.next_draft().stripe == 0 and feed.next_draft() is None
    assert machine.take_dry() == [1]
    machine.want(10, 1)  # was on its way when the stripe ran dry
    machine.leave(0)
    assert feed.next_draft() is None and machine.take_dry() == [] and not machine.done
    machine.want(1, 2)
    assert feed.rows(feed.next_draft()) == [(FIRST, 0, 1)]


def test_any_trainer_goes_on_after_ranks_of_an_earlier_process_whose_stripes_had_its_number():
    machine = LaneOrder(1, allow_small_batch=True)
    feed = Feed(machine, [3, 3])
    machine.resume_rounds(RoundMembers(2, 1, 0, 1), {})
    machine.deal(0, 2, 0)
    machine.want(1, 0)
    assert feed.rows(feed.next_draft()) == [(FIRST, 0, 0)]


def test_a_batch_that_is_done_before_an_earlier_one_keeps_the_place_of_its_examples():
    machine = LaneOrder(1, 2, allow_small_batch=True, states="trainer")
    feed = Feed(machine, [2, 2, 2], [3])
    machine.want(2, 0)
    first, last = feed.next_draft(), feed.next_draft()
    assert machine.saved(last).tolist() == [] and machine.take_through() == []
    assert machine.key_of(first.slots[0]) == "key 0" and machine.oldest_out() is first
    machine.saved(first)
    assert machine.take_through() == first.slots.tolist()
    assert machine.keep(first, np.arange(1)).size == 0, "it is through"
    with pytest.raises(ValueError, match="is not out: it was saved before"):
        machine.saved(first)


def test_the_oldest_batch_that_is_out_is_reported_for_any_holder():
    machine = LaneOrder(1)
    feed = Feed(machine, [9] * 3)
    machine.want(9, 0)
    machine.want(9, 1)
    first, second = feed.next_draft(), feed.next_draft()
    machine.saved(first)
    third = feed.next_draft()
    assert (third.stripe, second.stripe) == (0, 1) and machine.oldest_out() is second


@pytest.mark.parametrize("states", ["trainer", "none"])
def test_trainers_whose_batches_can_be_made_ahead_take_turns(states):
    machine = LaneOrder(1, states=states)
    feed = Feed(machine, [9] * 3)
    for stripe in (0, 1, 2):
        machine.want(9, stripe)
    first = [feed.next_draft() for _ in range(4)]
    machine.want(99, first[-1].stripe)  # as one that is quicker than the others does
    assert [batch.stripe for batch in [*first, *(feed.next_draft() for _ in range(5))]] == [
        *(0, 1, 2),
        *(0, 1, 2),
        *(0, 1, 2),
    ]


def test_a_cancel_gives_each_trainer_that_holds_nothing_one_more_batch():
    machine = LaneOrder(1, allow_small_batch=True)
    feed = Feed(machine, [3] * 4, [4])
    machine.want(9, 0)
    machine.want(9, 1)
    first, second = feed.next_draft(), feed.next_draft()
    machine.saved(first)
    feed.cancel()
    assert machine.dropped() == {"cancelled": 6}
    more = feed.next_draft()
    assert feed.rows(more) == [(FIRST, 0, 1)] and feed.next_draft() is None
    assert machine.saved(more) is None and machine.saved(second) is None
    assert feed.next_draft() is None and sorted(machine.take_dry()) == [0, 1]
    machine.want(5, 2)
    assert feed.next_draft() is None and machine.take_dry() == [2]
    assert machine.done and machine.dropped() == {"cancelled": 9}


@pytest.mark.parametrize("ahead", [False, True])
def test_a_hundred_trainers_share_what_two_can_do(ahead):
    world = World((2, 50, True), [3] * 30, [7], 1, ahead)
    for _ in range(100):
        world.open()
    world.to_the_end()
    assert world.taken == world.counts and not world.machine.dropped()


def test_a_partition_rests_while_lanes_are_full_and_ends_when_all_is_through():
    machine = LaneOrder(2, 2, allow_small_batch=True)
    partition = Partition(machine, 0)
    read = partition.next_step(3)
    partition.arrived(read, 3, None, {"key": list("abc"), "count": [2, 1, 1]})
    assert partition.next_step(3) is Rest
    machine.want(9, 0)
    for lanes in ([0, 1], [0, 1]):
        plan = partition.next_step(3)
        assert plan.draft.lanes.tolist() == lanes and partition.next_step(3) is Rest
        machine.saved(plan.draft)
    assert partition.next_step(3) is None and machine.take_dry() == [0]


def _seconds_per_batch(examples, size=32):
    machine = LaneOrder(size, examples)
    machine.offer(0, examples, {"key": range(examples), "count": np.full(examples, 2)})
    for stripe in range(4):
        machine.want(10**9, stripe)
    machine.leave(1)
    best = 1e9
    for _ in range(5):
        start = perf_counter()
        for _ in range(4):
            machine.saved(machine.next_draft())
        best = min(best, perf_counter() - start)
    return best


def test_a_batch_costs_the_same_with_a_thousand_examples_in_flight_and_a_hundred_thousand():
    assert _seconds_per_batch(100_000) < 5 * _seconds_per_batch(1_000)
