"""A cut source gives the examples of the whole one that are left, and reads no others."""

from __future__ import annotations

import gzip
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_server.pipeline.builder import Pipeline
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.source import IndexedSource
from headrace_server.reading.sources import cut as module
from tests.unit.readers import all_of, opened_source
from tests.unit.tfrecord_writer import example, feature, frame

ID = {"i": hs.scalar("int64")}


def opened(pipeline: Pipeline, bad: BadRecords | None = None) -> Any:
    return opened_source(pipeline.batch(1).declaration().source, bad)


def ids(reader: Any) -> list[int]:
    return [row["i"] for row in all_of(reader)]


def lines(directory: Path, *counts: int, bad: tuple[int, ...] = ()) -> str:
    """Compressed files, which are read forward, of so many lines; some of them are none."""
    first = 0
    for part, count in enumerate(counts):
        rows = range(first, first + count)
        text = "".join("{oops\n" if i in bad else f'{{"i": {i}}}\n' for i in rows)
        (directory / f"{part}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
        first += count
    return str(directory / "*.gz")


@pytest.mark.parametrize("walked", [1, 4, 1024])
@pytest.mark.parametrize(
    ("start", "stop"), [(0, 3), (0, 5), (2, 9), (5, None), (6, 20), (13, None)]
)
def test_streams_are_cut_one_after_the_other(tmp_path, monkeypatch, walked, start, stop):
    monkeypatch.setattr(module, "_WALKED", walked)
    pipeline = hs.read_jsonl(lines(tmp_path, 5, 1, 4, 5), ID).skip(start)
    if stop is not None:
        pipeline = pipeline.take(stop - start)
    assert ids(opened(pipeline)) == list(range(15))[start:stop]


def test_no_record_beyond_a_cut_is_judged(tmp_path):
    whole = hs.read_jsonl(lines(tmp_path, 8, 8, bad=(3, 12)), ID)
    assert ids(opened(whole.take(3))) == [0, 1, 2]
    with pytest.raises(DataError, match="line 4"):
        opened(whole.take(4))
    assert ids(opened(whole.options(on_bad_example="skip").take(3))) == [0, 1, 2]


def test_bad_records_before_a_good_one_count_and_are_counted_once(tmp_path):
    bad = BadRecords(skip=True)
    reader = opened(hs.read_jsonl(lines(tmp_path, 8, 8, bad=(0, 3)), ID).skip(1).take(8), bad)
    assert bad.counts == {}
    assert ids(reader) == [1, 2, 4, 5, 6, 7, 8]


def test_remote_examples_are_expected_through_a_cut_and_a_map():
    memory, folder = fsspec.filesystem("memory"), f"cut{uuid.uuid4().hex}"
    records = b"".join(frame(example({"i": feature("int", [i])})) for i in range(9))
    memory.pipe(f"/{folder}/a.tfrecord", records)
    far = hs.read_tfrecord(f"memory://{folder}/a.tfrecord", {"i": hs.scalar("int64")})
    far = far.skip(2).map("builtins:dict")
    reader = opened_source(far._as_part("a mix", "far"))
    assert isinstance(reader, IndexedSource) and reader.far
    assert reader.expect(np.arange(3)) == 3
    assert ids(reader) == list(range(2, 9))
    memory.rm(f"/{folder}", recursive=True)
