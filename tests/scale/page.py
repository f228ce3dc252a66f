"""The measured parts of docs/scaling.md, and its pictures.

A part stands between ``<!-- measured: NAME -->`` and ``<!-- end -->``; the rest is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from .curve import Curve, shown
from .every import EVERY
from .plot import drawn

__all__ = ["PAGE", "PICTURES", "part", "rewritten", "write"]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"
PICTURES = PAGE.parent / "pictures"
PART = re.compile(r"(<!-- measured: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def part(name: str, curve: Curve) -> str:
    """The lines of a part."""
    names = list(curve.points[0][1])
    lines = [f"| {' | '.join([curve.x, *names])} |"]
    lines.append("| --- " + "| ---: " * len(names) + "|")
    for x, figures in curve.points:
        cells = [shown(x), *(shown(figures[name]) for name in names)]
        lines.append(f"| {' | '.join(cells)} |")
    if curve.plotted:
        lines += ["", f"![{EVERY[name].goal}](pictures/scale-{name}.svg)"]
    lines += ["", *(f"* {law}" for law in curve.laws), *(f"* {fact}" for fact in curve.facts)]
    return "\n".join([*lines, "", f"Measured with {curve.machine}.", ""])


def rewritten(page: str, curves: dict[str, Curve]) -> str:
    """Return the page with these parts replaced."""

    def one(found: re.Match[str]) -> str:
        name = found[2]
        if name not in curves:
            return found[0]
        return found[1] + part(name, curves[name]) + found[3]

    return PART.sub(one, page)


def write(curves: dict[str, Curve]) -> None:
    PAGE.write_text(rewritten(PAGE.read_text(), curves))
    for name, curve in curves.items():
        if curve.plotted:
            (PICTURES / f"scale-{name}.svg").write_text(drawn(curve, EVERY[name].goal))
