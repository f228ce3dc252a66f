"""Arguments of calls: those of tf.contrib.training, and others that no call has."""

from __future__ import annotations

import copy

import pytest

from .declared import SEGMENTS, SOURCE


def test_any_other_name_is_refused_with_one_that_is_like_it() -> None:
    with pytest.raises(
        TypeError, match=r"batch\(\) has no argument bach_size; did you mean 'batch_"
    ):
        SOURCE.batch(bach_size=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"shared_name; it has which_bucket, .*; docs/comi"):
        SOURCE.bucket(1, 2, 3, shared_name="x")  # type: ignore[call-arg]
    assert copy.deepcopy(SOURCE) == SOURCE


def test_tensors_are_refused_where_a_column_is_wanted() -> None:
    with pytest.raises(TypeError, match=r"which_bucket=\['x', 'v'\] is a list; it is a column's"):
        SOURCE.bucket(["x", "v"], "x", 4, 3)  # type: ignore[arg-type]
    assert SOURCE.batch_sequences_with_states(**SEGMENTS) != SOURCE
