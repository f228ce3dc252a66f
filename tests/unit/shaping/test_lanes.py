"""A row stays in its lane until its example ends; examples of a trainer that left continue
elsewhere.

``World`` is any number of trainers that take, save, flush, return and leave at random, beside plain
books of where every example is.
"""

from itertools import count
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.leasing.protocol import Outlook
from headrace_server.shaping.admission import BEGUN
from headrace_server.shaping.segments import AT_SERVER, AT_TRAINER, NOWHERE, Segments
from headrace_server.shaping.slots import Rows, read_place
from tests.examples import some
from tests.unit.changes import begun

from .original_queue import COUNTS, CUTS, FIRST, Feed, sizes

SIZES = sizes(4)
steadily = settings(max_examples=some(150), deadline=None, derandomize=True)
STATES = pytest.mark.parametrize("states", [AT_SERVER, AT_TRAINER, NOWHERE])


class Seat:
    def __init__(self):
        self.lanes = {}  # example by lane
        self.started = {}  # the same, of lanes whose first batch was returned
        self.out = []  # the oldest first
        self.last = None  # the last batch that was saved


class World:
    def __init__(self, sizes, counts, cuts, seed, states):
        self.machine = Segments(0, *sizes, lanes=True, states=states)
        self.states, self.ahead = states, states != AT_SERVER
        self.feed = Feed(self.machine, counts, cuts)
        self.counts = counts
        self.random = Random(seed)
        self.seats = {}
        self.opened = 0
        self.tokens = count(1)
        self.taken = [0] * len(counts)
        self.done = [0] * len(counts)
        self.kept = [0] * len(counts)
        self.version = [0] * len(counts)
        self.through = set()
        self.rewound = self.turn = 0
        self.crowded = False

    def open(self):
        name = b"trainer %d" % self.opened
        self.seats[name] = Seat()
        self.opened += 1
        return name

    def ready(self):
        """Examples that wait for a lane, the oldest first."""
        held = {
            e
            for seat in self.seats.values()
            for e in (*seat.lanes.values(), *seat.started.values())
        }
        held |= {e for seat in self.seats.values() for plan in seat.out for e in self.of(plan)}
        read = range(self.machine.next_index - FIRST)
        return [e for e in read if e not in held | self.through]

    def of(self, plan):
        return [example for _, example, _ in self.feed.rows(plan.draft)]

    def draft(self, name):
        seat = self.seats[name]
        step = self.feed.step(name)
        if isinstance(step, Outlook):
            assert (step is Outlook.ENDED) == self.machine.done
            if not self.machine.live(name) and (seat.lanes or seat.started):
                assert not (seat.out or self.machine.allow_small) or self.machine.cancelled
                seat.lanes.clear()
                seat.started.clear()
            if not self.machine.live(name):
                seat.last = None
            self.check()
            return False
        (plan,) = step
        batch, rows, lanes = plan.batch, self.feed.rows(plan.draft), plan.draft.lanes.tolist()
        assert (batch.slot, batch.turn) == (name, (0, self.turn))
        self.turn += 1
        assert self.ahead or not seat.out
        assert lanes == sorted(set(lanes)) and set(lanes) <= set(range(self.machine.batch_size))
        starts = [place for place, lane in enumerate(lanes) if lane not in seat.lanes]
        assert plan.draft.starts.tolist() == starts
        stays = {lane: rows[place][1] for place, lane in enumerate(lanes) if place not in starts}
        assert stays == seat.lanes, "every lane that is not empty is there, as it was"
        begun = {lanes[place]: rows[place][1] for place in starts}
        assert seat.started.items() <= begun.items()
        begun = [example for lane, example in begun.items() if lane not in seat.started]
        seat.started.clear()
        assert begun == sorted(begun)
        if len(rows) < self.machine.batch_size:
            assert self.machine.allow_small and self.feed.closed
        for place, (index, example, segment) in enumerate(rows):
            assert index == FIRST + example and segment == self.taken[example]
            if place in starts:
                assert segment == self.kept[example] == self.done[example]
            assert plan.draft.versions[place] == self.version[example]
            self.taken[example] += 1
            seat.lanes[lanes[place]] = example
            if segment + 1 == self.counts[example]:
                del seat.lanes[lanes[place]]
        for example in self.ready():
            assert not begun or example > begun[-1] or self.taken[example]
        seat.out.append(plan)
        self.check()
        return True

    def save(self, name):
        seat = self.seats[name]
        plan, token = seat.out.pop(0), next(self.tokens)
        counted = self.machine.commit(plan.batch, token)
        rows = self.feed.rows(plan.draft)
        goes_on = [e for _, e, s in rows if s + 1 < self.counts[e]]
        refused = self.machine.cancelled and goes_on
        assert counted[0] == "cancelled" if refused else counted.batch is plan.batch
        for _, example, segment in rows:
            if segment + 1 == self.counts[example]:
                self.through.add(example)
            self.done[example] = segment + 1
            if self.states != AT_TRAINER:
                self.kept[example] = segment + 1
            if not self.ahead:
                self.version[example] = token
        seat.last = plan
        self.check()

    def keep(self, name):
        plan = self.seats[name].last
        places = [place for place in range(len(plan.draft)) if self.random.randrange(3)]
        kept = self.machine.keep(plan.batch, np.array(places, np.int64))
        expected = []
        if kept is None:
            assert not (places and self.machine.live(name))
            return
        for at, place in enumerate(places):
            _, example, segment = self.feed.rows(plan.draft)[place]
            if self.done[example] == segment + 1 < self.counts[example]:
                expected.append(at)
                self.kept[example] = segment + 1
        assert kept[2].tolist() == expected

    def leave(self, name, since=-1):
        """The trainer goes, or returns its batches from a turn on."""
        seat = self.seats[name]
        void = [plan for plan in seat.out if plan.batch.turn >= (0, since)]
        before = {plan: self.of(plan) for plan in void}
        self.machine.leave(name, (0, since))
        seat.out = [plan for plan in seat.out if plan not in void]
        if since >= 0 and (self.states == AT_TRAINER or not self.machine.cancelled):
            self.undo(seat, void)
            if self.machine.live(name):
                return self.check()
        examples = {*seat.lanes.values(), *seat.started.values()}
        examples.update(e for of in before.values() for e in of)
        seat.lanes.clear()
        seat.started.clear()
        if not self.machine.live(name):
            seat.last = None
        after = {e: s + 1 for plan in seat.out for _, e, s in self.feed.rows(plan.draft)}
        for example in examples:
            if self.machine.cancelled and after.get(example, 0) <= self.done[example]:
                if self.taken[example] == self.counts[example]:
                    self.through.add(example)
                continue
            self.crowded |= self.taken[example] == self.counts[example]
            first = max(self.kept[example], after.get(example, 0))
            self.rewound += max(0, self.done[example] - first)
            self.done[example] = min(self.done[example], first)
            self.taken[example] = first
        if since < 0:
            del self.seats[name]
        return self.check()

    def undo(self, seat, void):
        """The trainer goes on with its lanes, as before these batches."""
        for plan in reversed(void):
            starts = plan.draft.starts.tolist()
            for place, (_, example, segment) in enumerate(self.feed.rows(plan.draft)):
                lane = int(plan.draft.lanes[place])
                self.crowded |= segment + 1 == self.counts[example]
                self.taken[example] = segment
                for of in (seat.lanes, seat.started):
                    of.pop(lane, None)
                (seat.started if place in starts else seat.lanes)[lane] = example

    def check(self):
        machine = self.machine
        assert machine.rewound == self.rewound
        assert self.crowded or machine.capacity is None or machine.in_flight <= machine.capacity
        for name, seat in self.seats.items():
            assert machine.live(name) == bool(seat.lanes or seat.started)
        if not machine.dropped():
            offered = enumerate(self.feed.chunk_of)
            assert machine.chunks() == {c for e, c in offered if e not in self.through}

    def some_steps(self, steps):
        for _ in range(steps):
            act = self.random.randrange(16)
            name = self.random.choice(list(self.seats)) if self.seats else None
            seat = self.seats.get(name)
            if name is None or act == 0:
                self.open()
            elif act == 1:
                self.leave(name)
            elif act == 2 and seat.out:
                self.leave(name, self.random.choice(seat.out).batch.turn[1])
            elif act < 6 and self.states == AT_TRAINER and seat.last is not None:
                self.keep(name)
            elif act < 10 and seat.out:
                self.save(name)
            else:
                self.draft(name)

    def to_the_end(self):
        while not self.machine.done:
            if not any(self.draft(name) for name in list(self.seats)):
                out = [name for name, seat in self.seats.items() if seat.out]
                if out:
                    self.save(self.random.choice(out))
                elif not self.machine.done:
                    assert not any(seat.lanes or seat.started for seat in self.seats.values())
                    self.open()
                    assert self.opened < 500, "a new trainer finds what is left behind"
        machine = self.machine
        assert machine.chunks() == set() and machine.in_flight == 0 and not machine.hungry
        assert sum(self.taken) + sum(machine.dropped().values()) == sum(self.counts[: self.feed.at])
        assert self.feed.step(b"nobody") is Outlook.ENDED


