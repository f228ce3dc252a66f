"""A stream of tokens is cut into windows or lanes, and targets lie behind their tokens."""

from __future__ import annotations

from pathlib import Path

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
    stride=st.integers(1, 7),
)
def test_windows_and_lanes_are_slices_of_their_file(tmp_path, counts, size, shift, stride):
    for old in tmp_path.glob("*.bin"):
        old.unlink()
    paths = written(tmp_path, *counts)
    streams, first = [], 0
    for count in counts:
        streams.append(list(range(first, first + count)))
        first += count
    windows, lanes = [], []
    strided = []
    for number, stream in enumerate(streams):
        strided += [
            (stream[at : at + size], stream[at + shift : at + shift + size])
            for at in range(0, len(stream) - shift - size + 1, min(stride, size))
        ]
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
    steps = {"stride": min(stride, size)}
    rows = all_of(opened(hs.read_tokens(paths, "uint16", window=size, shift=shift, **steps)))
    assert [(r["tokens"], r.get("targets", r["tokens"])) for r in rows] == strided
    rows = all_of(opened(hs.read_tokens(paths, np.uint16, lanes=size, shift=shift)))
    assert [(r["key"], r["tokens"], r.get("targets", r["tokens"])) for r in rows] == lanes
    assert all(("targets" in row) == bool(shift) for row in rows)
