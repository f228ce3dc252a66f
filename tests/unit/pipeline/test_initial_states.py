"""Initial states: zeros, a constant or a column; plain data, or a clear error."""

import numpy as np
import pytest

from headrace_proto.dtypes import numpy_dtype
from headrace_server import zeros
from headrace_server.pipeline.segment_options import (
    checked_states,
)


def plain(value):
    """One state, without its name."""
    (state,) = checked_states("initial_states", {"s": value})
    assert state.pop("name") == "s"
    assert list(state) == ["kind", "dtype", "shape", "value"]
    return tuple(state.values())


def constant(value):
    """A constant, made from its plain data again."""
    kind, dtype, shape, data = plain(value)
    assert kind == "constant"
    if dtype == "bytes":
        assert type(data) is list
        return dtype, shape, data
    return dtype, shape, np.frombuffer(data, numpy_dtype(dtype)).reshape(shape).tolist()


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "text"),
    [
        ({2: 3}, "float32", TypeError, "shape={2: 3} is a dict; it is a tuple of ints"),
        ((3, 0), "float32", ValueError, r"shape is float32\[3, 0\], which is empty.*1 or more"),
        ((1,) * 32, "float32", ValueError, "shape has 32 dimensions; 31 can be"),
        ((2**20, 2**21), "float32", ValueError, "has 2199023255552 elements; the most is 1099511"),
        ((2,), "datetime64", TypeError, "dtype='datetime64': .* is not one of"),
    ],
)
def test_zeros_that_can_not_be_are_refused(shape, dtype, error, text):
    with pytest.raises(error, match=text):
        zeros(shape, dtype)


def test_a_constant_is_in_little_endian_bytes_in_c_order():
    turned = np.array([[1, 2], [3, 4]], ">u2").T
    assert plain(turned)[3] == bytes([1, 0, 3, 0, 2, 0, 4, 0])


@pytest.mark.parametrize(
    ("states", "error", "text"),
    [
        ({"n" * 251: 0.0}, ValueError, "has 251 characters.*at most 250"),
        ({"h": {"x": 1}}, TypeError, r"initial_states\['h'\]=.* is a dict"),
        ({"h": []}, ValueError, r"initial_states\['h'\] is float64\[0\], which is empty"),
        ({"h": np.ones((2, 0))}, ValueError, r"\[2, 0\], which is empty"),
        ({"h": np.ones((1,) * 32)}, ValueError, "has 32 dimensions; 31 can be"),
        ({"h": [[1], [1, 2]]}, ValueError, r"initial_states\['h'\]: .*unequal lengths"),
        ({"h": ["a", 1]}, ValueError, r"initial_states\['h'\]: .* holds neither strings"),
        ({"h": np.zeros(2, "datetime64[s]")}, ValueError, r"initial_states\['h'\]: dtype datetime"),
    ],
)
def test_a_mistake_names_the_state_the_value_and_the_limit(states, error, text):
    with pytest.raises(error, match=text):
        checked_states("initial_states", states)
