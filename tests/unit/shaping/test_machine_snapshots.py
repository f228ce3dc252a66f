"""A snapshot of another declaration is refused by the field that differs, and changes nothing."""

import numpy as np
import pytest

from headrace_server.shaping.bucket import Buckets
from headrace_server.shaping.class_acceptance import ClassEstimator
from headrace_server.shaping.class_queues import ClassQueues
from headrace_server.shaping.row_copies import RunningMean


def buckets():
    shape = Buckets([2, 2])
    shape.offer(0, 3, {"bucket": np.array([0, 1, 0])})
    return shape


def queues():
    shape = ClassQueues(2, [1.0, 0.0], 2)
    shape.offer(0, 3, {"label": np.zeros(3, int)})
    return shape


def estimator():
    counting = ClassEstimator(3)
    counting.accept_estimated(np.array([0, 1]), np.array([0.2, 0.3, 0.5]))
    return counting


def mean():
    machine = RunningMean(2, 1.0)
    machine.rates(np.array([1.0, 2.0, 3.0]))
    return machine


@pytest.mark.parametrize(
    ("make", "change", "text"),
    [
        (buckets, {"batch_sizes": [2, 3]}, r"=\[2, 3\], the pipeline has batch_sizes=\[2, 2\]"),
        (buckets, {"waiting": [[2, [[0, b"2\1\0"]]]]}, "'waiting' .* can not be read: 2 is not"),
        (buckets, {"waiting": [[0, [[0, b"3\0\0\0"]]]]}, "no packed integers"),
        (buckets, {"formed": [[[[0, 9]], 1]]}, "'formed' has more rows than 'waiting'"),
        (buckets, {"formed": [[[[0, 1]], 1]]}, "'formed' has a batch of another size"),
        (queues, {"num_classes": 3}, "num_classes=3, the pipeline has num_classes=2"),
        (queues, {"changes": []}, "'changes' is empty"),
        (queues, {"formed": [[[[0, 2]], 2]]}, "'formed' has more rows"),
        (queues, {"changes": [[0, [1.0]]]}, "probs has 1 classes"),
        (estimator, {"counts": [10, 10]}, "'counts' has 2 classes, the pipeline 3"),
        (estimator, {"counts": [10, 10, 10]}, "'counts' does not add up to rows=2"),
        (estimator, {"rows": "2"}, "'rows'"),
        (mean, {"group": 3}, "group=3, the pipeline has group=2"),
        (mean, {"warmup": None}, "warmup=None, the pipeline has warmup=10"),
        (mean, {"mean_decay": 0.9}, "mean_decay=0.9, the pipeline has mean_decay=0.999"),
        (mean, {"average": "x"}, "'average'"),
    ],
)
def test_a_snapshot_that_does_not_fit_is_refused(make, change, text):
    machine = make()
    before = machine.snapshot()
    with pytest.raises(ValueError, match=text):
        machine.restore({**before, **change})
    assert machine.snapshot() == before
