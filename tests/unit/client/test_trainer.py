"""A trainer asks owners for batches; the simulated world tests what it gets."""

from itertools import count

import pytest

from headrace.feed import EpochEnds, Epochs
from headrace.machine.trainer import Trainer
from headrace_proto.step_messages import Given

TOKENS = count(1)


def trainer(partitions=4, owners=1, **options):
    owner_of = [p % owners for p in range(partitions)]
    one = Trainer(partitions, owner_of, owners, **options)
    for owner in range(owners):
        turns = {p: (0, 0) for p in range(partitions) if owner_of[p] == owner}
        one.welcome(owner, turns, (), options.get("others", 0))
    return one


def asks(one, owner=0):
    """Return the partitions that it asks an owner for."""
    return [(request, p) for request, p, _ in sent(one, owner)[3]]


def sent(one, owner=0):
    return one.outgoing(owner) if one.due(owner) else ([], [], [], [])


def give(one, request, partition, index, owner=0, epoch=0, **facts):
    given = Given(request, next(TOKENS), partition, index, epoch, index, 0, 2, 0, **facts)
    one.give(owner, given, None)
    return given.token


def test_requests_gather_until_half_of_the_prefetch_is_free():
    one = trainer(1, prefetch=8)
    for request, _ in asks(one):
        give(one, request, 0, request - 1)
    for _ in range(3):
        one.take()
        assert not asks(one)
    one.take()
    assert len(asks(one)) == 4


def test_a_loop_with_as_many_batches_or_commits_as_it_may_have_gets_no_more():
    one = trainer(1, prefetch=4)
    one.bound(2)
    assert len(asks(one)) == 2
    tokens = [give(one, request, 0, request) for request in (1, 2)]
    assert one.take() and one.take()
    assert one.take() is None and not asks(one) and not one.stuck
    assert all(map(one.commit, tokens))
    assert sent(one) and not asks(one), "their answers are to come first"
    one.answer(tokens[:1])
    assert len(asks(one)) == 3


def test_a_rank_whose_batch_another_has_is_out_of_step():
    for rank in (-1, 0):
        one = trainer(1, rank=rank)
        ((request, _), *_) = asks(one)
        token = give(one, request, 0, 0)
        assert one.take()
        one.welcome(0, {0: (0, 1)}, [token])
        assert one.torn == (rank == 0) and not one.commit(token)


def test_a_loop_that_waits_sends_little_while_requests_are_under_way():
    one = trainer(1, prefetch=8, lazy=True)
    assert one.take() is None
    asked = asks(one)
    assert len(asked) == 9
    give(one, 1, 0, 0)
    one.commit(one.take().given.token)
    assert one.take() is None and not one.any_due
    for request, _ in asked[1:]:
        give(one, request, 0, request - 1)
    assert [one.take() is None for _ in asked] == [False] * 8 + [True]
    assert one.any_due, "nothing is under way"


def test_an_owner_that_others_overtake_has_one_open_request():
    one = trainer(2, owners=2, prefetch=4, any_order=True)
    assert [asks(one, owner) for owner in range(2)] == [[(1, 0), (3, 0)], [(2, 1), (4, 1)]]
    asked = [2, 4]
    for at in range(7):  # owner 0 is slow
        give(one, asked.pop(0), 1, at, owner=1)
        assert one.take().given.partition == 1
        assert not asks(one, 0)
        asked += [request for request, _ in asks(one, 1)]
    assert len(asked) >= 4, "the other one has the whole prefetch"


def test_the_loop_of_a_rank_that_holds_what_it_waits_for_is_stuck():
    one = trainer(1, rank=0, prefetch=1)
    ((request, _),) = asks(one)
    token = give(one, request, 0, 0)
    one.take()
    ((request, _),) = asks(one)
    assert one.take() is None and not one.stuck
    one.idle(0, [request])
    assert one.take() is None and one.stuck and token in one.hands


def test_the_loop_of_a_rank_that_has_taken_nothing_is_not_stuck():
    """It waits until other ranks commit, and only then takes its own prefetched batch."""
    one = trainer(2, prefetch=1, rank=0, explicit=True)
    assert one.take() is None
    (first, _), (second, other) = asks(one)
    give(one, second, other, 0)
    one.idle(0, [first])
    assert one.take() is None and one.hands and not one.stuck


def test_what_was_asked_beyond_need_is_withdrawn():
    one = trainer(6, prefetch=1)
    requests = []
    while (one.take() is None) and (asked := asks(one)):
        requests += asked
        one.idle(0, [request for request, _ in asked])
    assert len(requests) == 6
    for request, p in requests[:4]:
        give(one, request, p, 0)
    _, _, withdrawn, _ = sent(one)
    assert withdrawn == [request for request, _ in requests[4:]]
    given = Given(requests[4][0], next(TOKENS), 4, 0, 0, 0, 0, 2, 0)
    assert not one.give(0, given, None)  # it was on its way
    assert sent(one)[1] == [given.token]


