"""Sampling by class and by acceptance through the whole line, and targets that change under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.waiting import waits_end_with

from .serving import connect, drained, kill_worker, pid_of, serving

SKEWED = [0.7, 0.2, 0.1]
WANTED = [0.2, 0.3, 0.5]


def labels_of(n: int, probs: list[float] = SKEWED, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(probs), n, p=probs)


@pytest.fixture
def source(tmp_path: Path) -> hs.Pipeline:
    """Return 20,000 rows of three classes, one of them much too frequent."""
    y = labels_of(20_000)
    np.savez(tmp_path / "rows.npz", i=np.arange(20_000), y=y)
    return hs.read_npz(str(tmp_path / "rows.npz"))


def of_classes(tmp_path: Path, y: Any) -> hs.Pipeline:
    y = np.asarray(y)
    np.savez(tmp_path / "classes.npz", i=np.arange(len(y)), y=y)
    return hs.read_npz(str(tmp_path / "classes.npz"))


Seen = tuple[list[int], list[int], dict[str, Any]]


def seen_of(server: hs.Server, name: str = "default", labelled: bool = True) -> Seen:
    """Return numbers and classes of all rows, and the server's counts."""
    numbers: list[int] = []
    labels: list[int] = []
    with connect(server, feed=name) as feed:
        for batch in feed:
            numbers += batch["i"].tolist()
            labels += batch.label.tolist() if labelled else []
    return numbers, labels, server.stats()[name]


def read_all(pipelines: dict[str, hs.Pipeline], labelled: bool = True) -> list[Seen]:
    """Return ``seen_of`` for each feed of one server."""
    with serving(pipelines) as server:
        return [seen_of(server, name, labelled) for name in pipelines]


def read(pipeline: hs.Pipeline) -> Seen:
    return read_all({"only": pipeline})[0]


def share(labels: Any, classes: int = 3) -> np.ndarray:
    return np.bincount(labels, minlength=classes) / len(labels)


def within(labels: Any, target: list[float], sigmas: float = 4) -> bool:
    """Return whether the mix is the target, within the error of sampling."""
    error = np.sqrt(np.array(target) * (1 - np.array(target)) / len(labels))
    return bool((np.abs(share(labels) - target) <= sigmas * error + 1e-9).all())


# Known and estimated proportions


def test_the_target_is_reached_and_every_row_is_counted(source: hs.Pipeline) -> None:
    known, estimated = (
        source.stratified_sample("y", WANTED, 50, init, allow_smaller_final_batch=True)
        for init in (SKEWED, None)
    )
    y = labels_of(20_000)
    seen = read_all({"known": known, "estimated": estimated})
    # The fewest rows are rejected: all rows of the most wanted class come.
    for (numbers, labels, stats), rejected in zip(seen, (0, 30), strict=True):
        assert within(labels, WANTED)
        assert numbers == sorted(numbers) and len(set(numbers)) == len(numbers)
        assert labels == y[numbers].tolist()
        classes = stats["classes"]
        assert np.add(classes["accepted"], classes["rejected"]).tolist() == np.bincount(y).tolist()
        assert classes["accepted"] == np.bincount(labels).tolist()
        assert stats["dropped"] == {"rejected": sum(classes["rejected"])}
        assert classes["rejected"][2] <= rejected
        assert classes["changes"] == [[[0, WANTED]]]


def test_labels_keep_their_dtype(tmp_path: Path) -> None:
    dtypes = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    same = [1 / 3, 1 / 3, 1 / 3]
    feeds = {}
    for dtype in dtypes:
        (tmp_path / dtype).mkdir()
        source = of_classes(tmp_path / dtype, np.tile([0, 1, 2], 40).astype(dtype))
        feeds[dtype] = source.stratified_sample("y", same, 30, same)
    with serving(feeds) as server:
        for dtype in dtypes:
            with connect(server, feed=dtype) as feed:
                batch = next(feed)
                assert batch.label.dtype == batch["y"].dtype == np.dtype(dtype)
                assert batch.label.tolist() == batch["y"].tolist()


