"""Acceptance makes the wanted mix, rejects few rows, and depends on ordinals alone."""

import numpy as np

from headrace_server.shaping import class_acceptance
from headrace_server.shaping.class_acceptance import (
    ClassEstimator,
    Proportions,
    probabilities,
)


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
