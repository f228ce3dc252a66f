"""Feeds whose batches end with their epoch, by real servers and trainers."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from .serving import serving

EXAMPLES = [{"x": i} for i in range(11)]


def pipeline(epochs: int | None = 3) -> hs.Pipeline:
    shuffled = hs.from_examples(EXAMPLES).shuffle(3)
    return shuffled.repeat(epochs, across_batches=False).batch(2, allow_smaller_final_batch=True)


Seen = list[tuple[int, list[list[int]]]]


def epochs_of(feed: headrace.Feed) -> Seen:
    seen = []
    for number, batches in feed.epochs():
        rows = []
        for batch in batches:
            assert batch.epoch == number
            rows.append(batch["x"].tolist())
        seen.append((number, rows))
    return seen


def test_a_loop_is_an_epoch_and_the_last_batch_is_committed_when_it_ends() -> None:
    with serving(pipeline(None), partitions=2) as server:
        with headrace.connect(server.address) as feed:
            for epoch in range(5):
                assert sorted(x for b in feed for x in b["x"].tolist()) == list(range(11))
                feed.commit()  # waits for the answers
                assert server.stats()["default"]["rows"] == 11 * (epoch + 1)


def test_an_epoch_ends_for_a_trainer_whose_next_batches_another_one_has_already() -> None:
    """All of epoch 0 is committed, and the other trainer holds all batches of epoch 1."""
    with serving(pipeline(2)) as server:
        with headrace.connect(server.address, prefetch=0) as one:
            first = iter(one)
            next(first)  # before the other trainer, whose requests reach all that is left
            with headrace.connect(server.address, prefetch=12) as two:
                assert sum(1 for _ in two) == 5
                assert list(first) == [], "the next batch, or the feed's end, is not waited for"
                assert sum(1 for _ in two) + sum(1 for _ in one) == 6


# Length


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("across", [False, True])
def test_the_length_of_a_feed_is_the_number_of_batches_of_a_loop(small: bool, across: bool) -> None:
    each = hs.from_examples(EXAMPLES).repeat(2, across_batches=across)
    with hs.run(each.batch(2, small), partitions=3) as server:
        with headrace.connect(server.address) as feed:
            assert feed and len(feed) == sum(1 for _ in feed) > 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda p: p.repeat().batch(2), "it repeats for ever"),
        (lambda p: p.resample_at_rate(0.5).batch(2), "resample_at_rate may change how many"),
        (lambda p: p.options(on_bad_example="skip").batch(2), "bad examples are skipped"),
        (lambda p: p.bucket("x", 2, 11), "how many rows make a batch depends on the data"),
    ],
)
def test_a_length_that_is_not_known_is_a_type_error_with_the_reason(
    change: Any, reason: str
) -> None:
    with serving(change(hs.from_examples(EXAMPLES))) as server:
        with headrace.connect(server.address) as feed:
            with pytest.raises(TypeError, match=f"feed 'default' has no length: {reason}"):
                len(feed)
            assert feed


def test_a_feed_that_ends_without_a_batch_logs_the_rows_that_it_drops(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with serving(hs.from_examples(EXAMPLES).batch(12)) as server:
        with headrace.connect(server.address) as feed:
            assert not list(feed)
    assert "'default' ends without a batch, and drops its rows: 11 as remainder" in (
        capfd.readouterr().err
    )


# Segments


def test_drain_ends_the_count_of_epochs_for_all_trainers() -> None:
    with serving(pipeline(None), partitions=2) as server, ThreadPoolExecutor(1) as pool:
        with headrace.connect(server.address) as feed, headrace.connect(server.address) as other:
            theirs = pool.submit(epochs_of, other)
            loops = feed.epochs()
            first = [(number, list(batches)) for number, batches in itertools.islice(loops, 2)]
            feed.drain()
            numbers = [number for number, _ in [*first, *((n, list(b)) for n, b in loops)]]
            assert numbers == [number for number, _ in theirs.result(PATIENCE_S)]
            assert numbers == list(range(len(numbers))) and len(numbers) < 10_000
