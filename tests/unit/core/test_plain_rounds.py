"""Remaining batches of dealt rounds go to the ranks that lack them, in the next life too."""

from __future__ import annotations

import pytest

from headrace_proto.messages import Handed
from headrace_server.core.dispatch import Dispatcher
from headrace_server.core.dispatch_effects import Answer, Batch, Dealt, Send
from headrace_server.core.plain_rounds import PlainRounds
from headrace_server.core.rounds import DealtRounds


def loaded(*before: DealtRounds) -> PlainRounds:
    one = PlainRounds()
    for partition, dealt in enumerate(before):
        one.load(partition, dealt)
    return one


def test_dealt_and_unfinished_batches_are_stored():
    one, members = PlainRounds(), list[Batch]()
    one.begin_run(1, 3)
    for number in range(3):
        members = one.add(Batch(0, number, 4))
    assert one.dealt_of(0) == DealtRounds(3, 1, 1, [[0, 0, 0], [1, 0, 1], [2, 0, 2]])
    one.settled(members[0])
    assert one.dealt_of(0).members == [[1, 0, 1], [2, 0, 2]] and not one.dealt_of(1).members


def test_a_batch_that_is_made_again_has_its_round_and_rank_once():
    one = loaded(DealtRounds(3, 1, 5, [[7, 4, 2]]))
    assert one.begin_run(1, 3) == [] and one.next_round == {0: 5}
    assert one.dealt_of(0) == DealtRounds(3, 1, 5, [[7, 4, 2]])
    batch = Batch(0, 7, 4)
    assert one.made(batch) and (batch.round, batch.rank) == (4, 2)
    assert not one.made(Batch(0, 7, 4)) and not one.lacking
    assert one.dealt_of(0).members == [[7, 4, 2]]
    assert one.pick(batch.order) is None
    one.push(batch)
    assert one.pick(batch.order) is batch and not len(one.queues[2])


def test_batches_that_will_not_come_are_lacked_by_no_rank():
    one = loaded(DealtRounds(2, 1, 6, [[7, 4, 1], [9, 5, 0]]))
    one.forget_lacking(0, 8)
    assert [*one.lacking] == [(9, 0)]
    one.forget_lacking(0)
    assert not one.lacking


def test_unfinished_rounds_are_forgotten_where_another_run_begins():
    """Partition 1 was stored after the last run had begun there, partition 0 before."""
    before = DealtRounds(2, 1, 6, [[7, 4, 1], [8, 5, 0], [9, 5, 1]])
    one = loaded(before, DealtRounds(2, 2, 3, [[3, 2, 0]]))
    assert one.loaded
    assert one.begin_run(2, 2) == [] and one.next_round == {0: 6, 1: 3}
    assert [*one.lacking] == [(8, 0), (9, 0), (3, 1)] and not one.loaded
    one.begin_run(3, 2)
    assert [*one.lacking] == [(8, 0), (9, 0)]
    one.begin_run(3, 3)
    assert not one.lacking


def test_nothing_is_kept_for_another_number_of_ranks():
    one = loaded(DealtRounds(2, 1, 6, [[8, 5, 0], [9, 5, 1]]))
    assert one.begin_run(2, 3) == [] and one.next_round == {} and not one.lacking


def sent(one: Dispatcher) -> list[tuple[int, tuple[int, int]]]:
    return [(e.session, e.batch.order) for e in one.take_effects() if isinstance(e, Send)]


def test_an_owner_deals_the_rest_of_a_round_to_the_rank_that_lacks_it():
    """1. Both ranks have a window of one; rank 0 is done with its batch of round 0.
    2. Another owner: batch 1, which rank 1 had and does not hold, goes to rank 1.
    3. Round 1 is dealt after that, from batches 2 and 3.
    """
    one = Dispatcher(range(1), 10.0, 64, 1)
    for rank in (0, 1):
        one.join(rank, 0.0, rank, 2)
        one.window(rank, 1)
    for number in range(2):
        one.made(Batch(0, number, 4))
    effects = one.take_effects()
    assert effects[0] == Dealt((0,))
    assert [(e.session, e.batch.order) for e in effects if isinstance(e, Send)] == [
        (0, (0, 0)),
        (1, (1, 0)),
    ]
    (token,) = [e.token for e in effects if isinstance(e, Send) and e.session == 0]
    one.commit(0, (token,))
    one.stored(0, [(0, "", "")])
    rounds = one.rounds_dealt(0)
    assert rounds == DealtRounds(2, 0, 1, [[1, 0, 1]])

    two = Dispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(0, rounds)
    two.started(0, 1)
    for rank in (0, 1):
        two.join(10 + rank, 0.0, rank, 2)
        two.window(10 + rank, 2)
    for number in (1, 2, 3):
        two.made(Batch(0, number, 4))
    assert sorted(sent(two)) == [(10, (2, 0)), (11, (1, 0)), (11, (3, 0))]


