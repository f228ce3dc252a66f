"""Conversions: the content of their files; tests/integration kills one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.pipeline.declaration import convertible
from headrace_server.reading.conversion import Conversion
from tests.unit.readers import all_of, opened
from tests.unit.tfrecord_writer import example, feature, frame


def fields() -> dict[str, Any]:
    return {"i": hs.scalar("int64"), "x": hs.sequence("float32"), "s": hs.scalar("bytes")}


def rows(n: int) -> list[dict[str, Any]]:
    return [{"i": i, "x": [float(i)] * (i % 4), "s": f"row {i}"} for i in range(n)]


def jsonl(path: Path, n: int) -> hs.Pipeline:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(n)))
    return hs.read_jsonl(str(path), fields())


def begun(pipeline: hs.Pipeline, out: Path, rows_per_file: int = 100) -> Conversion:
    declaration = pipeline.batch(1).declaration()
    files = resolve(declaration.source.paths)
    stages, _ = convertible(declaration.stages)
    return Conversion(declaration, stages, files, out, rows_per_file, IndexCache(None))


def converted(pipeline: hs.Pipeline, out: Path, **options: Any) -> Conversion:
    conversion = begun(pipeline, out, **options)
    for _ in conversion.steps():
        pass
    return conversion


def back(out: Path) -> list[dict[str, Any]]:
    """All examples of a directory as a feed reads them."""
    return all_of(opened("arrow", f"{out}/part-*.arrow"))


def plain(n: int) -> list[dict[str, Any]]:
    return [{**row, "s": row["s"].encode()} for row in rows(n)]


def test_files_hold_the_examples_in_order_and_as_many_as_were_asked_for(tmp_path):
    done = converted(jsonl(tmp_path / "a.jsonl", 25), tmp_path / "out", rows_per_file=10)
    assert back(tmp_path / "out") == plain(25)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.arrow"))
    assert names == ["part-00000.arrow", "part-00001.arrow", "part-00002.arrow"]
    assert [part.rows for part in done.parts] == [10, 10, 5]


def test_bad_examples_stop_the_conversion_or_are_left_out_as_the_pipeline_declares(tmp_path):
    pipeline = jsonl(tmp_path / "a.jsonl", 6)
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"i": "x"}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 7"):
        converted(pipeline, tmp_path / "one")
    lenient = converted(pipeline.options(on_bad_example="skip"), tmp_path / "two")
    assert back(tmp_path / "two") == plain(6)
    assert sum(lenient.dropped.values()) == 1


def test_compressed_records_become_files_that_are_read_by_number(tmp_path):

    payloads = [example({"i": feature("int", [i])}) for i in range(12)]
    frames = b"".join(map(frame, payloads))
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(frames))
    pipeline = hs.read_tfrecord(str(tmp_path / "*.gz"), {"i": hs.scalar("int64")})
    assert converted(pipeline, tmp_path / "out", rows_per_file=5).length is None
    assert back(tmp_path / "out") == [{"i": i} for i in range(12)]
