"""A trainer logs numbers of its feed to a logger of any kind."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs

ROWS = [{"id": f"r{i}", "x": np.ones(i % 3 + 1)} for i in range(12)]


class Scalars:
    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        assert isinstance(value, float)
        self.found.append((name, step))


class Metrics:
    def __init__(self) -> None:
        self.found: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.found.append(metrics)


SHAPES = {
    "plain": hs.from_examples(ROWS).batch(4, dynamic_pad=True),
    "buckets": hs.from_examples(ROWS).bucket_by_sequence_length("x", 4, [9], dynamic_pad=True),
    "segments": hs.from_examples(ROWS).batch_sequences_with_states(
        "id", ["x"], [], None, {}, num_unroll=3, batch_size=4, order="lanes"
    ),
}


@pytest.fixture(scope="module")
def address() -> Any:
    with hs.run(SHAPES) as server:
        yield server.address


@pytest.mark.parametrize("shape", SHAPES)
def test_the_numbers_are_those_of_the_batches_taken(address, shape):
    found: list[dict[str, float]] = []
    rows = 0
    with headrace.connect(address, feed=shape) as feed:
        feed.log_to(found.append, every_s=0)
        for batch in feed:
            rows += batch.rows
            if rows == 12:
                assert len(found) == 3
                break
    names = {"feed/waited_s", "feed/waited_share", "feed/rows_per_s", "feed/queue"}
    assert all(names <= numbers.keys() for numbers in found)
    assert all(0 <= numbers["feed/waited_share"] <= 1 for numbers in found)
    assert all(numbers["feed/rows_per_s"] > 0 for numbers in found)
    if shape == "plain":
        assert not any("feed/padding" in numbers for numbers in found)
    else:  # the rows of each batch have 1 to 3 steps, and are padded to 3
        shares = [1 - sum(len(r["x"]) for r in ROWS[i : i + 4]) / 12 for i in (0, 4, 8)]
        assert [numbers["feed/padding"] for numbers in found] == pytest.approx(shares)


def test_a_logger_is_known_by_its_methods(caplog):
    scalars, metrics = Scalars(), Metrics()
    with hs.run(SHAPES["plain"]) as server, headrace.connect(server.address) as feed:
        for logger in (scalars, metrics, logging.getLogger("training")):
            feed.log_to(logger, every_s=0)
            with caplog.at_level("INFO", "training"):
                next(feed)
        with pytest.raises(TypeError, match=r"logger=3: give something with log\(dict\)"):
            feed.log_to(3)
    assert ("feed/rows_per_s", 1) in scalars.found
    assert len(metrics.found) == 1
    assert "feed/rows_per_s" in caplog.text


def test_numbers_wait_for_their_time():
    found: list[dict[str, float]] = []
    with hs.run(SHAPES["plain"]) as server, headrace.connect(server.address) as feed:
        feed.log_to(found.append, every_s=3600)
        assert sum(batch.rows for batch in feed) == 12
    assert not found


def test_a_feed_that_logs_leaves_as_soon_as_the_program_drops_it(address):
    """Without a cycle of references, whose collection its leases would wait for."""
    feed = headrace.connect(address, feed="plain")
    feed.log_to(print)
    link = feed._link
    gc.disable()
    try:
        del feed
        assert link.wire.closing
    finally:
        gc.enable()
