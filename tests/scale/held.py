"""Sequences in flight: a trainer holds batches for long, so that their examples wait for states.

batch size × batches held = sequences begun and not ended; what a step costs must not see them
"""

from __future__ import annotations

from tests.trials.frame import Report, Setup

from .curve import Curve
from .data import sequences
from .line import line

__all__ = ["arrival", "lanes"]

#: Batch size, and how many batches the trainer holds: it may hold 64.
_ARRIVAL = [(1, 1), (10, 1), (10, 10), (16, 62), (160, 1), (160, 62), (3200, 1), (3200, 62)]
_SHORT = [(16, 1), (16, 62)]
_CREDITS = 64


def _note(curve: Curve, setup: Setup, batch: int, held: int, **more: object) -> None:
    capacity = batch * (held + 2)
    steps = setup.of(max(40, 20_000 // max(batch, 20)), 150)
    with line(
        sequences(batch, capacity, **more),
        warm=2 * held + 50,
        how={"hold": held, "prefetch": held},
        max_credits=_CREDITS,
    ) as running:
        cost = running.best(steps, setup.of(3, 2))
        of_worker = running.memory_mb("worker")
        flying = running.servers[0].stats()["default"]["segments"]["in_flight"]
    curve.add(
        f"{batch} × {held}",
        {
            "in flight": flying,
            "µs per step": cost.per_batch_us,
            "µs per segment": cost.per_row_us,
            **cost.by_role(),
            "worker MB": of_worker,
        },
    )


def arrival(setup: Setup, report: Report) -> None:
    """In the order of arrival, states at the server."""
    curve = Curve("batch size × batches held", report)
    for batch, held in setup.of(_ARRIVAL, _SHORT):
        _note(curve, setup, batch, held)
    for batch in setup.of((160, 3200), (16,)):
        first = f"{batch} × 1"
        if first in dict(curve.points):
            curve.grows("µs per step", first, f"{batch} × 62", 1.3)
    most, base = curve.points[-1][1], curve.points[0][1]
    each = (most["worker MB"] - base["worker MB"]) * 1024 / (most["in flight"] - base["in flight"])
    curve.at_most("kB of the worker's memory per sequence in flight", each, setup.of(2.0, 20.0))
    print(curve)


def lanes(setup: Setup, report: Report) -> None:
    """In lanes, states at the trainer: in flight are the lanes."""
    curve = Curve("batch size × batches held", report)
    for batch in setup.of((10, 100, 1000, 10_000), (10, 100)):
        _note(curve, setup, batch, 1, order="lanes")
    low, high = setup.of(("1000 × 1", "10000 × 1"), ("10 × 1", "100 × 1"))
    curve.grows("µs per segment", low, high, 1.2)
    print(curve)
