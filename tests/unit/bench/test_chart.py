"""The chart has a bar for each rate, from 1 to its ratio, and a mark where the target is."""

from __future__ import annotations

from xml.etree import ElementTree

from tests.bench.chart import svg
from tests.bench.pairs import Comparison, Outcome

SVG = "{http://www.w3.org/2000/svg}"


def outcome(ratio: float, comparison: Comparison) -> Outcome:
    return Outcome(comparison, [{"batches_per_s": ratio}], [{"batches_per_s": 1.0}])


def drawn(*outcomes: Outcome) -> ElementTree.Element:
    return ElementTree.fromstring(svg(list(outcomes)))


def bars(chart: ElementTree.Element) -> list[tuple[str, float, float]]:
    return [
        (bar.get("class", ""), float(bar.get("x", "")), float(bar.get("width", "")))
        for bar in chart.iter(f"{SVG}rect")
        if bar.find(f"{SVG}title") is not None
    ]


def test_faster_goes_right_of_one_and_slower_left_by_the_same_length_for_the_same_factor():
    chart = drawn(
        outcome(4.0, Comparison("W1", "a", "b", 2.0)),
        outcome(0.25, Comparison("W1", "a", "<c>", 0.5)),
        outcome(2.0, Comparison("W2", "a", "b")),
    )
    (met, x4, w4), (missed, x25, w25), (free, x2, w2) = bars(chart)
    assert (met, missed, free) == ("met", "missed", "free")
    assert x4 == x2 == x25 + w25
    assert abs(w4 - w25) < 0.2 and abs(w4 - 2 * w2) < 0.2


def test_the_target_is_marked_where_a_bar_that_meets_it_would_end():
    chart = drawn(outcome(8.0, Comparison("W1", "a", "b", 8.0)))
    ((_, x, width),) = bars(chart)
    marks = [line for line in chart.iter(f"{SVG}line") if line.get("class") == "aim"]
    assert abs(float(marks[-1].get("x1", "")) - (x + width)) < 0.2


def test_latencies_have_no_bar_and_nothing_measured_is_a_chart_all_the_same():
    assert bars(drawn(outcome(8.0, Comparison("latency", "a", "b", latency=True)))) == []


def test_it_has_colours_for_light_and_dark():
    assert "prefers-color-scheme: dark" in svg([])
