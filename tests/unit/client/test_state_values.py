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
