"""What is left of dealt rounds goes to the ranks that lack it, in the next life too."""

from __future__ import annotations

from headrace_server.core.handover import Batch, Dealt, Send
from headrace_server.core.keeping import KeepingDispatcher
from headrace_server.core.redealing import Redealing
from headrace_server.core.rounds import Rounds


def dealt(*orders: tuple[int, int]) -> list[Batch]:
    """A round of these batches (number and partition), by rank."""
    rounds, members = Rounds(len(orders)), list[Batch]()
    for number, partition in orders:
        members = rounds.add(Batch(partition, number, 4))
    return members


def test_what_is_dealt_and_not_done_is_told():
    one, members = Redealing(), dealt((0, 0), (1, 0), (2, 0))
    one.dealt(members)
    assert one.told() == [[0, 0, 0, 0], [1, 0, 0, 1], [2, 0, 0, 2]]
    one.settled(members[0])
    assert one.told() == [[1, 0, 0, 1], [2, 0, 0, 2]]


def test_a_batch_that_is_made_again_has_its_round_and_rank_once():
    one = Redealing()
    one.load(3, {0: 5}, [[7, 0, 4, 2]])
    assert one.begun() == {(4, 0): 2} and one.told() == [[7, 0, 4, 2]]
    batch = Batch(0, 7, 4)
    assert one.take(batch) and (batch.round, batch.rank) == (4, 2)
    assert not one.take(Batch(0, 7, 4)) and not one.orders
    assert one.told() == [[7, 0, 4, 2]]


def test_a_rank_waits_for_what_it_had_in_earlier_rounds_and_for_nothing_else():
    one = Redealing()
    one.load(2, {0: 6}, [[7, 0, 4, 1], [9, 0, 5, 0]])
    assert one.waits_for(1, (5, 0)) and not one.waits_for(1, (4, 0))
    assert one.waits_for(1, (4, 1)) and not one.waits_for(0, (5, 0))
    one.ended(0, 8)  # batch 7 will not come
    assert not one.waits_for(1, (5, 0)) and one.orders == [(9, 0)]
    one.ended(0)
    assert not one.orders


def test_what_is_left_of_begun_rounds_can_be_dealt_anew():
    one = Redealing()
    one.load(2, {0: 6}, [[7, 0, 4, 1], [8, 0, 5, 0], [9, 0, 5, 1]])
    one.forget(one.begun())
    assert one.orders == [(8, 0), (9, 0)]
    one.forget()
    assert not one.orders


def sent(one: KeepingDispatcher) -> list[tuple[int, tuple[int, int]]]:
    return [(e.session, e.batch.order) for e in one.take_effects() if isinstance(e, Send)]


def test_an_owner_deals_the_rest_of_a_round_to_the_rank_that_lacks_it():
    """1. Both ranks have a window of one; rank 0 is done with its batch of round 0.
    2. Another owner: batch 1, which rank 1 had and does not hold, goes to rank 1.
    3. Round 1 is dealt after that, from batches 2 and 3.
    """
    one = KeepingDispatcher(range(1), 10.0, 64, 1)
    for rank in (0, 1):
        one.join(rank, 0.0, rank, 2)
        one.window(rank, 1)
    for number in range(2):
        one.made(Batch(0, number, 4))
    effects = one.take_effects()
    assert Dealt() in effects
    assert [(e.session, e.batch.order) for e in effects if isinstance(e, Send)] == [
        (0, (0, 0)),
        (1, (1, 0)),
    ]
    (token,) = [e.token for e in effects if isinstance(e, Send) and e.session == 0]
    one.commit(0, (token,))
    one.kept(0, 0)
    rounds = one.rounds_told()
    assert rounds == (2, [(0, 1)], [[1, 0, 0, 1]])

    two = KeepingDispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(*rounds)
    two.started(0, 1)
    for rank in (0, 1):
        two.join(10 + rank, 0.0, rank, 2)
        two.window(10 + rank, 2)
    for number in (1, 2, 3):
        two.made(Batch(0, number, 4))
    assert sorted(sent(two)) == [(10, (2, 0)), (11, (1, 0)), (11, (3, 0))]


def test_ranks_that_all_begin_anew_go_on_with_the_same_round():
    two = KeepingDispatcher(range(1), 10.0, 64, 2)
    two.load_rounds(2, [(0, 1)], [[1, 0, 0, 1]])
    two.started(0, 1)
    two.paused = True
    for rank in (0, 1):
        two.join(10 + rank, 0.0, rank, 2)
        two.window(10 + rank, 2)
    two.begin_rounds()
    two.paused = False
    for number in (1, 2):
        two.made(Batch(0, number, 4))
    assert sorted(sent(two)) == [(10, (1, 0)), (11, (2, 0))]