def test_a_label_out_of_range_stops_the_feed_or_is_skipped(tmp_path: Path) -> None:
    source = of_classes(tmp_path, [0, 1, 7, 1, -1, 0])
    stopping = {
        "known": source.stratified_sample("y", [0.5, 0.5], 2, [0.5, 0.5]),
        "unknown": source.stratified_sample_unknown_dist("y", [0.5, 0.5], 2),
    }
    skipping = {
        f"{name}_skipped": pipeline.options(on_bad_example="skip", max_bad_examples=2)
        for name, pipeline in stopping.items()
    }
    with serving({**stopping, **skipping}) as server:
        for name in stopping:
            fault = r"record 2: .*labels \(column 'y'\) is 7"
            with pytest.raises(headrace.DataError, match=fault):
                drained(server, name)
        for name in skipping:
            numbers, _, stats = seen_of(server, name)
            assert stats["dropped"]["bad:label_out_of_range"] == 2 and not {2, 4} & set(numbers)


def test_a_missing_class_and_a_flood_of_one(tmp_path: Path) -> None:
    flood = np.zeros(5000, int)
    flood[::1000] = 1
    source = of_classes(tmp_path, flood)
    flooded, missing, unknown = read_all(
        {
            "flooded": source.stratified_sample("y", [0.5, 0.5], 2, [0.999, 0.001]),
            "missing": source.stratified_sample("y", [0.5, 0, 0.5], 2),
            "unknown": source.stratified_sample_unknown_dist("y", [0.5, 0, 0.5], 4),
        }
    )
    _, labels, _ = flooded
    assert labels.count(1) >= 4 and labels.count(0) < 30
    numbers, _, _ = missing
    assert len(numbers) < 5000
    # The feed ends when a wanted class has no more rows; rows that waited are counted.
    numbers, labels, stats = unknown
    assert numbers == [] and sum(stats["dropped"].values()) == 5000


def test_the_notice_that_most_is_rejected_comes_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = of_classes(tmp_path, labels_of(4000, [0.9, 0.1]))
    read(source.stratified_sample("y", [0.1, 0.9], 8))
    said = capfd.readouterr().err
    assert said.count("stratified_sample rejects about 8") == 1
    assert said.count("weighted_resample repeats rare examples instead") == 1
    read(source.stratified_sample("y", [0.9, 0.1], 8))
    assert "rejects" not in capfd.readouterr().err


# Unknown proportions


def test_batches_are_drawn_by_class_and_grouped(source: hs.Pipeline) -> None:
    pipeline = source.stratified_sample_unknown_dist("y", WANTED, 20, seed=3)
    labels: list[int] = []
    by_class: list[list[int]] = [[], [], []]
    with serving(pipeline) as server:
        with connect(server) as feed:
            for batch in feed:
                assert batch.rows == 20 and batch.label.dtype == np.int32
                own = batch.label.tolist()
                assert own == sorted(own) == batch["y"].tolist()
                labels += own
                for i, label in zip(batch["i"].tolist(), own, strict=True):
                    by_class[label].append(i)
        stats = server.stats()["default"]
    assert within(labels, WANTED) and len(labels) > 3500
    y = labels_of(20_000)
    assert by_class[2] == np.flatnonzero(y == 2).tolist()[: len(by_class[2])]
    assert all(rows == sorted(set(rows)) for rows in by_class)
    assert len(labels) + sum(stats["dropped"].values()) == 20_000
    assert stats["classes"]["waiting"] == [0, 0, 0]


# Targets that change

DECLARED = {
    "known": lambda s: s.stratified_sample("y", [1, 0, 0], 20, [1 / 3, 1 / 3, 1 / 3]),
    "estimated": lambda s: s.stratified_sample("y", [1, 0, 0], 20),
    "unknown": lambda s: s.stratified_sample_unknown_dist(
        "y", [1, 0, 0], 20, max_examples_in_flight=100
    ),
}


