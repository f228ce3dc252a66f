"""A row stays in its lane until its example ends; examples of a trainer that left continue
elsewhere.

``World`` is any number of trainers that take, save, flush and leave at random, beside plain
books of where every example is.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import RoundMembers
from headrace_server.core.lane_order import LaneOrder
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


def test_any_trainer_goes_on_after_ranks_of_an_earlier_process_whose_stripes_had_its_number():
    machine = LaneOrder(1, allow_small_batch=True)
    feed = Feed(machine, [3, 3])
    machine.resume_rounds(RoundMembers(2, 1, 0, 1), {})
    machine.deal(0, 2, 0)
    machine.want(1, 0)
    assert feed.rows(feed.next_draft()) == [(FIRST, 0, 0)]


def test_the_oldest_batch_that_is_out_is_reported_for_any_holder():
    machine = LaneOrder(1)
    feed = Feed(machine, [9] * 3)
    machine.want(9, 0)
    machine.want(9, 1)
    first, second = feed.next_draft(), feed.next_draft()
    machine.saved(first)
    third = feed.next_draft()
    assert (third.stripe, second.stripe) == (0, 1) and machine.oldest_out() is second


@pytest.mark.parametrize("ahead", [False, True])
def test_a_hundred_trainers_share_what_two_can_do(ahead):
    world = World((2, 50, True), [3] * 30, [7], 1, ahead)
    for _ in range(100):
        world.open()
    world.to_the_end()
    assert world.taken == world.counts and not world.machine.dropped()
