"""``feed.set_batch_size(n)`` of a feed of segments in the order of arrival."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from tests.unit.shaping.original_queue import original_stream

from .segment_streams import Ledger, chained, of_counts, save_all
from .serving import connect, kill_worker

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
