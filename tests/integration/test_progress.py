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

from .serving import connect, kill_worker, serving

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


@pytest.mark.parametrize("ranks", [{}, {"rank": 0, "world_size": 1}])
@pytest.mark.parametrize("again", ["server", "worker"])
def test_progress_of_segments_counts_the_commits_of_lives_before(
    tmp_path: Path, again: str, ranks: dict[str, int]
) -> None:
    """A batch of a rank may have empty rows, which do not count."""
    options = {"state_dir": tmp_path / "state"} if again == "server" else {}
    rows = 0

    def train(server: hs.Server, batches: int | None) -> headrace.feed_progress.FeedProgress:
        nonlocal rows
        with connect(server, prefetch=0, **ranks) as feed:
            for batch in islice(feed, batches):
                rows += int(np.count_nonzero(batch.valid)) if ranks else batch.rows
                batch.save_state("s", batch.state("s"))
            return feed.progress

    with hs.run(segments(), **options) as server:
        assert train(server, 2).rows == rows
        if again == "worker":
            kill_worker(server)
            assert train(server, None).rows == rows
    if again == "server":
        with hs.run(segments(), **options) as server:
            assert train(server, None).rows == rows
    assert rows == 16


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_progress_of_segments_goes_through_the_epochs(order: str) -> None:
    with serving(segments(order=order)) as server, connect(server) as feed:
        with pytest.raises(TypeError, match="no length: how many rows make"):
            len(feed)
        epochs, rows = [], 0
        for batch in feed:
            rows += batch.rows
            batch.save_state("s", batch.state("s"))
            feed.commit()
            epochs.append(feed.progress.epoch)
            assert feed.progress.rows == rows
        assert epochs == sorted(epochs) and {*epochs} == {0, 1}
        assert feed.progress.fraction == 1.0


def test_the_commits_that_a_loop_has_sent_are_counted_at_its_end() -> None:
    pipeline = hs.from_examples([{"x": i} for i in range(40)]).repeat(2, across_batches=False)
    with serving(pipeline.batch(1)) as server:
        with headrace.connect(server.address) as feed:
            for epoch in (1, 2):
                assert len(list(feed)) == 40
                assert (feed.progress.batches, feed.progress.fraction) == (40 * epoch, epoch / 2)


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
