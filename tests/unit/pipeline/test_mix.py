"""A mix of sources is plain data; a wrong call raises at once and names what is wrong."""

from __future__ import annotations

import msgpack
import pytest

import headrace_server as hs
from headrace_server.pipeline.declaration import Declaration

FEATURES = {"x": hs.scalar("int64")}
EVEN = {"a": 1, "b": 1}


def one(example):
    return example


def source(name="a"):
    return hs.read_tfrecord(f"/data/{name}", FEATURES)


def mixed(a=None, weights=EVEN, **options):
    return hs.mix({"a": a or source("a"), "b": source("b")}, weights, **options)


def test_a_mix_survives_the_wire_and_names_all_its_files():
    pipeline = mixed(source().skip(1).shuffle(seed=3).repeat(2), [(0, EVEN), (9, {"a": 2, "b": 0})])
    declared = pipeline.map(one).batch(2).declaration()
    assert Declaration.from_plain(msgpack.unpackb(msgpack.packb(declared.to_plain()))) == declared
    assert declared.source.paths == ("/data/a", "/data/b")
    assert declared.stages[0].options["schedule"] == [[0, [1.0, 1.0]], [9, [2.0, 0.0]]]
    assert pipeline.fields == source().fields
    assert repr(pipeline).startswith("mix(sources={'a': read_tfrecord(")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: mixed(weights={"a": 1, "b": -1}),
            ValueError,
            r"weights\['b'\] must be between 0 and .*, not -1",
        ),
        (
            lambda: mixed(weights={"a": 1, "b": float("nan")}),
            ValueError,
            r"weights\['b'\] must be between .*, not nan",
        ),
        (lambda: mixed(weights={"a": 1, "b": True}), TypeError, r"weights\['b'\]=True is a bool"),
        (lambda: mixed(weights={"a": 0, "b": 0}), ValueError, "gives no source a weight"),
        (lambda: mixed(weights={"a": 1}), ValueError, "lacks the source 'b'; a weight of 0"),
        (
            lambda: mixed(weights={"a": 1, "b": 1, "bb": 1}),
            ValueError,
            "weights has 'bb', which is no source: they are 'a', 'b'; did you mean 'b'?",
        ),
        (lambda: mixed(weights=0.5), TypeError, "weights=0.5 is a float; it is a dict"),
        (lambda: mixed(weights=[]), ValueError, r"weights=\[\] has no entry"),
        (lambda: mixed(weights=[EVEN]), TypeError, r"weights\[0\]=.* is not a pair"),
        (
            lambda: mixed(weights=[(5, EVEN)]),
            ValueError,
            r"weights\[0\]\[0\]=5: the first weights hold",
        ),
        (
            lambda: mixed(weights=[(0, EVEN), (0, EVEN)]),
            ValueError,
            r"weights\[1\]\[0\]=0 is too small: the least is 1",
        ),
        (
            lambda: mixed(weights=[(0, EVEN), (7, {"c": 1})]),
            ValueError,
            r"weights\[1\]\[1\] has 'c', which is no source",
        ),
        (lambda: mixed(by="row"), ValueError, "by='row' is not one of 'example', 'batch'"),
        (
            lambda: mixed(by="batch").stratified_sample_unknown_dist("x", [1], 2),
            ValueError,
            r"\.stratified_sample_unknown_dist\(\) gathers rows of all sources, and by='batch'",
        ),
        (
            lambda: mixed(by="batch").bucket("x", 4, 2, max_examples_in_flight=12),
            ValueError,
            "max_examples_in_flight=12 is too small: 4 buckets that each .* the least is 13",
        ),
        (lambda: mixed(stop="last"), ValueError, "stop='last' is not one of 'all', 'first', 'ne"),
        (lambda: hs.mix({}, {}), ValueError, "sources has 0 entries"),
        (lambda: hs.mix([source()], {}), TypeError, "sources=.* it is a dict of names to pipe"),
        (lambda: hs.mix({1: source()}, {1: 1}), TypeError, "a source's name is a string of 1"),
        (lambda: hs.mix({"é" * 51: source()}, {}), TypeError, "is a string of 1 to 100 bytes"),
        (lambda: mixed(source().filter(one)), ValueError, r"sources\['a'\] of .* has \.filter\(\)"),
        (lambda: mixed(source().with_origin()), ValueError, "has .with_origin()"),
        (lambda: mixed(mixed()), ValueError, r"sources\['a'\] of a mix has \.mix\(\)"),
        (lambda: mixed(source().batch(2)), ValueError, r"sources\['a'\] has \.batch\(\)"),
        (
            lambda: mixed(source().options(on_bad_example="skip")),
            ValueError,
            r"sources\['a'\] has \.options\(\): call it on the mix",
        ),
        (
            lambda: mixed(source().repeat(2, across_batches=False)),
            ValueError,
            r"sources\['a'\] has repeat\(across_batches=False\)",
        ),
        (
            lambda: mixed(hs.read_tfrecord("/data/c", {**FEATURES, "y": hs.scalar("int64")})),
            ValueError,
            r"'b' has {x: int64\[\]}, and 'a' has {x: int64\[\], y: int64\[\]}; declare features",
        ),
        (lambda: mixed().shuffle(1), ValueError, "shuffle each source, as in hs.mix"),
        (lambda: mixed().take(3), ValueError, r"\.take\(\) comes after \.mix\(\)"),
        (lambda: source().concat(mixed()), ValueError, r"other of concat has \.mix\(\)"),
    ],
)
def test_a_wrong_call_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call()
