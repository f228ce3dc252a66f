"""Arguments at the positions of the TensorFlow functions are refused with their names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .declared import SEGMENTS, SOURCE


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("bucket", (["x", "v"], "x", 4, 3)),
        ("bucket", ({"x": 1}, "x", 4, 3)),
        ("bucket_by_sequence_length", ("v", ["x", "v"], 4, [3, 9])),
        ("stratified_sample", (["v"], "x", [0.5, 0.5], 4)),
        ("stratified_sample_unknown_dist", (["v"], "x", [0.5, 0.5], 4)),
        ("rejection_sample", (["v"], 0.5, 4)),
        ("resample_at_rate", (["v"], 1.0)),
        ("weighted_resample", ({"v": 1}, "x", 1.0)),
    ],
)
def test_tensors_by_position_are_distinguished_from_own_arguments(method: str, args: Any) -> None:
    with pytest.raises(TypeError, match=rf"{method}\(\) takes no tensors, .*all columns"):
        getattr(SOURCE, method)(*args)


@pytest.mark.parametrize(
    ("method", "args", "alike"),
    [
        ("bucket", ("x", 4, 3, 1, 32), "num_buckets"),
        ("bucket_by_sequence_length", ("v", 4, [3, 9], 1, 32), "bucket_boundaries"),
        ("stratified_sample_unknown_dist", ("x", [0.5, 0.5], 4, False, 16, 2), "queue_capacity"),
        ("stratified_sample", ("x", [0.5, 0.5], 4, None, False, 16), "enqueue_many"),
        ("rejection_sample", (0.5, 4, 1), "batch_size"),
        ("weighted_resample", ("x", 1.0, None, 0.999), "overall_rate"),
        ("resample_at_rate", (1.0, None, 7), "rates"),
        ("batch_sequences_with_states", (*SEGMENTS.values(), 3, 1000), "batch_size"),
    ],
)
def test_arguments_at_other_positions_than_in_tensorflow_are_refused_with_their_names(
    method: str, args: Any, alike: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"After {alike} positions are not"):
        getattr(SOURCE, method)(*args)


def test_the_error_of_an_argument_at_its_original_position_does_not_mention_positions() -> None:
    with pytest.raises(TypeError) as caught:
        SOURCE.bucket("x", "4", 3)  # type: ignore[arg-type]
    assert not re.search("positions", str(caught.value))
    sizes = SOURCE.bucket_by_sequence_length("v", [4, 2, 1], [3, 9])
    assert sizes.declaration().shape.options["batch_sizes"] == [4, 2, 1]
