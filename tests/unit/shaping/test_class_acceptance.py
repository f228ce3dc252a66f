"""Acceptance makes the wanted mix, rejects few rows, and depends on ordinals alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping.class_acceptance import (
    Proportions,
    acceptance,
    keep,
    probabilities,
    rejected_fraction,
)

steady = settings(derandomize=True, deadline=None, database=None)

ORDINALS = np.arange(100_000)


def test_acceptance_is_the_ratio_over_the_largest_ratio():
    assert acceptance([0.5, 0.25, 0.25], [0.25, 0.25, 0.5]).tolist() == [0.25, 0.5, 1.0]
    assert acceptance([0.5, 0.5, 0.0], [0.0, 1.0, 0.0]).tolist() == [0, 1, 0]  # a pure filter
    assert acceptance([0.3, 0.7], [0.3, 0.7]).tolist() == [1, 1]


def test_acceptance_is_rounded_as_float32():
    init, target = [0.1, 0.2, 0.7], [0.4, 0.35, 0.25]
    ratio = np.float32(target) / np.float32(init)
    accepted = acceptance(init, target)
    assert accepted.dtype == np.float64
    assert accepted.tolist() == (ratio / ratio.max()).tolist()


@steady
@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), min_size=1, max_size=8))
def test_the_accepted_mix_is_the_target_and_one_class_is_always_kept(weights):
    init, target = np.array(weights, float).T
    target[0] += 1
    init, target = init / init.sum(), target / target.sum()
    accepted = acceptance(init, target)
    mix = init * accepted
    assert np.allclose(mix / mix.sum(), target, atol=1e-6)
    assert accepted.max() == 1 and accepted.min() >= 0
    assert rejected_fraction(init, target) == pytest.approx(1 - mix.sum())


@pytest.mark.parametrize(
    ("init", "target", "text"),
    [
        ([0.5, 0.5], [0.5, 0.500001], "target_probs sums to 1.000001"),
        ([0.5, 0.5], [float("nan"), 1], r"target_probs\[0\]=nan"),
        ([0.5, 0.5], [float("inf"), 1], "target_probs sums to inf"),
        ([0.5, 0.5], [1e308, 1e308], "target_probs sums to inf"),
        ([1.0, 1e-45], [0.5, 0.5], r"target_probs\[1\]=0.5 over init_probs\[1\]=1e-45 is more"),
    ],
)
def test_probabilities_that_can_not_be_are_refused_with_argument_and_value(init, target, text):
    """Others are refused as the pipeline is declared: test_sampler_steps.py."""
    for function in (acceptance, rejected_fraction):
        with pytest.raises(ValueError, match=text):
            function(init, target)


def test_sums_may_be_off_by_less_than_a_millionth():
    assert probabilities("p", np.full(1000, 1e-3, np.float32)).dtype == np.float64
    assert probabilities("p", [0.5, 0.5000009]).tolist() == [0.5, 0.5000009]


def test_probability_one_is_always_kept_and_zero_never():
    assert keep(7, 0, 0, ORDINALS, np.ones(len(ORDINALS))).all()
    assert not keep(7, 0, 0, ORDINALS, np.zeros(len(ORDINALS))).any()
    flags = ORDINALS % 3 == 0
    assert np.array_equal(keep(7, 0, 0, ORDINALS, flags), flags)


@pytest.mark.parametrize("p", [0.001, 0.3, 0.999])
def test_a_share_of_p_is_kept_within_five_sigma(p):
    kept = keep(7, 0, 0, ORDINALS, np.full(len(ORDINALS), p)).sum()
    assert abs(kept - p * len(ORDINALS)) < 5 * np.sqrt(len(ORDINALS) * p * (1 - p))


def test_a_row_is_judged_by_seed_stage_epoch_and_ordinal_and_nothing_else():
    p = np.full(64, 0.5)
    whole = keep(7, 2, 5, ORDINALS[:64], p)
    rows = np.array([63, 0, 17])
    assert np.array_equal(keep(7, 2, 5, rows, p[:3]), whole[rows])
    others = [keep(*key, ORDINALS[:64], p) for key in [(8, 2, 5), (7, 3, 5), (7, 2, 6)]]
    assert all(not np.array_equal(other, whole) for other in others)


def test_accepted_values_never_change():
    kept = keep(7, 2, 5, ORDINALS[:64], np.full(64, 0.5))
    assert np.packbits(kept).tobytes().hex() == "7fc050c058541a6a"


def test_proportions_change_at_a_batch_and_the_last_change_there_stands():
    mix = Proportions("probs", [0.5, 0.5])
    for values, since in (([1.0, 0.0], 3), ([0.25, 0.75], 7), ([0.0, 1.0], 7)):
        mix.change(values, since)
    assert mix.now.tolist() == [0.0, 1.0]
    assert mix.to_plain() == [[0, [0.5, 0.5]], [3, [1.0, 0.0]], [7, [0.0, 1.0]]]
    other = Proportions("probs", [1.0, 0.0])
    other.changes = other.from_plain(mix.to_plain())
    assert other.to_plain() == mix.to_plain()


def test_wrong_proportions_are_refused_and_change_nothing():
    mix = Proportions("target_probs", [0.5, 0.5])
    for values, text in (
        ([1.0], "target_probs has 1 classes; there are 2"),
        ([0.5, 0.6], "target_probs sums to"),
    ):
        with pytest.raises(ValueError, match=text):
            mix.change(values, 4)
        with pytest.raises(ValueError, match=text):
            mix.from_plain([[4, values]])
    assert mix.to_plain() == [[0, [0.5, 0.5]]]


def test_only_the_last_changes_are_remembered_and_fewer_of_many_classes_fit_a_message():
    for classes, sent in ((2, 64), (100, 20), (3000, 1)):
        mix = Proportions("probs", np.full(classes, 1 / classes))
        for number in range(1, 200):
            mix.change(mix.now, number)
        assert [number for number, _ in mix.to_plain()] == [*range(136, 200)]
        assert [number for number, _ in mix.recent()] == [*range(200 - sent, 200)]
