"""Rounds of segments: each rank gets a member, no segment is lost or comes twice, all end together.

``World`` is some ranks that take and save members as chance has it, whose number changes, and a
process that may be started again, beside plain books of how far every example is.
"""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import BEGUN, MemberRows, RoundMembers
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.lane_order import LaneOrder
from headrace_server.shaping.stored_state import Examples
from tests.examples import some

FIRST = -(2**63)
COUNTS = st.integers(0, 30).flatmap(lambda n: st.lists(st.integers(1, 5), min_size=n, max_size=n))
steadily = settings(max_examples=some(300), deadline=None, derandomize=True)


class World:
    def __init__(self, kind, sizes, small, counts, seed):
        self.kind, self.counts, self.random = kind, counts, Random(seed)
        self.batch_size, self.small = sizes[0], small
        self.capacity = None if sizes[2] is None else 3 * sizes[0] + sizes[2]  # for three ranks
        self.done = [0] * len(counts)
        self.kept = [0] * len(counts)  # of states at trainers: those that were flushed
        self.taken = [0] * len(counts)
        self.rows = []  # of the last round, as it is stored
        self.stripe = self.run = 0
        self.start()
        self.deal(sizes[1])

    @property
    def ahead(self):
        return self.kind == "trainer"

    def start(self, begun=()):
        size = self.batch_size, self.capacity, self.small
        arrival = self.kind == "arrival"
        states = "trainer" if self.ahead else "server"
        self.machine = ArrivalOrder(*size) if arrival else LaneOrder(*size, states=states)
        self.at, self.chunk, self.closed = 0, 100, False
        self.begun = set(begun)  # by an earlier process

    def deal(self, world):
        self.run += 1
        self.world = world
        self.machine.deal(world, self.run, self.stripe)
        self.stripe += world
        self.lane_of = {}  # by example: rank and lane
        self.out = {}  # by round and rank
        self.drafted = {}  # by round: ranks
        self.saved = [0] * world  # rounds by rank
        self.rows = []
        self.examples = {}  # by round and rank, where a member may come again

    def offer(self):
        """Another chunk, or the end; False where nothing is wanted now."""
        if self.closed or not (self.machine.hungry or self.at == len(self.counts)):
            return False
        if self.at == len(self.counts):
            self.closed = True
            self.machine.finish()
            return True
        stop = min(len(self.counts), self.at + self.random.randrange(1, 6))
        rows = range(self.at, stop)
        facts = {"key": [f"key {e}" for e in rows], "count": self.counts[self.at : stop]}
        facts["line"] = self.at
        facts["known"] = np.array([BEGUN * (e in self.begun) for e in rows])
        self.machine.offer(self.chunk, len(rows), facts)
        self.chunk, self.at = self.chunk + 1, stop
        return True

    def draft(self):
        self.machine.want(10**6)
        while True:
            batch = self.machine.next_draft()
            if batch is not None:
                return self.check(batch)
            if not self.offer():
                return False

    def check(self, batch):
        member = batch.member
        place = member.round, member.rank
        examples = (batch.indices - FIRST).tolist()
        assert member.size == self.batch_size >= len(examples) and place not in self.out
        assert (
            len(set(batch.lanes.tolist())) == len(batch) and place not in self.machine.members.again
        )
        ranks = self.drafted.setdefault(member.round, set())
        again = member.rank in ranks
        ranks.add(member.rank)
        rows = list(zip(examples, batch.segments.tolist(), strict=True))
        if not self.ahead:
            assert all(at[0] == member.round for at in self.out), "the round before is done"
            assert [segment for _, segment in rows] == [self.done[e] for e in examples]
            assert self.examples.setdefault(place, rows) == rows, "a round never changes"
        for example, segment in rows:
            assert segment <= self.taken[example]
            self.taken[example] = max(self.taken[example], segment + 1)
        if not again and self.kind != "arrival":
            for example, lane in zip(examples, batch.lanes.tolist(), strict=True):
                home = member.rank, lane
                assert self.ahead or self.lane_of.setdefault(example, home) == home
        self.out[place] = batch, rows
        return True

    def save(self, place):
        batch, rows = self.out.pop(place)
        assert self.machine.saved(batch) is not None
        for example, segment in rows:
            self.done[example] = max(self.done[example], segment + 1)
            if not self.ahead:
                self.kept[example] = segment + 1
        self.saved[place[1]] += 1
        if self.ahead and self.random.randrange(2):
            self.keep(batch, rows)

    def keep(self, batch, rows):
        for row in self.machine.keep(batch, np.arange(len(batch))).tolist():
            example, segment = rows[row]
            self.kept[example] = segment + 1

    def leave(self, rank):
        """A rank that has states dies and comes back: it gets the rounds that it has not done."""
        stripe = self.machine.members.stripes[rank]
        held = [at for at in self.out if at[1] == rank]
        for place in held:
            del self.out[place]
        self.machine.leave(stripe, self.stripe)
        self.stripe += 1

    def restart(self):
        """The process dies; the next one goes on with the rounds that it has stored."""
        members = self.machine.members
        left = self.machine.left
        self.rows = members.newest_rows() or self.rows
        stored = [e for e, n in enumerate(self.kept) if 0 < n < self.counts[e]]
        through = [e for e, n in enumerate(self.done) if n == self.counts[e]]
        self.start([*stored, *through])
        numbers = [[e, FIRST + e, 0, e, self.kept[e], self.counts[e]] for e in stored]
        keys = [(0, b"key %d" % e) for e in stored]
        columns = np.array(numbers, np.int64).reshape(-1, 6).T
        self.machine.resume(Examples(columns, keys, ()))
        fresh = RoundMembers(self.world, self.run, self.stripe, self.batch_size)
        fresh.next_round = members.next_round
        fresh.again = dict.fromkeys((at, rank) for at, rank in left)
        rows = {(at, rank): MemberRows.from_plain(row) for at, rank, *row in self.rows}
        self.stripe += self.world
        self.machine.resume_rounds(fresh, rows)
        self.out.clear()

    def some_steps(self, steps):
        for _ in range(steps):
            act = self.random.randrange(24)
            if act == 0:
                self.deal(self.random.randrange(1, 4))
            elif act == 1:
                self.restart()
            elif act == 2 and self.ahead:
                self.leave(self.random.randrange(self.world))
            elif act < 12 and self.out:
                self.save(self.random.choice(sorted(self.out)))
            else:
                self.draft()

    def to_the_end(self):
        while not self.machine.done or self.out:
            if not self.draft() and not (self.machine.done and not self.out):
                assert self.out, "it waits for nothing but saves"
                self.save(self.random.choice(sorted(self.out)))
        machine = self.machine
        assert not machine.chunks() and machine.in_flight == 0 and machine.next_draft() is None
        assert not machine.left and len({*self.saved}) == 1
        assert all(ranks == set(range(self.world)) for ranks in self.drafted.values())


@pytest.mark.parametrize("kind", ["arrival", "lanes", "trainer"])
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
