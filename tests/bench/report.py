"""Outcomes as a table, as JSON, and as an entry of the log."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import states
from .pairs import Outcome

_RATE = "batches_per_s"
#: What is counted, where it is not rows.
_UNITS = {"W3": "batches", "W4": "steps"}
_HEAD = (
    "workload",
    "ours / peer",
    "ours per s",
    "peer per s",
    "ratio (min–max)",
    "aim",
    "CPU s per 1,000: ours / peer",
    "CPU ratio",
    "peak RSS MB: ours / peer",
    "PSS MB beyond the trainer's framework: ours / peer",
)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    with open("/proc/meminfo") as lines:
        memory_gib = int(next(lines).split()[1]) / 2**20
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_gib, 1),
        "python": platform.python_version(),
        "linux": platform.release(),
    }


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown: a row per comparison, medians of the windows, then the steps and the latencies."""
    rows = [_row(outcome) for outcome in outcomes if not outcome.comparison.latency]
    if rows:
        rows[:0] = [_HEAD, tuple("---" for _ in _HEAD)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines += _steps([outcome for outcome in outcomes if outcome.comparison.workload == "W4"])
    latencies = [outcome for outcome in outcomes if outcome.comparison.latency]
    if latencies:
        lines += [""] if lines else []
        lines += ["| one batch at a time | p50 µs | p99 µs |", "| --- | --- | --- |"]
        for outcome in latencies:
            for side, name in (
                ("ours", outcome.comparison.ours),
                ("peer", outcome.comparison.peer),
            ):
                p50, p99 = (outcome.median(side, key) for key in ("p50_us", "p99_us"))
                lines.append(f"| {name} | {p50:.0f} | {p99:.0f} |")
    return "\n".join(lines)


def _steps(outcomes: Sequence[Outcome]) -> list[str]:
    """W4, step by step: how long one takes, and the rate by the one that was recorded."""
    if not outcomes:
        return []
    recorded = f"rate by the original's {states.RECORDED:,} steps/s (recorded elsewhere)"
    lines = [
        "",
        f"| W4, one step | p50 µs | p99 µs | {recorded} |",
        "| --- | --- | --- | --- |",
    ]
    for outcome in outcomes:
        for side in ("ours", "peer"):
            p50, p99, rate = (outcome.median(side, n) for n in ("p50_us", "p99_us", _RATE))
            name = getattr(outcome.comparison, side)
            lines.append(f"| {name} | {p50:.0f} | {p99:.0f} | {rate / states.RECORDED:.2f} |")
    return lines


def _row(outcome: Outcome) -> tuple[str, ...]:
    c = outcome.comparison
    ratios = outcome.ratios()
    ratio = statistics.median(ratios)

    def both(name: str, form: str) -> str:
        return " / ".join(format(outcome.median(side, name), form) for side in ("ours", "peer"))

    unit = _UNITS.get(c.workload, "rows")
    per = c.rows if unit == "rows" else 1

    def rate(side: str) -> str:
        rows = outcome.median(side, _RATE) * per
        read = f" of {rows * c.read:,.0f} read" if c.read != 1 else ""
        return f"{rows:,.0f} {unit}{read}"

    aim = "" if c.aim is None else f"{c.aim:g} {'met' if ratio >= c.aim else 'missed'}"
    return (
        c.workload,
        f"{c.ours} / {c.peer}",
        rate("ours"),
        rate("peer"),
        f"{ratio:.2f} ({min(ratios):.2f}–{max(ratios):.2f})",
        aim,
        both("cpu_s_per_1000", ".2f"),
        f"{statistics.median(outcome.ratios('cpu_s_per_1000')):.2f}",
        both("peak_rss_mb", ".0f"),
        both("pss_beyond_framework_mb", ".0f"),
    )


def as_json(outcomes: Sequence[Outcome]) -> str:
    """Everything that was measured."""
    plain = {"machine": machine(), "outcomes": [outcome.plain() for outcome in outcomes]}
    return json.dumps(plain, indent=1)


def log_entry(outcomes: Sequence[Outcome], pairs: int, seconds: float) -> str:
    """A section for docs/log.md."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    loads = [load for outcome in outcomes for load in outcome.load]
    here = machine()
    return (
        f"\n## {today}: bench, {pairs} pairs of {seconds:g} s\n\n"
        f"{here['cores']} cores, {here['memory_gib']} GiB, Python {here['python']}; load average "
        f"before each pair {min(loads):.1f}–{max(loads):.1f} (median "
        f"{statistics.median(loads):.1f}; the benchmark itself is part of it).\n\n"
        f"{table(outcomes)}\n"
    )


def append_to_log(path: Path, entry: str) -> None:
    """Add a section at the end of the log."""
    with open(path, "a") as log:
        log.write(entry)
