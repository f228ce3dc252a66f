"""Figures of runs, as text and as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .driver import Outcome

__all__ = ["percentile", "report", "written"]


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that this part of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)]


def report(outcome: Outcome) -> str:
    """Describe one run in some lines."""
    setup = outcome.setup
    name = f"{setup.mode:9}{setup.workers} workers,"
    counts = ", ".join(f"{name} {n}" for name, n in outcome.verdict.counts.items())
    faults = ", ".join(f"{kind} {n}" for kind, n in sorted(outcome.faults.items()))
    lines = [f"{name} {outcome.seconds:.0f} s, {outcome.faults.total()} faults: {faults}"]
    lines += [f"          {counts}; server started {outcome.lives} times"]
    for kind, seconds in outcome.recoveries.items():
        if seconds:
            lines.append(f"          after a {kind}'s death: {_told(seconds)}")
    lines += [f"          BROKEN {found.law}: {found.text}" for found in outcome.verdict.findings]
    return "\n".join(lines)


def _told(seconds: Sequence[float]) -> str:
    p50, p99 = percentile(seconds, 0.5), percentile(seconds, 0.99)
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s of {len(seconds)}"


def written(seed: str, outcomes: Iterable[Outcome]) -> str:
    """Return all runs as JSON, with the machine."""
    runs, faults = [], Counter[str]()
    recovered: dict[str, list[float]] = {}
    for outcome in outcomes:
        faults += outcome.faults
        for kind, seconds in outcome.recoveries.items():
            recovered.setdefault(kind, []).extend(seconds)
        runs.append(
            {
                "mode": outcome.setup.mode,
                "workers": outcome.setup.workers,
                "partitions": outcome.setup.partitions,
                "durability": outcome.setup.durability,
                "seed": outcome.setup.seed,
                "seconds": round(outcome.seconds, 1),
                "faults": dict(sorted(outcome.faults.items())),
                "server_lives": outcome.lives,
                "counts": outcome.verdict.counts,
                "broken": [f"{found.law}: {found.text}" for found in outcome.verdict.findings],
            }
        )
    whole: dict[str, Any] = {
        "seed": seed,
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}, Python "
        f"{platform.python_version()}",
        "faults": faults.total(),
        "by_kind": dict(sorted(faults.items())),
        "recovery_s": {
            kind: {
                "n": len(seconds),
                "p50": round(percentile(seconds, 0.5), 2),
                "p99": round(percentile(seconds, 0.99), 2),
            }
            for kind, seconds in recovered.items()
            if seconds
        },
        "runs": runs,
    }
    return json.dumps(whole, indent=1) + "\n"
