"""A measurement's points, and checks of them.

Setup ─► measure ─► Curve: x │ figure, figure, …     laws: a ratio and the most it may be
                           1 │   …       …           a law that is passed is told, not hidden
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

__all__ = ["Curve", "Law", "Measure", "Setup", "machine", "shown"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setup:
    """How large a measurement is."""

    scratch: Path
    short: bool = False

    def of(self, full: T, short: T) -> T:
        return short if self.short else full


@dataclass(frozen=True, slots=True)
class Law:
    """A ratio that has a limit."""

    text: str
    value: float
    limit: float

    @property
    def kept(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        passed = "" if self.kept else ": **passed**"
        return f"{self.text}: {self.value:.2f} (at most {self.limit:g}){passed}"


@dataclass(slots=True)
class Curve:
    """One quantity that grows, and the costs that grow with it."""

    x: str  # the meaning of a point's x
    points: list[tuple[float | str, dict[str, float]]] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)

    def add(self, x: float | str, figures: dict[str, float]) -> None:
        self.points.append((x, figures))

    def at(self, x: float | str, name: str) -> float:
        return next(figures[name] for at, figures in self.points if at == x)

    def __str__(self) -> str:
        """A table, and the laws."""
        names = list(self.points[0][1])
        lines = [f"| {' | '.join([self.x, *names])} |"]
        lines.append("| --- " + "| ---: " * len(names) + "|")
        for x, figures in self.points:
            cells = [shown(x), *(shown(figures[name]) for name in names)]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, "", *(f"* {law}" for law in self.laws)])

    def at_most(self, text: str, value: float, limit: float) -> None:
        self.laws.append(Law(text, value, limit))

    def grows(self, name: str, since: float | str, upto: float | str, limit: float) -> None:
        """Check that a figure at one point is at most ``limit`` times that at another."""
        ratio = self.at(upto, name) / self.at(since, name)
        self.at_most(f"{name} at {shown(upto)} / at {shown(since)}", ratio, limit)

    @property
    def passed(self) -> Iterable[Law]:
        return [law for law in self.laws if not law.kept]


@dataclass(frozen=True, slots=True)
class Measure:
    """A curve by name, with its purpose."""

    goal: str
    run: Callable[[Setup], Curve]
    takes: str  # at full size, on 2 cores


def shown(value: float | str) -> str:
    """A number with as many digits as say something."""
    if isinstance(value, str) or abs(value) >= 100 or value == int(value):
        return value if isinstance(value, str) else f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def machine() -> str:
    """Describe the machine."""
    return (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end, Linux "
        f"{platform.release().split('-')[0]}, Python {platform.python_version()}"
    )
