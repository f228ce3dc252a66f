"""Examples in memory travel as plain data, and lose nothing on the way."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.pipeline.examples import pack_examples


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
        ([1], r"has the shape \[1\], which does not fit int8\[\]"),
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
