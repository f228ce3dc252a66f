"""A run as a table with its notes, and as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from .environments import EARLIER_COMMIT, REQUIREMENTS
from .pairs import Judged, Outcome

_RATE = "batches_per_s"
#: Units of workloads that do not count rows; the first two are whole batches.
_UNITS = {"W3": "batches", "W4": "steps", "W2 packed": "real steps"}
_HEAD = (
    "workload",
    "ours / peer",
    "ours per s",
    "peer per s",
    "batches/s: ours / peer",
    "MB/s: ours / peer",
    "ratio (min–max)",
    "aim",
    "CPU s per 1,000: ours / peer",
    "CPU ratio",
    "p50 µs: ours / peer",
    "p99 µs: ours / peer",
    "padding: ours / peer",
    "peak RSS MB: ours / peer",
    "PSS MB beyond the trainer's framework: ours / peer",
)
_TARGETS = ("comparison", "of", "target", "measured", "")
#: Packages of this environment; those of others are pinned.
_INSTALLED = ("numpy", "pyarrow", "pyzmq", "tensorflow", "torch")


@dataclass(slots=True)
class Run:
    """All that one run has found so far."""

    pairs: int
    seconds: float
    outcomes: list[Outcome] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)  # what did not run, and why
    minutes: float = 0.0

    def judged(self) -> list[Judged]:
        """Every target that was measured."""
        return [judged for outcome in self.outcomes for judged in outcome.judged()]


def machine() -> dict[str, Any]:
    """Describe the machine of the measurements."""
    with open("/proc/meminfo") as lines:
        memory_gib = int(next(lines).split()[1]) / 2**20
    versions = {}
    for package in _INSTALLED:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_gib, 1),
        "python": platform.python_version(),
        "linux": platform.release(),
        "versions": versions,
    }


def circumstances(run: Run) -> str:
    """The machine, the versions and the load, in a sentence or three."""
    here = machine()
    loads = [load for outcome in run.outcomes for load in outcome.load] or [os.getloadavg()[0]]
    versions = [f"{name} {version}" for name, version in here["versions"].items()]
    pinned = [" ".join(requirements) for requirements in REQUIREMENTS.values()]
    return (
        f"{here['cores']} cores, {here['memory_gib']} GiB, Linux {here['linux']}, Python "
        f"{here['python']}, {', '.join(versions)}; peers in environments of their own: "
        f"{', '.join(pinned)}; the earlier headrace is {EARLIER_COMMIT}. {run.pairs} pairs of "
        f"{run.seconds:g} s; load average before each "
        f"pair {min(loads):.1f}–{max(loads):.1f} (median {statistics.median(loads):.1f}; the "
        f"benchmark itself is part of it)."
    )


def table(run: Run) -> str:
    """Return Markdown: the targets, missed ones, medians of all windows, and contestants that did
    not run.
    """
    judged = run.judged()
    lines = _lines(_TARGETS, map(_target, judged))
    if missed := [one for one in judged if not one.met]:
        lines += ["", f"{len(judged) - len(missed)} of {len(judged)} targets are met. Missed:", ""]
        lines += [
            f"* {one.title}: {one.what} {one.measured}, wanted {one.wanted}" for one in missed
        ]
    elif judged:
        lines += ["", f"All {len(judged)} targets are met."]
    lines += ["", *_lines(_HEAD, map(_row, run.outcomes))]
    if run.absent:
        lines += ["", "Not run:", ""]
        lines += [f"* {title}: {_one_line(why)}" for title, why in run.absent.items()]
    return "\n".join(lines).strip("\n")


def _lines(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table; nothing where it has no rows."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows)]
    return lines if len(lines) > 2 else []


def _target(one: Judged) -> tuple[str, ...]:
    return one.title, one.what, one.wanted, one.measured, "met" if one.met else "**missed**"


def _one_line(why: str) -> str:
    """The last thing that was said, which in a traceback is the error."""
    said = [line.strip() for line in why.splitlines() if line.strip()]
    return (said or ["no word"])[-1][:300].replace("|", "/")


def _aims(judged: Iterable[Judged]) -> str:
    return "; ".join(
        f"{'' if one.what == 'rate' else one.what + ' '}{one.wanted} "
        f"{'met' if one.met else 'missed'}"
        for one in judged
    )


def _row(outcome: Outcome) -> tuple[str, ...]:
    c = outcome.comparison

    def both(name: str, form: str, times: float = 1.0) -> str:
        values = (outcome.median(side, name) * times for side in ("ours", "peer"))
        return " / ".join(format(value, form) for value in values)

    unit = _UNITS.get(c.workload, "rows")
    per = 1 if unit in ("batches", "steps") else c.rows

    def rate(side: str) -> str:
        return f"{outcome.median(side, _RATE) * per:,.0f} {unit}"

    ratios = outcome.ratios()
    several = c.shares is not None  # trainers: times between their batches say nothing
    rates = (
        rate("ours"),
        rate("peer"),
        both(_RATE, ",.0f"),
        both(_RATE, ",.0f", c.nbytes / 1e6),
        f"{outcome.ratio():.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "",
    )
    return (
        c.workload,
        f"{c.ours} / {c.peer}",
        *(rates if not c.latency else ("",) * len(rates)),
        _aims(outcome.judged()),
        both("cpu_s_per_1000", ".2f"),
        f"{outcome.ratio('cpu_s_per_1000'):.2f}",
        "" if several else both("p50_us", ",.0f"),
        "" if several else both("p99_us", ",.0f"),
        both("padding", ".2%") if unit == "real steps" else "",
        both("peak_rss_mb", ".0f"),
        both("pss_beyond_framework_mb", ".0f"),
    )


def as_json(run: Run) -> str:
    """Everything that was measured."""
    plain = {
        "machine": machine(),
        "outcomes": [outcome.plain() for outcome in run.outcomes],
        "absent": dict(run.absent),
        "pairs": run.pairs,
        "seconds": run.seconds,
        "minutes": run.minutes,
    }
    return json.dumps(plain, indent=1)
