"""A measurement's points, and checks of them.

trial ─► Curve: x │ figure, figure, …     laws: a ratio and the most it may be, in the report
                1 │   …       …
"""

from __future__ import annotations

from tests.trials.frame import Report

__all__ = ["Curve"]

#: A law that is passed by this factor is broken, on a crowded machine and in a short run too.
_GENEROUS = 2.5


class Curve:
    """One quantity that grows, and the costs that grow with it."""

    def __init__(self, x: str, report: Report) -> None:
        self.x, self._report = x, report  # the meaning of a point's x
        self.points: list[tuple[float | str, dict[str, float]]] = []

    def add(self, x: float | str, figures: dict[str, float]) -> None:
        self.points.append((x, figures))
        self._report.count("points")

    def at(self, x: float | str, name: str) -> float:
        return next(figures[name] for at, figures in self.points if at == x)

    def __str__(self) -> str:
        """A table."""
        names = list(self.points[0][1])
        lines = [f"| {' | '.join([self.x, *names])} |"]
        lines.append("| --- " + "| ---: " * len(names) + "|")
        for x, figures in self.points:
            cells = [_shown(x), *(_shown(figures[name]) for name in names)]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def at_most(self, text: str, value: float, limit: float) -> None:
        self._report.at_most(text, value, limit)
        if value > _GENEROUS * max(1.0, limit):
            self._report.wrong(f"{text} is {value:.2f}, far more than {limit:g}")

    def grows(self, name: str, since: float | str, upto: float | str, limit: float) -> None:
        """Check that a figure at one point is at most ``limit`` times that at another."""
        ratio = self.at(upto, name) / self.at(since, name)
        self.at_most(f"{name} at {_shown(upto)} / at {_shown(since)}", ratio, limit)


def _shown(value: float | str) -> str:
    """A number with as many digits as say something."""
    if isinstance(value, str) or abs(value) >= 100 or value == int(value):
        return value if isinstance(value, str) else f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
