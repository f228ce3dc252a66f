"""Static shapes are declared; a wrong call raises at once."""

from __future__ import annotations

import numpy as np
import pytest

import headrace_server as hs

FEATURES = {
    "x": hs.sequence("int64"),
    "m": hs.sequence("float32", (4,)),
    "f": hs.fixed("float32", (3,)),
    "n": hs.scalar("int64"),
}
PADDED = {"dynamic_pad": True}


def source():
    return hs.read_tfrecord("/data/a", FEATURES)


def grids():
    return hs.from_examples([{"g": np.ones((n, 3 - n), np.int16)} for n in range(3)])


def masked(p):
    return p.map("pkg.mod:f", schema={"x": FEATURES["x"], "x_mask": hs.scalar("bool")})


def segments(p, sequences, **more):
    key = p.map("pkg.mod:f", schema={**FEATURES, "key": hs.scalar("bytes")})
    states = {"h": hs.zeros((1,))}
    return key.batch_sequences_with_states("key", sequences, [], None, states, 2, 2, **more)


def lengths(p, **more):
    return p.bucket_by_sequence_length("x", 4, [8, 16], dynamic_pad=True, **more)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda p: p.batch(4, pad_to_multiple=8),
            ValueError,
            "pad_to_multiple=8 needs dynamic",
        ),
        (lambda p: p.batch(4, pad_to={"x": 8}), ValueError, "needs dynamic_pad=True"),
        (lambda p: p.batch(4, pad_to_multiple="8", **PADDED), TypeError, "pad_to_multiple='8'"),
        (lambda p: p.batch(4, pad_to={}, **PADDED), ValueError, "pad_to is empty"),
        (
            lambda p: p.batch(4, pad_to={"y": 8}, **PADDED),
            ValueError,
            "not one of the columns x, m",
        ),
        (lambda p: p.batch(4, pad_to={"x": [1, 2]}, **PADDED), ValueError, "of which 1 dimensions"),
        (lambda p: lengths(p, cost="n"), ValueError, "cost='n' needs max_padded_elements"),
        (
            lambda p: p.batch(4, ragged=True, **PADDED),
            ValueError,
            "ragged=True pads nothing: leave out dynamic_pad=True",
        ),
        (
            lambda p: p.batch(4, ragged=True, pad_to={"x": 8}),
            ValueError,
            r"ragged=True pads nothing: leave out pad_to=\{'x': \[8\]\}",
        ),
        (
            lambda p: p.select(["f", "n"]).batch(4, ragged=True),
            ValueError,
            "ragged=True: no column varies, of f, n; leave it out",
        ),
        (
            lambda p: grids().batch(4, ragged=True),
            ValueError,
            r"column 'g' is int16\[\?, \?\]: only the first dimension of a ragged column",
        ),
        (
            lambda p: p.bucket("n", 4, 3, max_padded_elements=9),
            ValueError,
            "needs input_length, or cost",
        ),
        (
            lambda p: lengths(p, balance="n", max_padded_elements=99),
            ValueError,
            "balance='n' needs batches of fixed sizes, and max_padded_elements=99 gives them about",
        ),
        (
            lambda p: lengths(p, balance="x", balance_batches=2, max_examples_in_flight=21),
            ValueError,
            "max_examples_in_flight=21 is too small: .* the least is 22",
        ),
        (lambda p: p.batch(4, balance="z"), ValueError, "balance='z' is not one of the columns"),
        (
            lambda p: p.select(["x"]).pack(4, 4, balance="x", balance_batches=0),
            ValueError,
            "balance_batches=0 is too small: the least is 1",
        ),
        (
            lambda p: p.batch(4, balance_batches=4, **PADDED),
            ValueError,
            "balance_batches=4 needs balance=, the cost of an example",
        ),
        (lambda p: p.batch(4, mask=True), ValueError, "mask=True needs dynamic_pad=True"),
        (
            lambda p: p.batch(4, padding_values={"n": 1}, **PADDED),
            ValueError,
            r"padding_values\['n'\]=1 is for a column that is padded; those are: x, m$",
        ),
        (
            lambda p: lengths(p, padding_values={"x": 0.5}),
            ValueError,
            r"padding_values\['x'\]=0.5, one value of the column int64.*: is float64",
        ),
        (
            lambda p: p.batch(4, padding_values=[1], **PADDED),
            TypeError,
            r"padding_values=\[1\] is a list; it is a dict of column to the value",
        ),
        (
            lambda p: p.select(["x", "f"]).pack(4, 4, padding_values={"f": "a"}),
            ValueError,
            r"padding_values\['f'\]='a', one value of the column float32\[3\]: is bytes",
        ),
        (
            lambda p: masked(p).batch(4, mask=True, **PADDED),
            ValueError,
            "mask=True: the mask of column 'x' is the column 'x_mask'",
        ),
        (
            lambda p: segments(p, {"x": "x", "y": "m"}, padding_values={"m": 1}),
            ValueError,
            r"padding_values\['m'\]=1 is for a column that is padded; those are: x, y$",
        ),
        (
            lambda p: segments(p, {"x": "x", "x_mask": "m"}, mask=True),
            ValueError,
            "the mask of column 'x' is the column 'x_mask'",
        ),
    ],
)
def test_a_wrong_call_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(source())
