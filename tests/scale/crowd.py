"""Workers and trainers: gain and cost of further ones.

files ─► worker × 1, 2 ─► trainer            a function in Python is the bottleneck
files ─► worker ─► trainer × 1, 2, 4, 8      one feed, each batch to one of them
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import headrace_server as hs

from .curve import Curve, Setup
from .data import RECORDS, records_file, records_pipeline
from .line import Cost, line

__all__ = ["BATCH", "busy", "mapped", "trainers", "workers"]

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


def workers(setup: Setup) -> Curve:
    """A pipeline whose worker is the bottleneck, with 1 and 2 of them on 2 cores."""
    curve = Curve("workers", plotted=("rows per s",))
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
    return curve


def trainers(setup: Setup) -> Curve:
    """Share one feed among 1 to 8 trainers: no row is lost or comes twice, each gets its part."""
    curve = Curve("trainers", plotted=("CPU µs per batch",))
    file = records_file(setup)
    epochs = setup.of(10, 4)
    for count in setup.of((1, 2, 4, 8), (1, 4)):
        cost, shares, ids = _shared(file, setup, count, epochs)
        wanted = np.repeat(np.arange(setup.of(*RECORDS)), epochs)
        curve.exactly(
            f"rows lost or twice with {count} trainers",
            int((np.sort(ids) != wanted).sum()) if len(ids) == len(wanted) else len(ids),
            0,
        )
        curve.add(
            count,
            {
                "batches per s": cost.batches / cost.seconds,
                "CPU µs per batch": cost.per_batch_us,
                **cost.by_role(),
                "least share": min(shares) * count / sum(shares),
                "largest share": max(shares) * count / sum(shares),
            },
        )
    first, last = curve.points[0][0], curve.points[-1][0]
    curve.grows("CPU µs per batch", first, last, 2.0)
    for count, figures in curve.points[1:]:
        text = f"share of the trainer with most at {count}, of an even share"
        curve.at_most(text, figures["largest share"], 2.0)
    return curve


def _shared(
    file: Path, setup: Setup, count: int, epochs: int
) -> tuple[Cost, list[int], np.ndarray]:
    pipeline = records_pipeline(file).repeat(epochs).batch(BATCH, allow_smaller_final_batch=True)
    noted = [str(setup.scratch / f"ids-{count}-{slot}.npy") for slot in range(count)]
    with line(
        pipeline,
        trainers=count,
        warm=30,
        how={"ids": "label"},
        each=lambda slot: {"noted": noted[slot]},
    ) as running:
        cost = running.run(epochs * setup.of(*RECORDS) // BATCH * 7 // 10)
        running.finish()
        shares = running.board.batches
    return cost, shares, np.concatenate([np.load(name) for name in noted])
