"""The requests of a trainer that concern its feed as a whole, against a whole server in threads."""

from __future__ import annotations

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

ROWS = [{"i": i, "n": i % 5} for i in range(60)]


def sequences(counts: list[int], **options: object) -> hs.Pipeline:
    examples = [{"key": f"k{i}", "x": np.arange(2 * n)} for i, n in enumerate(counts)]
    return hs.from_examples(examples).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((), "int64")},
        num_unroll=2,
        batch_size=2,
        **options,
    )


def connect(server: hs.Server, **options: object) -> headrace.Feed:
    return headrace.connect(server.address, timeout=PATIENCE_S, prefetch=0, **options)


def test_segments_are_counted_as_a_barrier_counts_them() -> None:
    with (
        hs.run(sequences([3, 1, 2], capacity=3), workers=0) as server,
        connect(server) as feed,
    ):
        first = next(feed)
        assert first.key.tolist() == [b"00000_of_00003:k0", b"00000_of_00001:k1"]
        # k0 is out, with two segments to come; k2 is ready, with one.  k1 has left its place.
        assert feed.stats() == {"ready": 1, "incomplete": 3, "in_flight": 2}
        first.save_state("s", first.state("s"))
        feed.commit()
        assert feed.stats() == {"ready": 2, "incomplete": 2, "in_flight": 2}
        for batch in feed:
            batch.save_state("s", batch.state("s"))
        assert feed.stats() == {"ready": 0, "incomplete": 0, "in_flight": 0}


def test_lanes_that_wait_for_nothing_are_ready() -> None:
    with (
        hs.run(sequences([3, 2, 2], order="lanes"), workers=0) as server,
        connect(server) as feed,
    ):
        batch = next(feed)
        assert feed.stats() == {"ready": 1, "incomplete": 4, "in_flight": 3}
        batch.save_state("s", batch.state("s"))
        feed.commit()
        assert feed.stats() == {"ready": 3, "incomplete": 2, "in_flight": 3}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_other_feeds_are_counted_over_all_partitions(workers: int) -> None:
    """Of 60 rows each of two partitions has 30: 6 rows of each bucket, in batches of 4."""
    feeds = hs.from_examples(ROWS).bucket("n", 4, 5, capacity=2)
    with hs.run(feeds, workers=workers, partitions=2) as server, connect(server) as feed:
        batch = next(feed)
        stats = feed.stats()
        assert stats["in_flight"] == 1 and 0 <= stats["ready"] <= 5
        while stats["ready"] < 4:  # batches are made meanwhile
            stats = feed.stats()
        del batch
        assert stats == {"ready": 4, "incomplete": 60 - 4 * 5, "in_flight": 1}
        assert sum(batch.rows for batch in feed) == 36, "each partition drops two of each bucket"
        assert feed.stats() == {"ready": 0, "incomplete": 0, "in_flight": 0}
