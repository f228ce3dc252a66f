"""Declarations of sources: paths, features, options."""

import os
from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.pipeline import sources

FEATURES = {"x": hs.scalar("int64")}


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
        ("", ValueError, "paths holds an empty path"),
        ("a\0b", ValueError, r"paths holds 'a\\x00b', which has a NUL"),
        (["a", "b\udcff"], ValueError, r"paths='b\\udcff' is not a text that UTF-8 can hold"),
        (3, TypeError, "paths=3 is an int"),
        ({"a.csv": 1}, TypeError, "paths={'a.csv': 1} is a dict; it is a path or a list"),
        (b"a", TypeError, "paths holds b'a', a bytes"),
        (["a", None], TypeError, "paths holds None"),
    ],
)
def test_an_invalid_path_is_refused(paths, kind, text):
    with pytest.raises(kind, match=text):
        hs.read_parquet(paths)


@pytest.mark.parametrize("name", ["arrow", "parquet", "jsonl", "csv", "npz", "tar"])
def test_files_with_a_schema_need_no_features(name):
    read = getattr(hs, f"read_{name}")
    source = declared(read("/a"))
    assert (source.kind, source.paths, source.features) == (name, ("/a",), None)
    assert declared(read("/a", FEATURES)).features == FEATURES


def test_tfrecord_stands_for_all_its_options():
    assert declared(hs.read_tfrecord("/a", FEATURES)).options == {
        "compression": "auto",
        "verify": True,
        "record": "auto",
    }
    chosen = hs.read_tfrecord(
        "/a", FEATURES, compression="GZIP", verify=False, record="sequence_example"
    )
    assert declared(chosen).options == {
        "compression": "gzip",
        "verify": False,
        "record": "sequence_example",
    }
    assert (
        declared(hs.read_tfrecord("/a", FEATURES, compression="none")).options["compression"]
        is None
    )


def test_csv_and_npz_keep_their_options():
    csv = hs.read_csv("/a", FEATURES, delimiter=";", header=False, group_by="utt")
    assert declared(csv).options == {"delimiter": ";", "header": False, "group_by": "utt"}
    named = hs.read_csv("/a", header=("x", "y"))
    assert declared(named).options["header"] == ["x", "y"]
    npz = hs.read_npz("/a", column="x", ragged={"x": "x_offsets"})
    assert declared(npz).options == {"column": "x", "ragged": {"x": "x_offsets"}}


