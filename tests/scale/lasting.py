"""Memory over epochs, and the cost of a batch with options off and on."""

from __future__ import annotations

import time
from typing import Any

from .curve import Curve, Setup
from .data import RECORDS, records_file, records_pipeline
from .line import Cost, line

__all__ = ["epochs", "off"]

_BATCH = 256
_SMALL = 32  # so that there are many
_ROLES = ("worker", "locator", "trainer")


def epochs(setup: Setup) -> Curve:
    """Memory of all processes, epoch after epoch."""
    curve = Curve("epoch", plotted=("worker MB", "locator MB", "trainer MB"), even=True)
    source = records_pipeline(records_file(setup)).shuffle(seed=1).repeat()
    each = setup.of(4, 1)
    with line(source.batch(_SMALL), warm=100, how={"prefetch": 16}) as running:
        for epoch in range(each, setup.of(80, 3) + 1, each):
            cost = running.run(each * setup.of(*RECORDS) // _SMALL)
            told = {f"{role} MB": running.memory_mb(role) for role in _ROLES}
            curve.add(epoch, {**told, "CPU µs per batch": cost.per_batch_us})
    since, upto = curve.points[3 * (len(curve.points) - 1) // 4][0], curve.points[-1][0]
    for role in _ROLES:
        grown = curve.at(upto, f"{role} MB") - curve.at(since, f"{role} MB")
        curve.at_most(f"MB that the {role} grew by from epoch {since} to {upto}", grown, 1.0)
    return curve


def off(setup: Setup) -> Curve:
    """Check that unused options cost nothing, and measure the cost of used ones."""
    kinds: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "nothing": ({}, {}),
        "http": ({"http": "127.0.0.1:0"}, {}),
        "coordinated": ({}, {"rank": 0, "world_size": 1}),
        "state_dir": ({"state_dir": ""}, {}),
    }
    pipeline = records_pipeline(records_file(setup)).repeat().batch(_BATCH)
    best: dict[str, Cost] = {}
    for turn in range(setup.of(3, 1)):
        for kind, (options, how) in kinds.items():
            if "state_dir" in options:
                place = setup.scratch / f"state-{turn}-{len(options)}-{time.monotonic_ns()}"
                options = {**options, "state_dir": place}
            with line(pipeline, warm=setup.of(600, 100), how=how, **options) as running:
                cost = running.best(setup.of(1000, 200))
            if kind not in best or cost.per_batch_us < best[kind].per_batch_us:
                best[kind] = cost
    curve = Curve("asked for")
    for kind, cost in best.items():
        curve.add(kind, {"CPU µs per batch": cost.per_batch_us, **cost.by_role()})
    loose = setup.of(1.0, 2.0)  # a short run on a crowded machine
    curve.grows("CPU µs per batch", "nothing", "http", 1.1 * loose)
    curve.grows("CPU µs per batch", "nothing", "coordinated", 1.2 * loose)
    return curve
