"""A trainer reads the counts of its whole feed, and changes the sizes of its batches."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import eventually
from tests.unit.shaping.original_queue import original_stream

from .segment_streams import Ledger, chained, connect, of_counts, save_all
from .serving import in_segments, kill_worker, pid_of

ROWS = [{"i": i, "n": i % 5} for i in range(60)]


def sequences(counts: list[int], **options: object) -> hs.Pipeline:
    examples = [{"key": f"k{i}", "x": np.arange(2 * n)} for i, n in enumerate(counts)]
    return in_segments(hs.from_examples(examples), **options)


def test_segments_are_counted_as_a_barrier_counts_them():
    with (
        hs.run(sequences([3, 1, 2], capacity=3)) as server,
        connect(server) as feed,
    ):
        first = next(feed)
        assert first.key.tolist() == [b"00000_of_00003:k0", b"00000_of_00001:k1"]
        # k0 is out, with two segments to come; k2 is ready, with one.  k1 has left its place.
        assert feed.stats() == {"ready": 1, "incomplete": 3, "in_flight": 2}
        first.save_state("s", first.state("s"))
        feed.commit()
        assert feed.stats() == {"ready": 2, "incomplete": 2, "in_flight": 2}
        for batch in feed:
            batch.save_state("s", batch.state("s"))
        assert feed.stats() == {"ready": 0, "incomplete": 0, "in_flight": 0}


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_of_other_feeds_are_counted_over_all_partitions(workers):
    """Each of two partitions has 30 of 60 rows: 6 rows of each bucket, in batches of 4."""
    feeds = hs.from_examples(ROWS).bucket("n", 4, 5, capacity=2)
    with hs.run(feeds, workers=workers, partitions=2) as server, connect(server) as feed:
        batch = next(feed)
        stats = feed.stats()
        assert stats["in_flight"] == 1 and 0 <= stats["ready"] <= 5
        while stats["ready"] < 4:  # batches are made meanwhile
            stats = feed.stats()
        del batch
        assert stats == {"ready": 4, "incomplete": 60 - 4 * 5, "in_flight": 1}
        assert sum(batch.rows for batch in feed) == 36, "each partition drops two of each bucket"
        assert feed.stats() == {"ready": 0, "incomplete": 0, "in_flight": 0}


NUMBERS = hs.from_examples([{"i": i, "n": i % 3, "y": i % 2} for i in range(800)])


def test_a_schema_has_no_size_of_batches_once_that_was_changed():
    with hs.run(NUMBERS.batch(5)) as server, connect(server) as feed, connect(server) as other:
        next(feed)
        assert feed.schema["i"].shape == (5,)
        feed.set_batch_size(np.int32(3))
        assert feed.schema["i"].shape == (None,) and other.schema["i"].shape == (5,)
        with connect(server) as late:
            assert late.schema["i"].shape == (None,), "a later trainer knows"


@pytest.mark.parametrize("sizes", [[2, 7, 4], (2, 7, 4), np.array([2, 7, 4]), range(2, 5), 6])
def test_buckets_have_a_size_each(sizes):
    each = [sizes] * 3 if isinstance(sizes, int) else list(map(int, sizes))
    pipeline = NUMBERS.bucket("n", np.array([5, 5, 5]), 3, capacity=1)
    with hs.run(pipeline) as server, connect(server) as feed:
        next(feed)
        since = feed.set_batch_size(sizes)[0]
        for batch in feed:
            assert batch.rows == (5 if batch.number < since else each[batch.bucket])


def all_made(server: hs.Server, feed: str) -> bool:
    return all(partition["done"] for partition in server.stats()[feed]["partitions"])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_wrong_change_is_refused_as_such_when_all_batches_are_made(workers):
    few = hs.from_examples([{"i": i, "y": i % 2} for i in range(8)])
    feeds = {"plain": few.batch(2), "classes": few.stratified_sample_unknown_dist("y", [1, 0], 2)}
    with hs.run(feeds, workers=workers, partitions=2) as server:
        for name in feeds:
            with connect(server, feed=name) as feed:
                next(feed)
                eventually(partial(all_made, server, name))
                with pytest.raises(ValueError, match="there are 2 sizes; the feed has one"):
                    feed.set_batch_size([4, 4])
                with pytest.raises(ValueError, match="all batches of the feed were made before"):
                    feed.set_batch_size(4)
                targets = "sums to 1.1" if name == "classes" else "0 stages with target proportions"
                with pytest.raises(ValueError, match=targets):
                    feed.set_target_probs([0.5, 0.6])
        with (
            connect(server, feed="classes") as feed,
            pytest.raises(ValueError, match="all batches of the feed were made before"),
        ):
            feed.set_target_probs([0.5, 0.5])


_COUNTS = [3, 1, 5, 2, 1, 1, 7, 4, 2, 3, 1, 6, 2]


def rows_of(batch: Any) -> list[tuple[int, int, int]]:
    """Return insertion index, example and segment of each row."""
    index, example = batch.insertion_index.tolist(), batch.context["label"].tolist()
    return list(zip(index, example, batch.sequence.tolist(), strict=True))


def stream(server: hs.Server, ledger: Ledger, sizes: Any, **options: Any) -> list[Any]:
    """Change the size before each batch; return the rows of all batches."""
    batches = []
    with connect(server, prefetch=0, **options) as feed:
        for size in sizes:
            feed.set_batch_size(size)
            batch = next(feed)
            batches.append(rows_of(batch))
            save_all(batch, ledger.check(batch))
    return batches


def test_the_size_outlives_workers_and_servers_and_a_feed_goes_back_to_that_of_a_snapshot(tmp_path):
    examples = of_counts(_COUNTS)
    declared = {"batch_size": 2, "capacity": 6}
    ledger = Ledger(examples)
    batches, _, _ = original_stream(2, 6, True, _COUNTS, takes=[2, 5, 5, 5, 3])
    with hs.run(chained(examples, **declared), state_dir=tmp_path) as server:
        got = stream(server, ledger, [2, 5])
        kill_worker(server)
        with connect(server, prefetch=0) as feed:
            batch = next(feed)
            got.append(rows_of(batch))
            save_all(batch, ledger.check(batch))
            feed.commit()
            token = feed.snapshot()
            feed.set_batch_size(1)
            assert next(feed).rows == 1
    assert got == batches[:3]
    with hs.run(chained(examples, **declared), state_dir=tmp_path) as server:
        with connect(server, prefetch=0) as feed:
            assert feed.schema["sequences:steps"].shape[0] is None
            assert next(feed).rows == 1
        with connect(server, prefetch=0, resume=token) as feed:
            assert rows_of(next(feed)) == batches[3]


def test_the_size_changes_at_once_before_all_that_an_earlier_worker_has_read_is_read_again():
    with hs.run(sequences([4] * 8)) as server, connect(server, prefetch=0) as feed:
        for _ in range(2):
            batch = next(feed)
            batch.save_state("s", batch.state("s"))
        feed.commit()
        kill_worker(server)
        assert feed.set_batch_size(1) == {0: 2}
        assert next(feed).rows == 1


def test_segments_of_partitions_that_go_on_change_their_size_where_others_have_ended():
    # the first of two partitions has two segments, the second has twelve
    with hs.run(sequences([1, 1, 6, 6], batch_size=2), partitions=2) as server:
        with connect(server, prefetch=0) as feed:
            rows = []
            for batch in feed:
                batch.save_state("s", batch.state("s"))
                rows.append(batch.rows)
                if len(rows) == 3:  # the first partition's only batch is committed
                    feed.commit()
                    assert feed.set_batch_size(1) == {1: 2}
    assert rows == [2, 2, 2, *[1] * 8]


def test_partitions_that_have_ended_do_not_hinder_other_proportions() -> None:
    """The second partition has only examples of a class of which few are drawn."""
    labels = [0 if 1000 <= i < 2000 else i % 2 for i in range(3000)]
    pipeline = hs.from_examples([{"y": label} for label in labels])
    pipeline = pipeline.stratified_sample("y", [0.5, 0.5], 4, [0.99, 0.01])
    with (
        hs.run(pipeline, workers=3, partitions=3) as server,
        connect(server, prefetch=0) as feed,
    ):
        while not server.stats()["default"]["partitions"][1]["done"]:
            next(feed)
        assert feed.set_target_probs([0.25, 0.75]).keys() == {0, 2}
        for _ in feed:
            pass
        with pytest.raises(ValueError, match=": the feed has ended"):
            feed.set_target_probs([0.25, 0.75])


def labelled(first: int) -> hs.Pipeline:
    rows = range(first, first + 30)
    return hs.from_examples([{"key": f"k{i}", "x": np.arange(4), "y": i % 2} for i in rows])


STEERED: dict[str, tuple[hs.Pipeline, Any]] = {
    "set_target_probs": (labelled(0).stratified_sample("y", [0.5, 0.5]), [0.0, 1.0]),
    "set_weights": (
        hs.mix({"a": labelled(0), "b": labelled(30)}, weights={"a": 1.0, "b": 1.0}, seed=3),
        {"a": 5.0, "b": 0.2},
    ),
    "drain": (labelled(0).repeat(2), False),
}


@pytest.mark.parametrize("how", ["killed", "resumed"])
@pytest.mark.parametrize("what", STEERED)
def test_rows_that_an_earlier_life_has_read_are_as_they_were_before_a_change(tmp_path, what, how):
    """30 or 60 examples are read at once, and most have not begun when the change comes."""
    source, value = STEERED[what]
    options = {"order": "lanes", "initial_states": {}, "make_keys_unique": True}
    pipeline = in_segments(source, **options)

    def keys(feed: headrace.Feed, most: int | None = None) -> list[bytes]:
        return [key for batch in islice(feed, most) for key in batch.key.tolist()]

    with hs.run({"one": pipeline, "other": pipeline}, state_dir=tmp_path) as server:
        with connect(server, feed="one", prefetch=0) as feed:
            expected = keys(feed, 5)
            getattr(feed, what)(value)
            expected += keys(feed)
        with connect(server, feed="other", prefetch=0) as feed:
            seen = keys(feed, 5)
            feed.commit()
            token = feed.snapshot()
            if how == "killed":
                kill_worker(server)
                pid_of(server, "worker-0-1")
                getattr(feed, what)(value)
                seen += keys(feed)
        if how == "resumed":
            with connect(server, feed="other", prefetch=0, resume=token) as feed:
                getattr(feed, what)(value)
                seen += keys(feed)
    assert seen == expected and len({*seen}) == len(seen)
