"""A stream of tokens is cut into windows or lanes, and targets lie behind their tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace_server as hs
from headrace_proto.errors import DataError
from tests.unit.readers import all_of

from .test_cut import opened


def written(directory: Path, *counts: int, dtype: str = "uint16") -> str:
    first = 0
    for part, count in enumerate(counts):
        np.arange(first, first + count, dtype=dtype).tofile(directory / f"{part}.bin")
        first += count
    return str(directory / "*.bin")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    size=st.integers(1, 7),
    shift=st.integers(0, 3),
)
def test_windows_and_lanes_are_slices_of_their_file(
    tmp_path: Path, counts: list[int], size: int, shift: int
) -> None:
    for old in tmp_path.glob("*.bin"):
        old.unlink()
    paths = written(tmp_path, *counts)
    streams, first = [], 0
    for count in counts:
        streams.append(list(range(first, first + count)))
        first += count
    windows, lanes = [], []
    for number, stream in enumerate(streams):
        left = max(0, len(stream) - shift)
        windows += [
            (stream[at : at + size], stream[at + shift : at + shift + size])
            for at in range(0, left // size * size, size)
        ]
        steps = left // size
        for lane in range(size if steps else 0):
            at = lane * steps
            pair = stream[at : at + steps], stream[at + shift : at + shift + steps]
            lanes.append((b"%d:%d" % (number, lane), *pair))
    if not windows:
        for option in ("window", "lanes"):
            with pytest.raises(DataError, match="too few for"):
                opened(hs.read_tokens(paths, "uint16", shift=shift, **{option: size}))
        return
    rows = all_of(opened(hs.read_tokens(paths, "uint16", window=size, shift=shift)))
    assert [(r["tokens"], r.get("targets", r["tokens"])) for r in rows] == windows
    rows = all_of(opened(hs.read_tokens(paths, np.uint16, lanes=size, shift=shift)))
    assert [(r["key"], r["tokens"], r.get("targets", r["tokens"])) for r in rows] == lanes
    assert all(("targets" in row) == bool(shift) for row in rows)


@pytest.mark.parametrize(
    ("array", "dtype", "text"),
    [
        (np.arange(4.0), None, r"holds float64 of shape \[4\]; tokens are integers \[n\]"),
        (np.ones((2, 2), "int32"), None, r"holds int32 of shape \[2, 2\]"),
        (np.arange(9, dtype="int32"), "uint16", "holds int32, and dtype=uint16 was declared"),
    ],
)
def test_an_array_that_holds_no_tokens_is_refused(
    tmp_path: Path, array: Any, dtype: Any, text: str
) -> None:
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=text):
        opened(hs.read_tokens(tmp_path / "a.npy", dtype, window=2))


def test_files_of_another_size_or_dtype_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    with pytest.raises(DataError, match="has 3 bytes, which are no whole number of uint16"):
        opened(hs.read_tokens(tmp_path / "a.bin", "uint16", window=1))
    for name in ("int32", "int64"):
        np.save(tmp_path / f"{name}.npy", np.arange(9, dtype=name))
    with pytest.raises(DataError, match=r"int64\.npy holds int64, and .*int32\.npy int32"):
        opened(hs.read_tokens(str(tmp_path / "*.npy"), window=2))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ValueError, "window=None and lanes=None: exactly one"),
        ({"window": 2, "lanes": 2}, ValueError, "window=2 and lanes=2: exactly one"),
        ({"window": 0}, ValueError, "window=0 is too small"),
        ({"lanes": 2**21}, ValueError, "lanes=2097152 is too large"),
        ({"window": 2, "shift": -1}, ValueError, "shift=-1 is too small"),
        ({"window": 2.0}, TypeError, r"window=2\.0 is a float"),
        ({"window": 2, "dtype": "float32"}, ValueError, "dtype='float32' is none of integers"),
        ({"window": 2, "dtype": "what"}, TypeError, "dtype='what'"),
        ({"window": 2, "dtype": None}, ValueError, "only .npy files say what they hold"),
    ],
)
def test_a_wrong_call_is_refused(arguments: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        hs.read_tokens("a.bin", **{"dtype": "uint16", **arguments})
