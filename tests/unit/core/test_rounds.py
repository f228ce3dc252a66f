"""A round has one batch of one kind for each rank, and is never changed once it was dealt."""

from headrace_server.core.dispatch_effects import Batch
from headrace_server.core.plain_rounds import PlainRounds
from headrace_server.core.rounds import Rounds


def rounds(world):
    r = PlainRounds()
    assert r.begin_run(1, world) == []
    return r


def batch(number, bucket=None):
    return Batch(0, number, 1, meta={} if bucket is None else {"bucket": bucket})


def test_a_round_is_complete_with_one_batch_of_one_kind_for_each_rank():
    r = rounds(2)
    a, b, c, d = batch(0, 7), batch(1, 8), batch(2, 8), batch(3, 7)
    assert r.add(a) == [] == r.add(b)
    assert r.add(c) == [b, c] and (b.rank, c.rank, b.round, c.round) == (0, 1, 0, 0)
    assert r.add(d) == [a, d] and (a.rank, d.rank, a.round, d.round) == (0, 1, 1, 1)
    assert [r.pop(0, ()), r.pop(0, ()), r.pop(0, ())] == [b, a, None]
    assert [r.pop(1, ()), r.pop(1, ()), r.pop(1, ())] == [c, d, None]


def test_batches_without_buckets_are_all_of_one_kind():
    r = rounds(2)
    first, second = batch(0), batch(1)
    assert r.add(first) == [] and r.add(second) == [first, second]


def test_a_returned_batch_is_the_next_round_of_its_rank_again():
    r = rounds(1)
    batches = [batch(n) for n in range(3)]
    for b in batches:
        r.add(b)
    first, second = r.pop(0, ()), r.pop(0, ())
    r.push(second)
    r.push(first)
    assert [r.pop(0, ()) for _ in range(4)] == [*batches, None]


def test_incomplete_rounds_are_given_up_once():
    r = rounds(3)
    batches = [batch(0, 1), batch(1, 2), batch(2, 1)]
    for b in batches:
        r.add(b)
    assert r.drop() == [batches[0], batches[2], batches[1]] and r.drop() == []
    assert all(b.waits_in is None for b in batches)


def test_all_that_waits_is_given_up_for_another_world_size():
    r = rounds(2)
    batches = [batch(n) for n in range(5)]
    for b in batches:
        r.add(b)
    taken = r.pop(1, ())
    left = r.begin_run(2, 3)
    assert {b.number for b in left} == {0, 2, 3, 4} and taken is batches[1]
    assert all((b.rank, b.round, b.waits_in) == (-1, -1, None) for b in left)


def test_the_rest_of_a_partly_finished_round_is_dealt_anew():
    r = rounds(2)
    batches = [batch(n) for n in range(6)]
    for b in batches:
        r.add(b)
    for rank, done in ((0, 2), (1, 1)):
        for _ in range(done):
            r.settled(r.pop(rank, ()))
    assert r.begin_run(2, 2) == [batches[3]]  # round 0 is done, round 1 half, round 2 untouched
    assert (batches[3].rank, batches[3].round) == (-1, -1)
    assert r.pop(0, ()) is batches[4] and r.pop(1, ()) is batches[5]
    assert r.begin_run(3, 2) == []


def test_rounds_are_of_one_partition_each_and_come_by_round_and_partition():
    """A round of one partition waits until no other can bring one that comes first."""
    r = rounds(2)
    of = [[Batch(p, n, 1) for n in range(4)] for p in range(2)]
    assert r.add(of[1][0]) == [] == r.add(of[0][0])
    assert r.add(of[1][1]) == of[1][:2] and of[1][0].round == 0
    assert r.pop(0, (0, 1)) is None  # round 0 of partition 0 comes first
    assert r.add(of[0][1]) == of[0][:2]
    assert [r.pop(0, (0, 1)) for _ in range(3)] == [of[0][0], of[1][0], None]
    assert r.add(of[1][2]) == [] and r.add(of[1][3]) == of[1][2:]
    assert r.pop(0, (0, 1)) is None and r.pop(0, (1,)) is of[1][2]  # partition 0 is over
    assert [r.pop(1, (1,)) for _ in range(4)] == [of[0][1], of[1][1], of[1][3], None]


def test_no_round_crosses_the_border_of_an_epoch():
    r, later = rounds(2), 1 << 32
    batches = [Batch(0, n, 1, turn=n if n < 3 else later + n - 3) for n in range(5)]
    for b in batches[:3]:
        assert r.begin_epoch(b) == []
        r.add(b)
    assert r.begin_epoch(batches[3]) == [batches[2]] and batches[2].waits_in is None
    assert r.add(batches[3]) == [] and r.begin_epoch(batches[4]) == []
    assert r.add(batches[4]) == batches[3:] and batches[3].round == later
    assert r.pop(0, [1]) is batches[0]
    assert r.pop(0, [1]) is None, "partition 1 may have a round of the epoch before"
    r.begin_at(1, later)
    assert r.pop(0, [1]) is batches[3]


def test_a_rank_gets_what_it_lacks_of_earlier_rounds_first():
    r = Rounds(2)
    for rank in (0, 1):
        member = batch(rank)
        member.round, member.rank = 1, rank
        r.push(member)
        assert r.pass_by(1, member.partition, rank) == (rank == 1) and len(r.queues[rank]) == 1
    r.lacking[7, 0] = 0, 0, 1  # rank 1 lacks its member of round 0
    assert r.pop(0, ()).rank == 0 and r.pop(1, ()) is None
    del r.lacking[7, 0]
    assert r.take(0, 0, 1) is None and r.take(1, 0, 1).rank == 1 and not any(map(len, r.queues))