def test_a_function_is_named_with_its_arguments():
    source = declared(hs.from_function(rows, 5, shards=2, sizes=(1, np.int64(2)), path=Path("/p")))
    assert source.kind == "function"
    assert source.options == {
        "function": f"{__name__}:rows",
        "args": [5],
        "kwargs": {"sizes": [1, 2], "path": "/p"},
        "shards": 2,
    }


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: hs.read_tfrecord("a", {}), ValueError, "features names 0 columns"),
        (lambda: hs.read_tfrecord("a", ["x"]), TypeError, "features=.* is a list"),
        (lambda: hs.read_tfrecord("a", {"x": int}), TypeError, r"features\['x'\]"),
        (lambda: hs.read_tfrecord("a", {"": hs.scalar("bool")}), ValueError, "0 characters"),
        (lambda: hs.read_tfrecord("a", {3: hs.scalar("bool")}), TypeError, "=3 is an int"),
        (
            lambda: hs.read_tfrecord("a", FEATURES, compression="lz4"),
            ValueError,
            "compression='lz4' is not one of",
        ),
        (lambda: hs.read_tfrecord("a", FEATURES, record="raw"), ValueError, "record='raw'"),
        (lambda: hs.read_tfrecord("a", FEATURES, verify=0), TypeError, "verify=0"),
        (lambda: hs.read_csv("a", delimiter="::"), ValueError, "delimiter='::'"),
        (lambda: hs.read_csv("a", delimiter=b","), TypeError, "delimiter=b','"),
        (lambda: hs.read_csv("a", header=False), ValueError, "header=False needs features"),
        (lambda: hs.read_csv("a", {"x": hs.fixed("int8", (2,))}), ValueError, "has a shape"),
        (lambda: hs.read_csv("a", {"x": hs.sequence("int8")}), ValueError, "only group_by makes"),
        (
            lambda: hs.read_csv("a", {"x": hs.sequence("int8")}, group_by="x"),
            ValueError,
            "of the other columns",
        ),
        (lambda: hs.read_csv("a", header=["x", "x"]), ValueError, "header names 'x' twice"),
        (lambda: hs.read_csv("a", header="x"), TypeError, "header='x'"),
        (lambda: hs.read_csv("a", group_by=1), TypeError, "group_by=1"),
        (lambda: hs.read_npz("a", ragged=["x"]), TypeError, "ragged="),
        (lambda: hs.read_npz(["a.npz"], column="x"), ValueError, "all paths end with .npz"),
        (lambda: hs.from_function(rows, np.zeros(2)), TypeError, r"args\[0\]=.* is an ndarray"),
        (lambda: hs.from_function(rows, {1: 2}), TypeError, "keys are strings"),
        (lambda: hs.from_function(rows, n=2**70), ValueError, r"kwargs\['n'\]=.* too large"),
        (lambda: hs.from_function(rows, shards=0), ValueError, "shards=0 is too small"),
        (lambda: hs.from_function(rows, shards=2, shard=1), ValueError, "shard="),
        (lambda: hs.from_examples({"x": 1}), TypeError, "examples="),
        (lambda: hs.from_examples(np.array(3.5)), TypeError, "examples="),
    ],
)
def test_a_bad_argument_of_a_source_is_refused_at_once(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_data_that_holds_itself_is_refused():
    ring = []
    ring.append(ring)
    with pytest.raises(ValueError, match="nested deeper than"):
        hs.from_function(rows, ring)


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


def test_without_a_default_there_is_none():
    assert hs.scalar("int64") == hs.Feature("scalar", "int64", (), None, False)
    assert hs.fixed(np.float32, np.array([2, 3])).shape == (2, 3)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: hs.scalar("int7"), TypeError, "dtype='int7'"),
        (lambda: hs.scalar(object()), TypeError, "dtype="),
        (lambda: hs.scalar("int8", default=200), ValueError, "default=200 does not fit int8"),
        (lambda: hs.scalar("int64", default=1.5), ValueError, "default=1.5 does not fit"),
        (lambda: hs.scalar("float32", default=1e300), ValueError, "does not fit float32"),
        (lambda: hs.scalar("int64", default=None), TypeError, "default=None is no value"),
        (lambda: hs.scalar("int64", default=[1]), ValueError, r"shape \[1\]"),
        (lambda: hs.scalar("int64", default="a"), ValueError, "does not fit int64"),
        (lambda: hs.scalar("complex64", default=0), ValueError, "can have none"),
        (lambda: hs.fixed("int64", 3), TypeError, "shape=3"),
        (lambda: hs.fixed("int64", (None,)), TypeError, r"shape\[0\]=None"),
        (lambda: hs.fixed("int64", (-1,)), ValueError, r"shape\[0\]=-1 is too small"),
        (lambda: hs.fixed("int64", (2,), default=[1, 2, 3]), ValueError, "does not fit"),
        (lambda: hs.sequence("int64", (2,), default=[1]), ValueError, r"shape \[1\]"),
        (lambda: hs.sequence("int64", (1,) * 32), ValueError, "32 dimensions"),
    ],
)
def test_an_invalid_feature_is_refused_at_once(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_every_source_and_feature_is_listed():
    defined = {
        name
        for name, thing in vars(sources).items()
        if getattr(thing, "__module__", "") == sources.__name__ and not name.startswith("_")
    }
    assert "read_tfrecord" in defined and defined <= set(hs.__all__)
    assert all(hasattr(hs, name) for name in hs.__all__)
