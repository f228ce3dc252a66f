"""Feeds whose batches end with their epoch, by real servers and trainers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
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


@pytest.fixture(scope="module")
def of_three_partitions() -> Seen:
    with serving(pipeline(), partitions=3) as server:
        with headrace.connect(server.address) as feed:
            return epochs_of(feed)


def test_a_loop_is_an_epoch_and_the_last_batch_is_committed_when_it_ends() -> None:
    with serving(pipeline(None), partitions=2) as server:
        with headrace.connect(server.address) as feed:
            for epoch in range(5):
                assert sorted(x for b in feed for x in b["x"].tolist()) == list(range(11))
                feed.commit()  # waits for the answers
                assert server.stats()["default"]["rows"] == 11 * (epoch + 1)


def test_a_server_that_is_started_again_goes_on_within_the_epoch(
    tmp_path: Path, of_three_partitions: Seen
) -> None:
    whole = [(n, rows) for n, batches in of_three_partitions for rows in batches]
    seen: list[Any] = []
    for _ in range(4):  # each takes some batches
        with serving(pipeline(), partitions=3, state_dir=tmp_path) as server:
            with headrace.connect(server.address) as feed:
                loops: Iterator[Any] = feed.epochs()
                for number, batches in loops:
                    for batch in batches:
                        seen.append((number, batch["x"].tolist()))
                        if len(seen) % 5 == 0:
                            break
                    else:
                        continue
                    break
    assert seen == whole


def test_trainers_that_share_a_feed_count_the_same_epochs() -> None:
    with serving(pipeline(), partitions=2) as server:
        with (
            headrace.connect(server.address) as one,
            headrace.connect(server.address, prefetch=0) as two,  # which holds none meanwhile
        ):
            mine = [
                (number, [b["x"].tolist() for b in batches]) for number, batches in one.epochs()
            ]
            assert [number for number, _ in mine] == [0, 1, 2]
            assert [(number, list(batches)) for number, batches in two.epochs()] == [
                (0, []),
                (1, []),
                (2, []),
            ]


def test_segments_of_a_server_that_others_can_follow_tell_their_epoch(tmp_path: Path) -> None:
    """With a state directory each batch names its segments, for the next server."""
    examples = [{"key": f"k{i}", "x": [float(i)] * (1 + i % 3)} for i in range(5)]
    segments = hs.from_examples(examples).repeat(2, across_batches=False)
    segments = segments.batch_sequences_with_states(
        "key", ["x"], [], None, {"h": hs.zeros((1,))}, 2, 2, allow_small_batch=True
    )
    with serving(segments, state_dir=tmp_path) as server:
        with headrace.connect(server.address) as feed:
            for number, batches in feed.epochs():
                ended = 0
                for batch in batches:
                    assert batch.epoch == number
                    ended += int(batch.last.sum())
                    batch.save_state("h", batch.state("h"))
                assert ended == 5


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


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("across", [False, True])
def test_the_length_of_a_feed_is_the_number_of_batches_of_a_loop(
    workers: int, small: bool, across: bool
) -> None:
    each = hs.from_examples(EXAMPLES).repeat(2, across_batches=across)
    with hs.run(each.batch(2, small), partitions=3, workers=workers) as server:
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


# Ranks


@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_have_equally_many_batches_in_each_epoch_and_no_round_crosses_it(
    tmp_path: Path, workers: int
) -> None:
    """Partitions of 3, 4 and 4 batches of one row: one round of each is incomplete, or none."""
    each = hs.from_examples(EXAMPLES).shuffle(3).repeat(3, across_batches=False).batch(1)
    with hs.run(each, partitions=3, workers=workers, state_dir=tmp_path) as server:

        def train(rank: int) -> Seen:
            with headrace.connect(server.address, rank=rank, world_size=2) as feed:
                return epochs_of(feed)

        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(train, range(2))
        dropped = server.stats()["default"]["dropped"]
    for (_, mine), (_, others) in zip(one, two, strict=True):
        assert len(mine) == len(others) == 5
        rows = [x for batch in mine + others for x in batch]
        assert len(set(rows)) == 10
    assert dropped == {"incomplete_round": 3}


# Segments


def segments(order: str, placement: str = "server", small: bool = True) -> hs.Pipeline:
    examples = [
        {"k": b"%d" % i, "s": np.arange(1 + 7 * i % 5, dtype=np.float32)} for i in range(11)
    ]
    return (
        hs.from_examples(examples)
        .shuffle(3)
        .repeat(3, across_batches=False)
        .batch_sequences_with_states(
            input_key="k",
            input_sequences=["s"],
            input_context=[],
            input_length=None,
            initial_states={"h": hs.zeros((), "float32")},
            num_unroll=2,
            batch_size=2,
            capacity=4,
            allow_small_batch=small,
            pad=True,
            order=order,
            state_placement=placement,
        )
    )


def segments_of(batches: Iterator[Any], number: int) -> list[tuple[int, list[bytes]]]:
    seen = []
    for batch in batches:
        assert batch.epoch == number
        seen.append((batch.partition, batch.key.tolist()))
        batch.save_state("h", batch.state("h") + 1)
    return seen


ORDERS = [("arrival", "server"), ("lanes", "server"), ("lanes", "trainer")]


@pytest.mark.parametrize(("order", "placement"), ORDERS)
def test_all_segments_of_an_epoch_come_before_the_next_whatever_the_workers(
    order: str, placement: str
) -> None:
    streams = []
    for workers in (1, 2):
        with hs.run(segments(order, placement), partitions=3, workers=workers) as server:
            with headrace.connect(server.address, prefetch=0) as feed:
                streams.append([segments_of(batches, n) for n, batches in feed.epochs()])
    assert streams[0] == streams[1] and len(streams[0]) == 3
    keys = [sorted(key for _, rows in stream for key in rows) for stream in streams[0]]
    assert keys[0] == keys[1] == keys[2] and len(set(keys[0])) == len(keys[0]) == 19


@pytest.mark.parametrize("order", ["arrival", "lanes"])
@pytest.mark.parametrize("partitions", [1, 3])
def test_trainers_that_share_segments_reach_the_next_epoch_together(
    order: str, partitions: int
) -> None:
    """A trainer without remaining segments of an epoch waits until the other has saved its own."""
    both = Barrier(2)
    with serving(segments(order), partitions=partitions) as server:

        def train(_: int) -> list[int]:
            with headrace.connect(server.address, prefetch=0) as feed:
                both.wait(
                    PATIENCE_S
                )  # a trainer that joined after the other's end would get fewer batches
                epochs = [segments_of(batches, number) for number, batches in feed.epochs()]
            return [sum(len(rows) for _, rows in epoch) for epoch in epochs]

        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(train, range(2))
    assert [mine + others for mine, others in zip(one, two, strict=True)] == [19, 19, 19]


@pytest.mark.parametrize("epochs", [10_000, None])
def test_drain_ends_the_count_of_epochs_for_all_trainers(epochs: int | None) -> None:
    with serving(pipeline(epochs), partitions=2) as server, ThreadPoolExecutor(1) as pool:
        with headrace.connect(server.address) as feed, headrace.connect(server.address) as other:
            theirs = pool.submit(epochs_of, other)
            loops = feed.epochs()
            first = [(number, list(batches)) for number, batches in itertools.islice(loops, 2)]
            feed.drain()
            numbers = [number for number, _ in [*first, *((n, list(b)) for n, b in loops)]]
            assert numbers == [number for number, _ in theirs.result(PATIENCE_S)]
            assert numbers == list(range(len(numbers))) and len(numbers) < 10_000
