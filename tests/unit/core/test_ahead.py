"""Which partition is next, and when none is."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_server.core.ahead import Ahead, bounds


@dataclass
class Run:
    """A partition: the number of its next batch, and how many it may have ahead."""

    next_turn: int = 0
    capacity: int | None = None
    made_ahead: bool = True


def worked(
    ahead: Ahead, running: dict[tuple[str, int], Run], steps: int, seconds: dict[str, float]
) -> list[tuple[str, int]]:
    """Let partitions work in turn, as long as a step of their feed takes; return the turns."""
    turns = []
    for _ in range(steps):
        name = ahead.turn(running, ())
        assert name is not None
        turns.append(name)
        running[name].next_turn += 1
        ahead.worked(name, seconds[name[0]])
    return turns


def test_partitions_whose_batches_are_made_ahead_take_turns_by_number():
    ahead = Ahead(["a"], 99, 1 << 20, 1 << 20)
    running = {("a", 1): Run(3), ("a", 0): Run(2), ("a", 2): Run(4)}
    turns = [part for _, part in worked(ahead, running, 8, {"a": 1})]
    assert turns == [0, 0, 1, 0, 1, 2, 0, 1]


def test_feeds_share_the_time_of_a_worker_and_not_its_batches():
    ahead = Ahead(["a", "b"], 99, 1 << 20, 1 << 20)
    running = {("a", 0): Run(), ("b", 0): Run(10_000)}  # one has been read before
    turns = worked(ahead, running, 55, {"a": 10, "b": 1})
    assert turns.count(("a", 0)) == 5 and turns.count(("b", 0)) == 50
    assert turns[:3] == [("a", 0), ("b", 0), ("b", 0)]


def test_a_feed_that_had_no_work_has_no_claim_to_the_time_of_before():
    ahead = Ahead(["a", "b"], 99, 1 << 20, 1 << 20)
    running = {("a", 0): Run()}
    worked(ahead, running, 1000, {"a": 1})
    running["b", 0] = Run()
    turns = worked(ahead, running, 10, {"a": 1, "b": 1})
    assert turns.count(("a", 0)) == 5


def test_partitions_of_segments_share_the_time_of_their_feed():
    ahead = Ahead(["a"], 99, 1 << 20, 1 << 20)
    running = {("a", 0): Run(10_000, made_ahead=False), ("a", 1): Run(made_ahead=False)}
    turns = worked(ahead, running, 10, {"a": 1})
    assert turns.count(("a", 0)) == turns.count(("a", 1)) == 5


def test_a_feed_that_rests_is_not_looked_through():
    """A worker asks after each message; with 4,096 partitions that would be most of its work."""

    class Counted(dict):
        looks = 0

        def __iter__(self):
            for name in super().__iter__():
                Counted.looks += 1
                yield name

    ahead = Ahead(["a"], 2, 1 << 20, 1 << 20)
    running = Counted({("a", part): Run() for part in range(4096)})
    for part in range(2):
        ahead.made(("a", part), 10)
    assert ahead.turn(running, ()) is None
    assert Counted.looks <= 1


def test_one_that_waits_for_trainers_takes_no_turn():
    ahead = Ahead(["a"], 99, 1 << 20, 1 << 20)
    running = {("a", 0): Run(), ("a", 1): Run(5)}
    assert ahead.turn(running, {("a", 0)}) == ("a", 1)
    assert ahead.turn(running, set(running)) is None
    assert ahead.turn({}, ()) is None


def test_a_feed_with_enough_batches_ahead_rests_until_one_is_taken():
    ahead = Ahead(["a"], 3, 1 << 20, 1 << 20)
    running = {("a", 0): Run()}
    for _ in range(3):
        assert ahead.turn(running, ()) == ("a", 0)
        ahead.made(("a", 0), 1)
    assert ahead.turn(running, ()) is None
    ahead.taken("a")
    assert ahead.turn(running, ()) == ("a", 0)
    ahead.made(("a", 0), 1)
    assert ahead.turn(running, ()) is None


def test_one_that_has_got_far_ahead_rests_until_a_quarter_of_that_was_taken():
    ahead = Ahead(["a"], 8, 100, 1 << 20)
    running = {("a", 0): Run()}
    for _ in range(8):
        ahead.made(("a", 0), 1)
    assert ahead.turn(running, ()) is None
    for turn in (None, ("a", 0)):
        ahead.taken("a")
        assert ahead.turn(running, ()) == turn
    ahead.made(("a", 0), 1)
    assert ahead.turn(running, ()) == ("a", 0), "which makes up for all that was taken"


def test_one_that_has_got_far_ahead_in_bytes_rests_until_a_quarter_of_them_was_taken():
    ahead = Ahead(["a"], 32, 100, 1 << 20)
    running = {("a", 0): Run()}
    for nbytes in (20, 6, 40, 34):
        ahead.made(("a", 0), nbytes)
    assert ahead.turn(running, ()) is None
    for turn in (None, ("a", 0)):
        ahead.taken("a")
        assert ahead.turn(running, ()) == turn


def test_a_feed_with_enough_bytes_ahead_rests_but_two_batches_are_always_allowed():
    ahead = Ahead(["a"], 32, 100, 1 << 20)
    running = {("a", 0): Run()}
    ahead.made(("a", 0), 1000)
    assert ahead.turn(running, ()) == ("a", 0)
    ahead.made(("a", 0), 1000)
    assert ahead.turn(running, ()) is None


def test_several_feeds_share_half_of_the_slab_and_one_that_rests_leaves_turns_to_others():
    ahead = Ahead(["a", "b"], 32, 1 << 20, 400)
    running = {("a", 0): Run(), ("b", 0): Run(7)}
    ahead.made(("a", 0), 99)
    assert ahead.turn(running, ()) == ("a", 0)
    ahead.made(("a", 0), 1)
    assert ahead.turn(running, ()) == ("b", 0)
    ahead.made(("b", 0), 100)
    assert ahead.turn(running, ()) is None


def test_a_partition_at_its_capacity_lets_its_feed_rest_and_no_other():
    ahead = Ahead(["a", "b"], 32, 1 << 20, 1 << 20)
    running = {("a", 0): Run(capacity=1), ("a", 1): Run(3, capacity=1), ("b", 0): Run(9)}
    ahead.made(("a", 1), 1)
    assert ahead.turn(running, ()) == ("a", 0)
    ahead.made(("a", 0), 1)
    assert ahead.turn(running, ()) == ("b", 0)
    ahead.taken("a")
    ahead.taken("a")
    assert ahead.turn(running, ()) == ("a", 0)


def made_until_it_rests(ahead: Ahead, running: dict[tuple[str, int], Run], nbytes: int) -> int:
    count = 0
    while (name := ahead.turn(running, ())) is not None:
        ahead.made(name, nbytes)
        running[name].next_turn += 1
        count += 1
    return count


def test_a_capacity_lets_each_partition_make_as_many_ahead_be_it_fewer_or_more():
    for capacity, partitions in ((1, 2), (5, 1), (32, 2), (33, 1), (200, 1), (200, 3)):
        ahead = Ahead(["a"], 32, 1 << 20, 1 << 30)
        running = {("a", part): Run(capacity=capacity) for part in range(partitions)}
        assert made_until_it_rests(ahead, running, 1) == capacity * partitions
        assert {run.next_turn for run in running.values()} == {capacity}


def test_a_large_capacity_has_bytes_in_proportion_and_a_quarter_of_the_slab_at_most():
    for capacity, slab, bytes_ahead in (
        (16, 1 << 30, 3200),
        (64, 1 << 30, 6400),
        (64, 18000, 4500),
    ):
        assert bounds(capacity, 1, 32, 3200, slab) == (capacity, bytes_ahead)
        ahead = Ahead(["a"], 32, 3200, slab)
        made = made_until_it_rests(ahead, {("a", 0): Run(capacity=capacity)}, 900)
        assert made == min(capacity, -(-bytes_ahead // 900))
    assert bounds(None, 4, 32, 3200, 9000) == (32, 3200)
    ahead = Ahead(["a", "b"], 32, 1 << 20, 400)  # each of several feeds keeps to its share
    assert made_until_it_rests(ahead, {("a", 0): Run(capacity=500)}, 1) == 100


def test_one_with_a_large_capacity_rests_until_a_quarter_of_that_was_taken():
    ahead = Ahead(["a"], 32, 1 << 20, 1 << 30)
    running = {("a", 0): Run(capacity=80)}
    made_until_it_rests(ahead, running, 1)
    for turn in [None] * 19 + [("a", 0)]:
        ahead.taken("a")
        assert ahead.turn(running, ()) == turn


def test_a_partition_that_has_ended_leaves_no_other_waiting_for_ever():
    ahead = Ahead(["a"], 32, 1 << 20, 1 << 30)
    running = {("a", 0): Run(capacity=3), ("a", 1): Run(capacity=3)}
    assert made_until_it_rests(ahead, running, 1) == 6
    del running["a", 0]
    for _ in range(6):
        ahead.taken("a")
    assert made_until_it_rests(ahead, running, 1) == 3
