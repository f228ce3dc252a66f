"""Counts of copies are Poisson at any rate, and depend on the row's ordinal alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.row_copies import RunningMean, copy_ordinals, poisson

steady = settings(derandomize=True, deadline=None, database=None)

ORDINALS = np.arange(40_000)


@pytest.mark.parametrize("rate", [0.3, 2.0, 9.9, 10.0, 11.3, 16.5, 90.0])
def test_every_count_is_as_frequent_as_a_poisson_distribution_predicts(rate):
    """Chi square over counts expected at least ten times, within five of its sigmas."""
    counts = poisson(rate, 5, 1, 2, ORDINALS)
    k = np.arange(counts.max() + 1)
    logs = [i * math.log(rate) - rate - math.lgamma(i + 1) for i in k.tolist()]
    expected = np.exp(logs) * len(ORDINALS)
    seen = np.bincount(counts)
    common = expected >= 10
    chi = ((seen - expected) ** 2 / expected)[common].sum()
    freedom = common.sum()
    assert abs(chi - freedom) < 5 * math.sqrt(2 * freedom)


@steady
@given(st.lists(st.sampled_from([0.0, 0.4, 3.0, 9.5, 10.0, 77.0, 1e5]), max_size=40), st.data())
def test_the_copies_of_a_row_do_not_depend_on_the_rows_beside_it(rates, data):
    ordinals = np.arange(len(rates)) * 31
    whole = poisson(rates, 7, 0, 3, ordinals)
    rows = data.draw(st.lists(st.integers(0, max(len(rates) - 1, 0)), max_size=5)) if rates else []
    some = poisson(np.array(rates)[rows], 7, 0, 3, ordinals[rows])
    assert some.tolist() == whole[rows].tolist()
    assert (whole[np.array(rates, float) == 0] == 0).all()


def test_draws_of_one_row_are_no_draws_of_the_copies_of_it_that_an_earlier_stage_made():
    n = 20_000
    rows = ORDINALS[:n]
    copied = copy_ordinals(rows, np.full(n, 2), 0).reshape(n, 2)
    first, second = (poisson(rate, 7, 1, 0, copied[:, i]) for i, rate in enumerate([18.0, 9.0]))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(n)


def test_a_rate_just_above_zero_makes_next_to_no_copies():
    assert poisson(5e-324, 7, 0, 0, ORDINALS).sum() == 0


def test_copies_of_a_copy_and_of_its_original_have_keys_of_their_own():
    keys = np.arange(100)
    for stage in range(3):
        keys = copy_ordinals(keys, np.full(len(keys), 3), stage)
    assert len(np.unique(keys)) == len(keys) == 2700


def test_weights_near_the_ends_of_float64_give_finite_rates():
    assert RunningMean(2, 1.0).rates(np.array([1.7e308, 1.7e308])).tolist() == [1, 1]
    assert RunningMean(1, 1.0).rates(np.array([5e-324])).tolist() == [1]
