"""Rounds of segments: each rank gets a member, no segment is lost or comes twice, all end together.

``World`` is some ranks that take and save members as chance has it, whose number changes, and a
process that may be started again, beside plain books of how far every example is.
"""

from itertools import count
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.leasing.protocol import Batch, Outlook
from headrace_server.shaping.admission import BEGUN
from headrace_server.shaping.segments import AT_SERVER, AT_TRAINER, NOWHERE, Segments
from headrace_server.shaping.stored_state import Examples
from tests.examples import some

from .original_queue import FIRST, Feed

COUNTS = st.integers(0, 30).flatmap(lambda n: st.lists(st.integers(1, 5), min_size=n, max_size=n))
steadily = settings(max_examples=some(100), deadline=None, derandomize=True)
KINDS = {
    "arrival": (False, AT_SERVER),
    "lanes": (True, AT_SERVER),
    "trainer": (True, AT_TRAINER),
    "none": (True, NOWHERE),
}


class World:
    def __init__(self, kind, sizes, small, counts, seed):
        self.lanes, self.states = KINDS[kind]
        self.counts, self.random = counts, Random(seed)
        self.batch_size, self.small = sizes[0], small
        self.capacity = None if sizes[2] is None else 3 * sizes[0] + sizes[2]  # for three ranks
        n = len(counts)
        self.done, self.kept, self.version = [0] * n, [0] * n, [0] * n
        self.lane_of = {}  # by example: rank and lane
        self.run = 0
        self.tokens = count(1)
        self.start()
        self.deal(sizes[1])

    def start(self):
        n, size = len(self.counts), (self.batch_size, self.capacity, self.small)
        self.machine = Segments(0, *size, lanes=self.lanes, states=self.states)
        began = [e for e, n in enumerate(self.kept) if 0 < n < self.counts[e]]
        through = [e for e, n in enumerate(self.done) if n == self.counts[e]]
        cuts = [self.random.randrange(1, 6) for _ in range(3)]
        marks = dict.fromkeys((*began, *through), BEGUN) or {-1: 0}
        self.feed = Feed(self.machine, self.counts, cuts, known=marks)
        self.feed.examples[99] = 0, 0  # the chunk of all that began before
        for e in range(n):
            if e not in through:
                self.done[e] = self.kept[e]
        rows = [[e, FIRST + e, 99, e, self.kept[e], self.counts[e], self.version[e]] for e in began]
        columns = np.array(rows, np.int64).reshape(-1, 7).T
        keys = [(0, f"key {e}") for e in began]
        self.machine.resume(Examples(columns, keys, ()), FIRST, 0)
        self.out, self.heap = {}, {}  # by rank: its batches, and those that it has not asked for
        self.last = {}  # by rank: the batch that it has committed last

    def deal(self, world):
        if world != getattr(self, "world", 0):
            self.lane_of = {}
        self.run += 1
        self.world = world
        first = self.machine.next_turn(0)
        self.machine.deal(self.run, world)
        assert first >= self.machine.next_turn(0)
        self.out = {rank: [] for rank in range(world)}
        self.heap = {rank: [] for rank in range(world)}
        self.saved = dict.fromkeys(range(world), self.machine.next_turn(0))  # turn after the last
        self.examples = {}  # by turn and rank, where a member may come again

    def step(self, rank):
        """Take a rank's next member; else return why there is none."""
        if not self.heap[rank]:
            step = self.feed.step(rank)
            if isinstance(step, Outlook):
                return step
            for plan in step:
                self.check(plan)
                self.heap[plan.batch.slot].append(plan)
            if not self.heap[rank]:
                return self.step(rank)
        plan = min(self.heap[rank], key=lambda plan: plan.batch.turn)
        self.heap[rank].remove(plan)
        after = [one.batch.turn for one in self.out[rank]] or [(0, self.saved[rank][1] - 1)]
        assert plan.batch.turn == (0, after[-1][1] + 1), "each rank gets all rounds in order"
        self.out[rank].append(plan)
        return None

    def check(self, plan):
        batch, rows = plan.batch, self.feed.rows(plan.draft)
        lanes = plan.draft.lanes.tolist()
        assert batch.rows == self.batch_size == len(rows) + batch.empty
        assert len(set(lanes)) == len(rows)
        if self.states == AT_SERVER:
            assert all(one.batch.turn == batch.turn for of in self.out.values() for one in of)
            assert [segment for _, _, segment in rows] == [self.done[e] for _, e, _ in rows]
            assert plan.draft.versions.tolist() == [self.version[e] for _, e, _ in rows]
        for (_, example, _), lane in zip(rows, lanes, strict=True):
            if self.lanes and self.states != AT_TRAINER:
                assert self.lane_of.get(example, (batch.slot, lane)) == (batch.slot, lane)

    def save(self, rank):
        plan = self.out[rank].pop(0)
        token = next(self.tokens)
        counted = self.machine.commit(plan.batch, token)
        assert counted.batch is plan.batch
        lanes = plan.draft.lanes.tolist()
        for (_, example, segment), lane in zip(self.feed.rows(plan.draft), lanes, strict=True):
            self.lane_of[example] = rank, lane
            self.done[example] = max(self.done[example], segment + 1)
            if self.states != AT_TRAINER:
                self.kept[example] = segment + 1
            if self.states == AT_SERVER:
                self.version[example] = token
        self.saved[rank] = 0, plan.batch.turn[1] + 1
        self.last[rank] = plan
        if self.states == AT_TRAINER and self.random.randrange(2):
            places = plan.draft.lanes[self.random.randrange(2) :]
            _, rows, _ = self.machine.keep(plan.batch, places) or (0, np.empty(0, int), 0)
            for row in rows.tolist():
                _, example, segment = self.feed.rows(plan.draft)[row]
                self.kept[example] = segment + 1

    def leave(self, rank):
        """A rank dies and comes back: it gets all that it has not done.

        Batches whose states are here are the same ones; they have no bytes, so they are written.
        """
        if self.states == AT_TRAINER:
            self.machine.leave(rank)
            self.heap[rank].clear()
        elif held := self.out[rank]:
            assert not any(self.machine.returned(plan.batch) for plan in held)
            again = self.feed.step(rank)
            rows = [self.feed.rows(plan.draft) for plan in held]
            assert [self.feed.rows(plan.draft) for plan in again] == rows
            assert [plan.batch.name for plan in again] == [plan.batch.name for plan in held]
            self.heap[rank] += again
        self.out[rank].clear()

    def restart(self):
        """The process dies; ranks claim some of the batches that they have."""
        held = [plan.batch for of in self.out.values() for plan in of]
        held.sort(key=lambda batch: batch.number)
        turns, places = self.machine.turns(), self.machine.places()
        lanes = {} if self.states == AT_TRAINER else places
        kept = self.random.random() < 0.5
        self.start()
        self.machine.resume_turns(turns, lanes)
        self.out = {rank: [] for rank in range(self.world)}
        self.heap = {rank: [] for rank in range(self.world)}
        for batch in held if kept else ():
            mine = Batch(0, batch.number, batch.slot, batch.turn, batch.rows, batch.place)
            mine.empty = batch.empty
            while (possible := self.machine.reclaim(mine)) is None:
                read = self.machine.input.next_read(10**6)
                assert read is not None
                self.feed.answer(read)
            lost = self.states == AT_TRAINER and not possible
            assert possible or lost, "nobody else got anything"
            if possible:
                rows = self.machine._out[mine.name].rows
                self.out[batch.slot].append(type("Plan", (), {"batch": mine, "draft": rows}))

    def some_steps(self, steps):
        for _ in range(steps):
            act = self.random.randrange(24)
            rank = self.random.randrange(self.world)
            if act == 0:
                self.deal(self.random.randrange(1, 4))
            elif act == 1:
                self.restart()
            elif act == 2:
                self.leave(rank)
            elif act < 12 and self.out[rank]:
                self.save(rank)
            else:
                self.step(rank)

    def to_the_end(self):
        ranks = range(self.world)
        while {self.step(rank) for rank in ranks} != {Outlook.ENDED}:
            assert any(self.out.values()), "it waits for nothing but saves"
            for rank in ranks:
                if self.out[rank]:
                    self.save(rank)
        machine = self.machine
        assert not any(self.out.values())
        assert not machine.chunks() and machine.in_flight == 0
        assert len({*self.saved.values()}) == 1, "all have had equally many"
        for plan in self.last.values():
            kept = machine.keep(plan.batch, plan.draft.lanes)
            assert kept is None or not len(kept[1]), "its examples are gone"


@pytest.mark.parametrize("kind", KINDS)
def test_every_segment_comes_once_and_ranks_end_together(kind):
    sizes = st.tuples(st.integers(1, 3), st.integers(1, 3), st.none() | st.integers(0, 4))

    @steadily
    @given(sizes, st.booleans(), COUNTS, st.integers(0, 2**32), st.integers(0, 90))
    def check(sizes, small, counts, seed, steps):
        world = World(kind, sizes, small, counts, seed)
        world.some_steps(steps)
        world.to_the_end()
        dropped = world.machine.dropped()
        assert dropped.keys() <= (set() if small else {"remainder"})
        if small:
            assert world.done == counts

    check()
