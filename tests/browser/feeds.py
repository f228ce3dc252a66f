"""Feeds and trainers that make a page worth looking at."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import headrace
import headrace_server as hs

__all__ = ["buckets", "segments", "slowly", "trained"]


def _examples(n: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(1)
    lengths = random.integers(5, 120, n)
    return [
        {"utt": b"utt-%04d" % i, "audio": random.random((length, 8), np.float32)}
        for i, length in enumerate(lengths.tolist())
    ]


def segments() -> hs.Pipeline:
    """Sequences with states, for ever."""
    return (
        hs.from_examples(_examples(2000))
        .shuffle(seed=1)
        .repeat(None)
        .batch_sequences_with_states(
            input_key="utt",
            input_sequences=["audio"],
            input_context=[],
            initial_states={"h": hs.zeros((16,), "float32")},
            num_unroll=20,
            batch_size=32,
            capacity=512,
        )
    )


def buckets() -> hs.Pipeline:
    """Buckets behind a slow function, for ever."""
    return (
        hs.from_examples(_examples(2000))
        .repeat(None)
        .map("tests.browser.feeds:slowly")
        .bucket_by_sequence_length("audio", 16, [20, 40, 80], dynamic_pad=True)
    )


def slowly(example: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.003)
    return example


@contextmanager
def trained(address: str, *steps: tuple[str, float]) -> Iterator[threading.Event]:
    """Run trainers of feeds, each with the seconds of a step, until the event is set."""
    stop = threading.Event()

    def train(feed: str, step_s: float) -> None:
        with headrace.connect(address, feed=feed, timeout=60) as batches:
            while not stop.is_set():
                try:
                    batch = next(batches)
                    stop.wait(step_s)
                    if isinstance(batch, headrace.SegmentBatch):
                        batch.save_state("h", batch.state("h"))
                except headrace.StaleLease:  # its worker died, and the rows come again
                    continue

    threads = [threading.Thread(target=train, args=step) for step in steps]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