@STATES
def test_nothing_is_lost_and_only_what_was_not_kept_is_repeated(states):
    @steadily
    @given(SIZES, COUNTS, CUTS, st.integers(0, 2**32), st.integers(0, 120))
    def check(sizes, counts, cuts, seed, steps):
        world = World(sizes, counts, cuts, seed, states)
        world.some_steps(steps)
        world.to_the_end()
        dropped = world.machine.dropped()
        assert dropped.keys() <= (set() if world.machine.allow_small else {"remainder"})
        if not dropped:
            assert world.taken == world.done == counts
        if states != AT_TRAINER:
            assert world.machine.rewound == 0

    check()


@STATES
def test_a_cancel_ends_soon_and_counts_what_was_not_handed_out(states):
    @steadily
    @given(SIZES, COUNTS, CUTS, st.integers(0, 2**32), st.integers(0, 60), st.booleans())
    def check(sizes, counts, cuts, seed, steps, closed_before):
        world = World(sizes, counts, cuts, seed, states)
        world.some_steps(steps)
        if closed_before:
            world.feed.order("close", False)
        world.feed.order("close", True)
        assert not world.machine.hungry
        world.some_steps(10)
        before = dict(world.machine.dropped())
        world.feed.order("close", True)
        assert world.machine.dropped() == before
        world.to_the_end()

    check()


