"""Feeds whose batches end with their epoch, by real servers and trainers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs

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
    with hs.run(pipeline(), partitions=3, workers=0) as server:
        with headrace.connect(server.address) as feed:
            return epochs_of(feed)


def test_each_epoch_is_one_pass_over_the_data(of_three_partitions: Seen) -> None:
    assert [number for number, _ in of_three_partitions] == [0, 1, 2]
    for _, batches in of_three_partitions:
        assert sorted(x for rows in batches for x in rows) == list(range(11))
        assert len(batches) == 6, "a small batch at the end of each partition's share"
    assert of_three_partitions[0][1] != of_three_partitions[1][1], "in another order"


def test_the_epochs_are_the_same_for_any_number_of_workers(of_three_partitions: Seen) -> None:
    with hs.run(pipeline(), partitions=3, workers=2) as server:
        with headrace.connect(server.address) as feed:
            assert epochs_of(feed) == of_three_partitions


def test_a_loop_is_an_epoch_and_the_last_batch_is_committed_when_it_ends() -> None:
    with hs.run(pipeline(None), partitions=2, workers=0) as server:
        with headrace.connect(server.address) as feed:
            for epoch in range(5):
                assert sorted(x for b in feed for x in b["x"].tolist()) == list(range(11))
                feed.commit()  # waits for the answers
                assert server.stats()["default"]["rows"] == 11 * (epoch + 1)


def test_the_epoch_of_a_batch_across_epochs_is_that_of_its_first_row() -> None:
    across = hs.from_examples(EXAMPLES).repeat(2).batch(4, allow_smaller_final_batch=True)
    with hs.run(across, workers=0) as server, headrace.connect(server.address) as feed:
        with pytest.raises(ValueError, match=r"epochs\(\).*it with repeat\(n, across_batch"):
            feed.epochs()
        assert [batch.epoch for batch in feed] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("after", [3, 6, 8])
def test_a_snapshot_in_an_epoch_goes_on_with_the_rest_of_it(
    tmp_path: Path, of_three_partitions: Seen, after: int
) -> None:
    whole = [(n, rows) for n, batches in of_three_partitions for rows in batches]
    with hs.run(pipeline(), partitions=3, workers=0, state_dir=tmp_path) as server:
        with headrace.connect(server.address) as feed:
            for _ in range(after):
                next(feed)
            token = feed.snapshot()
            next(feed)
            feed.load_state_dict(token)
            rest = epochs_of(feed)
    assert [(n, rows) for n, batches in rest for rows in batches] == whole[after:]
    assert rest[0][0] == whole[after][0]


def test_a_server_that_is_started_again_goes_on_within_the_epoch(
    tmp_path: Path, of_three_partitions: Seen
) -> None:
    whole = [(n, rows) for n, batches in of_three_partitions for rows in batches]
    seen: list[Any] = []
    for _ in range(4):  # each takes some batches
        with hs.run(pipeline(), partitions=3, workers=0, state_dir=tmp_path) as server:
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
    with hs.run(pipeline(), partitions=2, workers=0) as server:
        with headrace.connect(server.address) as one, headrace.connect(server.address) as two:
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
    """With a state directory each batch tells its segments, for a server after this one."""
    examples = [{"key": f"k{i}", "x": [float(i)] * (1 + i % 3)} for i in range(5)]
    segments = hs.from_examples(examples).repeat(2, across_batches=False)
    segments = segments.batch_sequences_with_states(
        "key", ["x"], [], None, {"h": hs.zeros((1,))}, 2, 2, allow_small_batch=True
    )
    with hs.run(segments, workers=0, state_dir=tmp_path) as server:
        with headrace.connect(server.address) as feed:
            for number, batches in feed.epochs():
                ended = 0
                for batch in batches:
                    assert batch.epoch == number
                    ended += int(batch.last.sum())
                    batch.save_state("h", batch.state("h"))
                assert ended == 5