def test_a_commit_of_lanes_is_not_awaited_while_an_earlier_batch_is_in_hand():
    one = trainer(1, prefetch=2, lanes=True)
    tokens = [give(one, request, 0, request - 1) for request, _ in asks(one)]
    for _ in tokens:
        one.take()
    sent(one)
    assert one.commit(tokens[1])
    assert [held.given.token for held in sent(one)[0]] == tokens[1:]
    assert not one.unanswered(0)
    assert one.commit(tokens[0])
    assert one.unanswered(0) == 2


def test_trainers_begin_at_partitions_far_apart():
    firsts = []
    for others in range(4):
        one = Trainer(16, [0] * 16, 1)
        one.welcome(0, dict.fromkeys(range(16), (0, 0)), (), others)
        firsts.append(asks(one)[0][1])
    assert firsts == [0, 9, 3, 13]


def test_a_batch_that_went_back_while_the_trainer_was_away_comes_before_later_ones():
    one = trainer(2, rank=0, prefetch=3)
    for request, p in asks(one)[:2]:
        give(one, request, p, 0)
    one.take()
    stale = next(token for token, held in one.hands.items() if not held.taken)
    one.lost(0)
    held, _, gets = one.greeting(0)
    assert len(held) == 2 and gets == [(3, 0, 0)]
    one.welcome(0, {0: (0, 1), 1: (0, 0)}, [stale])
    for request, p in [(3, 0), *asks(one)]:
        give(one, request, p, 1 if p == 0 else 0)
    assert [one.take().given.partition for _ in range(2)] == [1, 0]


def test_a_batch_that_was_given_back_comes_before_later_epochs():
    """1. All of epoch 0 is asked for, and over; 2. its only batch goes back; 3. all comes."""
    one = trainer(2, prefetch=6)
    assert asks(one) == [(1, 0), (2, 1), (3, 0), (4, 1), (5, 0), (6, 1)]
    token = give(one, 2, 1, 0)
    for request, p in [(1, 0), (3, 0), (5, 0), (4, 1)]:
        one.over(0, request, p, 0)
    assert (7, 0) in asks(one)
    one.give_back(token)
    give(one, 7, 0, 0, epoch=1)
    assert one.take() is None
    for request, p, epoch in sent(one)[3]:
        give(one, request, p, 0, epoch=epoch)
    assert [one.take().turn for _ in range(2)] == [(0, 0), (1, 0)]


def test_an_epoch_goes_on_while_a_batch_of_it_is_here_that_the_loop_has_not_taken():
    """An owner may give the end of one epoch and the beginning of the next at once."""
    one = trainer(1, prefetch=2)
    assert len(asks(one)) == 2
    give(one, 1, 0, 0)
    give(one, 2, 0, 0, epoch=1)
    assert one.least == 1 and one.next_epoch == 0
    epochs = Epochs(one, finished=False)
    assert epochs.number == 0 and epochs.begin()
    epochs.none_yet()  # its batch is there
    first = one.take()
    assert epochs.within(first)
    with pytest.raises(EpochEnds):
        epochs.within(one.take())


def test_a_trainer_that_waits_for_an_epoch_takes_no_more_of_the_next():
    """Another trainer holds the end of the epoch, maybe for long."""
    one = trainer(2, prefetch=0)
    assert one.take() is None
    ((request, p),) = asks(one)
    one.idle(0, [request])
    ((request, other),) = asks(one)
    one.over(0, request, other, 0)
    ((request, _),) = asks(one)
    give(one, request, other, 0, epoch=1)
    assert one.take() is None and not asks(one)
    one.over(0, 1, p, 0)
    assert one.take().given.partition == other


