"""A curve as a picture: SVG of lines over a logarithmic x, as text that any browser shows."""

from __future__ import annotations

import html
import math

from .curve import Curve, shown

__all__ = ["drawn"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 780, 300, 70, 190, 24, 46
_LABEL = 44  # the least room for one of the x
_COLOURS = ("#00695c", "#c62828", "#1565c0", "#6a1b9a")


def drawn(curve: Curve, label: str) -> str:
    """Return the picture; axes are logarithmic, so linear growth has a slope of one."""
    lines = [[figures[name] for _, figures in curve.points] for name in curve.plotted]
    values = [value for line in lines for value in line if value > 0]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high += low == high
    places = _places([x for x, _ in curve.points])
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def across(part: float) -> float:
        return _LEFT + part * (right - _LEFT)

    def up(value: float) -> float:
        part = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return bottom - part * (bottom - _TOP)

    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{html.escape(label)}" font-family="system-ui, sans-serif" font-size="12">'
    )
    parts = [head, f'<rect width="{_WIDTH}" height="{_HEIGHT}" rx="8" fill="#ffffff"/>']
    for power in range(low, high + 1):
        y = up(10.0**power)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{right}" stroke="#cfd8dc"/>')
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" '
            f'fill="#546e7a">{10.0**power:,g}</text>'
        )
    last = -math.inf
    for (x, _), part in zip(curve.points, places, strict=True):
        if across(part) - last < _LABEL:
            continue
        last = across(part)
        parts.append(
            f'<text x="{across(part):.1f}" y="{bottom + 18}" text-anchor="middle" '
            f'fill="#546e7a">{html.escape(shown(x))}</text>'
        )
    parts.append(
        f'<text x="{across(0.5):.1f}" y="{_HEIGHT - 8}" text-anchor="middle" '
        f'fill="#102027">{html.escape(curve.x)}</text>'
    )
    for number, (name, line) in enumerate(zip(curve.plotted, lines, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [f"{across(p):.1f} {up(v):.1f}" for p, v in zip(places, line, strict=True)]
        parts.append(
            f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts += [
            f'<circle cx="{point.split()[0]}" cy="{point.split()[1]}" r="3" fill="{colour}"/>'
            for point in points
        ]
        parts.append(
            f'<text x="{right + 12}" y="{_TOP + 14 + 20 * number}" fill="{colour}">'
            f"{html.escape(name)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _places(xs: list[float | str]) -> list[float]:
    """Where points stand, 0 … 1: by their logarithm, or evenly where they are no numbers."""
    numbers = [math.log(x) for x in xs if not isinstance(x, str) and x > 0]
    if len(numbers) < len(xs) or numbers[0] == numbers[-1]:
        return [i / max(1, len(xs) - 1) for i in range(len(xs))]
    return [(n - numbers[0]) / (numbers[-1] - numbers[0]) for n in numbers]
