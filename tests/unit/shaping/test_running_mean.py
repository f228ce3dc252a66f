"""Rates follow the running mean of groups of rows."""

import numpy as np
import pytest

from headrace_server.shaping.row_copies import RunningMean


def test_the_first_groups_have_the_plain_mean_then_the_old_fades():
    machine = RunningMean(1, 1.0, mean_decay=0.999, warmup=3)
    means = [w / machine.rates(np.array([w]))[0] for w in (1.0, 2.0, 6.0, 3.0, 30.0)]
    assert means == pytest.approx([1, 1.5, 3, 3, 3 * 0.999 + 30 * 0.001])


def test_overall_rate_is_the_mean_of_the_rates_of_the_first_group():
    rates = RunningMean(4, 0.25).rates(np.array([1, 2, 3, 0], np.float16))
    assert rates.mean() == pytest.approx(0.25)
    assert rates[3] == 0


@pytest.mark.parametrize("warmup", [10, None])
def test_a_mean_of_zero_is_refused_and_changes_nothing(warmup):
    machine = RunningMean(2, 1.0, warmup=warmup)
    before = machine.snapshot()
    with pytest.raises(ValueError, match="mean of the weights is 0 at group number 1 of 2 rows"):
        machine.rates(np.array([0.0, 0.0]))
    assert machine.snapshot() == before


def test_weights_near_the_ends_of_float64_give_finite_rates():
    assert RunningMean(2, 1.0).rates(np.array([1.7e308, 1.7e308])).tolist() == [1, 1]
    assert RunningMean(1, 1.0).rates(np.array([5e-324])).tolist() == [1]
    with pytest.raises(ValueError, match="gives no finite rate"):
        RunningMean(2, 1.7e308).rates(np.array([0.0, 1.0]))
