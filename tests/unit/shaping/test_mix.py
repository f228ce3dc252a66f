"""The source of each example of a mix: its chance is its weight, and no end changes other draws."""

from __future__ import annotations

import numpy as np

from headrace_server.shaping.mix import suppliers, times


def test_without_a_live_source_of_a_weight_the_next_weights_hold_or_nothing_supplies():
    schedule = [[0, [1, 0, 0]], [10, [0, 1, 0]], [20, [1, 1, 0]]]
    numbers = np.arange(30)
    drawn = times(0, 0, numbers, 3)
    assert suppliers(drawn, numbers, schedule, np.array([False, True, True])).tolist() == [1] * 30
    of = suppliers(drawn, numbers, schedule[:2], np.array([True, False, True]))
    assert of.tolist() == [0] * 10 + [-1] * 20
