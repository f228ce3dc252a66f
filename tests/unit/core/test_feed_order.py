"""New batches come in the order of (turn, partition), and wait for a missing one."""

import pytest

from headrace_server.core.dispatch_effects import Batch
from headrace_server.core.feed_order import FeedOrder


def test_every_partition_gives_one_batch_in_each_turn():
    s = FeedOrder(range(2))
    for partition, number in [(1, 0), (1, 1), (0, 0), (0, 1)]:
        s.made(Batch(partition, number, 1))
    assert [s.next().order for _ in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert s.next() is None and s.open and s.missing() == (2, 0)


def test_a_batch_that_is_not_there_yet_is_waited_for():
    s = FeedOrder(range(3))
    s.made(Batch(0, 0, 1)), s.made(Batch(2, 0, 1))
    assert s.missing() is None
    assert s.next().order == (0, 0)
    assert s.next() is None and s.missing() == (0, 1)
    s.made(Batch(1, 0, 1))
    assert [s.next().order for _ in range(2)] == [(0, 1), (0, 2)]


@pytest.mark.parametrize("dry", [0, 1, 2])
def test_a_partition_that_has_ended_is_not_waited_for(dry):
    s = FeedOrder(range(3))
    s.made(Batch(dry, 0, 1))
    s.end(dry)
    assert s.open
    for number in range(3):
        for partition in {0, 1, 2} - {dry}:
            s.made(Batch(partition, number, 1))
    orders = []
    while (batch := s.next()) is not None:
        orders.append(batch.order)
    assert orders == sorted(orders) and len(orders) == 7
    assert s.missing() == (3, min({0, 1, 2} - {dry}))
    for partition in range(3):
        s.end(partition)
    assert not s.open and s.missing() is None and s.next() is None


def test_the_last_in_the_turn_may_end_while_it_is_waited_for():
    s = FeedOrder(range(2))
    s.made(Batch(0, 0, 1)), s.made(Batch(0, 1, 1))
    assert s.next().order == (0, 0) and s.next() is None
    s.end(1)
    assert s.missing() is None and s.next().order == (1, 0)


def test_a_batch_out_of_order_is_refused_and_changes_nothing():
    s = FeedOrder(range(1))
    with pytest.raises(ValueError, match="partition 0 made batch 1; next is 0"):
        s.made(Batch(0, 1, 1))
    assert s.missing() == (0, 0)
    s.end(0), s.end(0)
    with pytest.raises(ValueError, match="partition 0 made batch 0; next is nothing"):
        s.made(Batch(0, 0, 1))
    with pytest.raises(ValueError, match="partition 1 is none of those here"):
        s.end(1)
    assert not s.open


def next_of(stream, partition):
    """Return the number of the next batch that a partition can bring."""
    return next(number for number in range(100) if stream.will_make(number, partition))


def test_a_partition_goes_on_where_an_earlier_server_was_and_may_pass_over_what_is_done():
    s = FeedOrder(range(2))
    s.start(0, 5)
    assert s.missing() == (0, 1) and next_of(s, 0) == 5 and next_of(s, 1) == 0
    s.made(Batch(0, 7, 1)), s.made(Batch(0, 8, 1)), s.made(Batch(1, 0, 1))
    assert s.next().order == (0, 1) and s.next() is None
    assert s.missing() == (1, 1) and next_of(s, 0) == 9
    with pytest.raises(ValueError, match="partition 0 made batch 8; next is 9"):
        s.made(Batch(0, 8, 1))
    with pytest.raises(ValueError, match="partition 1 made batch 2; next is 1"):
        s.made(Batch(1, 2, 1))
    s.start(0, 3)
    assert next_of(s, 0) == 9


def test_the_batches_of_a_later_server_are_in_the_same_order_whichever_are_done():
    """Partition 0 is far ahead; some batches of partition 1 are done, and 2 ends amid all."""
    s = FeedOrder(range(3))
    s.start(0, 4), s.start(1, 1), s.start(2, 0)
    for partition, numbers in ((0, (4, 6)), (1, (1, 5, 6)), (2, (0, 2))):
        for number in numbers:
            s.made(Batch(partition, number, 1))
    s.end(2)
    orders = []
    while (batch := s.next()) is not None:
        orders.append(batch.order)
    assert orders == [(0, 2), (1, 1), (2, 2), (4, 0), (5, 1), (6, 0), (6, 1)]
    s.end(0), s.end(1)
    assert not s.open and s.missing() is None


def test_a_batch_is_taken_out_of_its_turn_once_and_the_others_keep_theirs():
    s = FeedOrder(range(2))
    batches = [Batch(0, n, 1) for n in range(3)]
    for batch in batches:
        s.made(batch)
    assert s.pick(1, 0) is batches[1] and s.pick(1, 0) is None and s.pick(0, 1) is None
    s.end(1)
    assert [s.next(), s.next(), s.next()] == [batches[0], batches[2], None]


def test_a_partition_whose_last_batch_was_taken_out_of_its_turn_is_waited_for_no_more():
    s = FeedOrder(range(2))
    s.made(Batch(0, 0, 1))
    s.end(0)
    assert s.pick(0, 0) is not None
    assert s.missing() == (0, 1) and s.open
    s.end(1)
    assert not s.open


def test_batches_not_made_yet_will_be_made_while_the_partition_goes_on():
    s = FeedOrder(range(1))
    s.made(Batch(0, 0, 1))
    assert [s.will_make(n, 0) for n in range(3)] == [False, True, True]
    s.end(0)
    assert not s.will_make(1, 0)


def test_a_stream_of_some_partitions_of_a_feed_takes_turns_among_them_and_refuses_others():
    s = FeedOrder([7, 1, 4])
    for partition in (4, 7, 1):
        s.made(Batch(partition, 0, 1))
    assert next_of(s, 7) == 1
    assert [s.next().order for _ in range(3)] == [(0, 1), (0, 4), (0, 7)]
    assert s.missing() == (1, 1)
    with pytest.raises(ValueError, match=r"partition 2 is none of those here: \[1, 4, 7\]"):
        s.made(Batch(2, 0, 1))
    for partition in (1, 4, 7):
        s.end(partition)
    assert not s.open


# Turns by epoch

EPOCH = 1 << 32


def of_epoch(partition, number, epoch, in_epoch):
    return Batch(partition, number, 1, epoch=epoch, turn=epoch * EPOCH + in_epoch)


def test_all_batches_of_an_epoch_come_before_those_of_the_next():
    """Partition 1 has one batch in each epoch, partition 0 has two."""
    s = FeedOrder(range(2))
    for number in range(4):
        s.made(of_epoch(0, number, *divmod(number, 2)))
    s.made(of_epoch(1, 0, 0, 0))
    assert [s.next().order for _ in range(2)] == [(0, 0), (0, 1)]
    assert s.next().order == (1, 0) and s.next() is None, "it may have another one of this epoch"
    assert (s.following(), s.missing()) == ((1, 1), (1, 1))
    s.made(of_epoch(1, 1, 1, 0))
    assert [s.next().order for _ in range(3)] == [(2, 0), (1, 1), (3, 0)]


def test_a_partition_that_begins_the_next_epoch_keeps_no_other_waiting():
    s = FeedOrder(range(2))
    for number in range(3):
        s.made(of_epoch(0, number, 0, number))
    s.made(of_epoch(1, 0, 0, 0))
    assert [s.next().order for _ in range(3)] == [(0, 0), (0, 1), (1, 0)] and s.next() is None
    s.begin_epoch(1, EPOCH)
    assert s.next().order == (2, 0) and s.next() is None
    s.begin_epoch(0, EPOCH)
    assert (s.following(), s.missing()) == ((EPOCH, 0), (3, 0))


def test_a_partition_goes_on_at_the_turn_where_an_earlier_server_was():
    s = FeedOrder(range(2))
    s.start(0, 7, EPOCH + 2), s.start(1, 9, EPOCH)
    assert s.following() == (EPOCH, 1)
    s.made(of_epoch(1, 9, 1, 0)), s.made(of_epoch(0, 8, 1, 3))
    assert s.next().order == (9, 1) and s.following() == (EPOCH + 1, 1)
    s.end(1)
    assert s.next().order == (8, 0)
