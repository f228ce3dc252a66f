"""Mixed feeds, beyond what the drawn combinations show: shares, counts, deaths, commands."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import exits, main

from .serving import connect, kill_worker, serving

NAMES = ("web", "code", "books")


def source(number: int, count: int) -> hs.Pipeline:
    """Return examples of source ``number``, each with a key of its own."""
    return hs.from_examples(
        [
            {"key": f"{number}-{i}", "of": number, "x": np.arange(1 + i % 5, dtype="f4")}
            for i in range(count)
        ]
    )


def mixed(weights: Any, count: int = 200, **options: Any) -> hs.Pipeline:
    sources = {name: source(k, count).shuffle(seed=k) for k, name in enumerate(NAMES)}
    return hs.mix(sources, weights, **options)


def weights_of(since: dict[int, int], taken: list[Any]) -> tuple[Counter[int], Counter[int]]:
    """Return the sources of rows before the batches ``since``, and those of later ones."""
    before, after = Counter[int](), Counter[int]()
    for partition, number, of in taken:
        if number != since[partition]:  # it may have rows of both
            (before if number < since[partition] else after).update(of)
    return before, after


def test_other_weights_hold_from_the_batch_that_is_told_and_are_repeated_after_a_death():
    pipeline = mixed([(0, {"web": 1, "code": 0, "books": 0})], seed=2, stop="never")
    taken: list[Any] = []
    with hs.run(pipeline.batch(8, dynamic_pad=True), partitions=2, workers=2) as server:
        with connect(server, prefetch=0) as feed:
            for count, batch in enumerate(feed):
                taken.append((batch.partition, batch.number, batch.source.tolist()))
                if count == 9:
                    since = feed.set_weights({"books": 3, "code": 1, "web": 0})
                    assert since.keys() == {0, 1} and min(since.values()) >= 5
                    kill_worker(server)
                if min(batch.number - first for first in since.values()) > 40 if count > 9 else 0:
                    break
    before, after = weights_of(since, taken)
    assert before.keys() == {0} and after.keys() == {1, 2}
    n = sum(after.values())
    assert n > 500 and abs(after[2] - n * 3 / 4) <= 5 * math.sqrt(n * 3 / 16)


@pytest.mark.parametrize("count", [200, 1000])
@pytest.mark.parametrize("borders", [False, True])
def test_other_weights_outlive_a_snapshot_and_the_server(tmp_path, count, borders):
    """Also where all examples of the epoch may be drawn when they come: few are."""
    schedule = [(0, {"web": 1, "code": 0, "books": 0}), (30, {"web": 0, "code": 1, "books": 0})]
    pipeline = mixed(schedule, count).repeat(2, across_batches=not borders)
    pipeline = pipeline.batch(8, dynamic_pad=True)
    with hs.run(pipeline, state_dir=tmp_path) as server, connect(server, prefetch=0) as feed:
        next(feed)
        feed.set_weights({"web": 1, "code": 1, "books": 1})
        next(feed)
        token = feed.snapshot()
        whole = rest(feed, borders)
    with (
        hs.run(pipeline, state_dir=tmp_path) as server,
        connect(server, prefetch=0, resume=token) as feed,
    ):
        assert rest(feed, borders) == whole


def rest(feed: headrace.Feed, borders: bool) -> list[Any]:
    """Return all batches that are left, of all epochs."""
    loops = (epoch for _, epoch in feed.epochs()) if borders else [feed]
    return [(b.epoch, b.number, b["key"].tolist()) for loop in loops for b in loop]


def test_segments_take_other_weights():
    pipeline = mixed({"web": 1, "code": 0, "books": 0}, stop="never", count=50)
    pipeline = pipeline.batch_sequences_with_states(
        "key", ["x"], ["of"], None, {}, num_unroll=5, batch_size=4, order="lanes", capacity=8
    )
    with hs.run(pipeline) as server, connect(server, prefetch=0) as feed:
        assert next(feed).source.tolist() == [0] * 4
        since = feed.set_weights({"web": 0, "code": 1, "books": 0})[0]
        for batch in feed:
            if batch.number > since + 8:
                assert batch.source.tolist() == [1] * 4
                break


def test_a_row_of_a_mix_that_kills_is_named_and_a_filter_leaves_it_out():
    sources = {"web": source(0, 40).repeat(2), "code": source(1, 20).shuffle(seed=1).repeat(2)}
    mixed = hs.mix(sources, {"web": 1, "code": 1}, seed=3)
    batched = {"batch_size": 8, "allow_smaller_final_batch": True, "dynamic_pad": True}
    with (
        hs.run(mixed.map(_deadly).batch(**batched), partitions=2, workers=2) as server,
        pytest.raises(headrace.DataError, match="record 3: its worker died 3 times in `_deadly`"),
        connect(server) as feed,  # which says it where the worker had died before
    ):
        list(feed)
    seen: Counter[bytes] = Counter()
    pipeline = mixed.filter(_harmless).map(_deadly).batch(**batched)
    with hs.run(pipeline, partitions=2, workers=2) as server, connect(server) as feed:
        for batch in feed:
            seen.update(batch["key"].tolist())
    assert b"1-3" not in seen and len(seen) == 59 and set(seen.values()) == {2}


def _harmless(example: dict[str, Any]) -> bool:
    return bool(example["key"] != b"1-3")


def _deadly(example: dict[str, Any]) -> dict[str, Any]:
    if example["key"] == b"1-3":
        os._exit(3)
    return example


def _named(example: dict[str, Any]) -> dict[str, Any]:
    return {"name": example["key"]}


def _late(example: dict[str, Any]) -> dict[str, Any]:
    if example["x"] == 7:
        raise RuntimeError("no name")
    return {"name": b"%d" % example["x"]}


@pytest.mark.parametrize("workers", [1, 2])
def test_sources_of_different_columns_mix_after_a_map_of_each(workers):
    web = source(0, 20).map(_named).shuffle(seed=1).repeat(2)
    numbers = hs.from_function(_numbers).map(_late)
    pipeline = hs.mix({"web": web, "numbers": numbers}, {"web": 2, "numbers": 1}, seed=3)
    pipeline = pipeline.options(on_bad_example="skip").batch(4, allow_smaller_final_batch=True)
    seen: Counter[bytes] = Counter()
    with hs.run(pipeline, partitions=2, workers=workers) as server:
        with connect(server) as feed:
            for batch in feed:
                seen.update(batch["name"].tolist())
                for name, of in zip(batch["name"].tolist(), batch.source.tolist(), strict=True):
                    assert (b"-" in name) == (of == 0)
        stats = server.stats()["default"]
    wanted = {b"0-%d" % i: 2 for i in range(20)} | {b"%d" % i: 1 for i in range(9) if i != 7}
    assert seen == wanted and stats["dropped"] == {"bad:map_failed": 1}


def _numbers() -> list[dict[str, int]]:
    return [{"x": i} for i in range(9)]


def test_a_mapped_source_goes_on_in_another_and_a_shuffle_mixes_both():
    joined = source(0, 20).map(_named).concat(source(1, 20).map(_named)).shuffle(seed=5)
    with serving(joined.batch(8)) as server, connect(server) as feed:
        assert len(feed) == 5
        found = [name for batch in feed for name in batch["name"].tolist()]
    assert sorted(found) == sorted(b"%d-%d" % (k, i) for k in (0, 1) for i in range(20))
    assert {name[:1] for name in found[:16]} == {b"0", b"1"}


def test_metrics_check_and_convert_know_a_mix(tmp_path, capsys):
    feeds = tmp_path / "feeds.py"
    feeds.write_text(
        "import headrace_server as hs\n"
        "some = hs.from_examples([{'x': 1}] * 30)\n"
        "feed = hs.mix({'a': some.repeat(), 'b': some}, {'a': 1, 'b': 1}, stop='never').batch(4)\n"
    )
    assert main(["check", "--full", f"{feeds}:feed"]) == 0
    assert "60" in capsys.readouterr().out  # each source once
    assert main(["convert", f"{feeds}:feed", str(tmp_path / "out")]) == exits.MISTAKE
    assert "convert each of its sources" in capsys.readouterr().err
