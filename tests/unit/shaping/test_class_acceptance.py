"""Acceptance makes the wanted mix, rejects few rows, and depends on ordinals alone."""

import numpy as np
import pytest

from headrace_server.shaping import class_acceptance
from headrace_server.shaping.class_acceptance import (
    ClassEstimator,
    Proportions,
    acceptance,
    probabilities,
    rejected_fraction,
)


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


def test_blocks_of_rows_are_judged_like_a_whole(monkeypatch):
    labels, target = np.arange(500) * 7 % 3, np.array([0.2, 0.3, 0.5])
    whole = ClassEstimator(3).accept_estimated(labels, target)
    monkeypatch.setattr(class_acceptance, "_BLOCK", 30)
    assert np.array_equal(ClassEstimator(3).accept_estimated(labels, target), whole)
