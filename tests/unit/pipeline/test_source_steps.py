"""Fewer examples of a source, or more; a wrong call raises at once."""

from __future__ import annotations

import msgpack
import pytest

import headrace_server as hs
from headrace_server.pipeline.declaration import Declaration

FEATURES = {"x": hs.scalar("int64")}


def factory():
    return [{"x": 1}]


def one(example):
    return example


def source():
    return hs.read_tfrecord("/data/a", FEATURES)


def test_joined_sources_survive_the_wire_and_name_all_their_files_and_functions():
    other = hs.from_function(factory, features=FEATURES)
    pipeline = source().take(3).concat(other).concat(hs.read_jsonl("/data/b", FEATURES))
    declared = pipeline.skip(1).map(one).batch(2).declaration()
    again = Declaration.from_plain(msgpack.unpackb(msgpack.packb(declared.to_plain())))
    assert again == declared
    assert declared.source.paths == ("/data/a", "/data/b")
    assert declared.source.kinds == "tfrecord and function and jsonl"
    assert pipeline.fields == source().fields
    assert repr(pipeline.skip(1)).count("concat(other=") == 2


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda p: p.filter(one).take(3), ValueError, r"\.take\(\) comes after \.filter\(\)"),
        (lambda p: p.shuffle(1).skip(3), ValueError, r"\.skip\(\) comes after \.shuffle\(\)"),
        (lambda p: p.repeat(2).take(3), ValueError, r"\.take\(\) comes after \.repeat\(\)"),
        (lambda p: p.batch(2).take(3), ValueError, "the shape ends a pipeline"),
        (lambda p: p.concat(p.filter(one)), ValueError, r"other of concat has \.filter\(\)"),
        (lambda p: p.map(one, seed=1).concat(p), ValueError, r"the source of concat has \.map\("),
        (lambda p: p.concat(p.shuffle(1)), ValueError, "other has an order, options"),
        (lambda p: p.concat(p.repeat()), ValueError, "other has an order, options"),
        (
            lambda p: p.concat(p.options(on_bad_example="skip")),
            ValueError,
            "other has an order, options",
        ),
        (
            lambda p: p.concat(hs.from_examples([{"y": 1}])),
            ValueError,
            r"other has the columns {y: int64\[\]}, and this source {x: int64\[\]}",
        ),
    ],
)
def test_a_wrong_call_is_refused(call, error, text):
    with pytest.raises(error, match=text):
        call(source())


def test_take_and_skip_count_the_same_examples_before_and_after_a_map():
    after = source().map(one).skip(2).take(3).batch(2).declaration()
    assert after == source().skip(2).take(3).map(one).batch(2).declaration()
