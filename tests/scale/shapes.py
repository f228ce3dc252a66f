"""Costs by the shape of a batch: rows, columns, buckets; and by the number of partitions.

Rows are numbers in memory, so that hardly anything is spent on reading them.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import headrace_server as hs

from .curve import Curve, Setup
from .line import line

__all__ = ["buckets", "columns", "numbers", "partitions", "rows"]

_ROWS, _WIDTH, _LONGEST = 65_536, 16, 64


def numbers(directory: Path, columns: int = 1, width: int = _WIDTH) -> hs.Pipeline:
    path = directory / f"numbers-{columns}-{width}.npz"
    if not path.exists():
        x = np.random.default_rng(3).standard_normal((_ROWS, width), np.float32)
        length = np.random.default_rng(4).integers(1, _LONGEST + 1, _ROWS)
        np.savez(path, length=length, **{f"x{i}": x for i in range(columns)})
    return hs.read_npz(str(path)).repeat()


def _grown(
    setup: Setup, x: str, pipelines: Iterable[tuple[int, Any]], batches: int, **options: Any
) -> Curve:
    curve = Curve(x, plotted=("CPU µs per batch", "CPU µs per row"))
    for value, (pipeline, more) in pipelines:
        with line(pipeline, warm=setup.of(100, 20), **options, **more) as running:
            cost = running.best(setup.of(batches, 100), setup.of(3, 2))
        curve.add(
            value,
            {
                "CPU µs per batch": cost.per_batch_us,
                "CPU µs per row": cost.per_row_us,
                **cost.by_role(),
            },
        )
    return curve


def rows(setup: Setup) -> Curve:
    """Batches of 1 to 4,096 rows."""
    source = numbers(setup.scratch)
    sizes = setup.of((1, 4, 16, 64, 256, 1024, 4096), (1, 1024))
    curve = _grown(setup, "batch size", ((n, (source.batch(n), {})) for n in sizes), 1000)
    for low, high in pairwise(sizes):
        curve.grows("CPU µs per row", low, high, 1.1)
    return curve


def columns(setup: Setup) -> Curve:
    """Batches of 128 rows of 1 to 64 columns."""
    counts = setup.of((1, 4, 16, 64), (1, 16))
    sources = ((n, (numbers(setup.scratch, n).batch(128), {})) for n in counts)
    curve = _grown(setup, "columns", sources, 600)
    curve.grows("CPU µs per batch", counts[0], counts[-1], counts[-1])
    if not setup.short:
        curve.grows("CPU µs per batch", 16, 64, 4.0)
    return curve


def buckets(setup: Setup) -> Curve:
    """Batches of 32 rows from 1 to 64 buckets by length."""
    source = numbers(setup.scratch)
    counts = setup.of((1, 4, 16, 64), (1, 16))

    def bucketed(n: int) -> Any:
        bounds = [1 + _LONGEST * i // n for i in range(1, n)]
        if not bounds:
            return source.batch(32)
        return source.bucket_by_sequence_length("length", 32, bounds)

    curve = _grown(setup, "buckets", ((n, (bucketed(n), {})) for n in counts), 600)
    if not setup.short:
        curve.grows("CPU µs per batch", counts[1], counts[-1], 2.0)
    curve.grows("CPU µs per row", counts[0], counts[-1], counts[-1])
    return curve


def partitions(setup: Setup) -> Curve:
    """Batches of 128 rows from 1 to 16 partitions of one worker."""
    source = numbers(setup.scratch).batch(128)
    counts = setup.of((1, 2, 4, 16), (1, 16))
    curve = _grown(setup, "partitions", ((n, (source, {"partitions": n})) for n in counts), 1000)
    curve.grows("CPU µs per batch", counts[0], counts[-1], 1.4)
    return curve
