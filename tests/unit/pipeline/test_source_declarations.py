"""Declarations of sources; calls that are refused are in tests/unit/refusals."""

import os
from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs


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
