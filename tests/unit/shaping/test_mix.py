"""The source of each example of a mix: its chance is its weight, and no end changes other draws."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_server.shaping.mix import Reports, suppliers, times


def plain_weights(taken, rule, floor, half_life, temperature):
    """Return the weights after reports of (source, value) rows, as the module states the rule."""
    sums, rows = [0.0] * 3, [0.0] * 3
    for batch in taken:
        for k in range(3):
            own = [value for source, value in batch if source == k]
            sums[k] = sums[k] * 2 ** (-len(batch) / half_life) + sum(own)
            rows[k] = rows[k] * 2 ** (-len(batch) / half_life) + len(own)
    means = [total / count if count else None for total, count in zip(sums, rows, strict=True)]
    part = {"softmax": lambda m: np.exp(m / temperature), "proportional": lambda m: max(m, 0)}[rule]
    known = [part(mean) for mean in means if mean is not None]
    parts = [sum(known) / len(known) if mean is None else part(mean) for mean in means]
    whole = sum(parts)
    return [floor / 3 + (1 - floor) * (p / whole if whole else 1 / 3) for p in parts]


def report_of(batch):
    sources, values = map(np.array, zip(*batch, strict=True))
    found = sorted(set(sources.tolist()))
    rows = [[k, (sources == k).sum(), values[sources == k].sum()] for k in found]
    return np.array(rows, "<f8").tobytes()


TAKEN = {
    "all sources": [[(0, 1.0), (1, 2.0)], [(2, 4.0), (2, 3.0), (0, -0.5)], [(1, 2.5)]],
    "one without a report": [[(0, 1.0), (2, 3.0)], [(2, 2.0)] * 5],
    "nothing above 0": [[(0, 0.0), (1, -1.0), (2, -2.0)]],
}


@pytest.mark.parametrize("rule", ["proportional", "softmax"])
@pytest.mark.parametrize("floor", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("taken", TAKEN.values(), ids=TAKEN)
def test_weights_follow_from_reports_by_the_rule_in_every_life(taken, rule, floor):
    settings = rule, floor, 7.0, 2.0
    reports = Reports(3, *settings)
    for batch in taken:
        reports.take(report_of(batch))
        later = Reports(3, *settings)
        later.restore(reports.state())
        reports = later
    assert reports.due
    assert reports.weights() == pytest.approx(plain_weights(taken, *settings))
    assert (
        sum(reports.weights()) == pytest.approx(1) and min(reports.weights()) >= floor / 3 - 1e-12
    )
    reports.weighed()
    assert not reports.due
    reports.take(report_of([(0, 1.0)]))
    assert reports.due  # a tenth of 7 is less than a row


def test_means_of_large_numbers_stay_finite():
    reports = Reports(2, "softmax", 0.0, 1.0, 1e-6)
    for _ in range(3000):
        reports.take(report_of([(0, 1e100), (0, -1e100), (1, 1e100)] * 100))
    assert reports.weights() == [0.0, 1.0]


def test_without_a_live_source_of_a_weight_the_next_weights_hold_or_nothing_supplies():
    schedule = [[0, [1, 0, 0]], [10, [0, 1, 0]], [20, [1, 1, 0]]]
    numbers = np.arange(30)
    drawn = times(0, 0, numbers, 3)
    assert suppliers(drawn, numbers, schedule, np.array([False, True, True])).tolist() == [1] * 30
    of = suppliers(drawn, numbers, schedule[:2], np.array([True, False, True]))
    assert of.tolist() == [0] * 10 + [-1] * 20
