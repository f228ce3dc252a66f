"""A state may be a value of any framework, and must have the declared dtype and shape."""

import subprocess
import sys

import numpy as np
import pytest

from headrace.framework import NUMPY, load
from headrace.state_values import host, presented, strings_in
from headrace_proto.segment_layout import State

LSTM = State("lstm", "float32", (3,))
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
FRAMEWORKS = {"tf": "tensorflow", "torch": "torch", "jax": "jax"}


def face_of(name):
    pytest.importorskip(FRAMEWORKS[name], reason=f"needs {FRAMEWORKS[name]}")
    return load(name)


def read(state, value, rows=2, own=NUMPY):
    face, value = presented(state, value, rows, own)
    return host(state, face, value)


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "bfloat16", "float16", "complex64"])
def test_tensors_of_any_framework_are_read_in_a_feed_of_another(name, dtype):
    import ml_dtypes

    face = face_of(name)
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(getattr(ml_dtypes, dtype, None) or dtype)
    state = State("s", dtype, (3,))
    got = read(state, face.numbers(array.copy(), dtype))
    assert got.dtype == array.dtype and got.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_host_tensor_is_read_without_a_copy(name):
    face = face_of(name)
    tensor = face.numbers(np.ascontiguousarray(np.ones((2, 3), np.float32)), "float32")
    assert np.shares_memory(read(LSTM, tensor, own=face), read(LSTM, tensor, own=face))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_tensor_of_another_dtype_is_refused_without_a_look_at_its_bytes(name):
    face = face_of(name)
    tensor = face.numbers(np.ones((2, 3), np.int32), "int32")
    with pytest.raises(
        ValueError, match=r"state 'lstm': got int32\[2, 3\], wanted float32\[2, 3\]"
    ):
        presented(LSTM, tensor, 2, face)


def test_the_error_of_an_array_that_jax_has_narrowed_names_the_remedy():
    face = face_of("jax")
    narrowed = face.numbers(np.ones((2, 3)), "float64")
    with pytest.raises(
        ValueError, match=r"got float32.*wanted float64.*2 rows\.  JAX .*enable_x64"
    ):
        presented(State("s", "float64", (3,)), narrowed, 2, face)
    with pytest.raises(ValueError, match=r"the batch has 2 rows$"):
        presented(State("s", "float16", (3,)), narrowed, 2, face)


def test_torch_tensors_that_want_gradients_and_views_of_them_are_read():
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    tensor = torch.from_numpy(VALUES.T.copy()).requires_grad_()
    assert (read(LSTM, tensor.T * 1) == VALUES).all()
    assert (read(LSTM, tensor.T) == VALUES).all()


def test_tensorflow_variables_and_strings_are_read_and_symbols_refused():
    tf = pytest.importorskip("tensorflow", reason="needs TensorFlow")
    assert (read(LSTM, tf.Variable(VALUES)) == VALUES).all()
    tags = read(State("t", "bytes", ()), tf.constant([b"a", b"b\0"]))
    assert tags.tolist() == [b"a", b"b\0"]
    refused = []

    @tf.function
    def graph(x):
        try:
            read(LSTM, x, own=load("tf"))
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


@pytest.mark.parametrize(
    "value",
    [
        VALUES.astype(np.float64),
        VALUES[:1],
        VALUES[:, :2],
        VALUES.ravel(),
        np.float32(1),
        np.array([[b"a"] * 3] * 2, object),
    ],
)
def test_an_array_is_of_the_states_dtype_and_shape_or_refused(value):
    with pytest.raises(ValueError, match=r"state 'lstm': got .*, wanted float32\[2, 3\].* 2 rows"):
        read(LSTM, value)


def test_the_order_of_bytes_is_no_part_of_a_dtype_and_strides_do_not_matter():
    assert (read(LSTM, VALUES.astype(">f4")) == VALUES).all()
    assert (read(LSTM, np.asfortranarray(VALUES)) == VALUES).all()


def test_objects_with_only_dlpack_or_array_are_read():
    class Dlpack:
        def __dlpack__(self, **options):
            return VALUES.__dlpack__(**options)

        def __dlpack_device__(self):
            return VALUES.__dlpack_device__()

    class Array:
        def __array__(self, dtype=None, copy=None):
            return VALUES

    assert (read(LSTM, Dlpack()) == VALUES).all() and (read(LSTM, Array()) == VALUES).all()


def test_strings_are_bytes_and_keep_their_zeros():
    state = State("t", "bytes", (2,))
    value = [[b"a\0", b""], [b"b", b"\0"]]
    assert strings_in(state, read(state, value)) == [b"a\0", b"", b"b", b"\0"]
    assert strings_in(state, read(state, np.array(value, object))) == [b"a\0", b"", b"b", b"\0"]
    with pytest.raises(ValueError, match=r"state 't': element 1 is 'x' of type str, wanted bytes"):
        strings_in(state, read(state, [[b"a", "x"], [b"", b""]]))
    with pytest.raises(ValueError, match=r"got bytes\[2\], wanted bytes\[2, 2\]"):
        read(state, [b"a", b"b"])


def test_a_look_at_a_value_loads_no_framework():
    code = (
        "import sys, headrace\n"
        "from headrace.framework import NUMPY\nfrom headrace.state_values import presented\n"
        "from headrace_proto.segment_layout import State\n"
        "presented(State('s', 'float32', ()), [1.0], 1, NUMPY)\n"
        "assert not {'tensorflow', 'torch', 'jax'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_none_in_place_of_a_state_is_refused_as_none():
    with pytest.raises(ValueError, match="state 'lstm': got None, wanted float32 of 2 rows"):
        read(LSTM, None)


def test_a_value_that_is_no_tensor_is_refused_by_its_type():
    with pytest.raises(ValueError, match="state 'lstm': got a dict, wanted float32 of 2 rows"):
        read(LSTM, {"h": VALUES, "c": VALUES})
    with pytest.raises(ValueError, match="state 't': got a str, wanted bytes of 2 rows"):
        read(State("t", "bytes", ()), "ab")
