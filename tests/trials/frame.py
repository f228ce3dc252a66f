"""The common part of all trials: their size, their seed, and their report.

    Setup ─► trial ─► Result:  held    nothing was seen that must not be, all limits were kept
                               missed  the same, but a limit of time or memory was passed
                               broken  something was seen that must not be
                               not run what it needs is not to be had here

A limit is missed where others load the machine; what is broken is broken on any.
"""

from __future__ import annotations

import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil

from tests.chaos.driver import Run

__all__ = [
    *("NotHere", "Report", "Result", "Setup"),
    *("private_bytes", "run", "table", "tried", "waits_ms", "written"),
]

_SHOWN = 5
T = TypeVar("T")


class NotHere(Exception):
    """This machine lacks something that a trial needs; the text names it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How one trial is run."""

    seed: int
    scale: float  # 1: its full size
    scratch: Path
    seconds: float | None = None  # duration of trials that have one

    def sized(self, full: int, least: int = 1) -> int:
        """Return the scaled count of work that is done ``full`` times at full size."""
        return max(least, round(full * self.scale))

    def of(self, full: T, short: T) -> T:
        """Return the size of a measurement that has no other sizes than these."""
        return full if self.scale >= 1 else short

    def chance(self, name: str) -> random.Random:
        """Return a generator for one purpose, which draws for other purposes do not change."""
        return random.Random(f"{self.seed} {name}")


@dataclass(slots=True)
class Report:
    """The report that a trial fills in while it runs."""

    counts: dict[str, int] = field(default_factory=dict)
    figures: dict[str, float | str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)

    def count(self, what: str, n: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + n

    def wrong(self, text: str) -> None:
        """Report a violation."""
        self.broken.append(text)

    def at_most(self, what: str, value: float, limit: float, digits: int = 2) -> None:
        """Record a figure, and a violation where it exceeds its limit."""
        self.figures[what] = round(value, digits)
        if value > limit:
            self.missed.append(f"{what} {value:.{digits}f}, the limit is {limit:g}")


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a trial."""

    name: str
    goal: str
    seed: int
    scale: float
    seconds: float
    verdict: str
    counts: dict[str, int]
    figures: dict[str, float | str]
    notes: list[str]  # why it is not "held"

    @property
    def sound(self) -> bool:
        """Whether no violation was found."""
        return self.verdict != "broken"


def run(name: str, goal: str, trial: Callable[[Setup, Report], None], setup: Setup) -> Result:
    """Run one trial; return its verdict."""
    report, began = Report(), time.monotonic()
    verdict, notes = "", []
    try:
        trial(setup, report)
    except NotHere as error:
        verdict, notes = "not run", [str(error)]
    seconds = time.monotonic() - began
    if not verdict:
        verdict = "broken" if report.broken else "missed" if report.missed else "held"
        few = report.broken[:_SHOWN]
        more = len(report.broken) - len(few)
        notes = [*few, *([f"and {more} more"] if more else []), *report.missed]
    return Result(
        name,
        goal,
        setup.seed,
        setup.scale,
        round(seconds, 1),
        verdict,
        report.counts,
        report.figures,
        notes,
    )


def tried(run: Run, report: Report) -> None:
    """Let a run of chaos come to its end, and report the laws that it breaks."""
    verdict = run.judged()
    for finding in verdict.findings:
        report.wrong(f"{finding.law}: {finding.text}")
    report.count("acknowledged", verdict.counts["acknowledged"])


def waits_ms(run: Run, since: float = 0.0) -> list[float]:
    """Return how long trainers waited for each answer to a commit that came after a moment."""
    answers = run.said("ok", since)
    sends = {line.token: line.at for line in run.said("send")}  # each before its answer
    return [1000 * (line.at - sends[line.token]) for line in answers]


def private_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the memory of processes that they do not share."""
    infos = [process.memory_info() for process in processes]
    return sum(info.rss - info.shared for info in infos)


def table(results: Iterable[Result]) -> str:
    """All results as a table of Markdown."""
    lines = ["| trial | seed | duration | counts | figures | verdict |"]
    lines += ["| --- | ---: | ---: | --- | --- | --- |"]
    for result in results:
        counts = ", ".join(f"{what} {n:,}" for what, n in result.counts.items())
        figures = ", ".join(f"{what} {value}" for what, value in result.figures.items())
        verdict = "; ".join([result.verdict, *result.notes])
        seconds = f"{result.seconds:.0f} s" if result.seconds >= 1 else f"{result.seconds} s"
        lines.append(
            f"| {result.name} | {result.seed} | {seconds} | {counts} | {figures} | {verdict} |"
        )
    return "\n".join(lines)


def written(result: Result) -> str:
    """Return a result as one line of JSON, with the machine."""
    whole: dict[str, Any] = asdict(result)
    whole["machine"] = (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end, Linux "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}"
    )
    return json.dumps(whole)