@pytest.mark.parametrize("rank", [-1, 0])
def test_a_batch_that_the_loop_can_not_read_comes_again_before_later_ones(rank: int):
    """Its server has ended, and the loop had mapped none of that memory yet."""
    one = trainer(2, prefetch=3, rank=rank)
    for request, p in asks(one):
        give(one, request, p, request // 3)
    first, unread = one.take(), one.take()
    assert (first.given.partition, unread.given.partition) == (0, 1)
    one.give_back(unread.given.token)
    assert one.take() is None, "a later batch was taken before it"
    for request, p in asks(one):
        give(one, request, p, p ^ 1)
    assert [one.take().given.partition for _ in range(2)] == [1, 0]


def test_an_epoch_that_was_over_before_its_batch_went_back_is_not():
    """1. The owner has given all; 2. a batch goes back, and with it a request is withdrawn; 3. the
    answers come to that request, and to those at another partition."""
    one = trainer(2, prefetch=4)
    assert asks(one) == [(1, 0), (2, 1), (3, 0), (4, 1)]
    one.give_back(give(one, 2, 1, 0))
    assert sent(one)[2:] == ([4], [(5, 1, 0), (6, 1, 0)])
    one.over(0, 4, 1, 0)
    for request in (1, 3):
        one.over(0, request, 0, 0, also=[1])
    assert one.least == 0
    give(one, 5, 1, 0)
    assert one.take().turn == (0, 0)
    one.over(0, 6, 1, 0)
    assert one.least == 1


def test_a_batch_that_its_owner_gave_before_it_had_an_earlier_one_back_goes_back_too():
    """1. A request is withdrawn, and asked anew; 2. the owner has given a batch for each."""
    one = trainer(1, prefetch=1)
    assert asks(one) == [(1, 0)]
    one.let_go()
    assert sent(one)[2:] == ([1], [(2, 0, 0)])
    tokens = [give(one, 1, 0, 0), give(one, 2, 0, 1)]
    _, returned, _, gets = sent(one)
    assert returned == tokens and gets == [(3, 0, 0)]
    give(one, 3, 0, 0)
    assert one.take().turn == (0, 0)
    ((request, _),) = asks(one)
    give(one, request, 0, 2)  # another trainer has the one before
    assert one.take().turn == (0, 2)


@pytest.mark.parametrize("rank", [-1, 0])
def test_nothing_is_taken_before_a_batch_that_is_to_come_again(rank: int):
    one = trainer(2, owners=2, prefetch=4, rank=rank)
    assert [asks(one, owner) for owner in (0, 1)] == [[(1, 0), (3, 0)], [(2, 1), (4, 1)]]
    give(one, 1, 0, 0)
    stale = give(one, 2, 1, 0, owner=1)
    give(one, 3, 0, 1)
    assert one.take().given.partition == 0
    one.lost(1)
    one.greeting(1)
    one.welcome(1, {1: (0, 0)}, [stale])
    assert one.take() is None  # before it is asked for again
    for owner in (1, 0):
        ((again, p), *_) = asks(one, owner)
        give(one, again, p, owner ^ 1, owner=owner)
    assert [one.take().turn for _ in range(2)] == [(0, 0), (0, 1)]


def test_lanes_of_another_partition_wait_until_all_of_those_before_are_taken():
    one = trainer(2, prefetch=1, lanes=True)
    one.take()
    assert asks(one) == [(1, 0), (2, 0)]
    one.idle(0, [1, 2])
    assert asks(one) == [(3, 1), (4, 1)]
    give(one, 3, 1, 0, live=True)
    assert one.take().turn == (0, 0)
    give(one, 4, 1, 1, live=False)
    give(one, 1, 0, 0, live=True)  # another trainer has left
    assert [one.take().given.partition for _ in range(2)] == [1, 0]


def test_lanes_go_on_where_a_batch_was_let_go_though_later_ones_are_of_another_partition():
    one = trainer(3, prefetch=4, lanes=True)
    first, *others = [request for request, _ in asks(one)]
    give(one, first, 0, 0, live=True)
    give(one, others[0], 0, 1, live=False)
    one.idle(0, others[1:])
    give(one, asks(one)[0][0], 1, 0, live=True)
    assert one.take().turn == (0, 0)
    one.let_go()
    one.take()
    again = asks(one)
    assert {p for _, p in again} == {0}
    give(one, again[0][0], 0, 1, live=False)
    assert one.take().given.partition == 0


def test_a_batch_of_lanes_that_comes_too_late_goes_back_with_those_after_it():
    """The owner gave both before it learned that the first request was withdrawn."""
    one = trainer(2, lanes=True, prefetch=0)
    assert one.take() is None and asks(one) == [(1, 0)]
    one.idle(0, [1])
    assert asks(one) == [(2, 1)]
    give(one, 2, 1, 0, live=False)
    assert one.take().given.partition == 1
    assert one.take() is None and sent(one)[2:] == ([1], [(3, 1, 0)])
    one.over(0, 3, 1, 0)
    assert one.take() is None and sent(one)[2:] == ([], [(4, 0, 0)])
    late = give(one, 1, 0, 0, live=True)
    assert sent(one)[1:] == ([late], [4], [(5, 0, 0)])
    give(one, 4, 0, 1, live=True)
    assert one.take() is None and not one.any_due, "it is void, and its request was withdrawn"
    give(one, 5, 0, 0, live=True)
    assert one.take().turn == (0, 0)


def test_a_batch_of_lanes_that_goes_back_takes_those_after_it_along():
    one = trainer(1, lanes=True, prefetch=3)
    requests = [request for request, _ in asks(one)]
    first, *_ = [give(one, request, 0, at, live=True) for at, request in enumerate(requests[:2])]
    assert one.take().turn == (0, 0)
    one.give_back(first)
    _, returned, withdrawn, again = sent(one)
    assert returned == [first] and withdrawn == requests[2:] and len(again) == 3
    assert not one.hands and give(one, requests[2], 0, 2, live=True)
    assert not one.hands and give(one, again[0][0], 0, 0, live=True)
    assert one.take().turn == (0, 0)


def test_a_loop_asks_for_no_more_before_it_takes_what_it_waits_for():
    one = trainer(1, prefetch=0)
    assert one.take() is None and asks(one) == [(1, 0)]
    give(one, 1, 0, 0)
    assert not one.any_due and one.take()
