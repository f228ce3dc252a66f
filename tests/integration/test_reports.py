"""Numbers that trainers report for each row of a mix, and the weights that follow from them."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import eventually

from .serving import connect, kill_worker, serving

NAMES = ("web", "code", "books")
#: A half-life in which all reports of a test count nearly the same.
NEVER = 2.0**40


def mixed(count: int = 200, weights: Any = None, **options: Any) -> hs.Pipeline:
    sources = {
        name: hs.from_examples(
            [{"key": f"{k}-{i}", "x": np.ones(1 + i % 7, "f4")} for i in range(count)]
        ).shuffle(seed=k)
        for k, name in enumerate(NAMES)
    }
    return hs.mix(sources, weights or hs.reported(half_life=NEVER), **options)


def loss_of(batch: Any) -> Any:
    return 1.0 + 2.0 * np.asarray(batch.source)


def reported(server: hs.Server) -> dict[str, list[float]]:
    """Return by source the mean of what was reported, and the rows of it."""
    return {
        name: [round(total / max(rows, 1), 6), round(rows, 3)]
        for name, (total, rows) in server.stats()["default"]["reported"].items()
    }


@pytest.mark.parametrize(
    ("rule", "parts"), [("proportional", [1, 3, 5]), ("softmax", np.exp([0.5, 1.5, 2.5]))]
)
def test_the_weights_follow_the_reports_and_are_shown(rule: Any, parts: Any) -> None:
    follows = hs.reported(
        rule=rule, temperature=2, floor=0.3, half_life=400, start={"web": 8, "code": 1, "books": 0}
    )
    pipeline = mixed(weights=follows, stop="never").batch(8, dynamic_pad=True)
    shares = 0.1 + 0.7 * np.array(parts) / sum(parts)
    with serving(pipeline, partitions=2, http="127.0.0.1:0") as server, connect(server) as feed:
        first, last = np.zeros(3), np.zeros(3)
        for number, batch in enumerate(feed):
            (last if number >= 1000 else first)[:] += np.bincount(batch.source, minlength=3)
            if not number:
                assert 2 not in batch.source and batch.source.tolist().count(0) > 4
            batch.report(loss_of(batch))
            if number == 2999:
                break
        found = server.stats()["default"]
        assert np.abs(last / last.sum() - shares).max() < 0.02
        weights = {name: total / count for name, (total, count) in found["weights"].items()}
        assert weights == pytest.approx(dict(zip(NAMES, shares, strict=True)))
        means = {name: total / rows for name, (total, rows) in found["reported"].items()}
        assert means == pytest.approx({"web": 1, "code": 3, "books": 5})
        with urllib.request.urlopen(f"{server.http_address}/metrics") as page:
            lines = page.read().decode().splitlines()
    of_web = 'feed="default",source="web"'
    assert f"headrace_weight{{{of_web}}} {weights['web']}" in lines
    assert any(line.startswith(f"headrace_reported_mean{{{of_web}}} ") for line in lines)


@pytest.mark.parametrize("at", [0, 3])
def test_a_report_counts_once_whatever_dies(tmp_path: Path, at: int) -> None:
    """Commits without an answer are repeated to the next life of a worker."""
    pipeline = mixed().batch(4, dynamic_pad=True, allow_smaller_final_batch=True)
    taken = 0
    with serving(pipeline, partitions=2, state_dir=tmp_path) as server:
        with connect(server, prefetch=at, commit="explicit" if at else "on_next") as feed:
            for number, batch in enumerate(feed):
                taken += batch.rows
                batch.report(np.zeros(batch.rows) + 7)  # the second replaces it
                batch.report(loss_of(batch))
                if at:
                    feed.commit(batch)
                if number in (20, 60, 100):
                    kill_worker(server, life=(20, 60, 100).index(number))
        assert taken >= 600
        assert reported(server) == {"web": [1, 200], "code": [3, 200], "books": [5, 200]}


def test_the_weights_outlive_a_death_and_a_snapshot_and_are_repeated(tmp_path: Path) -> None:
    """Without further reports the rest is the same, and the means are those of the snapshot."""
    follows = hs.reported(floor=0, half_life=80)
    pipeline = mixed(2000, follows).batch(8, dynamic_pad=True)

    def rest(feed: headrace.Feed) -> list[Any]:
        return [batch["key"].tolist() for batch in feed]

    with serving(pipeline, state_dir=tmp_path) as server:
        with connect(server, prefetch=0) as feed:
            for number, batch in enumerate(feed):
                batch.report(np.where(batch.source == 1, 1.0, 0.0))
                if number == 150:
                    break
            token = feed.snapshot()
            then = reported(server)
            kill_worker(server)
            whole = rest(feed)
        assert then["code"][0] == 1 and then["web"][0] == 0
        assert all(key.startswith(b"1-") for keys in whole[:40] for key in keys)
    with serving(pipeline, state_dir=tmp_path) as server:
        with connect(server, prefetch=0, resume=token) as feed:
            assert eventually(lambda: reported(server)) == then
            assert rest(feed) == whole


def segments(**options: Any) -> hs.Pipeline:
    given = {"num_unroll": 2, "batch_size": 4, "capacity": 12, "allow_small_batch": True}
    states = {"s": hs.zeros((2,), "float32")}
    return mixed(30).batch_sequences_with_states(
        "key", ["x"], [], None, states, **{**given, **options}
    )


SHAPES = {
    "bucketed": mixed(30, by="batch").bucket_by_sequence_length(
        "x", 4, [4], dynamic_pad=True, allow_smaller_final_batch=True
    ),
    "packed": mixed(30).select(["x"]).pack(16, 3, allow_smaller_final_batch=True),
    "segments": segments(),
    "lanes": segments(order="lanes", state_placement="trainer"),
    "packed lanes": segments(order="lanes", pack=True),
}


@pytest.mark.parametrize("ranks", [0, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_example_of_a_batch_of_any_shape_is_reported(shape: str, ranks: int) -> None:
    """Of segments: each segment.  Empty rows of ranks count nothing."""

    def train(rank: int) -> Any:
        """Return the examples by source."""
        counts = np.zeros(3)
        options = {"rank": rank, "world_size": ranks} if ranks else {}
        with connect(server, **options) as feed:
            for batch in feed:
                loss, real = loss_of(batch), np.ones(batch.source.shape, bool)
                if batch.source.ndim > 1:
                    ids = batch["segment_ids"] if shape == "packed" else batch.segment_ids
                    real = np.arange(loss.shape[1]) < ids.max(1)[:, None]
                    loss = np.ones(len(loss)) if rank else loss  # one number for each row will do
                elif feed.states:
                    real = batch.valid
                counts += np.bincount(batch.source[real], minlength=3)
                batch.report(loss)
                for name in feed.states:
                    batch.save_state(name, batch.state(name) + 1)
        return counts

    with serving(SHAPES[shape]) as server, ThreadPoolExecutor(2) as pool:
        counts = sum(pool.map(train, range(max(1, ranks))))
        found = [rows for _, rows in reported(server).values()]
    assert found == counts.tolist() and min(found) >= 10


def test_reports_and_rules_that_can_not_be_are_refused() -> None:
    feeds = {
        "mix": mixed().batch(4, dynamic_pad=True),
        "plain": hs.from_examples([{"x": 1}] * 9).batch(4),
    }
    with serving(feeds) as server:
        with connect(server, feed="mix") as feed:
            batch = next(feed)
            for values, text in (
                ([1.0, 2.0], r"values have the shape \[2\]; batch.source has \[4\]"),
                ([1.0, 2.0, 3.0, np.nan], "values are finite, up to 1e[+]100"),
            ):
                with pytest.raises(ValueError, match=text):
                    batch.report(values)
            next(feed)
            with pytest.raises(ValueError, match="report before the commit"):
                batch.report([1.0] * 4)
            with pytest.raises(ValueError, match="follow from the reports of trainers"):
                feed.set_weights(dict.fromkeys(NAMES, 1.0))
        with connect(server, feed="plain") as feed, pytest.raises(ValueError, match="is no mix"):
            next(feed).report([1.0] * 4)
    for bad, text in (
        ({"rule": "max"}, "rule='max' is not one of 'proportional', 'softmax'"),
        ({"floor": 1.5}, "floor=1.5 does not lie in 0 … 1"),
        ({"half_life": 0}, "half_life=0 does not lie in 1 …"),
        ({"temperature": 0}, "temperature=0 does not lie in"),
    ):
        with pytest.raises(ValueError, match=text):
            hs.reported(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="weights has 'tapes', which is no source"):
        mixed(weights=hs.reported(start={"tapes": 1}))
