"""The estimator counts the row that it judges, too, for any division into chunks."""

import numpy as np
import pytest

from headrace_server.shaping import class_acceptance as class_estimator
from headrace_server.shaping.class_acceptance import ClassEstimator

TARGETS = [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.6, 0.4, 0.0]]


def test_blocks_of_rows_are_judged_like_a_whole(monkeypatch):
    labels = np.arange(500) * 7 % 3
    target = np.array(TARGETS[0])
    whole = ClassEstimator(3).accept_estimated(labels, target)
    monkeypatch.setattr(class_estimator, "_BLOCK", 30)
    assert np.array_equal(ClassEstimator(3).accept_estimated(labels, target), whole)


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
