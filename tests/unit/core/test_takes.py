"""Batches of sizes that trainers name: their trainers, and the fate of all other batches."""

from itertools import count, cycle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_proto.messages import Handed, Idle, Passed
from headrace_server.core.arrival_order import ArrivalOrder
from headrace_server.core.dispatch_effects import BeginEpoch, Release, Send, Want
from tests.examples import some

from .at_segments import At, lanes
from .original_queue import original_stream
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


def test_a_take_is_asked_of_no_partition_that_has_ended_or_judges_claims():
    at = At(3, term=1)
    at.join(1)
    at.d.partition_ended(0)
    at.d.claim(1, Handed(5, 1, 3, 2, b"s" * 24))
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(2, 4, 1)]
    at.d.claimed(5, "no", 0)
    at.d.starved(2)
    assert orders(at) == [Want(1, 4, 1)]


def test_a_take_is_asked_of_another_partition_where_the_one_that_was_asked_ends():
    at = At(2)
    at.join(1)
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, 4, 1)]
    at.d.partition_ended(0)
    assert orders(at) == [Want(1, 4, 1)]


def test_a_take_that_crosses_the_border_of_an_epoch_is_asked_of_partitions_of_the_next():
    at = At(2, across_batches=False)
    at.d.started(0, 0)
    at.d.started(1, 0)
    at.join(1)
    at.take()
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, 4, 1)]
    at.d.epoch_rests(0, 0)
    assert orders(at) == [Want(1, 4, 1)], "partition 0 makes no more in this epoch"
    at.d.epoch_rests(1, 0)
    assert at.take(BeginEpoch | Want) == [BeginEpoch(0), BeginEpoch(1), Want(0, 4, 1)]


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
    assert at.take(Want) == [Want(0, 1)]
    at.make(0, 3)
    at.d.take(2, 2, 1, 1)
    assert orders(at) == [Release(0, 3), Want(0, 1, 2)], "it has not received the last one"
    at.d.leave(2)
    assert orders(at) == [Release(0, 2), Want(0, 0, 2)]
    at.d.partition_ended(0)
    assert at.d.ended


def test_a_take_that_is_sent_again_while_its_batch_is_on_its_way_is_the_same():
    """A connection is lost: the trainer repeats its request, and the owner the batch."""
    at = At()
    at.join(1)
    at.d.take(1, 7, 5, 0)
    at.make(0, 0, stripe=1, rows=5)
    (send,) = at.take(Send)
    at.d.resend(1, 0)
    at.d.take(1, 7, 5, 0)
    assert at.take() == [send]
    assert at.d.holds(1, send.token)


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
    assert orders(at) == [Want(0, 1)]


def test_no_more_is_granted_than_a_trainer_may_hold():
    at = At(max_window=1)
    (token,) = at.sent((0, 0), window=1)
    at.d.take(1, 1, 4, 1)
    at.make(0, 1, stripe=1, rows=4)
    assert at.take(Send) == []
    at.d.save(1, token)
    assert [send.seq for send in at.take(Send)] == [2]


def test_a_trainer_is_notified_of_an_ended_partition_and_asks_again():
    at = At(2, shared=True)
    at.join(1)
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, 4, 1)]
    at.d.partition_ended(0)
    assert at.take() == [Passed(1, 1, 0)]
    at.d.take(1, 2, 4, 1)
    assert at.take() == [Want(1, 4, 2)]


def test_a_batch_of_another_size_is_none_of_those_that_others_asked_for():
    at = At()
    at.join(1, 2)
    at.d.take(1, 1, 4, 0)
    at.d.window(2, 2)
    assert orders(at) == [Want(0, 4, 1), Want(0, 2)]
    at.make(0, 0, stripe=1, rows=4)
    assert orders(at) == [] and at.d.describe(0).endswith("batch 1 of partition 0 is being made")
    at.d.window(2, 3)
    assert orders(at) == [Want(0, 1)]


def test_requests_made_before_a_take_are_withdrawn_also_where_they_cross_the_batch():
    """A batch that was asked for before and comes after the take would lack saves since then."""
    at = At()
    at.join(1, 2)
    at.d.window(1, 2)
    assert orders(at) == [Want(0, 2)]
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, -2), Want(0, 4, 1)]
    at.make(0, 0)
    assert orders(at) == [Release(0, 0)]
    at.make(0, 1, stripe=1, rows=4)
    assert len(at.take(Send)) == 1
    at.d.window(1, 2)
    assert orders(at) == [Want(0, 1)]
    at.d.leave(1)
    assert orders(at) == [Release(0, 1), Want(0, -1)]


