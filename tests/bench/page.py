"""The section that a run writes into docs/benchmarks.md, between two markers, and its chart."""

from __future__ import annotations

from pathlib import Path

from .chart import svg
from .report import Run, circumstances, table, today

__all__ = ["BEGIN", "END", "rewritten", "write"]

BEGIN = "<!-- generated: make bench -->\n"
END = "<!-- end -->\n"
_CHART = "benchmarks.svg"


def section(run: Run) -> str:
    """Return the text between the markers."""
    return (
        f"![How many times as fast as each peer, and what is aimed at]({_CHART})\n\n"
        f"{today()}: {circumstances(run)} It took {run.minutes:.0f} minutes.\n\n{table(run)}\n"
    )


def rewritten(page: str, run: Run) -> str:
    """The page with another section."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} … {END.strip()}")
    return before + begin + section(run) + end + after


def write(page: Path, run: Run) -> None:
    """Page and chart."""
    text = rewritten(page.read_text(), run)
    (page.parent / _CHART).write_text(svg(run.outcomes))
    page.write_text(text)
