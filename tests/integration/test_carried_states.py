"""Final states through whole servers: a restart and a rewind begin examples as one run does."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

from .segment_streams import connect
from .serving import serving

KEYS = ["a", "b", "c", "a", "b", "c", "a", "b"]


def sessions(order: str) -> hs.Pipeline:
    rows = [{"k": key, "x": np.full(2, i + 1.0, "float32")} for i, key in enumerate(KEYS)]
    zero = hs.zeros((), "float32")
    return hs.from_examples(rows).batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states={
            "s": hs.final_state("s", default=zero),
            "t": hs.from_pool("s", 0.5, default=zero, size=4),
        },
        num_unroll=1,
        batch_size=2,
        capacity=2,
        order=order,  # type: ignore[arg-type]
    )


def users(partitions: int) -> dict[int, float]:
    """Return the first state of each example of a feed of many users, by its number."""
    rows = [{"k": f"user {i % 7}", "i": i, "x": [i + 1.0] * (1 + i % 3)} for i in range(60)]
    pipeline = hs.from_examples(rows).batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=["i"],
        initial_states={"s": hs.final_state("s", default=0.0)},
        num_unroll=2,
        batch_size=1,
        capacity=1,
    )
    began = {}
    with hs.run(pipeline, workers=0, partitions=partitions) as server, connect(server) as feed:
        for batch in feed:
            for row in np.flatnonzero(batch.first):
                began[int(batch.context["i"][row])] = float(batch.state("s")[row])
            batch.save_state("s", batch.state("s") + batch.sequences["x"].sum(axis=1))
    return began


def test_a_feed_of_many_partitions_starts_each_example_where_its_key_ended() -> None:
    wanted, sums = {}, [0.0] * 7
    for i in range(60):
        wanted[i] = sums[i % 7]
        sums[i % 7] += (i + 1.0) * (1 + i % 3)
    assert users(partitions=1) == users(partitions=4) == wanted


def carried(rows: list[dict[str, Any]], batch_size: int) -> hs.Pipeline:
    """Return segments of two steps, whose state starts as the last example of their key ended."""
    return hs.from_examples(rows).batch_sequences_with_states(
        input_key="k",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.final_state("s", default=0.0)},
        num_unroll=2,
        batch_size=batch_size,
        capacity=batch_size,
    )


def test_the_next_example_of_a_key_waits_for_its_final_state_whatever_is_prefetched() -> None:
    pipeline = carried([{"k": "u", "x": [1.0, 1.0]}] * 3, batch_size=1)
    with hs.run(pipeline, workers=0) as server, connect(server, prefetch=2) as feed:
        for begins in (0.0, 1.0, 2.0):
            batch = next(feed)
            for _ in range(20):
                feed.stats()  # meanwhile the server could hand out the next one
            assert batch.state("s").tolist() == [begins]
            batch.save_state("s", batch.state("s") + 1)


def train(feed: headrace.Feed, batches: int = 100) -> list[Any]:
    """Return the keys and states of a number of batches."""
    seen = []
    for batch in islice(feed, batches):
        seen.append((batch.keys(), batch.state("s").tolist(), batch.state("t").tolist()))
        batch.save_state("t", batch.state("t"))
        batch.save_state("s", batch.state("s") + batch.sequences["x"].sum(axis=1))
    return seen


@pytest.mark.parametrize("order", ["arrival", "lanes"])
def test_a_start_a_restart_and_a_rewind_have_the_same_final_states(order: str, tmp_path: Path):
    with serving(sessions(order)) as server:
        with connect(server) as feed:
            wanted = train(feed)
        assert server.stats()["default"]["segments"]["final_states"] >= 3
    firsts = [
        state
        for keys, states, _ in wanted
        for key, state in zip(keys, states, strict=True)
        if key.startswith(b"00000")
    ]
    assert firsts.count(0.0) == 3, "those of a, b and c"
    with serving(sessions(order), state_dir=tmp_path) as server, connect(server) as feed:
        seen = train(feed, 4)
        token = feed.snapshot()
    with serving(sessions(order), state_dir=tmp_path) as server, connect(server) as feed:
        rest = train(feed)
    assert seen + rest == wanted
    with serving(sessions(order), state_dir=tmp_path) as server:
        with connect(server, resume=token) as feed:
            assert train(feed) == rest


def test_a_second_example_of_a_key_in_flight_names_a_remedy_that_final_states_have() -> None:
    pipeline = carried([{"k": "a", "x": [1.0] * 9}] * 2, batch_size=2)
    with (
        pytest.raises(headrace.DataError, match="in flight; lower capacity, so that") as raised,
        hs.run(pipeline, workers=0) as server,
        connect(server) as feed,
    ):
        next(feed)
    assert "make_keys_unique" not in str(raised.value)
