"""The ratios of a run as bars, in SVG: light and dark, as the reader's system has it.

        0.25   0.5    1     2     4     8        a doubling is as wide everywhere
W1 …     |      ├─────┤     |     |     |        left of 1 the peer is faster
                      ├───────────▌              the mark is what is aimed at
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from .pairs import Outcome

__all__ = ["svg"]

_LABELS, _PLOT, _VALUES = 500, 440, 90
_ROW, _TOP, _BOTTOM = 22, 64, 12
_GAP = 10  # between workloads
_STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #24292f; }
  .paper { fill: #ffffff; } .grid { stroke: #d0d7de; } .one { stroke: #57606a; }
  .soft { fill: #57606a; } .title { font-size: 14px; font-weight: 600; }
  .met { fill: #2da44e; } .missed { fill: #d4a72c; } .free { fill: #8c959f; }
  .aim { stroke: #cf222e; stroke-width: 2.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .paper { fill: #0d1117; } .grid { stroke: #30363d; }
    .one { stroke: #8b949e; } .soft { fill: #8b949e; }
    .met { fill: #3fb950; } .missed { fill: #d29922; } .free { fill: #6e7681; }
    .aim { stroke: #ff7b72; }
  }
"""


def svg(outcomes: Sequence[Outcome]) -> str:
    """A bar for each comparison of rates."""
    rated = [outcome for outcome in outcomes if not outcome.comparison.latency and outcome.ratios()]
    values = [outcome.ratio() for outcome in rated]
    aims = [outcome.comparison.aim for outcome in rated if outcome.comparison.aim]
    low = math.floor(math.log2(min([*values, *aims, 0.5])))
    high = math.ceil(math.log2(max([*values, *aims, 2.0])))
    width = _LABELS + _PLOT + _VALUES

    def x(ratio: float) -> float:
        return _LABELS + (math.log2(ratio) - low) / (high - low) * _PLOT

    shapes, y = [], float(_TOP)
    workload = rated[0].comparison.workload if rated else ""
    for outcome, value in zip(rated, values, strict=True):
        if outcome.comparison.workload != workload:
            workload = outcome.comparison.workload
            y += _GAP
        shapes += _bar(outcome, value, y, x)
        y += _ROW
    height = y + _BOTTOM
    grid = []
    for power in range(low, high + 1):
        at, name = x(2.0**power), f"{2.0**power:g}×"
        kind = "one" if power == 0 else "grid"
        grid.append(f'<line class="{kind}" x1="{at:.1f}" y1="{_TOP - 6}" x2="{at:.1f}" y2="{y}"/>')
        grid.append(_text(at, _TOP - 12, name, "soft", "middle"))
    size = f'viewBox="0 0 {width} {height:g}" width="{width}" height="{height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            "<title>How many times as fast as each peer</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="paper" width="{width}" height="{height:g}"/>',
            _text(12, 22, "How many times as fast as each peer", "title"),
            *_legend(),
            *grid,
            *shapes,
            "</svg>",
            "",
        ]
    )


def _bar(outcome: Outcome, value: float, y: float, x: Callable[[float], float]) -> list[str]:
    c = outcome.comparison
    kind = "free" if c.aim is None else "met" if value >= c.aim else "missed"
    left, right = sorted((x(1.0), x(value)))
    aimed = "" if c.aim is None else f", aimed at {c.aim:g}"
    place = f'x="{left:.1f}" y="{y + 3:g}" width="{max(right - left, 1):.1f}"'
    name = f"<title>{escape(c.title)}: {value:.2f}{aimed}</title>"
    drawn = [
        _text(_LABELS - 10, y + 14, f"{c.workload}: {c.ours} / {c.peer}", "", "end"),
        f'<rect class="{kind}" {place} height="{_ROW - 7}">{name}</rect>',
        _text(_LABELS + _PLOT + 8, y + 14, f"{value:.2f}×"),
    ]
    if c.aim is not None:
        at = x(c.aim)
        drawn.append(
            f'<line class="aim" x1="{at:.1f}" y1="{y + 1:g}" x2="{at:.1f}" y2="{y + _ROW - 2:g}"/>'
        )
    return drawn


def _legend() -> list[str]:
    drawn, at = [], 330
    for kind, name in (("met", "met"), ("missed", "missed"), ("free", "no target")):
        drawn.append(f'<rect class="{kind}" x="{at}" y="12" width="14" height="12"/>')
        drawn.append(_text(at + 20, 22, name))
        at += 34 + 8 * len(name)
    drawn.append(f'<line class="aim" x1="{at + 4}" y1="10" x2="{at + 4}" y2="26"/>')
    drawn.append(_text(at + 14, 22, "target"))
    return drawn


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    name = f' class="{kind}"' if kind else ""
    return f'<text{name} x="{x:.1f}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'
