"""The feeds of chaos runs: their pipelines, and the cells that must be committed.

Cells are what is counted: a row is ``[i]``, a segment ``[key, number]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import headrace
import headrace_server as hs

__all__ = [
    "MODES",
    "Mode",
    "cells_of",
    "cells_wanted",
    "pipeline",
    "stateful",
]

#: More than two workers can share evenly.
PARTITIONS = 3
UNROLL = 4
_ROWS = 4
_CLASSES = 4


@dataclass(frozen=True, slots=True)
class Mode:
    """A kind of feed, and what its trainers are and do."""

    shape: Callable[[hs.Pipeline], hs.Pipeline]
    states: bool = False
    kept: bool = False  # whether states stay with the trainers, which flush them now and then
    drawn: bool = False  # whether only a run shows which cells are wanted


def _plain(source: hs.Pipeline) -> hs.Pipeline:
    return source.shuffle(3).batch(_ROWS, allow_smaller_final_batch=True)


def _buckets(source: hs.Pipeline) -> hs.Pipeline:
    return source.shuffle(3).bucket_by_sequence_length(
        "len", _ROWS, [10, 20, 30], allow_smaller_final_batch=True
    )


def _sampled(source: hs.Pipeline) -> hs.Pipeline:
    return source.shuffle(3).stratified_sample(
        "label", [0.4, 0.3, 0.2, 0.1], batch_size=_ROWS, init_probs=[0.25] * _CLASSES
    )


def _segments(source: hs.Pipeline, **options: Any) -> hs.Pipeline:
    return source.batch_sequences_with_states(
        input_key="key",
        input_sequences=["x"],
        input_context=[],
        initial_states={"chain": hs.zeros((2,), "int64")},
        num_unroll=UNROLL,
        batch_size=_ROWS,
        capacity=24,
        allow_small_batch=True,
        **options,
    )


def _lanes(source: hs.Pipeline) -> hs.Pipeline:
    return _segments(source, order="lanes")


def _kept(source: hs.Pipeline) -> hs.Pipeline:
    return _segments(source, order="lanes", state_placement="trainer")


#: Kinds of feeds.
MODES = {
    "plain": Mode(_plain),
    "buckets": Mode(_buckets),
    "sampled": Mode(_sampled, drawn=True),
    "segments": Mode(_segments, states=True),
    "lanes": Mode(_lanes, states=True),
    "kept": Mode(_kept, states=True, kept=True),
}


def stateful(name: str) -> bool:
    return MODES[name].states


def _segments_of(number: int) -> int:
    return 1 + number * 7 % 11


def examples(mode: Mode, size: int) -> list[dict[str, Any]]:
    """Return examples of about ``size`` cells."""
    if not mode.states:
        return [{"i": i, "len": 1 + i * 13 % 40, "label": i % _CLASSES} for i in range(size)]
    told: list[dict[str, Any]] = []
    cells = 0
    while cells < size:
        number = len(told)
        steps = _segments_of(number) * UNROLL - number % UNROLL
        told.append({"key": f"k{number}", "x": list(range(steps))})
        cells += _segments_of(number)
    return told


def pipeline(name: str, size: int) -> hs.Pipeline:
    """Return the feed of a mode."""
    mode = MODES[name]
    return mode.shape(hs.from_examples(examples(mode, size)))


def cells_of(mode: Mode, batch: Any) -> list[list[Any]]:
    """Return the cells of a batch; a row without a segment has none."""
    if mode.states:
        keys = [key.decode() for key in batch.original_key]
        return [[key, int(i)] for key, i in zip(keys, batch.sequence, strict=True) if key]
    return [[int(i)] for i in batch["i"]]


def cells_wanted(name: str, size: int, partitions: int = PARTITIONS) -> set[tuple[Any, ...]]:
    """Return all cells that must be committed; where they are drawn, those of a calm run."""
    mode = MODES[name]
    if mode.states:
        return {
            (e["key"], i)
            for n, e in enumerate(examples(mode, size))
            for i in range(_segments_of(n))
        }
    if not mode.drawn:
        return {(i,) for i in range(size)}

    with hs.run(pipeline(name, size), partitions=partitions) as server:
        with headrace.connect(server.address) as feed:
            return {tuple(cell) for batch in feed for cell in cells_of(mode, batch)}
