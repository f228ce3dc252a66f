"""Stages and shapes through whole servers, beyond what the drawn combinations show."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import eventually

from .serving import connect, serving

FEATURES = {"n": hs.scalar("int64"), "y": hs.scalar("int64"), "x": hs.sequence("float64")}
ROWS = hs.from_examples(
    [{"n": i % 3, "y": i % 2, "x": np.zeros(1 + i % 9)} for i in range(3000)], FEATURES
)
PARTITIONS = 2


BUCKETS: dict[str, Callable[..., hs.Pipeline]] = {
    "bucket": lambda **options: ROWS.select(["n"]).bucket("n", 4, 3, **options),
    "bucket_by_sequence_length": lambda **options: ROWS.select(["x"]).bucket_by_sequence_length(
        "x", 4, [3, 6], dynamic_pad=True, **options
    ),
}


@pytest.mark.parametrize("name", BUCKETS)
def test_capacity_is_how_many_batches_of_a_partition_wait(name):
    capacity = 3
    pipeline = BUCKETS[name](capacity=capacity)
    with (
        serving(pipeline, partitions=PARTITIONS) as server,
        connect(server, prefetch=0) as feed,
    ):
        for _ in range(5):
            eventually(lambda: feed.stats()["ready"] == PARTITIONS * capacity)
            next(feed)
            assert feed.stats()["ready"] <= PARTITIONS * capacity
