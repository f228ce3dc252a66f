"""Counts of copies are Poisson at any rate, and depend on the row's ordinal alone."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.row_copies import (
    MAX_RATE,
    copy_ordinals,
    poisson,
    repeat_rows,
)

steady = settings(derandomize=True, deadline=None, database=None)

ORDINALS = np.arange(40_000)


@pytest.mark.parametrize("rate", [0.01, 0.5, 1.0, 3.7, 9.99, 10.0, 12.5, 40.0, 700.0, 1e6])
def test_mean_and_variance_are_the_rate_within_five_sigma(rate):
    n = min(len(ORDINALS), int(1e7 / rate))
    counts = poisson(rate, 7, 0, 0, ORDINALS[:n])
    assert counts.dtype == np.int64
    assert abs(counts.mean() - rate) < 5 * math.sqrt(rate / n)
    spread = math.sqrt((rate + 2 * rate * rate) / n)  # of the sample variance of a Poisson
    assert abs(counts.var() - rate) < 5 * spread


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


def test_counts_never_change():
    rates = np.array([0, 0.1, 1, 5, 9.999, 10, 50, 87.5, 1e3, 1e6])
    counts = [0, 0, 2, 8, 8, 7, 52, 101, 1038, 998822]
    assert poisson(rates, 7, 2, 5, np.arange(10)).tolist() == counts


@steady
@given(st.lists(st.sampled_from([0.0, 0.4, 3.0, 9.5, 10.0, 77.0, 1e5]), max_size=40), st.data())
def test_the_copies_of_a_row_do_not_depend_on_the_rows_beside_it(rates, data):
    ordinals = np.arange(len(rates)) * 31
    whole = poisson(rates, 7, 0, 3, ordinals)
    rows = data.draw(st.lists(st.integers(0, max(len(rates) - 1, 0)), max_size=5)) if rates else []
    some = poisson(np.array(rates)[rows], 7, 0, 3, ordinals[rows])
    assert some.tolist() == whole[rows].tolist()
    assert (whole[np.array(rates, float) == 0] == 0).all()


def test_seed_stage_and_epoch_change_the_counts():
    for rate in (3.0, 30.0):
        drawn = {
            tuple(poisson(rate, *key, ORDINALS[:50]).tolist())
            for key in [(7, 0, 0), (8, 0, 0), (7, 1, 0), (7, 0, 1)]
        }
        assert len(drawn) == 4


@pytest.mark.parametrize("bad", [-1e-9, math.nan, math.inf, -math.inf, 2 * MAX_RATE])
def test_a_rate_that_can_not_be_names_its_row(bad):
    with pytest.raises(ValueError, match=f"row 1 has the rate {bad}; a rate is finite"):
        poisson([1.0, bad, bad], 7, 0, 0, np.arange(3))


def test_rates_of_more_copies_than_can_be_made_are_refused_before_any_is_drawn():
    with pytest.raises(ValueError, match="more than 16777216 at once; row 1 alone has 1000000000"):
        poisson([1.0, 1e15], 7, 0, 0, np.arange(2))


def test_draws_of_one_row_are_no_draws_of_the_copies_of_it_that_an_earlier_stage_made():
    n = 20_000
    rows = ORDINALS[:n]
    copied = copy_ordinals(rows, np.full(n, 2), 0).reshape(n, 2)
    first, second = (poisson(rate, 7, 1, 0, copied[:, i]) for i, rate in enumerate([18.0, 9.0]))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(n)


def test_a_rate_just_above_zero_makes_next_to_no_copies():
    assert poisson(5e-324, 7, 0, 0, ORDINALS).sum() == 0


@steady
@given(st.lists(st.integers(0, 5), max_size=30))
def test_copies_lie_side_by_side_and_each_has_a_key_of_its_own(counts):
    counts = np.array(counts, np.int64)
    rows = repeat_rows(counts)
    assert rows.tolist() == [row for row, count in enumerate(counts) for _ in range(count)]
    ordinals = np.arange(len(counts)) + 1000
    keys = copy_ordinals(ordinals, counts, 0)
    assert keys.dtype == np.int64
    assert len(set(keys.tolist())) == len(keys) == counts.sum()
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    assert keys[first].tolist() == ordinals[counts > 0].tolist()
    # A copy's key depends on its ordinal and number alone.
    alone = [copy_ordinals(ordinals[i : i + 1], counts[i : i + 1], 0) for i in range(len(counts))]
    assert keys.tolist() == [key for one in alone for key in one.tolist()]


def test_keys_of_copies_never_change():
    keys = [5, -5149291858572496639, 4957931940419435080, 6]
    assert copy_ordinals(np.array([5, 6]), np.array([3, 1]), 0).tolist() == keys


def test_keys_of_many_copies_of_neighbours_do_not_meet():
    keys = copy_ordinals(np.arange(1000), np.full(1000, 200), 0)
    assert len(np.unique(keys)) == 200_000


def test_copies_of_a_copy_and_of_its_original_have_keys_of_their_own():
    keys = np.arange(100)
    for stage in range(3):
        keys = copy_ordinals(keys, np.full(len(keys), 3), stage)
    assert len(np.unique(keys)) == len(keys) == 2700


def test_too_many_copies_at_once_name_the_row_that_has_most():
    with pytest.raises(ValueError, match="103 copies of 3 rows are more than 100 at once; row 1"):
        repeat_rows(np.array([1, 100, 2]), limit=100)
    with pytest.raises(ValueError, match="row 0 alone has"):
        repeat_rows(np.full(3, 2**62))
