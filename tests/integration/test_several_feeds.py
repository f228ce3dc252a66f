"""Feeds and trainers of one server: they share it, and no row is lost or given out twice."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S
from tests.waiting import waits_end_with

from .serving import connect, serving


def numbered(n: int, batch_size: int = 4) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).batch(batch_size, True)


def in_threads(work: list[Callable[[], Any]]) -> list[Any]:
    """Run functions at once; return the result of each."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result(PATIENCE_S) for future in [pool.submit(one) for one in work]]


def test_a_feed_that_nobody_reads_does_not_hold_up_another() -> None:
    pipelines = {"idle": numbered(4000), "busy": numbered(4000), "late": numbered(40)}
    with serving(pipelines) as server:
        for name, n in (("busy", 4000), ("late", 40)):
            with connect(server, feed=name) as feed:
                assert sum(batch.rows for batch in feed) == n


def test_a_feed_that_nobody_reads_leaves_room_in_a_small_slab() -> None:
    rows = [{"x": bytes(256 * 1024)} for _ in range(40)]
    pipeline = hs.from_examples(rows).batch(4)
    with (
        serving({"idle": pipeline, "busy": pipeline}, slab_bytes=6 << 20) as server,
        connect(server, feed="busy") as feed,
    ):
        assert len(list(feed)) == 10


def test_a_feed_that_fails_leaves_the_others_alone() -> None:
    bad = hs.from_examples([{"i": i} for i in range(40)]).map(
        "tests.integration.user_functions:fail_at_20"
    )
    with serving({"bad": bad.batch(4), "good": numbered(400)}) as server:
        with connect(server, feed="good") as good:
            next(good)
            with pytest.raises(headrace.HeadraceError, match="the twentieth is one too many"):
                list(connect(server, feed="bad"))
            assert sum(batch.rows for batch in good) == 396
        assert server.wait(PATIENCE_S)
        assert list(server.failed_feeds()) == ["bad"]


def test_a_feed_that_failed_and_was_dropped_unclosed_ends_its_thread() -> None:
    """So many rows come before the fault that it is not met before somebody trains."""
    bad = hs.from_examples([{"i": i} for i in range(-20_000, 40)]).map(
        "tests.integration.user_functions:fail_at_20"
    )
    with serving({"bad": bad.batch(40), "good": numbered(8)}) as server:
        feed = connect(server, feed="bad")
        for _ in range(2):
            with pytest.raises(headrace.HeadraceError, match="the twentieth is one too many"):
                list(feed)
        dropped = weakref.ref(feed)
        del feed
        gc.collect()
        assert dropped() is None


# Coordinated


def of_rank(address: str, rank: int, world_size: int) -> list[int]:
    with headrace.connect(address, rank=rank, world_size=world_size, timeout=PATIENCE_S) as feed:
        return [int(batch["i"][0]) for batch in feed]


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_rank_gets_its_batch_of_every_round(world_size: int) -> None:
    """11 batches in each of two partitions: last rounds that are not full are dropped."""
    with hs.run(numbered(22, 1), workers=2, partitions=2) as server:
        got = in_threads(
            [lambda r=rank: of_rank(server.address, r, world_size) for rank in range(world_size)]
        )
        with_all = server.wait(PATIENCE_S)
        dropped = server.dropped["default"]
    rounds = 11 // world_size
    assert [len(rows) for rows in got] == [2 * rounds] * world_size
    # Round by round, partition by partition; a round is of one partition.
    stream = [
        11 * partition + world_size * number + rank
        for number in range(rounds)
        for partition in range(2)
        for rank in range(world_size)
    ]
    assert [row for one_round in zip(*got, strict=True) for row in one_round] == stream
    assert with_all and dropped.get("incomplete_round", 0) == 2 * (11 % world_size)


def test_a_rank_of_segments_waits_for_the_others_and_says_so() -> None:
    examples = hs.from_examples([{"k": f"{k}", "x": [1, 2]} for k in range(8)])
    segments = examples.batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((), "float32")},
        num_unroll=1,
        batch_size=1,
    )
    with serving(segments) as server, connect(server, rank=0, world_size=2) as feed:
        batch = next(feed)
        batch.save_state("s", batch.state("s"))
        absent = "1 ranks have not joined: 1"
        with waits_end_with(absent), pytest.raises(headrace.DeadlineExceeded, match=absent):
            next(feed)


def test_ranks_that_do_not_go_together_are_refused() -> None:
    with (
        serving(numbered(8, 1)) as server,
        connect(server, rank=0, world_size=2),
    ):
        with pytest.raises(headrace.ProtocolError, match="world_size=3 differs from 2"):
            connect(server, rank=1, world_size=3)
        with pytest.raises(headrace.ProtocolError, match="coordinated mode with world_size=2"):
            connect(server)


def test_a_rank_does_not_join_trainers_without_one() -> None:
    with (
        serving(numbered(8, 1)) as server,
        connect(server),
        pytest.raises(headrace.ProtocolError, match="shared by trainers without rank"),
    ):
        connect(server, rank=0, world_size=2)
