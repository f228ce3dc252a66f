"""Ranks of equal work: the batches of one round cost nearly the same, whatever gives the cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

from .serving import connect, serving

LENGTHS = np.random.default_rng(1).integers(1, 60, 512).tolist()
SOURCE = hs.from_examples([{"x": np.ones(n, "f4"), "n": n} for n in LENGTHS]).shuffle(seed=2)


def squares(columns: dict[str, Any]) -> Any:
    return columns["x"].lengths ** 2.0


def batched(**balance: Any) -> hs.Pipeline:
    return SOURCE.batch(8, dynamic_pad=True, **balance)


def bucketed(**balance: Any) -> hs.Pipeline:
    return SOURCE.bucket_by_sequence_length("x", 8, [30], dynamic_pad=True, **balance)


def packed(**balance: Any) -> hs.Pipeline:
    return SOURCE.pack(64, 4, max_open=4, **balance)


def cost_of(batch: headrace.Batch) -> float:
    numbers: np.ndarray = np.asarray(batch["n"], float)
    return float((numbers**2).sum())


@pytest.mark.parametrize("declare", [batched, bucketed, packed])
def test_the_batches_of_a_round_cost_nearly_the_same_and_the_status_shows_it(declare: Any) -> None:
    def ratios(server: hs.Server, feed: str) -> Any:
        """Return dearest over mean of each round of 4 ranks."""
        feeds = [connect(server, feed=feed, rank=rank, world_size=4) for rank in range(4)]
        with ThreadPoolExecutor(4) as pool:
            costs = np.array([*pool.map(lambda feed: [*map(cost_of, feed)], feeds)])
        for one in feeds:
            one.close()
        assert costs.shape[1] > 6
        return costs.max(0) / costs.mean(0)

    feeds = {"plain": declare(), "balanced": declare(balance=squares, balance_batches=8)}
    with serving(feeds) as server:
        plain, balanced = ratios(server, "plain"), ratios(server, "balanced")
        status = server.stats()
    assert plain.mean() > 1.1 and balanced.mean() < 1 + (plain.mean() - 1) / 5
    assert "balance" not in status["plain"] and len(balanced) <= 100
    assert status["balanced"]["balance"] == {
        "rounds": len(balanced),
        "mean": pytest.approx(balanced.mean()),
        "worst": pytest.approx(balanced.max()),
    }


def test_a_cost_that_is_none_is_a_bad_example() -> None:
    pipeline = SOURCE.map(lambda one: {"n": float(one["n"]) if one["n"] > 1 else np.nan})
    with (
        serving(pipeline.batch(8, balance="n")) as server,
        pytest.raises(headrace.DataError, match=r"balance \(column 'n'\) is nan; a cost is finite"),
        connect(server) as feed,
    ):
        next(iter(feed))
