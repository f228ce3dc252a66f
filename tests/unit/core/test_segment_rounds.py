"""Ranks get whole rounds of segments in one order, in any order of their requests."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.messages import Following, Handed, Idle, Passed
from headrace_server.core.admitted_examples import AT_SERVER, AT_TRAINER
from headrace_server.core.dispatch_effects import (
    Answer,
    Batch,
    Claim,
    Deal,
    Dealt,
    Freed,
    JoinRefused,
    Leave,
    Send,
    StoreCommit,
    Want,
)
from headrace_server.core.rounds import DealtRounds
from headrace_server.core.segment_rounds import check_rows
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


def test_partitions_get_the_ranks_once_and_are_asked_for_whole_rounds():
    at = Ranks(2, joined=())
    at.rank(0)
    assert at.take() == [Deal(0, 2, RUN, 0), Deal(1, 2, RUN, 0), Want(0, 1)]
    at.rank(1, window=2)
    assert at.take() == [Want(1, 1)]


def test_a_round_goes_out_when_it_is_whole_and_stored():
    at = Ranks()
    at.take()
    at.member(0, 0, 0, 0)
    assert at.take() == []
    at.member(0, 1, 0, 1)
    assert [type(e) for e in at.take()] == [Dealt, Send, Send]


def test_ranks_take_rounds_by_round_and_partition_whichever_comes_first():
    at = Ranks(2, window=3)
    at.take()
    at.round(1, 0, 0)
    at.round(1, 2, 1)
    assert at.sent() == []
    at.round(0, 0, 0)
    assert sorted(at.sent()) == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]
    at.d.partition_ended(0)
    assert sorted(at.sent()) == [(0, 1, 1), (1, 1, 1)]


def test_empty_rows_do_not_count():
    at = Ranks()
    at.round(0, 0, 0)
    at.member(0, 2, 1, 0, empty=2)
    at.sent()
    at.d.save(10, at.tokens[10], "states")
    at.d.stored(0, [(0, "", "")])
    assert at.d.counts["rows"] == 2
    at.member(0, 3, 1, 1)
    at.d.window(10, 2)
    at.sent()
    at.d.save(10, at.tokens[10], "states")
    at.d.stored(0, [(2, "", "")])
    assert at.d.counts["rows"] == 2 and at.d.counts["batches"] == 2


def test_a_rank_that_comes_back_gets_its_member_again_and_no_other():
    at = Ranks()
    at.round(0, 0, 0)
    at.sent()
    at.d.leave(10)
    assert at.take(Leave) == []
    assert "1 ranks have not joined: 0" in at.d.describe(0.0)
    at.rank(0)
    assert at.sent() == [(0, 0, 0)]


def test_states_that_a_trainer_had_alone_are_gone_with_it_and_its_members_are_made_again():
    at = Ranks(2, order="lanes", states="trainer", window=2)
    at.take()
    one, _ = at.round(0, 0, 0)
    two, _ = at.round(1, 0, 0)
    assert len(at.sent()) == 4
    late, _ = at.round(0, 2, 1)
    at.d.leave(10)
    taken = at.take()
    assert [e for e in taken if isinstance(e, Leave)] == [Leave(0, 0, 2), Leave(1, 0, 2)]
    assert {e.batch for e in taken if isinstance(e, Freed)} == {one, two, late}
    crossed = at.member(0, 4, 2, 0)  # of the lanes that it had
    assert [e.batch for e in at.take(Freed)] == [crossed]
    at.rank(0, window=1)
    at.member(1, 2, 0, 0, stripe=2)
    assert at.sent() == [], "round 0 of partition 0 comes first"
    at.member(0, 5, 0, 0, stripe=2)
    assert at.sent() == [(0, 0, 0)]


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


@pytest.mark.parametrize("restarted", [False, True])
def test_all_rounds_of_an_epoch_come_before_those_of_the_next_where_none_crosses_its_border(
    restarted,
):
    at = Ranks(2, joined=())
    if restarted:  # in a life before partition 0 had begun the next epoch
        at.d.started(0, 40, 1 << 32, 1)
        at.d.started(1, 40, 20, 0)
    else:
        at.d.epoch_begun(0, 1, 1 << 32)
    at.rank(0)
    assert at.take(Want) == [Want(1, 1)], "partition 1 is still in epoch 0"
    at.rank(1)
    at.round(1, 0, 0)
    assert sorted(at.sent()) == [(0, 0, 1), (1, 0, 1)]
    at.d.epoch_begun(1, 1, 1 << 32)
    at.d.window(10, 2)
    at.d.window(11, 2)
    assert at.take(Want) == [Want(0, 1)]
    at.round(0, 0, 1 << 32)
    assert sorted(at.sent()) == [(0, 1 << 32, 0), (1, 1 << 32, 0)]


def test_the_partition_whose_turn_it_is_is_asked_although_another_has_a_round():
    at = Ranks(2, joined=())
    at.rank(0)
    at.take()
    at.round(1, 0, 0)
    assert at.take(Send) == []
    at.round(0, 0, 0)
    assert len(at.sent()) == 1


def test_ranks_of_several_owners_get_neither_idle_nor_passed():
    at = Ranks(2, shared=True)
    at.d.starved(0)
    at.d.partition_ended(1)
    assert at.take((Idle, Passed)) == []


def test_a_rank_that_joins_is_told_once_of_which_round_its_next_batch_is():
    at = Ranks(2, shared=True)
    assert at.take(Following) == [Following(10, 0, 0), Following(11, 0, 0)]
    at.round(0, 0, 0), at.sent()
    at.d.leave(11)
    at.rank(1, window=0)
    assert at.take(Following) == [Following(11, 0, 0)]  # the member that came back
    at.d.window(11, 1)
    assert at.sent() == [(1, 0, 0)] and not at.take(Following)
    at.d.save(11, at.tokens[11])
    for ended in ((), (0, 1)):  # all have ended: none comes before the one that would follow
        for partition in ended:
            at.d.partition_ended(partition)
        at.d.leave(11)
        at.rank(1)
        assert at.take(Following) == [Following(11, 0, 1)]


# After a restart


def resumed(*members, next_round=3, partitions=1, **options):
    at = Ranks(partitions, joined=(), term=1, **options)
    at.d.load_rounds(0, DealtRounds(2, RUN, next_round, members))
    return at


def claim(at, rank, round_, token=5):
    place = Handed(token, 0, 3, 2, struct.pack("<qq", round_, rank))
    at.d.claim(10 + rank, place)
    return place


def test_the_same_run_goes_on_and_members_that_are_not_done_come_first():
    at = resumed([2, 1])
    at.rank(0)
    at.rank(1)
    assert at.take() == [Want(0, 1)]
    at.member(0, 0, 2, 1)
    at.round(0, 1, 3)
    assert sorted(at.sent()) == [(0, 3, 0), (1, 2, 0)]


def test_another_run_begins_with_whole_rounds():
    at = resumed([2, 1])
    at.rank(0, run=RUN + 1)
    assert at.take(Deal) == [Deal(0, 2, RUN + 1, 0)]
    at = resumed([2, 1])
    at.join(1)
    assert at.take(Deal) == [Deal(0, 0, 0, 0)]


def test_a_claimed_member_stands_once_it_was_made_again_and_is_not_sent_again():
    at = resumed([2, 1])
    at.rank(1, window=0)
    place = claim(at, 1, 2)
    assert at.take(Claim) == [Claim(0, place)]
    at.d.claimed(5, "yes", 0)
    at.d.save(11, 5, "states")
    assert at.take() == [Want(0, 0)], "no further round"
    at.member(0, 0, 2, 1)
    (save,) = at.take(StoreCommit)
    assert (save.batch.round, save.batch.rank, save.token) == (2, 1, 5)
    at.d.stored(0, [(0, "", "")])
    assert at.take(Answer) == [Answer(11, (5,), ())]
    at.d.window(11, 1)
    at.rank(0)
    at.round(0, 1, 3)
    assert sorted(at.sent()) == [(0, 3, 0), (1, 3, 0)]


def test_a_claimed_member_whose_trainer_leaves_goes_to_the_next_one_of_its_rank():
    at = resumed([2, 1])
    at.rank(1)
    claim(at, 1, 2)
    at.d.claimed(5, "yes", 0)
    at.member(0, 0, 2, 1)
    at.take()
    at.d.leave(11)
    at.round(0, 1, 3)
    at.rank(1)
    assert at.sent() == [(1, 2, 0)]


def test_one_of_two_claims_on_a_member_stands():
    at = resumed([2, 1])
    at.rank(1)
    claim(at, 1, 2)
    claim(at, 1, 2, token=6)
    at.d.claimed(5, "yes", 0)
    at.d.save(11, 5, "states")
    assert at.take(Answer) == [Answer(11, (), (5,))]
    at.d.claimed(6, "yes", 0)
    at.d.save(11, 6, "states")
    at.member(0, 0, 2, 1)
    (save,) = at.take(StoreCommit)
    assert save.token == 6


def test_a_claim_on_a_member_that_is_not_made_again_ends():
    at = resumed([2, 1])
    at.rank(1)
    claim(at, 1, 1)
    at.d.claimed(5, "yes", 0)
    at.d.save(11, 5, "states")
    assert at.take(Answer) == [Answer(11, (), (5,))]
    claim(at, 1, 2, token=6)
    at.d.claimed(6, "yes", 0)
    at.d.partition_ended(0)
    at.d.save(11, 6, "states")
    assert at.take(Answer) == [Answer(11, (), (6,))]


def test_a_member_that_was_made_again_before_its_claim_is_that_claim():
    at = resumed([2, 1], [2, 0])
    at.rank(0)
    waits = at.member(0, 0, 2, 1)
    at.rank(1, window=0)
    claim(at, 1, 2)
    at.d.claimed(5, "yes", 0)
    at.d.window(11, 1)
    at.act()
    assert at.sent() == []
    at.d.save(11, 5, "states")
    (save,) = at.take(StoreCommit)
    assert save.batch is waits


def test_a_claim_that_ends_after_its_rank_has_left_its_lanes_gives_the_member_to_nobody():
    at = resumed([2, 1], order="lanes", states=AT_TRAINER)
    at.rank(1)
    claim(at, 1, 2)
    at.member(0, 0, 2, 1)
    at.d.leave(11)
    at.d.claimed(5, "no", 0)
    at.rank(1)
    at.act()
    assert at.sent() == [], "its states were in the memory of the trainer that has left"
    at.member(0, 1, 2, 1, stripe=2)
    assert at.sent() == [(1, 2, 0)]


def test_a_claim_of_another_rank_or_of_segments_is_none():
    at = resumed([2, 1])
    at.rank(0)
    at.d.claim(10, Handed(5, 0, 3, 2, struct.pack("<qq", 2, 1)))
    at.d.claim(10, Handed(6, 0, 3, 2, b"s" * 24))
    assert at.take(Claim) == []
    at.d.save(10, 5, "states")
    assert at.take(Answer) == [Answer(10, (), (5,))]


def test_a_feed_must_be_able_to_have_a_whole_round_in_flight():
    check_rows(2, 3, None)
    check_rows(2, 3, 6)
    with pytest.raises(JoinRefused, match=r"batch_size=6 examples .* declare capacity=6 or more"):
        check_rows(2, 3, 5)


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


def test_a_rank_that_keeps_states_gets_a_member_that_comes_back_in_lanes_that_begin_anew():
    at = Ranks(order="lanes", states=AT_TRAINER)
    at.round(0, 0, 0)
    assert at.sent() == [(0, 0, 0), (1, 0, 0)]
    at.d.give_back(11, (at.tokens[11],))
    at.d.window(11, 2)
    assert at.take(Leave) == [Leave(0, 1, 2)]
    late = at.tokens[11]
    at.member(0, 2, 0, 1, stripe=2)
    assert at.sent() == [(1, 0, 0)]
    at.d.save(11, late)
    assert at.take(Answer) == [Answer(11, (), (late,))]
    at.d.save(11, at.tokens[11])
    assert at.take(StoreCommit)
