"""Batches of sizes that trainers name: who gets them, and what becomes of all others."""

from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.core.handover import Idle, Passed, Release, Send, Want
from tests.examples import some

from .at_segments import At, lanes
from .segment_world import World

COUNTS = st.lists(st.lists(st.integers(1, 4), max_size=12), min_size=1, max_size=3)


def orders(at):
    return at.take(Want | Release)


def test_a_take_is_asked_of_one_partition_and_its_batch_goes_to_its_trainer_alone():
    at = At(2)
    at.join(1, 2)
    at.d.take(1, 7, 5, 0)
    assert orders(at) == [Want(0, 5, 1)]
    at.d.take(1, 7, 5, 0)
    assert orders(at) == [], "it was sent again"
    at.d.window(2, 1)
    assert orders(at) == [Want(1, 1)]
    at.make(0, 0, stripe=1, rows=5)
    (send,) = at.take(Send)
    assert (send.session, send.seq, send.batch.rows, send.batch.meta) == (1, 1, 5, {"take": 7})
    at.d.take(1, 8, 3, 1)
    assert orders(at) == [Want(0, 3, 2)], "one that was made counts for nobody's window"


def test_a_starved_partition_keeps_a_take_until_another_has_made_its_batch():
    at = At(2)
    at.join(1)
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, 4, 1)]
    at.d.starved(0)
    assert orders(at) == [Want(1, 4, 1)]
    at.make(1, 0, stripe=1, rows=4)
    assert at.take(Send | Want)[0] == Want(0, 0, 1)
    at.make(0, 0, stripe=1, rows=4)
    assert at.take(Send | Want | Release) == [Release(0, 0)], "both have made it"


def test_a_starved_partition_is_asked_for_fewer_rows_where_no_other_is_left():
    at = At(2, shared=True)
    at.join(1)
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, 4, 1)]
    at.d.starved(0)
    assert orders(at) == [Want(1, 4, 1)]
    at.d.starved(1)
    assert at.take() == [Idle(1, 0)]
    at.d.take(1, 2, 1, 0)
    assert orders(at) == [Want(0, 0, 1), Want(1, 0, 1), Want(0, 1, 2)]


def test_a_take_lets_go_of_what_came_ahead_and_of_what_waits_for_anybody():
    at = At()
    at.sent((0, 0), (0, 1), window=2)
    at.d.leave(1)
    at.join(2)
    at.d.take(2, 1, 3, 0)
    assert orders(at) == [Release(0, 0), Release(0, 1), Want(0, 3, 1)]
    at.make(0, 2, stripe=1, rows=3)
    assert len(at.take(Send)) == 1
    at.d.window(2, 2)
    assert at.take(Want) == [Want(0, 4)]
    at.make(0, 3)
    at.d.take(2, 2, 1, 1)
    assert orders(at) == [Release(0, 3), Want(0, 1, 2)], "it has not received the last one"
    at.d.leave(2)
    assert orders(at) == [Release(0, 2), Want(0, 0, 2)]
    at.d.partition_ended(0)
    assert at.d.ended


def test_a_take_that_is_withdrawn_is_not_granted():
    at = At()
    at.join(1)
    at.d.paused = True
    at.d.take(1, 1, 4, 0)
    assert orders(at) == []
    at.d.paused = False
    assert orders(at) == [Want(0, 4, 1)]
    at.d.paused = True
    at.make(0, 0, stripe=1, rows=4)
    assert at.take(Send) == []
    at.d.take(1, 2, 0, 0)
    assert orders(at) == [], "that is another one"
    at.d.take(1, 1, 0, 0)
    assert orders(at) == [Release(0, 0)]
    at.d.paused = False
    assert at.take(Send) == []
    at.d.window(1, 1)
    assert orders(at) == [Want(0, 2)]


def test_no_more_is_granted_than_a_trainer_may_hold():
    at = At(max_window=1)
    (token,) = at.sent((0, 0), window=1)
    at.d.take(1, 1, 4, 1)
    at.make(0, 1, stripe=1, rows=4)
    assert at.take(Send) == []
    at.d.save(1, token)
    assert [send.seq for send in at.take(Send)] == [2]


def test_who_asks_is_told_of_a_partition_that_is_over_and_asks_again():
    at = At(2, shared=True)
    at.join(1)
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, 4, 1)]
    at.d.partition_ended(0)
    assert at.take() == [Passed(1, 1, 0)]
    at.d.take(1, 2, 4, 1)
    assert at.take() == [Want(1, 4, 2)]


def test_a_want_that_crossed_a_batch_of_another_size_is_sent_again():
    at = At()
    at.join(1, 2)
    at.d.take(1, 1, 4, 0)
    at.d.window(2, 2)
    assert orders(at) == [Want(0, 4, 1), Want(0, 2)]
    at.make(0, 0, stripe=1, rows=4)
    assert orders(at) == [Want(0, 3)]


def test_lanes_ranks_and_plain_feeds_have_no_takes():
    for at in (lanes(), At(order="")):
        at.join(1)
        with pytest.raises(ValueError, match="in the order of arrival"):
            at.d.take(1, 1, 4, 0)


class Takers(World):
    """A world whose trainers name sizes, too."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.most = arguments[5] or 5
        self.requests = count(1)
        self.rarer = [self.take, self.take, self.withdraw]

    def take(self, session):
        rows = self.random.randint(1, self.most)
        self.d.take(session, next(self.requests), rows, self.trainers[session].got)
        self.act()

    def withdraw(self, session):
        take = self.d._supply.takes.get(session)
        if take is not None:
            self.d.take(session, take.request, 0, 0)
        self.act()


@settings(max_examples=some(200), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    counts=COUNTS,
    size=st.integers(1, 3),
    tight=st.booleans(),
    small=st.booleans(),
    deaths=st.booleans(),
)
def test_whatever_sizes_trainers_name_every_segment_is_kept_once_and_the_feed_ends(
    seed, counts, size, tight, small, deaths
):
    world = Takers(seed, counts, "arrival", False, size, size if tight else None, small)
    world.storm(200, deaths)
    world.settle()
    world.finish()
    for worker, own in zip(world.workers, counts, strict=True):
        done = [worker.stored.get(e, (0, 0, 0, 0))[3] for e in range(len(own))]
        assert done == worker.next
        assert sum(done) + sum(worker.machine.dropped().values()) == sum(own)
        assert not small or done == own
