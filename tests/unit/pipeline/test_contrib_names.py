"""Arguments and functions of tf.contrib.training: each is here, or its error names the remedy."""

from __future__ import annotations

import copy
import inspect

import pytest

import headrace_server as hs
from headrace_proto.gone import CONTRIB_ARGUMENTS, CONTRIB_FUNCTIONS

from .declared import SEGMENTS, SOURCE

#: Arguments of each function that have another name here, or none.
ELSEWHERE = {
    "bucket": "tensors num_threads shapes shared_name name",
    "bucket_by_sequence_length": "tensors num_threads shapes shared_name name",
    "stratified_sample": "tensors queue_capacity threads_per_queue name",
    "stratified_sample_unknown_dist": "tensors threads_per_queue name",
    "rejection_sample": "tensors accept_prob_fn queue_threads prebatch_capacity prebatch_threads "
    "runtime_checks name",
    "resample_at_rate": "inputs scope back_prop",
    "weighted_resample": "inputs scope",
    "batch_sequences_with_states": "num_threads name",
    "sequence_queueing_state_saver": "name",
}


def test_the_error_of_an_argument_that_is_gone_names_the_remedy_and_the_page() -> None:
    assert {name for names in ELSEWHERE.values() for name in names.split()} == {*CONTRIB_ARGUMENTS}
    for method, names in ELSEWHERE.items():
        call = getattr(SOURCE, method)
        for name in names.split():
            assert name not in inspect.signature(call).parameters
            with pytest.raises(TypeError) as caught:
                call(**{name: 1})
            assert str(caught.value) == (
                f"{method}() has no argument {name}: {CONTRIB_ARGUMENTS[name]}, "
                "see docs/coming-from-contrib.md"
            )


def test_a_function_of_the_original_is_a_method_of_a_pipeline() -> None:
    for name in CONTRIB_FUNCTIONS:
        assert callable(getattr(SOURCE, name))
        with pytest.raises(AttributeError, match=rf"^hs\.{name} is a method: hs\..*\.{name}"):
            getattr(hs, name)
    with pytest.raises(AttributeError, match=r"^hs has no attribute 'buckets'$"):
        hs.buckets  # noqa: B018


def test_any_other_name_is_refused_with_one_that_is_like_it() -> None:
    with pytest.raises(
        TypeError, match=r"batch\(\) has no argument bach_size; did you mean 'batch_"
    ):
        SOURCE.batch(bach_size=4)  # type: ignore[call-arg]
    assert not hasattr(SOURCE, "colour") and copy.deepcopy(SOURCE) == SOURCE
    with pytest.raises(AttributeError, match="Pipeline has no attribute 'colour'"):
        _ = SOURCE.colour


def test_tensors_are_refused_where_a_column_is_wanted() -> None:
    with pytest.raises(TypeError, match=r"which_bucket=\['x', 'v'\] is a list; it is a column's"):
        SOURCE.bucket(["x", "v"], "x", 4, 3)  # type: ignore[arg-type]
    assert SOURCE.batch_sequences_with_states(**SEGMENTS) != SOURCE
