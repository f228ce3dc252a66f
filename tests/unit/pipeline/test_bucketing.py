"""The bucketing calls: names, order and defaults of TensorFlow's; a wrong call raises at once."""

import numpy as np
import pytest

import headrace_server as hs

from .signatures import signature

FEATURES = {"x": hs.scalar("int64"), "v": hs.sequence("float32"), "p": hs.scalar("float32")}


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def bucket(**arguments):
    given = {"which_bucket": "x", "batch_size": 2, "num_buckets": 3, **arguments}
    return source().bucket(**given).declaration()


def by_length(**arguments):
    given = {"input_length": "x", "batch_size": 2, "bucket_boundaries": [5, 9], **arguments}
    return source().bucket_by_sequence_length(**given).declaration()


def test_names_order_and_defaults_are_those_of_tensorflow():
    rest = [
        ("capacity", 32),
        ("bucket_capacities", None),
        ("dynamic_pad", False),
        ("allow_smaller_final_batch", False),
        ("keep_input", True),
    ]
    assert signature(hs.Pipeline.bucket) == ["which_bucket", "batch_size", "num_buckets", *rest]
    assert signature(hs.Pipeline.bucket_by_sequence_length) == [
        "input_length",
        "batch_size",
        "bucket_boundaries",
        *rest,
    ]


COMMON = [
    ({"batch_size": 0}, ValueError, "batch_size=0 is too small: the least is 1"),
    ({"batch_size": 2**20 + 1}, ValueError, "batch_size=1048577 is too large: the most is 1048576"),
    ({"batch_size": 2.0}, TypeError, "batch_size=2.0 is a float; it is an int or a list"),
    ({"batch_size": True}, TypeError, "batch_size=True is a bool"),
    ({"batch_size": [2, 3]}, ValueError, "batch_size has 2 entries; it must have exactly 3"),
    ({"batch_size": [2, 0, 3]}, ValueError, r"batch_size\[1\]=0 is too small"),
    ({"batch_size": [2, None, 3]}, TypeError, r"batch_size\[1\]=None is a NoneType"),
    ({"batch_size": None}, ValueError, "batch_size=None needs max_padded_elements"),
    ({"capacity": 0}, ValueError, "capacity=0 is too small: the least is 1"),
    ({"capacity": "8"}, TypeError, "capacity='8' is a str"),
    ({"bucket_capacities": [1, 2]}, ValueError, "bucket_capacities.* 2 entries.*exactly 3"),
    ({"bucket_capacities": [1, 0, 2]}, ValueError, r"bucket_capacities\[1\]=0 is too small"),
    ({"bucket_capacities": 5}, TypeError, "bucket_capacities=5 is an int; it is a list"),
    ({"dynamic_pad": 1}, TypeError, "dynamic_pad=1 is an int; it is True or False"),
    ({"allow_smaller_final_batch": None}, TypeError, "allow_smaller_final_batch=None"),
    ({"keep_input": 0.5}, ValueError, "keep_input=0.5 is neither true nor false"),
    ({"keep_input": 2}, ValueError, "keep_input=2 does not lie in 0 … 1"),
    ({"keep_input": "v"}, ValueError, "keep_input='v'.*one number per example"),
    ({"keep_input": [True]}, TypeError, r"keep_input=\[True\] is a list"),
    ({"max_examples_in_flight": 3}, ValueError, "3 is too small: 3 buckets.*the least is 4"),
    ({"max_examples_in_flight": 0}, ValueError, "max_examples_in_flight=0 is too small"),
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
        ({"num_buckets": 0}, ValueError, "num_buckets=0 is too small: the least is 1"),
        ({"num_buckets": 65537}, ValueError, "num_buckets=65537 is too large: the most is 65536"),
        ({"num_buckets": 2.5}, TypeError, "num_buckets=2.5 is a float"),
        ({"which_bucket": 0}, TypeError, "which_bucket=0 is an int"),
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
        (5, TypeError, "bucket_boundaries=5 is an int; it is a list of ints"),
        (np.array([1, 2]), TypeError, "bucket_boundaries=.*is an ndarray"),
        ([1.0], TypeError, r"bucket_boundaries\[0\]=1.0 is a float; it is an int"),
        ([True], TypeError, r"bucket_boundaries\[0\]=True is a bool"),
        ([3, 3], ValueError, r"bucket_boundaries\[1\]=3 does not exceed the one before, 3"),
        ([3, 4, 1], ValueError, r"bucket_boundaries\[2\]=1 does not exceed the one before, 4"),
        ([2**63], ValueError, r"bucket_boundaries\[0\]=9223372036854775808 is too large"),
    ],
)
def test_an_error_in_the_boundaries_is_refused(boundaries, error, text):
    with pytest.raises(error, match=text):
        by_length(bucket_boundaries=boundaries)
