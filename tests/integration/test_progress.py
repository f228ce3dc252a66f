"""The length and the progress of feeds, by real servers and trainers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .serving import connect, serving

ROWS = [{"x": i} for i in range(11)]


def pipeline(epochs: int | None = 3, across: bool = True) -> hs.Pipeline:
    shuffled = hs.from_examples(ROWS).shuffle(3).repeat(epochs, across_batches=across)
    return shuffled.batch(2, allow_smaller_final_batch=True)


def segments(**options: object) -> hs.Pipeline:
    examples = [{"key": f"k{i}", "x": np.arange(2 * n)} for i, n in enumerate([3, 1, 2, 2])]
    return (
        hs.from_examples(examples)
        .repeat(2)
        .batch_sequences_with_states(
            input_key="key",
            input_sequences=["x"],
            input_context=[],
            initial_states={"s": hs.zeros((), "int64")},
            num_unroll=2,
            batch_size=2,
            **options,
        )
    )


def committed(feed: headrace.Feed) -> tuple[int, int, int]:
    feed.commit()  # waits for the answers
    progress = feed.progress
    return progress.batches, progress.rows, progress.epoch


def test_the_length_of_a_rank_is_the_number_of_its_rounds() -> None:
    with serving(pipeline(1), partitions=2) as server:
        with connect(server, rank=0, world_size=2) as first:
            with connect(server, rank=1, world_size=2) as second, ThreadPoolExecutor() as pool:
                batches = [*pool.map(lambda feed: sum(1 for _ in feed), (first, second))]
                assert batches == [len(first), len(second)] == [2, 2]


@pytest.mark.parametrize("across", [True, False])
def test_progress_counts_the_commits_of_all_trainers_over_a_restart(
    tmp_path: Path, across: bool
) -> None:
    state = tmp_path / "state"
    with serving(pipeline(across=across), state_dir=state) as server:
        with connect(server, prefetch=0) as feed, connect(server, prefetch=0) as other:
            assert committed(feed) == (0, 0, 0)
            rows = sum(batch.rows for batch in islice(iter(feed), 3)) + next(other).rows
            other.commit()
            assert committed(feed) == (4, rows, 0)
            assert feed.progress.epochs == 3 and 0.2 < feed.progress.fraction < 0.25
    with serving(pipeline(across=across), state_dir=state) as server:
        with connect(server) as feed:
            assert committed(feed) == (4, rows, 0)
            seen = []
            while (batch := next(feed, None)) is not None:
                rows += batch.rows
                number, total, epoch = committed(feed)
                assert total == rows
                seen.append((number, epoch))
            borders = (6, 11) if across else (6, 12)
            last = seen.pop()
            assert seen == [(n, sum(n >= b for b in borders)) for n in range(5, last[0])]
            assert str(feed.progress) == f"epoch 3 of 3: 33 rows in {last[0]} batches, 100%"


def test_a_trainer_that_waits_for_answers_waits_for_no_other_commits_and_no_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither do commits gather any longer, nor do answers wait for a batch to leave with."""
    monkeypatch.setattr("headrace_server.worker.commits._GATHER_S", 10 * PATIENCE_S)
    monkeypatch.setattr("headrace_server.worker.outbox._MOMENT_S", 10 * PATIENCE_S)
    with serving({"plain": pipeline(), "segments": segments()}) as server:
        with connect(server, feed="plain", prefetch=0) as feed:
            next(feed)
            assert committed(feed) == (1, 2, 0)
        with connect(server, feed="segments", prefetch=0) as feed:
            batch = next(feed)
            batch.save_state("s", batch.state("s"))
            assert feed.progress.batches == 1
