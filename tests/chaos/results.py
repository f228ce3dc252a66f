"""The figures of a run as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .driver import Outcome

__all__ = ["percentile", "report"]


def percentile(values: Sequence[float], part: float) -> float:
    """Return the smallest value that this part of all does not exceed; 0 where there is none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * part) - 1)] if ordered else 0.0


def report(outcome: Outcome) -> str:
    """Describe one run in some lines."""
    setup = outcome.setup
    name = f"{setup.mode:9}{setup.workers} workers,"
    counts = ", ".join(f"{name} {n}" for name, n in outcome.verdict.counts.items())
    faults = ", ".join(f"{kind} {n}" for kind, n in sorted(outcome.faults.items()))
    lines = [f"{name} {outcome.seconds:.0f} s, {outcome.faults.total()} faults: {faults}"]
    lines += [f"          {counts}; server started {outcome.lives} times"]
    lines += [f"          BROKEN {found.law}: {found.text}" for found in outcome.verdict.findings]
    return "\n".join(lines)
