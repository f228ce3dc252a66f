"""Errors name the replacement of each name of TensorFlow that is not here."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest

import headrace_server as hs

from .declared import SEGMENTS, SOURCE

#: Calls that are right, and the arguments of the TensorFlow function of that name.
CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "bucket": (
        {"which_bucket": "x", "batch_size": 4, "num_buckets": 3},
        """tensors which_bucket batch_size num_buckets num_threads capacity bucket_capacities shapes
        dynamic_pad allow_smaller_final_batch keep_input shared_name name""",
    ),
    "bucket_by_sequence_length": (
        {"input_length": "v", "batch_size": 4, "bucket_boundaries": [3, 9]},
        """input_length tensors batch_size bucket_boundaries num_threads capacity bucket_capacities
        shapes dynamic_pad allow_smaller_final_batch keep_input shared_name name""",
    ),
    "stratified_sample": (
        {"labels": "x", "target_probs": [0.5, 0.5], "batch_size": 4},
        """tensors labels target_probs batch_size init_probs enqueue_many queue_capacity
        threads_per_queue name""",
    ),
    "stratified_sample_unknown_dist": (
        {"labels": "x", "probs": [0.5, 0.5], "batch_size": 4},
        "tensors labels probs batch_size enqueue_many queue_capacity threads_per_queue name",
    ),
    "rejection_sample": (
        {"accept_prob": 0.5, "batch_size": 4},
        """tensors accept_prob_fn batch_size queue_threads enqueue_many prebatch_capacity
        prebatch_threads runtime_checks name""",
    ),
    "resample_at_rate": ({"rates": 2.0}, "inputs rates scope seed back_prop"),
    "weighted_resample": (
        {"weights": "x", "overall_rate": 1.0},
        "inputs weights overall_rate scope mean_decay warmup seed",
    ),
    "batch_sequences_with_states": (
        SEGMENTS,
        """input_key input_sequences input_context input_length initial_states num_unroll batch_size
        num_threads capacity allow_small_batch pad make_keys_unique make_keys_unique_seed name""",
    ),
    "sequence_queueing_state_saver": (
        SEGMENTS,
        """batch_size num_unroll input_length input_key input_sequences input_context initial_states
        capacity allow_small_batch name""",
    ),
}


@pytest.mark.parametrize("method", CALLS)
def test_every_argument_of_tensorflow_is_here_or_its_error_names_the_replacement(
    method: str,
) -> None:
    right, original = CALLS[method]
    call = getattr(SOURCE, method)
    call(**right)
    here = inspect.signature(call).parameters
    for name in original.split():
        if name in here:
            continue
        with pytest.raises(TypeError) as caught:
            call(**right, **{name: 1})
        why = str(caught.value).partition(f"{method}() has no argument {name}: ")[2]
        assert len(why) > 15 and "unexpected" not in why, caught.value


@pytest.mark.parametrize(
    ("method", "given", "why"),
    [
        ("bucket", {"num_threads": 2}, r"hs\.run\(workers=…, partitions=…\)"),
        ("bucket", {"shapes": [[]]}, "the schema says them"),
        ("bucket", {"allow_small_batch": True}, "it is allow_smaller_final_batch"),
        ("rejection_sample", {"accept_prob_fn": len}, "it is accept_prob"),
        ("bucket", {"enqueue_many": True}, r"\.unbatch\(\) before it"),
        ("stratified_sample", {"queue_capacity": 9}, "no such queue"),
        ("batch_sequences_with_states", {"dynamic_pad": True}, "pad=True pads sequences"),
        ("batch_sequences_with_states", {"length": "x"}, "it is input_length"),
        ("batch_sequences_with_states", {"seed": 1}, r"shuffle\(seed=…\)"),
        ("sequence_queueing_state_saver", {"pad": True}, r"batch_sequences_with_states\(pad=True"),
        ("resample_at_rate", {"back_prop": True}, "no graph"),
        ("weighted_resample", {"scope": "x"}, r"hs\.run\({name: pipeline}\)"),
    ],
)
def test_the_error_names_what_takes_its_place(method: str, given: Any, why: str) -> None:
    with pytest.raises(
        TypeError, match=rf"^{method}\(\) has no argument {next(iter(given))}: .*{why}"
    ):
        getattr(SOURCE, method)(**{**CALLS[method][0], **given})


@pytest.mark.parametrize(
    ("method", "given", "why"),
    [
        ("batch", {"drop_remainder": True}, "allow_smaller_final_batch=True keeps the rows"),
        ("batch", {"num_parallel_calls": 4}, r"hs\.run\(workers=…"),
        ("batch_sequences_with_states", {"drop_remainder": True}, "allow_small_batch=False drops"),
        ("bucket", {"drop_remainder": True}, "allow_smaller_final_batch=True keeps the rows"),
        ("stratified_sample", {"drop_remainder": True}, "allow_smaller_final_batch=True keeps"),
        ("stratified_sample_unknown_dist", {"drop_remainder": True}, "every batch is whole"),
        ("bucket_by_sequence_length", {"element_length_func": len}, "it is input_length"),
        ("bucket_by_sequence_length", {"padded_shapes": {}}, "pad_to={column: size}"),
        ("map", {"num_parallel_calls": 4}, r"hs\.run\(workers=…"),
        ("map", {"map_func": len}, "it is fn"),
        ("repeat", {"count": 2}, "it is n"),
        ("shuffle", {"buffer_size": 1000}, "the shuffle is exact"),
        ("shuffle", {"reshuffle_each_iteration": True}, "it is reshuffle"),
    ],
)
def test_an_argument_of_tf_data_is_refused_with_what_takes_its_place(
    method: str, given: dict[str, Any], why: str
) -> None:
    (name,) = given
    with pytest.raises(TypeError, match=rf"^{method}\(\) has no argument {name}: .*{why}"):
        getattr(SOURCE, method)(**given)


@pytest.mark.parametrize("method", ["map", "shuffle", "unbatch"])
def test_a_call_that_makes_no_batches_gets_no_hint_about_the_rows_that_remain(method: str) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'drop_remainder'$"):
        getattr(SOURCE, method)(drop_remainder=True)


def test_the_first_of_several_arguments_that_are_absent_is_named() -> None:
    names = ["name", "num_parallel_calls", "deterministic", "scope", "shapes", "back_prop"]
    for given in (names, names[::-1]):
        with pytest.raises(TypeError, match=rf"^map\(\) has no argument {given[0]}: "):
            SOURCE.map(len, **dict.fromkeys(given))


def test_a_misspelt_argument_is_refused_with_the_one_that_is_like_it() -> None:
    with pytest.raises(
        TypeError, match=r"batch\(\) has no argument bach_size; did you mean 'batch_"
    ):
        SOURCE.batch(bach_size=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("prefetch", r"headrace\.connect\(…, prefetch=n\)"),
        ("padded_batch", "dynamic_pad=True"),
        ("concatenate", r"\.concat\(other\)"),
        ("interleave", r"\.flat_map\(fn\)"),
    ],
)
def test_a_method_of_tf_data_is_refused_with_what_takes_its_place(name: str, instead: str) -> None:
    with pytest.raises(AttributeError, match=rf"a Pipeline has no \.{name}\(\): .*{instead}"):
        getattr(SOURCE, name)


def test_any_other_attribute_of_a_pipeline_is_the_error_of_python() -> None:
    assert not hasattr(SOURCE, "colour")
    with pytest.raises(AttributeError, match="'Pipeline' object has no attribute 'colour'"):
        _ = SOURCE.colour
    assert copy.deepcopy(SOURCE) == SOURCE


def test_an_unknown_argument_is_the_error_of_python() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        SOURCE.bucket("x", 4, 3, colour="red")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'allow_small_batch'"):
        SOURCE.resample_at_rate(2.0, allow_small_batch=True)  # type: ignore[call-arg]


def test_no_seed_of_a_resampler_is_seed_0() -> None:
    def declared(**seed: Any) -> list[Any]:
        both = SOURCE.resample_at_rate(0.5, **seed), SOURCE.weighted_resample("x", 1.0, **seed)
        return [resampled.batch(2) for resampled in both]

    assert declared() == declared(seed=None) == declared(seed=0) != declared(seed=1)


def test_functions_of_the_original_are_methods_of_a_pipeline() -> None:
    for name in CALLS.keys() - {"sequence_queueing_state_saver"}:  # there it is a class
        with pytest.raises(
            AttributeError, match=rf"'{name}': a Pipeline has it, as hs\..*\.{name}"
        ):
            getattr(hs, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'buckets'$"):
        hs.buckets  # noqa: B018
