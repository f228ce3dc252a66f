"""The feeds of chaos runs: their pipelines, and the cells that must be committed.

Cells are what is counted: a row is ``[i]``, a segment ``[key, number]``.
"""

from __future__ import annotations

from typing import Any

import headrace
import headrace_server as hs

__all__ = ["MODES", "cells_wanted", "pipeline", "stateful"]

#: Kinds of feeds.  In "kept" the states stay with the trainers, which flush them now and then.
MODES = ("plain", "buckets", "sampled", "segments", "lanes", "kept")
#: More than two workers can share evenly.
PARTITIONS = 3
UNROLL = 4
_ROWS = 4
_CLASSES = 4


def stateful(mode: str) -> bool:
    return mode in ("segments", "lanes", "kept")


def _segments_of(number: int) -> int:
    return 1 + number * 7 % 11


def examples(mode: str, size: int) -> list[dict[str, Any]]:
    """Return examples of about ``size`` cells."""
    if not stateful(mode):
        return [{"i": i, "len": 1 + i * 13 % 40, "label": i % _CLASSES} for i in range(size)]
    told: list[dict[str, Any]] = []
    cells = 0
    while cells < size:
        number = len(told)
        steps = _segments_of(number) * UNROLL - number % UNROLL
        told.append({"key": f"k{number}", "x": list(range(steps))})
        cells += _segments_of(number)
    return told


def pipeline(mode: str, size: int) -> hs.Pipeline:
    """Return the feed of a mode."""
    source = hs.from_examples(examples(mode, size))
    if mode == "plain":
        return source.shuffle(3).batch(_ROWS, allow_smaller_final_batch=True)
    if mode == "buckets":
        return source.shuffle(3).bucket_by_sequence_length(
            "len", _ROWS, [10, 20, 30], allow_smaller_final_batch=True
        )
    if mode == "sampled":
        return source.shuffle(3).stratified_sample(
            "label", [0.4, 0.3, 0.2, 0.1], batch_size=_ROWS, init_probs=[0.25] * _CLASSES
        )
    lanes: dict[str, Any] = {} if mode == "segments" else {"order": "lanes"}
    if mode == "kept":
        lanes["state_placement"] = "trainer"
    return source.batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"chain": hs.zeros((2,), "int64")},
        num_unroll=UNROLL,
        batch_size=_ROWS,
        capacity=24,
        allow_small_batch=True,
        **lanes,
    )


def cells_wanted(mode: str, size: int, partitions: int = PARTITIONS) -> set[tuple[Any, ...]]:
    """Return all cells that must be committed; for a sampler those kept without any fault."""
    if stateful(mode):
        return {
            (e["key"], i)
            for n, e in enumerate(examples(mode, size))
            for i in range(_segments_of(n))
        }
    if mode != "sampled":
        return {(i,) for i in range(size)}
    with hs.run(pipeline(mode, size), partitions=partitions) as server:
        with headrace.connect(server.address) as feed:
            return {(int(i),) for batch in feed for i in batch["i"]}
