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
    ],
)
def test_a_wrong_call_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(source())
