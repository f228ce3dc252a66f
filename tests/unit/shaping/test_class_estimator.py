"""The estimator counts the row that it judges, too, for any division into chunks."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_server.shaping import class_acceptance as class_estimator
from headrace_server.shaping.class_acceptance import ClassEstimator, keep, rejected_fraction

steady = settings(derandomize=True, deadline=None, database=None)

TARGETS = [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.6, 0.4, 0.0]]


def by_hand(labels, changes):
    """The acceptance of one row at a time; ``changes`` maps rows to targets."""
    counts, target, accepted = [10, 10, 10], None, []
    for row, label in enumerate(labels):
        target = changes.get(row, target)
        counts[label] += 1
        share = np.array([c / sum(counts) for c in counts]).astype(np.float32)
        ratio = np.array(target, np.float32) / share
        accepted.append(float((ratio / ratio.max())[label]))
    return accepted


labels_and_cuts = st.lists(st.integers(0, 2), max_size=50).flatmap(
    lambda labels: st.tuples(
        st.just(labels), st.lists(st.integers(0, len(labels)), max_size=4), st.integers(0, 50)
    )
)


def pieces(labels, cuts):
    edges = [0, *sorted(cuts), len(labels)]
    return [np.array(labels[a:b], np.int16) for a, b in pairwise(edges)]


def restored(estimator):
    other = ClassEstimator(3)
    other.restore(json.loads(json.dumps(estimator.snapshot())))
    assert other.snapshot() == estimator.snapshot()
    return other


@steady
@given(labels_and_cuts)
def test_rows_are_judged_as_one_at_a_time_with_restores_and_a_change_of_target(given):
    labels, cuts, change = given
    accepted = by_hand(labels, {0: TARGETS[0], change: TARGETS[1]})
    judging, got = ClassEstimator(3), []
    for piece in pieces(labels, [*cuts, min(change, len(labels))]):
        judging = restored(judging)
        target = np.array(TARGETS[len(got) >= change])
        got += judging.accept_estimated(piece, target).tolist()
    assert got == accepted
    assert judging.rows == len(labels)
    counted = np.bincount(np.array(labels, int), minlength=3) + 10
    assert judging.snapshot()["counts"] == counted.tolist()


def test_blocks_of_rows_are_judged_like_a_whole(monkeypatch):
    labels = np.arange(500) * 7 % 3
    target = np.array(TARGETS[0])
    whole = ClassEstimator(3).accept_estimated(labels, target)
    monkeypatch.setattr(class_estimator, "_BLOCK", 30)
    assert np.array_equal(ClassEstimator(3).accept_estimated(labels, target), whole)


@pytest.mark.parametrize("init", [[0.2, 0.3, 0.5], [0.9, 0.06, 0.04]])
def test_the_mix_reaches_the_target_and_nothing_is_thrown_away_for_counting(init):
    """50,000 rows of a fixed mix.  The first 5,000 are left out of the comparison; behind them the
    counts of 10 at the start still shift the estimate of a rare class by up to 4 %, and so the mix
    by less than 0.01."""
    ordinals, target = np.arange(50_000), np.array(TARGETS[0])
    drawn = ordinals * 0.6180339887498949 % 1
    labels = np.searchsorted(np.cumsum(init), drawn, side="right").clip(0, 2)
    accepted = ClassEstimator(3).accept_estimated(labels, target)
    kept = keep(11, 0, 0, ordinals, accepted)
    kept[:5000] = False
    mix = np.bincount(labels[kept], minlength=3) / kept.sum()
    sigma = np.sqrt(target * (1 - target) / kept.sum())
    assert (np.abs(mix - target) < 5 * sigma + 0.01).all()
    assert kept.sum() > 0.9 * 45_000 * (1 - rejected_fraction(init, target))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"counts": [10, 10]}, "'counts' has 2 classes, the pipeline 3"),
        ({"counts": [10, 10, 10]}, "'counts' does not add up to rows=2"),
        ({"rows": "2"}, "'rows'"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused_by_field(change, text):
    estimator = ClassEstimator(3)
    estimator.accept_estimated(np.array([0, 1]), np.array(TARGETS[0]))
    before = estimator.snapshot()
    with pytest.raises(ValueError, match=text):
        estimator.restore({**before, **change})
    assert estimator.snapshot() == before
