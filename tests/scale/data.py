"""The data of the feeds: made by the row, always the same, and cheap compared with the feed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import headrace_server as hs
from tests.bench import records
from tests.trials.frame import Setup

__all__ = ["RECORDS", "examples", "numbers", "records_file", "records_pipeline", "sequences"]

#: Number of records in the file, at full size and in short.
RECORDS = 50_000, 12_800

STEPS, SEGMENTS, STATE = 4, 6, 16


def examples(segments: int = SEGMENTS) -> Iterator[dict[str, Any]]:
    """Sequences without end; each has a key of its own."""
    number = 0
    x = np.random.default_rng(1).standard_normal((97, STEPS * segments), np.float32)
    while True:
        yield {"key": b"%d" % number, "x": x[number % 97]}
        number += 1


def sequences(batch: int, capacity: int | None, **more: Any) -> hs.Pipeline:
    """Sequences of ``SEGMENTS`` segments, each with a state of 64 bytes."""
    return hs.from_function("tests.scale.data:examples").batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"s": hs.zeros((STATE,), "float32")},
        num_unroll=STEPS,
        batch_size=batch,
        capacity=capacity,
        **more,
    )


def records_file(setup: Setup) -> Path:
    """TFRecord like W1's: label int64 0, 1, 2 …, x float32[64], id of 10 bytes."""
    path = setup.scratch / "records.tfrecord"
    if not path.exists():
        x = np.random.default_rng(2).standard_normal((97, 64), np.float32)
        records.write(
            path,
            (
                records.example({"label": i, "x": x[i % 97], "id": b"%010d" % i})
                for i in range(setup.of(*RECORDS))
            ),
        )
    return path


def records_pipeline(files: Path | list[str]) -> hs.Pipeline:
    features = {
        "label": hs.scalar("int64"),
        "x": hs.fixed("float32", (64,)),
        "id": hs.scalar("bytes"),
    }
    return hs.read_tfrecord(files, features)


def numbers(directory: Path) -> hs.Pipeline:
    """Rows of 64 bytes without end, on which hardly anything is spent."""
    path = directory / "numbers.npz"
    if not path.exists():
        np.savez(path, x=np.random.default_rng(3).standard_normal((65_536, 16), np.float32))
    return hs.read_npz(str(path)).repeat()
