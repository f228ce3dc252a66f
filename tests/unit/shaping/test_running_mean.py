"""Rates follow the running mean of groups of rows."""

import numpy as np
import pytest

from headrace_server.shaping.row_copies import RunningMean


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