def test_a_commit_before_that_of_an_earlier_batch_of_its_lanes_is_early():
    machine = Segments(0, 1, lanes=True, states=NOWHERE)
    feed = Feed(machine, [3])
    first, second = feed.draft(b"a"), feed.draft(b"a")
    assert machine.commit(second.batch, 2)[0] == "early"
    assert machine.commit(first.batch, 1).batch is first.batch
    assert machine.commit(second.batch, 2).batch is second.batch
    assert machine.commit(first.batch, 1)[0] == "stale"


def test_lanes_of_a_life_with_larger_batches_go_on_in_lanes_that_there_are():
    """The batch size was declared anew: lanes 0 and 1 have their examples again, 2 is no more."""
    machine = Segments(0, 2, lanes=True, states=NOWHERE)
    feed = Feed(machine, [3] * 3, known={0: BEGUN, 1: BEGUN, 2: BEGUN})
    lines = np.arange(3)
    columns = lines, np.full(3, 3), np.ones(3, np.int64), FIRST + lines, lines
    machine.resume(begun(np.full(3, 99), *columns, [(0, f"key {e}") for e in range(3)]), FIRST, 0)
    machine.resume_turns([0, 0, 0, 1, [1]], {b"a": (FIRST + lines[::-1], lines)})
    rows = feed.draft(b"a").draft
    assert (rows.indices - FIRST).tolist() == [2, 1] and rows.lanes.tolist() == [0, 1]


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


def test_a_packed_batch_beyond_the_capacity_is_tried_a_few_times() -> None:
    """Each try goes over the examples that are there: 4 lanes of 500 steps take 1000 of 2 steps."""

    class Counted(Segments):
        tries = 0

        def _packed(self, *given):
            self.tries += 1
            return super()._packed(*given)

    machine = Counted(0, 4, 4, lanes=True, states=NOWHERE, unroll=500, most=500)
    plan = Feed(machine, [2] * 3000, (3000,)).draft(b"a")
    assert len(plan.draft) == 1000 and machine.tries < 10 and machine.in_flight < 1100


def packed_rows() -> Rows:
    """Three rows of four steps, as in the picture of ``Rows``: of three, one and two examples."""
    lanes = np.array([0, 0, 0, 2, 5, 5])
    segments = np.array([3, 0, 0, 4, 0, 0])
    counts = np.array([4, 1, 9, 20, 3, 1])
    numbers = np.zeros((7, 6), np.int64)
    numbers[1], numbers[4], numbers[5] = [7, 9, 10, 8, 11, 12], segments, counts
    numbers[6, 0] = 77
    return Rows(np.arange(6), numbers, lanes, np.array([4]), unroll=4)


def test_packed_rows_know_where_their_examples_begin_and_go_on() -> None:
    rows = packed_rows()
    assert rows.begins.tolist() == [0, 1, 2, 0, 0, 3]
    assert rows.after.tolist() == [4, 1, 2, 8, 3, 1]
    assert rows.last.tolist() == [True, True, False, False, True, True]
    assert (rows.heads.tolist(), rows.tails.tolist()) == ([0, 3, 4], [2, 3, 5])
    assert rows.height == 3 and rows.at.tolist() == [0, 0, 0, 1, 2, 2]


def test_the_place_of_packed_rows_is_read_back() -> None:
    rows = packed_rows()
    place = read_place(rows.place(), 4)
    assert place is not None
    assert place["lane"].tolist() == rows.lanes.tolist()
    assert place["index"].tolist() == rows.indices.tolist()
    assert place["segment"].tolist() == rows.segments.tolist()
    assert place["version"].tolist() == rows.versions.tolist()


@steadily
@given(st.binary(max_size=90), st.integers(-1, 4))
def test_any_bytes_are_a_place_with_a_first_example_for_each_lane_or_none(
    data: bytes, number: int
) -> None:
    for whole in (data, number.to_bytes(8, "little", signed=True) + data):
        place = read_place(whole, 4)
        if place is not None:
            assert (np.diff(place["lane"]) >= 0).all()
    lost = packed_rows().place()[:-8]
    assert read_place(lost[:8] + lost[9:], 4) is None
