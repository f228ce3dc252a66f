"""Rates follow the running mean of groups of rows."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.row_copies import RunningMean
from tests.resampling_rule import rates_by_rule

steady = settings(derandomize=True, deadline=None, database=None)


weights_lists = st.lists(st.floats(0.01, 100), max_size=40)
rules = st.tuples(
    st.integers(1, 6), st.sampled_from([0.0, 0.5, 0.999]), st.none() | st.integers(1, 4)
)


def restored(machine):
    other = RunningMean(machine.group, machine.overall_rate, machine.mean_decay, machine.warmup)
    other.restore(json.loads(json.dumps(machine.snapshot())))
    assert other.snapshot() == machine.snapshot()
    return other


def over_groups(machine, weights):
    """The rates of groups of the machine's size, the last of which may be smaller."""
    rates = []
    for start in range(0, len(weights), machine.group):
        rates += machine.rates(np.array(weights[start : start + machine.group])).tolist()
    return rates


@steady
@given(weights_lists, rules)
def test_rates_are_those_of_the_formulas_and_restores_change_no_bit(weights, rule):
    group, decay, warmup = rule
    whole = RunningMean(group, 1.5, decay, warmup)
    expected = over_groups(whole, weights)
    assert expected == pytest.approx(rates_by_rule(weights, group, 1.5, decay, warmup), rel=1e-9)
    machine, rates = RunningMean(group, 1.5, decay, warmup), []
    for start in range(0, len(weights), group):
        machine = restored(machine)
        rates += machine.rates(np.array(weights[start : start + group])).tolist()
    assert rates == expected


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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"group": 3}, "group=3, the pipeline has group=2"),
        ({"warmup": None}, "warmup=None, the pipeline has warmup=10"),
        ({"mean_decay": 0.9}, "mean_decay=0.9, the pipeline has mean_decay=0.999"),
        ({"average": "x"}, "'average'"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_by_field(change, text):
    machine = RunningMean(2, 1.0)
    machine.rates(np.array([1.0, 2.0, 3.0]))
    before = machine.snapshot()
    with pytest.raises(ValueError, match=text):
        machine.restore({**before, **change})
    assert machine.snapshot() == before
