"""``capacity`` and similar options take effect in every shape that accepts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import eventually

from .segment_streams import connect
from .serving import serving

FEATURES = {"n": hs.scalar("int64"), "y": hs.scalar("int64"), "x": hs.sequence("float64")}
ROWS = hs.from_examples(
    [{"n": i % 3, "y": i % 2, "x": np.zeros(1 + i % 9)} for i in range(3000)], FEATURES
)
PARTITIONS = 2


def sequences(capacity: int, **options: Any) -> hs.Pipeline:
    examples = [{"key": f"k{i}", "x": np.arange(2 * (1 + i % 4))} for i in range(200)]
    return hs.from_examples(examples).batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        num_unroll=2,
        batch_size=4,
        capacity=capacity,
        **{"initial_states": {"s": hs.zeros((), "int64")}, **options},
    )


BUCKETS: dict[str, Callable[..., hs.Pipeline]] = {
    "bucket": lambda **options: ROWS.select(["n"]).bucket("n", 4, 3, **options),
    "bucket_by_sequence_length": lambda **options: ROWS.select(["x"]).bucket_by_sequence_length(
        "x", 4, [3, 6], dynamic_pad=True, **options
    ),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_capacity_is_how_many_batches_of_a_partition_wait(name: str) -> None:
    capacity = 3
    pipeline = BUCKETS[name](capacity=capacity)
    with (
        serving(pipeline, partitions=PARTITIONS) as server,
        connect(server) as feed,
    ):
        for _ in range(5):
            eventually(lambda: feed.stats()["ready"] == PARTITIONS * capacity)
            next(feed)
            assert feed.stats()["ready"] <= PARTITIONS * capacity


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"order": "lanes", "state_placement": "trainer"},
    ],
    ids=["arrival", "lanes"],
)
def test_capacity_is_how_many_examples_of_a_partition_are_in_flight(
    options: dict[str, Any],
) -> None:
    most = {}
    for capacity in (5, 9):
        with serving(sequences(capacity, **options)) as server, connect(server) as feed:
            seen = []
            for batch in feed:
                seen.append(feed.stats()["in_flight"])
                if feed.states:
                    batch.save_state("s", batch.state("s"))
        most[capacity] = max(seen)
    assert 4 <= most[5] <= 5 < most[9] <= 9
