"""Which partition is next, and when none is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from headrace_server.core.dispatch_effects import Batch
from headrace_server.core.feed_order import FeedOrder
from headrace_server.core.partition_turns import PartitionTurns, bounds


@dataclass
class Run:
    """A partition: the number of its next batch, and how many it may have ahead."""

    next_turn: int = 0
    capacity: int | None = None
    made_ahead: bool = True


class Bench(PartitionTurns):
    """The bounds of a worker, and the streams of its feeds."""

    def __init__(self, feeds: list[str], *bounded: int) -> None:
        super().__init__(feeds, *bounded)
        self._streams = {feed: FeedOrder(range(4)) for feed in feeds}
        self._numbers: Counter[tuple[str, int]] = Counter()
        for feed, stream in self._streams.items():
            self.follow(feed, stream)

    def made(self, name: tuple[str, int], nbytes: int) -> None:
        """Let a partition make a batch, which nobody takes."""
        batch = Batch(name[1], self._numbers[name], 1, nbytes=nbytes)
        self._numbers[name] += 1
        self._streams[name[0]].made(batch)

    def taken(self, name: tuple[str, int]) -> None:
        """Let a trainer take the oldest batch of a partition."""
        stream, (_, partition) = self._streams[name[0]], name
        first = self._numbers[name] - stream.of(partition)
        assert stream.pick(first, partition) is not None


def opened(feeds: list[str], *bounded: int, running: dict[tuple[str, int], Run]) -> Bench:
    """Return the bounds of a worker with these partitions open."""
    ahead = Bench(feeds, *bounded)
    for name, run in running.items():
        ahead.open(name, run)
    return ahead


def worked(
    ahead: PartitionTurns,
    running: dict[tuple[str, int], Run],
    steps: int,
    seconds: dict[str, float],
) -> list[tuple[str, int]]:
    """Let partitions work in turn, as long as a step of their feed takes; return the turns."""
    turns = []
    for _ in range(steps):
        name = ahead.turn()
        assert name is not None
        turns.append(name)
        running[name].next_turn += 1
        ahead.worked(name, seconds[name[0]], 1)
    return turns


def test_partitions_whose_batches_are_made_ahead_take_turns_by_number():
    running = {("a", 1): Run(3), ("a", 0): Run(2), ("a", 2): Run(4)}
    ahead = opened(["a"], 99, 1 << 20, 1 << 20, running=running)
    turns = [part for _, part in worked(ahead, running, 8, {"a": 1})]
    assert turns == [0, 0, 1, 0, 1, 2, 0, 1]


def test_feeds_share_the_time_of_a_worker_and_not_its_batches():
    running = {("a", 0): Run(), ("b", 0): Run(10_000)}  # one has been read before
    ahead = opened(["a", "b"], 99, 1 << 20, 1 << 20, running=running)
    turns = worked(ahead, running, 55, {"a": 10, "b": 1})
    assert turns.count(("a", 0)) == 5 and turns.count(("b", 0)) == 50
    assert turns[:3] == [("a", 0), ("b", 0), ("b", 0)]


def test_a_feed_that_had_no_work_has_no_claim_to_the_time_of_before():
    running = {("a", 0): Run()}
    ahead = opened(["a", "b"], 99, 1 << 20, 1 << 20, running=running)
    worked(ahead, running, 1000, {"a": 1})
    running["b", 0] = Run()
    ahead.open(("b", 0), running["b", 0])
    turns = worked(ahead, running, 10, {"a": 1, "b": 1})
    assert turns.count(("a", 0)) == 5


def test_a_feed_with_batches_that_nobody_takes_comes_after_one_whose_trainers_may_wait():
    running = {("a", 0): Run(), ("b", 0): Run()}
    ahead = opened(["a", "b"], 99, 1 << 20, 1 << 20, running=running)
    ahead.made(("a", 0), 1)
    assert {name for name, _ in worked(ahead, running, 5, {"b": 1})} == {"b"}
    ahead.made(("b", 0), 1)
    assert ahead.turn() == ("a", 0), "which has worked less"
    ahead.taken(("b", 0))
    assert ahead.turn() == ("b", 0)


def test_where_the_partition_that_comes_first_is_far_enough_ahead_another_feed_has_the_turn():
    running = {("a", 0): Run(0, 1), ("a", 1): Run(5, 1), ("b", 0): Run()}
    ahead = opened(["a", "b"], 99, 1 << 20, 1 << 20, running=running)
    for name in (("a", 0), ("b", 0)):
        ahead.made(name, 1)
    ahead.worked(("b", 0), 5, 1)
    assert ahead.turn() == ("b", 0)


def test_partitions_of_segments_make_batches_one_after_another():
    running = {("a", 0): Run(10_000, made_ahead=False), ("a", 1): Run(made_ahead=False)}
    ahead = opened(["a"], 99, 1 << 20, 1 << 20, running=running)
    for _ in range(3):  # it reads until it can make one
        assert ahead.turn() == ("a", 0)
        ahead.worked(("a", 0), 1, 0)
    turns = worked(ahead, running, 10, {"a": 1})
    assert turns == [("a", 0), ("a", 1)] * 5


def test_partitions_of_feeds_that_rest_are_not_looked_through():
    """A worker asks after each message; with 4,096 partitions that would be most of its work."""

    class Watched(Run):
        looks = 0

        def __getattribute__(self, name):
            if name == "next_turn":
                Watched.looks += 1
            return super().__getattribute__(name)

    running = {(feed, part): Watched() for feed in ("a", "b") for part in range(2048)}
    ahead = opened(["a", "b"], 2, 1 << 20, 1 << 20, running=running)
    for name in (("a", 0), ("a", 1), ("b", 0)):
        ahead.made(name, 10)
    assert ahead.turn() == ("b", 0) and Watched.looks == 2048
    ahead.made(("b", 0), 10)
    assert ahead.turn() is None and Watched.looks == 2048


def test_one_that_waits_for_trainers_takes_no_turn():
    running = {("a", 0): Run(), ("a", 1): Run(5)}
    ahead = opened(["a"], 99, 1 << 20, 1 << 20, running=running)
    ahead.wait(("a", 0))
    assert ahead.turn() == ("a", 1) and not ahead.at_rest
    ahead.wait(("a", 1))
    assert ahead.turn() is None and ahead.at_rest
    assert list(ahead.waiting) == [("a", 0), ("a", 1)]
    for _ in range(2):  # a call for one that does not wait changes nothing
        ahead.wake(("a", 0))
        assert ahead.turn() == ("a", 0) and list(ahead.waiting) == [("a", 1)]
    ahead.end(("a", 0))
    ahead.wake(("a", 0))
    assert ahead.turn() is None


def test_a_feed_with_enough_batches_ahead_rests_until_one_is_taken():
    running = {("a", 0): Run()}
    ahead = opened(["a"], 3, 1 << 20, 1 << 20, running=running)
    for _ in range(3):
        assert ahead.turn() == ("a", 0)
        ahead.made(("a", 0), 1)
    assert ahead.turn() is None
    ahead.taken(("a", 0))
    assert ahead.turn() == ("a", 0)
    ahead.made(("a", 0), 1)
    assert ahead.turn() is None


def test_one_that_has_got_far_ahead_rests_until_a_quarter_of_that_was_taken():
    running = {("a", 0): Run()}
    ahead = opened(["a"], 8, 100, 1 << 20, running=running)
    for _ in range(8):
        ahead.made(("a", 0), 1)
    assert ahead.turn() is None
    for turn in (None, ("a", 0)):
        ahead.taken(("a", 0))
        assert ahead.turn() == turn
    ahead.made(("a", 0), 1)
    assert ahead.turn() == ("a", 0), "which makes up for all that was taken"


def test_one_that_has_got_far_ahead_in_bytes_rests_until_a_quarter_of_them_was_taken():
    running = {("a", 0): Run()}
    ahead = opened(["a"], 32, 100, 1 << 20, running=running)
    for nbytes in (20, 6, 40, 34):
        ahead.made(("a", 0), nbytes)
    assert ahead.turn() is None
    for turn in (None, ("a", 0)):
        ahead.taken(("a", 0))
        assert ahead.turn() == turn


def test_a_feed_with_enough_bytes_ahead_rests_but_two_batches_are_always_allowed():
    running = {("a", 0): Run()}
    ahead = opened(["a"], 32, 100, 1 << 20, running=running)
    ahead.made(("a", 0), 1000)
    assert ahead.turn() == ("a", 0)
    ahead.made(("a", 0), 1000)
    assert ahead.turn() is None


def test_several_feeds_share_half_of_the_slab_and_one_that_rests_leaves_turns_to_others():
    running = {("a", 0): Run(), ("b", 0): Run(7)}
    ahead = opened(["a", "b"], 32, 1 << 20, 400, running=running)
    ahead.made(("a", 0), 99)
    ahead.made(("b", 0), 1)
    assert ahead.turn() == ("a", 0)
    ahead.made(("a", 0), 1)
    assert ahead.turn() == ("b", 0)
    ahead.made(("b", 0), 99)
    assert ahead.turn() is None


def test_a_partition_at_its_capacity_lets_its_feed_rest_and_no_other():
    running = {("a", 0): Run(capacity=1), ("a", 1): Run(3, capacity=1), ("b", 0): Run(9)}
    ahead = opened(["a", "b"], 32, 1 << 20, 1 << 20, running=running)
    ahead.made(("a", 1), 1)
    ahead.made(("b", 0), 1)
    assert ahead.turn() == ("a", 0)
    ahead.made(("a", 0), 1)
    assert ahead.turn() == ("b", 0)
    ahead.taken(("a", 1))
    ahead.taken(("a", 0))
    assert ahead.turn() == ("a", 0)


def test_a_feed_whose_first_partition_is_at_its_capacity_leaves_its_turn_to_another_feed():
    running = {("a", 0): Run(capacity=1), ("a", 1): Run(3, capacity=1), ("b", 0): Run(9)}
    ahead = opened(["a", "b"], 32, 1 << 20, 1 << 20, running=running)
    ahead.made(("a", 0), 1)  # the other one may make its batch only after it
    ahead.made(("b", 0), 1)
    assert ahead.turn() == ("b", 0)


def made_until_it_rests(ahead: Bench, running: dict[tuple[str, int], Run], nbytes: int) -> int:
    count = 0
    while (name := ahead.turn()) is not None:
        ahead.made(name, nbytes)
        running[name].next_turn += 1
        count += 1
    return count


def test_a_capacity_lets_each_partition_make_as_many_ahead_be_it_fewer_or_more():
    for capacity, partitions in ((1, 2), (5, 1), (32, 2), (33, 1), (200, 1), (200, 3)):
        running = {("a", part): Run(capacity=capacity) for part in range(partitions)}
        ahead = opened(["a"], 32, 1 << 20, 1 << 30, running=running)
        assert made_until_it_rests(ahead, running, 1) == capacity * partitions
        assert {run.next_turn for run in running.values()} == {capacity}


def test_a_large_capacity_has_bytes_in_proportion_and_a_quarter_of_the_slab_at_most():
    for capacity, slab, bytes_ahead in (
        (16, 1 << 30, 3200),
        (64, 1 << 30, 6400),
        (64, 18000, 4500),
    ):
        assert bounds(capacity, 1, 32, 3200, slab) == (capacity, bytes_ahead)
        running = {("a", 0): Run(capacity=capacity)}
        ahead = opened(["a"], 32, 3200, slab, running=running)
        made = made_until_it_rests(ahead, running, 900)
        assert made == min(capacity, -(-bytes_ahead // 900))
    assert bounds(None, 4, 32, 3200, 9000) == (32, 3200)
    running = {("a", 0): Run(capacity=500)}
    ahead = opened(["a", "b"], 32, 1 << 20, 400, running=running)  # each keeps to its share
    assert made_until_it_rests(ahead, running, 1) == 100


def test_one_with_a_large_capacity_rests_until_a_quarter_of_that_was_taken():
    running = {("a", 0): Run(capacity=80)}
    ahead = opened(["a"], 32, 1 << 20, 1 << 30, running=running)
    made_until_it_rests(ahead, running, 1)
    for turn in [None] * 19 + [("a", 0)]:
        ahead.taken(("a", 0))
        assert ahead.turn() == turn


def test_a_partition_that_has_ended_leaves_no_other_waiting_for_ever():
    running = {("a", 0): Run(capacity=3), ("a", 1): Run(capacity=3)}
    ahead = opened(["a"], 32, 1 << 20, 1 << 30, running=running)
    assert made_until_it_rests(ahead, running, 1) == 6
    ahead.end(("a", 0))
    for taken in range(6):
        ahead.taken(("a", taken % 2))
    assert made_until_it_rests(ahead, running, 1) == 3
