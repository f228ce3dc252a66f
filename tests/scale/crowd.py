"""Workers: gain and cost of a second one.

files ─► worker × 1, 2 ─► trainer            a function in Python is the bottleneck
"""

from __future__ import annotations

from typing import Any

import numpy as np

import headrace_server as hs
from tests.trials.frame import Report, Setup

from .curve import Curve
from .data import records_file, records_pipeline
from .line import line

__all__ = ["BATCH", "busy", "mapped", "workers"]

BATCH = 256


def busy(columns: dict[str, Any]) -> dict[str, Any]:
    """Spend some milliseconds of Python on a chunk, which bounds the rate of rows."""
    x = columns["x"].astype(np.float32)
    for row in x:
        row[:] = [max(value, 0.0) for value in sorted(row.tolist())]
    return {**columns, "x": x}


def mapped(setup: Setup) -> hs.Pipeline:
    """Records that a function in Python goes through."""
    schema = {
        "label": hs.scalar("int64"),
        "x": hs.fixed("float32", (64,)),
        "id": hs.scalar("bytes"),
    }
    return records_pipeline(records_file(setup)).map(busy, vectorized=True, schema=schema)


def workers(setup: Setup, report: Report) -> None:
    """A pipeline whose worker is the bottleneck, with 1 and 2 of them on 2 cores."""
    curve = Curve("workers", report)
    pipeline = mapped(setup).repeat().batch(BATCH)
    for count in (1, 2):
        with line(pipeline, workers=count, partitions=2, warm=setup.of(200, 60)) as running:
            cost = running.best(setup.of(600, 100))
        curve.add(
            count,
            {
                "rows per s": cost.rows / cost.seconds,
                "cores used by workers": cost.cpu["worker"] / cost.seconds,
                "CPU s per 1,000 batches": cost.per_batch_us / 1000,
                "of it workers": cost.of("worker") / 1000,
            },
        )
    curve.grows("CPU s per 1,000 batches", 1, 2, 1.35)
    print(curve)
