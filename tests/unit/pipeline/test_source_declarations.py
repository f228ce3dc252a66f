"""Declarations of sources: paths, features, options."""

import os
from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs


def rows(count):
    return [{"x": i} for i in range(count)]


def declared(pipeline):
    return pipeline.batch(1).declaration().source


def test_local_paths_are_made_absolute_and_urls_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = ["a-*.arrow", Path("b.arrow"), "/c/../d.arrow", "s3://bucket/e.arrow"]
    assert declared(hs.read_arrow(paths)).paths == (
        os.path.join(tmp_path, "a-*.arrow"),
        os.path.join(tmp_path, "b.arrow"),
        "/d.arrow",
        "s3://bucket/e.arrow",
    )


@pytest.mark.parametrize(
    ("paths", "kind", "text"),
    [
        ([], ValueError, "paths is an empty list"),
        ("", ValueError, "paths holds '', which is empty"),
        ("a\0b", ValueError, r"paths holds 'a\\x00b', which is empty or has a NUL"),
        (["a", "b\udcff"], ValueError, r"paths='b\\udcff' is not a text that UTF-8 can hold"),
        ({"a.csv": 1}, TypeError, "paths={'a.csv': 1} is a dict; it is a path or a list"),
    ],
)
def test_an_invalid_path_is_refused(paths, kind, text):
    with pytest.raises(kind, match=text):
        hs.read_parquet(paths)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: hs.read_tfrecord("a", {}), ValueError, "features names 0 columns"),
        (lambda: hs.read_tfrecord("a", {"x": int}), TypeError, r"features\['x'\]"),
        (lambda: hs.read_tfrecord("a", {"": hs.scalar("bool")}), ValueError, "0 characters"),
        (lambda: hs.read_csv("a", delimiter="::"), ValueError, "delimiter='::'"),
        (lambda: hs.read_csv("a", delimiter=b","), TypeError, "delimiter=b','"),
        (lambda: hs.read_csv("a", {"x": hs.fixed("int8", (2,))}), ValueError, "is int8.2.: a cell"),
        (lambda: hs.read_csv("a", {"x": hs.sequence("int8")}), ValueError, "is int8.*: a cell"),
        (lambda: hs.read_npz("a", ragged=["x"]), TypeError, "ragged="),
        (lambda: hs.from_function(rows, np.zeros(2)), TypeError, r"args\[0\]=.* is an ndarray"),
        (lambda: hs.from_function(rows, n=2**70), ValueError, r"kwargs\['n'\]=.* too large"),
        (lambda: hs.from_function(rows, shards=2, shard=1), ValueError, "shard="),
        (lambda: hs.from_examples({"x": 1}), TypeError, "examples="),
    ],
)
def test_a_bad_argument_of_a_source_is_refused_at_once(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize(
    ("feature", "default"),
    [
        (hs.scalar("int32", default=np.int8(3)), 3),
        (hs.scalar("string", default="ä"), "ä".encode()),
        (hs.scalar("float32", default=1), 1.0),
        (hs.scalar("bfloat16", default=0.5), 0.5),
        (hs.fixed("float32", (2, 2), default=0), [[0.0, 0.0], [0.0, 0.0]]),
        (hs.fixed("bytes", [2], default=b"a\0"), [b"a\0", b"a\0"]),
        (hs.sequence("int64", default=[]), []),
        (hs.sequence("int64", (2,), default=[[1, 2]]), [[1, 2]]),
        (hs.sequence("bytes", default=["a"]), [b"a"]),
    ],
)
def test_a_default_is_kept_as_plain_values_of_the_whole_shape(feature, default):
    assert feature.has_default
    assert feature.default == default
    assert type(feature.default) is type(default)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: hs.scalar("int7"), TypeError, "dtype='int7'"),
        (lambda: hs.scalar("int8", default=200), ValueError, "default=200 does not fit int8"),
        (lambda: hs.scalar("int64", default=1.5), ValueError, "default=1.5 does not fit"),
        (lambda: hs.scalar("int64", default=[1]), ValueError, r"shape \[1\]"),
        (lambda: hs.scalar("complex64", default=0), ValueError, "can have none"),
        (lambda: hs.fixed("int64", (2,), default=[1, 2, 3]), ValueError, "does not fit"),
        (lambda: hs.sequence("int64", (2,), default=[1]), ValueError, r"shape \[1\]"),
        (lambda: hs.sequence("int64", (1,) * 32), ValueError, "32 dimensions"),
    ],
)
def test_an_invalid_feature_is_refused_at_once(call, kind, text):
    with pytest.raises(kind, match=text):
        call()
