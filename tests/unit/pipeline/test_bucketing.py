"""The bucketing calls: a wrong call raises at once."""

import numpy as np
import pytest

import headrace_server as hs

FEATURES = {"x": hs.scalar("int64"), "v": hs.sequence("float32"), "p": hs.scalar("float32")}


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def bucket(**arguments):
    given = {"which_bucket": "x", "batch_size": 2, "num_buckets": 3, **arguments}
    return source().bucket(**given).declaration()


def by_length(**arguments):
    given = {"input_length": "x", "batch_size": 2, "bucket_boundaries": [5, 9], **arguments}
    return source().bucket_by_sequence_length(**given).declaration()


COMMON = [
    ({"batch_size": [2, 3]}, ValueError, "batch_size has 2 entries; it must have exactly 3"),
    ({"bucket_capacities": [1, 2]}, ValueError, "bucket_capacities.* 2 entries.*exactly 3"),
    ({"keep_input": 0.5}, ValueError, "keep_input=0.5 is neither true nor false"),
    ({"keep_input": "v"}, ValueError, "keep_input='v'.*one number per example"),
    ({"input_length": "p"}, TypeError, "input_length='p'.*it must be of integers"),
    ({"input_length": "w"}, ValueError, "input_length='w' is not one of the columns"),
    (
        {"input_length": "x", "max_padded_elements": 0},
        ValueError,
        "max_padded_elements=0 is too small: the least is 1",
    ),
    ({"input_length": "x", "max_padded_elements": 1.5}, TypeError, "max_padded_elements=1.5"),
]


@pytest.mark.parametrize("declare", [bucket, by_length])
@pytest.mark.parametrize(("arguments", "error", "text"), COMMON)
def test_a_mistake_names_argument_value_and_limit(declare, arguments, error, text):
    with pytest.raises(error, match=text):
        declare(**arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"which_bucket": "p"}, TypeError, "which_bucket='p'.*of integers"),
        ({"which_bucket": "v"}, ValueError, "which_bucket='v'.*one number per example"),
        ({"max_padded_elements": 9}, ValueError, "max_padded_elements=9 needs input_length"),
    ],
)
def test_invalid_arguments_of_bucket_are_refused(arguments, error, text):
    with pytest.raises(error, match=text):
        bucket(**arguments)


@pytest.mark.parametrize(
    ("boundaries", "error", "text"),
    [
        ([], ValueError, "bucket_boundaries is empty"),
        (np.array([1, 2]), TypeError, "bucket_boundaries=.*is an ndarray"),
        ([3, 3], ValueError, r"bucket_boundaries\[1\]=3 does not exceed the one before, 3"),
        ([3, 4, 1], ValueError, r"bucket_boundaries\[2\]=1 does not exceed the one before, 4"),
    ],
)
def test_an_error_in_the_boundaries_is_refused(boundaries, error, text):
    with pytest.raises(error, match=text):
        by_length(bucket_boundaries=boundaries)
