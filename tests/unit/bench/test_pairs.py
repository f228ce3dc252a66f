"""A ratio belongs to a pair of windows; what counts is the median of the pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.bench.pairs import Comparison, Outcome

NAMES = Comparison("W1", "ours", "theirs")


def outcome(ours: list[float], peer: list[float]) -> Outcome:
    def windows(rates: list[float]) -> list[dict[str, float]]:
        return [{"batches_per_s": rate} for rate in rates]

    return Outcome(NAMES, windows(ours), windows(peer))


def test_each_window_is_divided_by_the_one_beside_it():
    assert outcome([10, 30, 60], [5, 10, 30]).ratios() == [2.0, 3.0, 2.0]


def test_the_median_is_of_the_ratios_and_not_a_ratio_of_medians():
    drifting = outcome([1, 20, 300], [1, 40, 100])
    assert drifting.plain()["median"] == 1.0  # medians of the windows would say 20 / 40
    assert drifting.median("ours", "batches_per_s") == 20
    assert drifting.median("peer", "batches_per_s") == 40


def test_a_pair_whose_peer_took_nothing_measurable_gives_no_ratio():
    assert outcome([1, 8], [0, 2]).ratios() == [4.0]


def test_where_no_pair_gives_a_ratio_nothing_is_met():
    assert math.isnan(outcome([1], [0]).ratio())
    assert not replace(outcome([1], [0]), comparison=replace(NAMES, aim=0.0)).judged()[0].met


def test_a_window_without_its_peer_is_refused():
    with pytest.raises(ValueError, match="shorter"):
        outcome([1, 2], [1]).ratios()


@pytest.mark.parametrize(("taken", "met"), [([[40, 60], [52, 48]], True), ([[80, 120]], False)])
def test_shares_are_of_all_windows_together(taken: list[list[int]], met: bool):
    windows = [{"taken": one} for one in taken]
    found = Outcome(replace(NAMES, shares=0.1), windows, windows)
    assert found.shares()[0] == sum(one[0] for one in taken) / sum(map(sum, taken)) * 2
    (judged,) = found.judged()
    assert judged.met is met and judged.wanted == "within 10%"


def test_everything_measured_is_in_the_plain_form():
    plain = outcome([4], [2]).plain()
    assert plain["comparison"]["ours"] == "ours"
    assert plain["ours"] == [{"batches_per_s": 4}]
    assert plain["ratios"] == [2.0]
