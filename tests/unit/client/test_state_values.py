"""A state may be a tensor, an array or a list, and must have the declared dtype and shape."""

import numpy as np
import pytest

from headrace.connecting import load
from headrace.connection.state_block import host, presented
from headrace.framework import NUMPY
from headrace_proto.segment_layout import State

LSTM = State("lstm", "float32", (3,))
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
FRAMEWORKS = {"tf": "tensorflow", "torch": "torch", "jax": "jax"}


def face_of(name):
    pytest.importorskip(FRAMEWORKS[name], reason=f"needs {FRAMEWORKS[name]}")
    return load(name)


def read(state, value, rows=2, own=NUMPY):
    face, value = presented(state, value, rows, own)
    return host(state, value, face)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_tensor_of_another_dtype_is_refused_without_a_look_at_its_bytes(name):
    face = face_of(name)
    tensor = face.numbers(np.ones((2, 3), np.int32), "int32")
    with pytest.raises(
        ValueError, match=r"state 'lstm': got int32\[2, 3\], wanted float32\[2, 3\]"
    ):
        presented(LSTM, tensor, 2, face)


def test_tensorflow_variables_and_strings_are_read_and_symbols_refused():
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    own = load("tf")
    assert (read(LSTM, tf.Variable(VALUES), own=own) == VALUES).all()
    tags = read(State("t", "bytes", ()), tf.constant([b"a", b"b\0"]), own=own)
    assert tags.tolist() == [b"a", b"b\0"]
    refused = []

    @tf.function
    def graph(x):
        try:
            read(LSTM, x, own=own)
        except ValueError as error:
            refused.append(str(error))
        return x

    graph(tf.constant(VALUES))
    assert "symbolic, inside a tf.function" in refused[0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("float32", [[1, 2, 3], [4, 5, 6]]),
        ("float16", [[1.5, 2, 3], [4, 5, 6]]),
        ("int8", [[1, 2, 3], [4, 5, -6]]),
        ("complex64", [[1, 2, 3.5], [4, 5, 6]]),
        ("bool", [[True, False, True]] * 2),
        ("bfloat16", [[1, 2, 3], [4, 5, 6.5]]),
    ],
)
def test_a_list_is_cast_where_no_number_changes_its_meaning(dtype, value):
    got = read(State("s", dtype, (3,)), value)
    assert got.dtype.name == dtype and got.tolist() == value


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("int32", [[1.5, 2, 3]] * 2),
        ("bool", [[1, 0, 1]] * 2),
        ("uint8", [[256, 0, 1]] * 2),
        ("uint8", [[-1, 0, 1]] * 2),
        ("float32", [[1j, 0, 1]] * 2),
        ("float16", [[1e6, 0, 1]] * 2),
        ("float32", [[1, 2, 3], [4]]),
        ("float32", [["a", "b", "c"]] * 2),
        ("float32", object()),
        ("float32", None),
    ],
)
def test_a_lossy_conversion_is_refused_with_the_name_of_the_state(dtype, value):
    with pytest.raises(ValueError, match="state 's'"):
        read(State("s", dtype, (3,)), value)


def test_a_value_that_is_no_tensor_is_refused_by_its_type():
    with pytest.raises(ValueError, match="state 'lstm': got a dict, wanted float32 of 2 rows"):
        read(LSTM, {"h": VALUES, "c": VALUES})
    with pytest.raises(ValueError, match="state 't': got a str, wanted bytes of 2 rows"):
        read(State("t", "bytes", ()), "ab")
