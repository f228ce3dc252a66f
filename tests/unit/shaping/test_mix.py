"""The source of each example of a mix: its chance is its weight, and no end changes other draws."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_server.shaping.mix import Reports, pass_ordinals, suppliers, times

N = 200_000
NUMBERS = np.arange(N)


def drawn(weights, seed=0, live=None, numbers=NUMBERS):
    schedule = weights if isinstance(weights[0], list) else [[0, weights]]
    count = len(schedule[0][1])
    alive = np.ones(count, bool) if live is None else np.array(live)
    return suppliers(times(seed, 0, numbers, count), numbers, schedule, alive)


@pytest.mark.parametrize("weights", [[0.7, 0.3], [5, 3, 2], [1e-3, 1, 0], [1e-90, 1e-90]])
@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_the_share_of_a_source_is_its_weight(weights, seed):
    """Within 5 standard deviations, over all numbers and over those of one partition of 4."""
    wanted = np.array(weights) / sum(weights)
    for numbers in (NUMBERS, NUMBERS[3::4]):
        counts = np.bincount(drawn(weights, seed, numbers=numbers), minlength=len(weights))
        bound = 5 * np.sqrt(len(numbers) * wanted * (1 - wanted))
        assert (np.abs(counts - len(numbers) * wanted) <= bound).all()


def test_draws_of_neighbouring_numbers_are_independent():
    """Of two sources of equal weight: the four pairs of successive draws come equally often."""
    of = drawn([1, 1], seed=4)
    pairs = np.bincount(2 * of[:-1] + of[1:], minlength=4)
    assert np.abs(pairs - N / 4).max() <= 5 * np.sqrt(N * 3 / 16)


def test_the_end_of_a_source_changes_its_own_draws_alone():
    before, after = drawn([3, 2, 1]), drawn([3, 2, 1], live=[False, True, True])
    stays = before != 0
    assert (before[stays] == after[stays]).all()
    moved = np.bincount(after[~stays], minlength=3)
    assert moved[0] == 0
    assert abs(moved[1] - len(after[~stays]) * 2 / 3) <= 5 * np.sqrt(len(after[~stays]) * 2 / 9)


def test_weights_hold_from_their_number_on_whatever_is_asked_at_once():
    schedule = [[0, [1, 0]], [10, [0, 1]], [30, [1, 1]]]
    of = drawn(schedule)
    assert of[:10].tolist() == [0] * 10
    assert of[10:30].tolist() == [1] * 20
    assert set(of[30:60].tolist()) == {0, 1}
    assert drawn(schedule, numbers=np.arange(7, 80, 3)).tolist() == of[7:80:3].tolist()


def test_without_a_live_source_of_a_weight_the_next_weights_hold_or_nothing_supplies():
    schedule = [[0, [1, 0, 0]], [10, [0, 1, 0]], [20, [1, 1, 0]]]
    numbers = np.arange(30)
    assert drawn(schedule, live=[False, True, True], numbers=numbers).tolist() == [1] * 30
    of = drawn(schedule[:2], live=[True, False, True], numbers=numbers)
    assert of.tolist() == [0] * 10 + [-1] * 20


def test_every_pass_over_a_source_has_keys_of_its_own():
    ordinals = np.arange(1000)
    keys = [pass_ordinals(ordinals, np.full(1000, turn)) for turn in range(4)]
    assert (keys[0] == ordinals).all()
    assert len(np.unique(np.concatenate(keys))) == 4000


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