@pytest.mark.parametrize("made_before", range(4))
def test_batches_made_before_a_rank_is_back_have_their_rounds_and_ranks(made_before: int):
    """The next life makes some or all of its batches while no rank has greeted it."""
    two = Dispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(0, DealtRounds(2, 0, 2, [[1, 0, 1], [2, 1, 0], [3, 1, 1]]))
    two.started(0, 1)

    def make(numbers: range) -> None:
        for number in numbers:
            two.made(Batch(0, number, 4))

    make(range(1, 1 + made_before))
    if made_before == 3:
        two.partition_ended(0)
    for rank in (0, 1):
        two.join(10 + rank, 0.0, rank, 2)
        two.window(10 + rank, 2)
    make(range(1 + made_before, 4))
    assert sorted(sent(two)) == [(10, (2, 0)), (11, (1, 0)), (11, (3, 0))]


@pytest.mark.parametrize("rank_is_there", [True, False])
def test_a_rank_that_comes_after_its_batch_is_made_again_has_it_still(rank_is_there: bool):
    """Its batch of round 0 is in its hands since the life before; round 1 was not handed out."""
    two = Dispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(0, DealtRounds(2, 0, 2, [[1, 0, 1], [2, 1, 0], [3, 1, 1]]))
    two.started(0, 1)
    if rank_is_there:
        two.join(10, 0.0, 0, 2)
    for number in (1, 2, 3):
        two.made(Batch(0, number, 4))
    if not rank_is_there:
        two.join(10, 0.0, 0, 2)
    two.join(11, 0.0, 1, 2)
    two.claim(11, Handed(77, 0, 1, 4))
    two.claimed(77, "yes", 1)
    for rank in (0, 1):
        two.window(10 + rank, 2)
    assert sorted(sent(two)) == [(10, (2, 0)), (11, (3, 0))]
    two.commit(11, (77,))
    two.stored(0, [(1, "", "")])
    assert [e for e in two.take_effects() if isinstance(e, Answer)] == [Answer(11, (77,), ())]


def test_a_rank_does_not_wait_for_a_dealt_batch_that_is_not_made_again():
    two = Dispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(0, DealtRounds(2, 0, 2, [[1, 0, 1], [3, 1, 1]]))
    two.started(0, 1)
    two.made(Batch(0, 3, 4))
    for rank in (0, 1):
        two.join(10 + rank, 0.0, rank, 2)
        two.window(10 + rank, 2)
    assert sent(two) == [(11, (3, 0))]


def test_another_run_goes_on_with_the_same_round_on_all_ranks():
    """Rank 0 has committed round 0; then it and the owner die, before rank 1 commits."""
    two = Dispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(0, DealtRounds(2, 7, 1, [[1, 0, 1]]))
    two.started(0, 1)
    for rank in (0, 1):
        two.join(10 + rank, 0.0, rank, 2, 8)
        two.window(10 + rank, 2)
    for number in (1, 2):
        two.made(Batch(0, number, 4))
    assert sorted(sent(two)) == [(10, (1, 0)), (11, (2, 0))]
    assert two.rounds_dealt(0) == DealtRounds(2, 8, 2, [[1, 1, 0], [2, 1, 1]])


def test_a_run_that_begins_is_stored_before_it_is_given_what_was_dealt_before():
    """Else a rank could be done with a round of it, which the next life would take for begun
    by trainers of the run before.
    """
    one = Dispatcher(range(2), 10.0, 64, 1)
    for run in (1, 2):
        one.join(run, 0.0, 0, 1, run)
        assert one.take_effects() == [Dealt((0, 1))]
        assert one.rounds_dealt(1) == DealtRounds(1, run, 0, [])
        one.leave(run)
