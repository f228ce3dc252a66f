"""Several servers with a share each: the gain of further ones, and their cost for the trainer.

files ─► server × 1, 2, 4, each with a fifth of a core ─► trainer     a function is the bottleneck
numbers ─► server × 1, 4, 16, threads of one process ─► trainer       what each costs the trainer
"""

from __future__ import annotations

import contextlib

from tests.trials.cgroups import cgroup
from tests.trials.frame import Report, Setup

from .crowd import BATCH, mapped
from .curve import Curve
from .data import numbers
from .line import line

__all__ = ["owners", "servers"]

_PERIOD_US, _QUOTA_US = 50_000, 10_000


def servers(setup: Setup, report: Report) -> None:
    """The same feed from 1, 2 and 4 servers, each of which may use a fifth of a core."""
    curve = Curve("servers", report)
    v1 = {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": str(_QUOTA_US)}
    v2 = {"cpu.max": f"{_QUOTA_US} {_PERIOD_US}"}
    counts = setup.of((1, 2, 4), (1, 2))
    for count in counts:
        with contextlib.ExitStack() as stack:
            groups = [stack.enter_context(cgroup("cpu", v1, v2)) for _ in range(count)]
            running = stack.enter_context(
                line(
                    mapped(setup).repeat().batch(BATCH),
                    servers=count,
                    within=groups,
                    partitions=8,
                    warm=setup.of(60, 20),
                )
            )
            cost = running.best(setup.of(200 * count, 30 * count))
        curve.add(
            count,
            {
                "rows per s": cost.rows / cost.seconds,
                "cores used by servers": (cost.cpu["worker"] + cost.cpu["locator"]) / cost.seconds,
                "CPU s per 1,000 batches": cost.per_batch_us / 1000,
                "of it servers": (cost.of("worker") + cost.of("locator")) / 1000,
                "trainer µs per batch": cost.of("trainer"),
            },
        )
    last = counts[-1]
    curve.grows("CPU s per 1,000 batches", 1, last, 1.1)
    even = last * curve.at(1, "rows per s") / curve.at(last, "rows per s")
    curve.at_most(f"{last} times the rate of 1 server / rate of {last}", even, 1.25)
    print(curve)


def owners(setup: Setup, report: Report) -> None:
    """Measure the cost for a trainer when more servers have the partitions."""
    curve = Curve("servers", report)
    counts = setup.of((1, 4, 16), (1, 4))
    for count in counts:
        with line(
            numbers(setup.scratch).batch(64),
            servers=count,
            partitions=64,
            slab_bytes=1 << 20,
            warm=setup.of(500, 50),
        ) as running:
            cost = running.best(setup.of(1000, 200))
        curve.add(count, {"trainer µs per batch": cost.of("trainer")})
    first, last = counts[0], counts[-1]
    each = curve.at(last, "trainer µs per batch") - curve.at(first, "trainer µs per batch")
    curve.at_most("µs per batch that each further server costs", each / (last - first), 16.0)
    print(curve)