@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("kill", [False, True])
def test_a_changed_target_holds_from_the_batch_that_is_told(
    tmp_path: Path, name: str, kill: bool
) -> None:
    source = of_classes(tmp_path, labels_of(3000, [1 / 3, 1 / 3, 1 / 3])).repeat()
    since: dict[int, int] = {}
    old: set[int] = set()
    new: set[int] = set()
    with hs.run(DECLARED[name](source), partitions=2, workers=2) as server:
        with connect(server, prefetch=0) as feed:
            for k, batch in enumerate(feed):
                if k == 10:
                    since = feed.set_target_probs([0, 0.5, 0.5])
                    assert set(since) == {0, 1} and min(since.values()) >= 4
                    if kill:
                        kill_worker(server)
                labels = set(batch.label.tolist())
                if since and batch.number > since[batch.partition]:
                    new |= labels
                    if batch.number > max(since.values()) + 5:
                        break
                elif not since or batch.number < since[batch.partition]:
                    old |= labels
        changes = server.stats()["default"]["classes"]["changes"]
    assert old == {0} and new == {1, 2}
    target = [0, 0.5, 0.5]
    assert changes == [[[0, [1, 0, 0]], [since[partition], target]] for partition in (0, 1)]


def test_a_target_that_can_not_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    source = of_classes(tmp_path, labels_of(3000)).repeat()
    with serving(source.stratified_sample("y", [0.5, 0.5, 0], 8, [0.7, 0.3, 0])) as server:
        with connect(server) as feed:
            next(feed)
            for probs, text in [
                ([0.5, 0.5], "target_probs has 2 classes; there are 3"),
                ([0.5, 0.5, 0.5], "target_probs sums to 1.5; it must sum to 1"),
                ([1.5, -0.5, 0], r"target_probs\[1\]=-0.5; a probability is 0 or more"),
                ([float("nan"), 1, 0], r"target_probs\[0\]=nan"),
                ([0, 0, 1], r"init_probs\[2\]=0 but target_probs\[2\]=1"),
                ([], "0 classes|sums to 0"),
            ]:
                with pytest.raises(ValueError, match=rf"set_target_probs\(\[.*\]\): .*{text}"):
                    feed.set_target_probs(probs)
            assert feed.set_target_probs([0.25, 0.75, 0])[0] > 0
            next(feed)
        (changes,) = server.stats()["default"]["classes"]["changes"]
    assert [target for _, target in changes] == [[0.5, 0.5, 0], [0.25, 0.75, 0]]


def test_a_feed_without_classes_or_past_its_end_has_no_target(tmp_path: Path) -> None:
    source = of_classes(tmp_path, labels_of(300))
    feeds = {
        "none": source.repeat().batch(10),
        "twice": source.repeat().stratified_sample("y", WANTED).stratified_sample("y", WANTED, 8),
        "ended": source.stratified_sample("y", WANTED, 10),
    }

    def refusal(name: str, probs: list[float], to_the_end: bool = False) -> str:
        """Return why a feed refuses the proportions that a trainer asks for."""
        with connect(server, feed=name) as feed:
            if to_the_end:
                list(feed)
            with pytest.raises(ValueError, match=r"set_target_probs\(") as caught:
                feed.set_target_probs(probs)
        return str(caught.value)

    with serving(feeds) as server:
        none = refusal("none", [0.5, 0.5])
        assert "the feed has 0 stages with target proportions" in none
        assert "has 2 stages with target proportions" in refusal("twice", WANTED)
        ended = refusal("ended", WANTED, to_the_end=True)
        assert "the feed has ended" in ended or "made before" in ended


def test_a_class_that_only_has_not_come_yet_is_named_when_the_deadline_passes(
    tmp_path: Path,
) -> None:
    source = of_classes(tmp_path, np.zeros(200, int)).repeat()
    pipeline = source.stratified_sample_unknown_dist("y", [0, 0.5, 0.5], 8)
    with (
        serving(pipeline) as server,
        connect(server) as feed,
        waits_end_with("waits for class 1"),
        pytest.raises(headrace.DeadlineExceeded, match=r"waits for class 1 \(0 of \d rows"),
    ):
        next(feed)


def test_absurd_proportions_of_a_trainer_cost_only_that_call(source: hs.Pipeline):
    pipeline = source.stratified_sample("y", [0.5, 0.3, 0.2], 16)
    with hs.run(pipeline) as server, connect(server) as feed:
        worker = pid_of(server, "worker-0-0")
        for probs in ([1e308, 1e308, 0.0], [float("nan")] * 3, [1.0], []):
            with pytest.raises(ValueError, match="set_target_probs"):
                feed.set_target_probs(probs)
        assert sum(batch.rows for batch in feed) > 0
        assert server.pids["worker-0-0"] == worker
