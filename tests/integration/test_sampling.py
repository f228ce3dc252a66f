"""Sampling by class and by acceptance through the whole line, and targets that change under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import connect, kill_worker

SKEWED = [0.7, 0.2, 0.1]


def labels_of(n: int, probs: list[float] = SKEWED, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(probs), n, p=probs)


def of_classes(tmp_path: Path, y: Any) -> hs.Pipeline:
    y = np.asarray(y)
    np.savez(tmp_path / "classes.npz", i=np.arange(len(y)), y=y)
    return hs.read_npz(str(tmp_path / "classes.npz"))


# Targets that change

DECLARED = {
    "known": lambda s: s.stratified_sample("y", [1, 0, 0], 20, [1 / 3, 1 / 3, 1 / 3]),
    "estimated": lambda s: s.stratified_sample("y", [1, 0, 0], 20),
    "unknown": lambda s: s.stratified_sample_unknown_dist(
        "y", [1, 0, 0], 20, max_examples_in_flight=100
    ),
}


@pytest.mark.parametrize("name", DECLARED)
def test_a_changed_target_holds_from_the_batch_that_is_told(tmp_path: Path, name: str) -> None:
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
