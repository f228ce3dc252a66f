"""``feed.set_batch_size(n)`` of a feed of segments in the order of arrival."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S, eventually
from tests.unit.shaping.original_queue import original_stream

from .segment_streams import Ledger, at_once, chained, of_counts, save_all, train
from .serving import connect, kill_worker

_COUNTS = [3, 1, 5, 2, 1, 1, 7, 4, 2, 3, 1, 6, 2]
_SIZES = (5, 2, 1, 6, 2, 3)


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


def test_the_stream_with_another_size_for_each_batch_is_that_of_the_original():
    examples = of_counts(_COUNTS)
    ledger = Ledger(examples)
    batches, _, _ = original_stream(2, 6, True, _COUNTS, takes=_SIZES)
    with hs.run(chained(examples, batch_size=2, capacity=6)) as server:
        assert stream(server, ledger, islice(cycle(_SIZES), len(batches))) == batches
    ledger.assert_complete()


def test_all_trainers_get_the_new_size_from_the_returned_numbers_on():
    """Partitions of two workers drop what fills no batch, so the schema had the declared rows."""
    examples = of_counts([1 + i % 4 for i in range(200)])
    ledger = Ledger(examples)
    feed = chained(examples, batch_size=4, capacity=12, allow_small_batch=False)
    seen: list[tuple[int, int, int]] = []

    def trained(feed: headrace.Feed, steps: int | None = None) -> None:
        for batch in islice(feed, steps):
            seen.append((batch.partition, batch.number, batch.rows))
            save_all(batch, ledger.check(batch))

    with hs.run(feed, workers=2, partitions=4) as server:
        with connect(server) as one, connect(server) as other:
            for trainer in (one, other):
                trained(trainer, 4)
                assert trainer.schema["sequences:steps"].shape[0] == 4
            since = one.set_batch_size(7)
            assert since.keys() == {0, 1, 2, 3}
            assert one.schema["sequences:steps"].shape[0] is None
            with connect(server) as late:
                assert late.schema["sequences:steps"].shape[0] is None
                at_once([lambda feed=feed: trained(feed) for feed in (one, other, late)])
        assert server.wait(PATIENCE_S)
        dropped = sum(server.dropped["default"].values())
    assert len(ledger.seen) + dropped == ledger.segments
    assert len(set(ledger.seen)) == len(ledger.seen)
    for partition, number, rows in seen:
        assert rows == (4 if number < since[partition] else 7)


def test_a_trainer_that_waits_for_states_gets_a_smaller_batch_at_once():
    """The partition rests, since one row is ready of three: nothing but the change wakes it."""
    declared = {"batch_size": 3, "capacity": 4, "allow_small_batch": False}
    with hs.run(chained(of_counts([2] * 4), **declared)) as server:
        with connect(server, prefetch=0) as one, connect(server, prefetch=0) as other:
            first = next(one)
            assert first.rows == 3

            def change() -> None:
                eventually(lambda: server.stats()["default"]["trainers"][1]["requests"])
                one.set_batch_size(1)

            batch, _ = at_once([lambda: next(other), change])
            assert batch.context["label"].tolist() == [3]


def test_the_size_outlives_workers_and_servers_and_a_feed_goes_back_to_that_of_a_snapshot(
    tmp_path: Path,
):
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
    anew = chained(examples, batch_size=4, capacity=6)
    with hs.run(anew, state_dir=tmp_path, allow_config_change=True) as server:
        with connect(server, prefetch=0) as feed:
            assert next(feed).rows == 4, "a size that is declared anew takes the place of both"


def test_ranks_that_join_later_have_the_new_size_in_every_round():
    examples = of_counts([2] * 24)
    with hs.run(chained(examples, batch_size=4, capacity=8), partitions=2) as server:
        with connect(server, prefetch=0) as feed:
            feed.set_batch_size(2)

        def rank(number: int) -> list[int]:
            rows = []
            with connect(server, rank=number, world_size=3) as feed:
                for batch in feed:
                    rows.append(batch.rows)
                    batch.save_state("chain", batch.state("chain"))
            return rows

        rows = at_once([lambda n=n: rank(n) for n in range(3)])
    assert {n for of_rank in rows for n in of_rank} == {2} and len({*map(len, rows)}) == 1


def test_what_can_not_have_another_size_says_why_and_goes_on():
    examples = of_counts([2] * 8)
    feeds = {
        "segments": chained(examples, batch_size=2, capacity=4),
        "lanes": chained(examples, order="lanes", batch_size=2),
        "ranks": chained(examples, batch_size=2),
    }
    refused: list[tuple[str, dict[str, int], Any, str]] = [
        ("segments", {}, 5, "examples in flight, more than capacity=4"),
        ("segments", {}, [1, 2], "there are 2 sizes; the feed has one size"),
        ("segments", {}, 2**20 + 1, "more than|the most is 1048576"),
        ("lanes", {}, 1, "a lane is a row of each batch"),
        ("ranks", {"rank": 0, "world_size": 1}, 1, "ranks get blocks of one shape in every round"),
    ]
    with hs.run(feeds) as server:
        for name, options, size, why in refused:
            with connect(server, feed=name, prefetch=0, **options) as feed:
                with pytest.raises(ValueError, match=rf"set_batch_size\(.*\): .*({why})"):
                    feed.set_batch_size(size)
                assert next(feed).rows == 2
                with pytest.raises(
                    AttributeError, match=r"Feed\.take is gone: feed\.set_batch_size"
                ):
                    feed.take(batch_size=1)


def test_a_size_that_the_slab_has_no_room_for_is_refused():
    examples = of_counts([1] * 3)
    feed = chained(examples, batch_size=1, capacity=None)
    with hs.run(feed, slab_bytes=1 << 20) as server, connect(server, prefetch=0) as feed:
        with pytest.raises(ValueError, match=r"batch_size=100000: such a batch has .* the slab"):
            feed.set_batch_size(100_000)
        assert train(feed, Ledger(examples)) == 3
