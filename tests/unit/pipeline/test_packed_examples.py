"""Examples in memory travel as plain data, and lose nothing on the way."""

import math
import pickle

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace_server as hs
from headrace_proto.dtypes import numpy_dtype
from headrace_server.pipeline.examples import pack_examples, packed_fields
from headrace_server.pipeline.function_names import from_extension, to_extension


def unpacked(packed, name):
    """The values of a packed column, one by one: the format read back by its description."""
    n = packed["n"]
    column = {
        key: packed["memory"].array[slice(*span)].tobytes()
        if key in ("data", "extents", "lengths") and span is not None
        else span
        for key, span in packed["columns"][name].items()
    }
    field = packed_fields(packed["columns"])[name]
    extents = np.zeros((n, 0), np.int64)
    if column["extents"] is not None:
        extents = np.frombuffer(column["extents"], np.int64).reshape(n, field.ragged_dims)
    shapes = [(*row.tolist(), *field.shape[field.ragged_dims :]) for row in extents]
    counts = [math.prod(shape) for shape in shapes]
    if column["lengths"] is None:
        flat = np.frombuffer(column["data"], numpy_dtype(field.dtype))
    else:
        stops = np.cumsum(np.frombuffer(column["lengths"], np.int64)).tolist()
        texts = [column["data"][a:b] for a, b in zip([0, *stops], stops, strict=False)]
        flat = np.array([*texts, None], object)[:-1]
    assert len(flat) == sum(counts)
    stops = np.cumsum([0, *counts]).tolist()
    return [flat[a:b].reshape(s) for a, b, s in zip(stops, stops[1:], shapes, strict=False)]


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**63), 2**63 - 1),
            st.lists(st.lists(st.floats(width=32), min_size=2, max_size=2), max_size=4),
            st.binary(max_size=5),
            st.lists(st.binary(max_size=3), max_size=3),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_packed_examples_are_unpacked_unchanged(rows):
    examples = [
        {"i": i, "m": np.array(m, np.float32).reshape(-1, 2), "b": b, "t": t} for i, m, b, t in rows
    ]
    made = pack_examples(examples)
    packed = msgpack.unpackb(msgpack.packb(made, default=to_extension), ext_hook=from_extension)
    assert pickle.loads(pickle.dumps(made["memory"])) == packed["memory"]  # noqa: S301
    assert [v.item() for v in unpacked(packed, "i")] == [row[0] for row in rows]
    assert [v.item() for v in unpacked(packed, "b")] == [row[2] for row in rows]
    assert [v.tolist() for v in unpacked(packed, "t")] == [row[3] for row in rows]
    for got, row in zip(unpacked(packed, "m"), examples, strict=True):
        np.testing.assert_array_equal(got, row["m"])


@pytest.mark.parametrize(
    ("examples", "text"),
    [
        ([{"x": 1}, {"y": 1}], "example 1 has the columns ..y"),
        ([{"x": 1}, {"x": 1, "y": 1}], "example 1 has the columns ..x', 'y"),
        ([{"x": 1}, {"x": [1]}], r"example 1, column 'x': is int64\[1\], .* before .* int64\[\]"),
        ([{"x": 1}, {"x": b"1"}], r"example 1, column 'x': is bytes\[\]"),
        ([{"x": True}, {"x": 1}], "example 1, column 'x': is int64"),
        ([{"x": 1}, {"x": None}], "example 1, column 'x': None holds neither strings"),
        ([{"x": [[1], [2, 3]]}], "example 0, column 'x': .* unequal lengths"),
        ([{"x": 1j}, {"x": np.datetime64("2020-01-01")}], "example 1, .* dtype datetime64"),
        ([{"x": np.longdouble(1)}], "example 0, column 'x': dtype "),
        ([{"x": ["a", 1]}], "example 0, column 'x': ..a', 1. holds neither strings alone"),
        ([{"x": [1, None]}], "example 0, column 'x': .1, None. holds neither strings alone"),
        ([{"x": 2**64}], f"example 0, column 'x': {2**64} holds neither"),
        ([{"x": 1}, {"x": [[]]}], "example 1, column 'x'"),
        ([{}], "example 0 has 0 columns"),
        ([{1: 2}], "a column named 1; names are strings"),
    ],
)
def test_an_example_that_does_not_go_with_the_others_is_named(examples, text):
    with pytest.raises(ValueError, match=text):
        pack_examples(examples)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (300, r"is int64 \(\[300\]\), which does not fit int8"),
        (1.0, r"is float64 .* does not fit int8"),
        ([1], r"shape \[1\] does not fit int8\[\]"),
        (True, "is bool"),
    ],
)
def test_a_value_that_features_do_not_admit_is_named(value, text):
    with pytest.raises(ValueError, match=f"example 1, column 'x': {text}"):
        pack_examples([{"x": 1}, {"x": value}], {"x": hs.scalar("int8")})
    with pytest.raises(ValueError, match="example 0 lacks column 'x', which has no default"):
        pack_examples([{}], {"x": hs.scalar("int8")})


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(
        ValueError, match=r"example 0 has a column named '\\udc80', which is not a t"
    ):
        pack_examples([{"\udc80": 1}])
    with pytest.raises(ValueError, match=r"a name in features='\\udc80' is not a text"):
        hs.from_examples([{"x": 1}], {"\udc80": hs.scalar("int8")})
    with pytest.raises(ValueError, match=r"args\[0\]='\\udc80' is not a text"):
        hs.from_function("module:function", "\udc80")