def test_a_take_does_not_withdraw_requests_of_other_trainers():
    at = At()
    at.join(1, 2)
    at.d.window(1, 1)
    at.d.window(2, 1)
    assert orders(at) == [Want(0, 2)]
    at.d.take(1, 1, 4, 0)
    assert orders(at) == [Want(0, -1), Want(0, 4, 1)]
    at.make(0, 0)
    assert [send.session for send in at.take(Send)] == [2]


def test_a_partition_makes_no_batch_that_is_withdrawn():
    queue = ArrivalOrder(2, None, False)
    queue.offer(0, 5, {"key": [*range(5)], "count": np.full(5, 1)})
    queue.finish()
    queue.want(2)
    queue.want(0)
    queue.want(5, 1)
    assert len(queue.next_draft()) == 5


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
        self.requested = {}  # by session: its last request
        self.rarer = [self.take, self.take, self.withdraw]

    def take(self, session):
        rows = self.random.randint(1, self.most)
        self.requested[session] = request = next(self.requests)
        self.d.take(session, request, rows, self.trainers[session].got)
        self.act()

    def withdraw(self, session):
        request = self.requested.pop(session, None)
        if request is not None:
            self.d.take(session, request, 0, 0)
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
def test_for_any_sizes_of_takes_every_segment_is_stored_once_and_the_feed_ends(
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


class Taker(World):
    """A world of one trainer, whose messages cross the batch that its partition makes.

    A partition begins no step before its words have come and their orders are carried out, as in
    an owner.
    """

    def some(self, steps):
        (worker,) = self.workers
        for _ in range(self.random.randrange(steps)):
            worker.store(self.random.randrange(3))
            while worker.words or worker.orders:
                self.word(worker) if worker.words else worker.obey()
            worker.work()

    def next(self, session, request, rows):
        """The next batch, as a trainer takes it: it returns what is of no or of another take."""
        trainer = self.trainers[session]
        if rows is None:
            self.d.window(session, trainer.got + 1)
        else:
            self.d.take(session, request, rows, trainer.got)
        self.act()
        while not trainer.ended:
            self.some(9)
            while trainer.wire:
                effect = trainer.wire[0]
                self.receive(session)
                batch = trainer.hands.get(effect.token)
                if effect.batch.meta.get("take", 0) == (request if rows else 0):
                    assert batch is effect.batch
                    return batch
                trainer.hands.pop(effect.token, None)
                self.d.give_back(session, (effect.token,))
                self.act()
        return None

    def rows_of(self, batch):
        indices = np.frombuffer(batch.body, np.int64, batch.rows)
        segments = np.frombuffer(batch.body, np.int32, batch.rows, 8 * batch.rows)
        return [*zip(indices.tolist(), segments.tolist(), strict=True)]


@settings(max_examples=some(300), deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    counts=st.lists(st.integers(1, 4), max_size=16),
    size=st.integers(1, 3),
    ahead=st.integers(0, 2),
    small=st.booleans(),
    sizes=st.lists(st.one_of(st.none(), st.integers(1, 6)), max_size=5),
)
def test_one_trainer_gets_the_original_stream_also_where_its_messages_cross(
    seed, counts, size, ahead, small, sizes
):
    if not small:  # what batches of the declared size leave is dropped before the first take
        counts = [*counts, *[1] * (6 + size * (ahead + 1))]
    sizes = [2, *sizes]
    batches, _, left = original_stream(size, 6, small, counts, takes=sizes)
    world = Taker(seed, [counts], "arrival", False, size, 6, small)
    session = world.join()
    world.d.window(session, ahead)
    world.act()
    world.some(30)
    got = []
    for request, rows in zip(count(1), cycle(sizes), strict=False):
        batch = world.next(session, request, rows)
        if batch is None:
            break
        got.append(world.rows_of(batch))
        world.save(session)
        world.some(9)
    assert got == [[(index, segment) for index, _, segment in batch] for batch in batches]
    assert sum(world.workers[0].machine.dropped().values()) == left
