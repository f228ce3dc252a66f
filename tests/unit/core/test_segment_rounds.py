"""Ranks get whole rounds of segments in one order, in any order of their requests."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.admitted_examples import AT_SERVER, AT_TRAINER
from headrace_server.core.dispatch_effects import (
    Batch,
    Deal,
    Freed,
    Send,
    Want,
)
from tests.examples import some

from .at_segments import At
from .careless_world import World as CarelessWorld
from .rank_world import World

RUN = 9


class Ranks(At):
    def __init__(self, partitions=1, world=2, joined=(0, 1), window=1, **options):
        super().__init__(partitions, **options)
        self.world = world
        for rank in joined:
            self.rank(rank, window)

    def rank(self, rank, window=1, run=RUN):
        """The trainer of a rank has session 10 + rank."""
        self.d.join(10 + rank, 0.0, rank, self.world, run)
        self.d.window(10 + rank, window)
        self.act()

    def member(self, partition, number, at, rank, stripe=None, empty=0):
        meta = {"round": at, "rank": rank, "stripe": rank if stripe is None else stripe}
        batch = Batch(partition, number, 2, "bytes", {**meta, "empty": empty})
        self.d.made(batch)
        return batch

    def round(self, partition, number, at):
        return [self.member(partition, number + rank, at, rank) for rank in range(self.world)]

    def sent(self):
        """Session, round and partition of each batch that was sent; tokens by session."""
        sends = self.take(Send)
        self.tokens = {e.session: e.token for e in sends}
        return [(e.session - 10, e.batch.round, e.batch.partition) for e in sends]


def test_other_ranks_and_trainers_without_begin_anew():
    at = Ranks()
    batches = at.round(0, 0, 0)
    at.d.leave(10)
    at.d.leave(11)
    at.take()
    at.world = 3
    at.rank(2, run=RUN + 1)
    taken = at.take()
    assert [e for e in taken if isinstance(e, Deal)] == [Deal(0, 3, RUN + 1, 2)]
    assert {e.batch for e in taken if isinstance(e, Freed)} == set(batches)
    stale = at.member(0, 2, 0, 0)
    assert [e.batch for e in at.take(Freed)] == [stale]
    at.d.leave(12)
    at.join(1, window=1)
    assert at.take() == [Deal(0, 0, 0, 5), Want(0, 1)]
    crossed = at.make(0, 3)
    assert [e.batch for e in at.take(Freed)] == [crossed]
    at.make(0, 4, stripe=5)
    assert [e.batch.number for e in at.take(Send)] == [4]


# After a restart


# Anything


def test_ranks_end_together_through_deaths_and_crossing_messages():
    """Owners die and come back, ranks too, and other numbers of ranks go on."""

    @settings(max_examples=some(150), deadline=None, derandomize=True)
    @given(
        st.lists(st.lists(st.integers(1, 4), max_size=9), min_size=1, max_size=3),
        st.sampled_from(["arrival", "lanes"]),
        st.booleans(),
        st.integers(1, 3),
        st.integers(0, 2**32),
        st.integers(0, 400),
    )
    def check(counts, order, small, world, seed, steps):
        ranks = World(seed, counts, order, small, world)
        ranks.some_steps(steps)
        ranks.to_the_end()
        for partition in ranks.partitions:
            dropped = sum(partition.machine.dropped().values())
            assert not (small and dropped)
            assert not small or partition.next == partition.counts

    check()


@settings(max_examples=some(60), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.lists(st.integers(1, 4), max_size=9), min_size=1, max_size=2),
    kind=st.sampled_from([("arrival", AT_SERVER), ("lanes", AT_SERVER), ("lanes", AT_TRAINER)]),
    small=st.booleans(),
    ranks=st.integers(0, 2),
    shared=st.booleans(),
)
def test_nothing_that_trainers_do_ends_the_owner_or_keeps_the_feed_from_its_end(
    seed, counts, kind, small, ranks, shared
):
    world = CarelessWorld(seed, counts, *kind, small, ranks, shared)
    for _ in range(world.random.randrange(250)):
        world.step()
    world.to_the_end()
