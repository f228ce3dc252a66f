"""A pipeline is declared by calls; a wrong call raises at once."""

import msgpack
import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Declaration
from headrace_server.pipeline.function_names import from_extension, to_extension

FEATURES = {"x": hs.scalar("int64"), "audio": hs.sequence("float32", (64,))}


def keep(example):
    return True


def widen(example):
    return example


def source():
    return hs.read_tfrecord("/data/a-*.tfrecord", FEATURES)


def test_a_whole_declaration_survives_the_wire():
    pipeline = (
        hs.from_examples([{"x": 1, "t": b"a"}, {"x": 2, "t": b"bc"}])
        .shuffle(3, window=10)
        .repeat(np.int64(2))
        .map(widen, schema={"x": hs.sequence("float32"), "y": Field("bytes", (None, 2, None))})
        .filter("pkg.mod:Class.keep")
        .select(("y",))
        .batch(np.int32(4), True, dynamic_pad=True)
        .options(on_bad_example="skip", max_bad_examples=5)
    )
    declared = pipeline.declaration()
    wire = msgpack.packb(declared.to_plain(), default=to_extension)
    again = Declaration.from_plain(msgpack.unpackb(wire, ext_hook=from_extension))
    assert again == declared


def test_pipelines_that_declare_the_same_are_equal_and_hash_alike():
    one, two = source().map(widen).batch(2), source().map(widen).batch(2)
    assert one == two
    assert hash(one) == hash(two)
    assert one != source().map(widen).batch(3)
    assert one != source().map(widen, vectorized=True).batch(2)
    assert one != "pipeline"


def test_the_text_of_a_pipeline_shows_what_was_declared():
    text = repr(
        source()
        .shuffle(seed=0)
        .repeat()
        .map("m:f", schema={"y": hs.scalar("bool")})
        .batch(32)
        .options(on_bad_example="skip")
    )
    lines = text.splitlines()
    features = "{'audio': float32[?, 64], 'x': int64[]}"
    assert lines[0] == f"read_tfrecord(paths='/data/a-*.tfrecord', features={features})"
    assert lines[1:] == [
        "  .shuffle(seed=0)",
        "  .repeat()",
        "  .map(fn='m:f', schema={'y': bool[]})",
        "  .batch(batch_size=32)",
        "  .options(on_bad_example='skip')",
    ]


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda p: p.batch(0), ValueError, "batch_size=0 is too small: the least is 1"),
        (lambda p: p.batch(2**20 + 1), ValueError, "batch_size=1048577 .* the most is 1048576"),
        (lambda p: p.batch(True), TypeError, "batch_size=True is a bool; it is an int"),
        (lambda p: p.batch(2, 1), TypeError, "allow_smaller_final_batch=1 is an int"),
        (lambda p: p.shuffle().shuffle(), ValueError, "called twice"),
        (
            lambda p: p.concat(hs.from_function("m:f").take(3)).shuffle(1),
            ValueError,
            "window=None: from_function can only be read forward; .* use from_indexed",
        ),
        (lambda p: hs.from_indexed([{"x": 1}], 2), TypeError, "takes no arguments for a function"),
        (lambda p: p.repeat().shuffle(), ValueError, "would mix the examples of different epochs"),
        (lambda p: p.repeat(1).repeat(2), ValueError, "repeat\\(\\) is called twice"),
        (lambda p: p.select("x"), TypeError, "names='x' is a str; it is a list"),
        (lambda p: p.select([]), ValueError, "names is empty"),
        (lambda p: p.select(["x", "x"]), ValueError, "names 'x' twice"),
        (lambda p: p.select(["x", "z"]), ValueError, r"names\[1\]='z' is not one of .* x, audio"),
        (lambda p: p.map(widen, schema={"y": "int64"}), TypeError, r"schema\['y'\]='int64'"),
        (
            lambda p: p.map(widen, schema={"y": hs.scalar("int64", default=0)}),
            ValueError,
            "has a default",
        ),
        (lambda p: p.filter("nothing"), ValueError, "not of the form module:name"),
        (lambda p: p.options(on_bad_example="ignore"), ValueError, "'ignore' is not one of 'fail'"),
        (lambda p: p.options(max_bad_examples=3), ValueError, "needs on_bad_example='skip'"),
    ],
)
def test_an_invalid_argument_is_refused_by_the_call_that_gets_it(call, kind, text):
    with pytest.raises(kind, match=text):
        call(source())


def test_a_pipeline_without_a_shape_names_the_shapes():
    with pytest.raises(
        ValueError, match=r"pipeline read_.* has no shape: end it with one of \.batch"
    ):
        source().declaration()
