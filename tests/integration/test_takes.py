"""``feed.take(batch_size=n)``: the original's stream with a size of its own at each take."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S
from tests.unit.core.original_queue import original_stream
from tests.waiting import waits_end_after

from .segment_streams import Ledger, chained, of_counts, save_all
from .serving import connect, kill_worker, serving

_COUNTS = [3, 1, 5, 2, 1, 1, 7, 4, 2, 3, 1, 6, 2]
_SIZES = (5, None, 1, 6, 2, None, 3)


def taken(feed: headrace.Feed, rows: int | None) -> Any:
    """Return the next batch, or None at the end."""
    try:
        return next(feed) if rows is None else feed.take(batch_size=rows)
    except StopIteration:
        return None


def stream(feed: headrace.Feed, ledger: Ledger, sizes: Iterable[int | None]) -> list[Any]:
    """Return insertion index, example and segment of each row of all batches."""
    batches = []
    for rows in sizes:
        batch = taken(feed, rows)
        if batch is None:
            break
        index, numbers = batch.insertion_index.tolist(), batch.context["label"].tolist()
        batches.append(list(zip(index, numbers, batch.sequence.tolist(), strict=True)))
        save_all(batch, ledger.check(batch))
    return batches


@pytest.mark.parametrize("prefetch", [0, "auto"])
@pytest.mark.parametrize("small", [True, False])
def test_the_stream_is_that_of_the_original_with_another_size_at_each_take(prefetch, small):
    examples = of_counts(_COUNTS)
    feed = chained(examples, batch_size=2, capacity=6, allow_small_batch=small)
    ledger = Ledger(examples)
    batches, _, left = original_stream(2, 6, small, _COUNTS, takes=_SIZES)
    with serving(feed) as server:
        with connect(server, prefetch=prefetch) as feed:
            assert stream(feed, ledger, cycle(_SIZES)) == batches
            assert taken(feed, 1) is None
        assert server.wait(PATIENCE_S)
        assert server.dropped == ({"default": {"remainder": left}} if left else {"default": {}})


def test_several_trainers_and_partitions_give_each_segment_once_and_as_many_rows_as_named():
    examples = of_counts(_COUNTS)
    ledger = Ledger(examples)
    feed = chained(examples, batch_size=2, capacity=6)
    with serving(feed, partitions=3) as server:
        with connect(server) as one, connect(server) as other:
            sizes, full = cycle((4, None, 1, 2)), 0
            feeds = [one, other]
            while feeds:
                for trainer in list(feeds):
                    rows = next(sizes)
                    batch = taken(trainer, rows)
                    if batch is None:
                        feeds.remove(trainer)
                        continue
                    assert batch.rows <= (rows or 2)
                    full += batch.rows == rows
                    save_all(batch, ledger.check(batch))
        assert server.wait(PATIENCE_S)
    ledger.assert_complete()
    assert full > 4


def test_a_batch_of_a_trainer_that_leaves_has_its_rows_in_the_next_take_of_another():
    examples = of_counts([2, 2, 2, 2])
    with serving(chained(examples, batch_size=2, capacity=4)) as server:
        with connect(server, prefetch=0) as one:
            assert one.take(batch_size=3).context["label"].tolist() == [0, 1, 2]
            with connect(server, prefetch=0) as other:
                assert other.take(batch_size=1).context["label"].tolist() == [3]
                one.close()
                batch = other.take(batch_size=2)
                assert batch.context["label"].tolist() == [0, 1]
                assert next(other).context["label"].tolist() == [2], "nobody has more"


def test_a_take_whose_deadline_has_passed_is_withdrawn():
    examples = of_counts([3, 3, 1])
    ledger = Ledger(examples)
    with serving(chained(examples, batch_size=1, capacity=2)) as server, connect(server) as feed:
        first = feed.take(batch_size=1)
        with (
            waits_end_after(0.1),
            pytest.raises(headrace.DeadlineExceeded, match="has not saved state 'chain'"),
        ):
            feed.take(batch_size=2)
        save_all(first, ledger.check(first))
        assert feed.take(batch_size=1).context["label"].tolist() == [0]
        assert next(feed).context["label"].tolist() == [1]


def test_a_partition_that_waits_for_states_is_stepped_over_at_each_take():
    """Both partitions wait for states, one for fewer rows: the next take finds the other again."""
    feed = chained(of_counts([3] * 12), batch_size=1, capacity=2)
    with serving(feed, partitions=2) as server, connect(server) as feed:
        hand = [feed.take(batch_size=2), feed.take(batch_size=1)]
        assert [batch.partition for batch in hand] == [0, 1]
        with (
            waits_end_after(0.1),
            pytest.raises(headrace.DeadlineExceeded, match="has not saved"),
        ):
            feed.take(batch_size=2)
        assert feed.take(batch_size=1).partition == 1


def test_a_worker_that_is_killed_between_two_takes_changes_nothing(tmp_path: Path):
    examples = of_counts([4] * 12)
    ledger = Ledger(examples)
    feed = chained(examples, batch_size=2, capacity=4)
    with hs.run(feed, workers=2, state_dir=tmp_path) as server:
        with connect(server) as feed:
            sizes, lives = cycle((3, 1, 4)), [0, 0]
            for number, rows in zip(range(8), sizes, strict=False):
                batch = feed.take(batch_size=rows)
                assert batch.rows == rows
                states = ledger.check(batch)
                if number in (1, 4):
                    worker = batch.partition % 2
                    kill_worker(server, worker, lives[worker])
                    lives[worker] += 1
                save_all(batch, states)
            stream(feed, ledger, sizes)
        assert server.wait(PATIENCE_S)
    ledger.assert_complete()


def test_sizes_that_can_not_be_are_refused_with_the_reason_and_the_feed_goes_on():
    examples = of_counts([1] * 8)
    with serving(chained(examples, batch_size=2, capacity=4)) as server, connect(server) as feed:
        for size in (True, np.True_, 1.0, "2", None, [2]):
            with pytest.raises(TypeError, match=r"batch_size=.* is a \w+; it is an int"):
                feed.take(batch_size=size)
        for size in (0, -1):
            with pytest.raises(ValueError, match=f"batch_size={size} is too small: the least is 1"):
                feed.take(batch_size=size)
        with pytest.raises(ValueError, match="batch_size=5 is more than capacity=4"):
            feed.take(batch_size=5)
        assert feed.take(batch_size=np.int32(4)).rows == 4


def test_a_size_that_the_slab_has_no_room_for_is_refused():
    steps = np.zeros((1, 1 << 16), np.float32)
    examples = [{"key": f"k{i}", "steps": steps} for i in range(3)]
    feed = hs.from_examples(examples).batch_sequences_with_states(
        input_key="key",
        input_sequences=["steps"],
        input_context=[],
        initial_states={"h": hs.zeros((1,), "float32")},
        num_unroll=1,
        batch_size=1,
        capacity=None,
    )
    with serving(feed, slab_bytes=1 << 20) as server, connect(server) as feed:
        with pytest.raises(headrace.LimitExceeded, match=r"batch_size=9 is more than 3: .*slab"):
            feed.take(batch_size=9)
        assert feed.take(batch_size=2).rows == 2


def test_feeds_without_takes_say_why():
    examples = of_counts([2, 2])
    feeds = {
        "plain": hs.from_examples([{"x": np.int32(1)}] * 4).batch(2),
        "lanes": chained(examples, order="lanes", batch_size=1),
        "ranks": chained(examples, batch_size=1),
    }
    with serving(feeds) as server:
        for name, options, why in [
            ("plain", {}, "not of segments; feed.set_batch_size"),
            ("lanes", {}, "a row stays with its sequence"),
            ("ranks", {"rank": 0, "world_size": 1}, "equally many rows in each round"),
        ]:
            with connect(server, feed=name, **options) as feed:
                with pytest.raises(ValueError, match=rf"take\(batch_size=1\): feed .*{why}"):
                    feed.take(batch_size=1)
                assert next(feed).rows >= 1


def test_a_trainer_that_joins_a_feed_of_takes_has_no_batch_made_ahead():
    """A request for a batch of the declared size uses up the rows that takes could get."""
    examples = of_counts([1] * 8)
    feed = chained(examples, batch_size=6, capacity=6, allow_small_batch=False)
    ledger = Ledger(examples)
    with serving(feed) as server:
        with connect(server, prefetch=0) as first:  # which asks for none of the declared size
            got = stream(first, ledger, [3])
        with connect(server) as second:
            second.stats()  # the owner has received all requests
            got += stream(second, ledger, [2, 3])
    assert [len(batch) for batch in got] == [3, 2, 3]


@pytest.mark.parametrize("small", [True, False])
def test_a_server_that_is_started_again_goes_on_and_a_replay_has_the_same_batches(
    tmp_path: Path, small: bool
):
    """Fewer rows than the declared size are left at the restart: the next take still gets them.

    A batch that came ahead of a take went back unused, so the replay is of what was committed.
    """
    examples = of_counts([1, 2, 1, 2, 1, 1, 1])
    ledger = Ledger(examples)
    declared = {"batch_size": 6, "capacity": 6, "allow_small_batch": small}
    batches, _, left = original_stream(6, 6, small, [1, 2, 1, 2, 1, 1, 1], takes=(3, 1, 2))
    assert not left
    got = []
    for steps in (2, 2, 9):
        sizes = [(3, 1, 2)[(len(got) + step) % 3] for step in range(steps)]
        with serving(chained(examples, **declared), state_dir=tmp_path) as server:
            with connect(server) as feed:
                got += stream(feed, ledger, sizes)
    assert got == batches
    with (
        hs.replay(
            tmp_path, chained(examples, **declared), states="initial", committed=True
        ) as server,
        connect(server, prefetch=0) as feed,
    ):
        with pytest.raises(ValueError, match="it is a replay"):
            feed.take(batch_size=1)
        rows = []
        for batch in feed:
            rows.append(batch.context["label"].tolist())
            batch.save_state("chain", batch.state("chain"))
    assert rows == [[example for _, example, _ in batch] for batch in batches]
