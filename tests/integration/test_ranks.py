"""Ranks: who may join them, and equal work, whatever gives the cost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.waiting import waits_end_with

from .processes import Process
from .serving import connect, in_segments, serving

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
def test_the_batches_of_a_round_cost_nearly_the_same_and_the_status_shows_it(declare):
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


#: A rank that holds a batch until it is killed.
_RANK = """
import sys, time, headrace
with headrace.connect(sys.argv[1], rank=0, world_size=2, run=9) as feed:
    next(feed)
    print('{"event": "batch"}', flush=True)
    time.sleep(600)
"""


def numbered(n: int, batch_size: int = 4) -> hs.Pipeline:
    return hs.from_examples([{"i": i} for i in range(n)]).batch(batch_size, True)


# Coordinated


def test_a_rank_of_segments_waits_for_the_others_and_says_so():
    examples = hs.from_examples([{"key": f"{k}", "x": [1, 2]} for k in range(8)])
    segments = in_segments(examples, num_unroll=1, batch_size=1)
    with serving(segments) as server, connect(server, rank=0, world_size=2) as feed:
        batch = next(feed)
        batch.save_state("s", batch.state("s"))
        absent = "1 ranks have not joined: 1"
        with waits_end_with(absent), pytest.raises(headrace.DeadlineExceeded, match=absent):
            next(feed)


def test_a_number_names_a_run_and_another_one_begins_once_nobody_is_left(tmp_path):
    """Its number may be smaller: a job of Slurm came before, or the clock was set back."""
    over = "is of a run that is over"
    with serving(numbered(8, 1), state_dir=tmp_path / "state") as server:
        with connect(server, rank=0, world_size=2, run=900) as late:
            next(late)
            with pytest.raises(headrace.FeedInUse, match="run 900, of which there are the ranks 0"):
                connect(server, rank=0, world_size=1, run=7)
            next(late)
        with connect(server, rank=0, world_size=1, run=7) as feed:
            next(feed)
            with pytest.raises(headrace.FeedInUse, match=over):
                connect(server, rank=0, world_size=2, run=900)
    with serving(numbered(8, 1), state_dir=tmp_path / "state") as server:
        with pytest.raises(headrace.FeedInUse, match=over):
            connect(server, rank=0, world_size=2, run=900)
        with connect(server, rank=0, world_size=1, run=3) as feed:
            assert len([*feed]) == 5


def test_another_run_begins_once_the_ranks_of_the_present_one_were_killed():
    with (
        serving(numbered(8, 1)) as server,
        Process("-c", _RANK, server.address, imports=["headrace"]) as rank,
    ):
        rank.wait_for("batch")
        rank.kill()
        with connect(server, rank=0, world_size=1, run=4) as feed:
            assert len([*feed]) == 8
