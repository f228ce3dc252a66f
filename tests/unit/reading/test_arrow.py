"""Arrow files and streams, and Parquet: every type and order, damage named, nothing copied."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.columns import Ragged, Strings
from headrace_server.reading.source import IndexedSource
from tests.unit.readers import all_of, examples, indexed, opened

FLOATS = pa.list_(pa.float32())


def write(
    path: Any,
    table: pa.Table,
    kind: str = "arrow",
    *,
    rows: int = 3,
    stream: bool = False,
    compression: Any = None,
) -> str:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with fsspec.open(str(path), "wb") as sink:
        if kind == "parquet":
            pq.write_table(table, sink, row_group_size=rows)
            return str(path)
        with new(sink, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=rows)
    return str(path)


def table(n: int = 10) -> pa.Table:
    ragged = [[[float(i + j)] * 2 for j in range(i % 4)] for i in range(n)]
    return pa.table(
        {
            "label": pa.array(range(n), pa.int64()),
            "half": pa.array(np.arange(n, dtype=np.float16)),
            "fixed": pa.array([[i, i + 1] for i in range(n)], pa.list_(pa.int32(), 2)),
            "flag": pa.array([i % 3 == 0 for i in range(n)], pa.bool_()),
            "flags": pa.array([[i % 2 == 0, True] for i in range(n)], pa.list_(pa.bool_(), 2)),
            "id": pa.array([f"id-{i}" * (i % 3) for i in range(n)], pa.string()),
            "blob": pa.array([b"x" * i for i in range(n)], pa.large_binary()),
            "md5": pa.array([bytes([i]) * 4 for i in range(n)], pa.binary(4)),
            "tags": pa.array([["t"] * (i % 3) for i in range(n)], pa.list_(pa.string())),
            "pair": pa.array([["p", str(i)] for i in range(n)], pa.list_(pa.string(), 2)),
            "audio": pa.array(ragged, pa.large_list(pa.list_(pa.float32(), 2))),
            "flat": pa.array([[float(i)] * (i % 5) for i in range(n)], FLOATS),
            "grid": pa.array([[[1.0] * (i % 3)] * (i % 4) for i in range(n)], pa.list_(FLOATS)),
        }
    )


FIELDS = {
    "label": Field("int64"),
    "half": Field("float16"),
    "fixed": Field("int32", (2,)),
    "flag": Field("bool"),
    "flags": Field("bool", (2,)),
    "id": Field("bytes"),
    "blob": Field("bytes"),
    "md5": Field("bytes"),
    "tags": Field("bytes", (None,)),
    "pair": Field("bytes", (2,)),
    "audio": Field("float32", (None, 2)),
    "flat": Field("float32", (None,)),
    "grid": Field("float32", (None, None)),
}


def as_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [as_bytes(item) for item in value]
    return value.encode() if isinstance(value, str) else value


def rows_of(source: pa.Table) -> list[dict[str, Any]]:
    return [{name: as_bytes(v) for name, v in row.items()} for row in source.to_pylist()]


WAYS = [
    {},
    {"stream": True},
    {"compression": "zstd"},
    {"stream": True, "compression": "lz4"},
    {"rows": 100},
    {"kind": "parquet"},
]
#: Formats and compressions whose columns are decoded alike.
KINDS = pytest.mark.parametrize(
    ("kind", "compression"), [("arrow", None), ("arrow", "zstd"), ("parquet", None)]
)


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_type_is_read_in_every_order(folder, way):
    reader = opened(way.get("kind", "arrow"), write(f"{folder}/a", table(), **way))
    assert isinstance(reader, IndexedSource)
    assert reader.fields == FIELDS
    assert all_of(reader) == rows_of(table())


def test_payload_is_not_copied_even_over_batches_and_files(tmp_path):
    paths = [write(tmp_path / name, table(6)) for name in "ab"]
    reader = opened("arrow", *paths)
    scattered = reader.take(np.array([11, 0, 5]))
    near = reader.take(slice(0, 2))
    for chunk in (scattered, near):
        for name in ("audio", "grid", "flat"):
            column = chunk.columns[name]
            assert isinstance(column, Ragged)
            assert column.raw.size > 2 * Path(paths[0]).stat().st_size
        blob = chunk.columns["blob"]
        assert isinstance(blob, Strings)
        assert blob.data is column.raw
    fixed = near.columns["fixed"]
    assert isinstance(fixed, np.ndarray)
    assert np.shares_memory(fixed, column.raw)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_stream_that_breaks_off_is_counted_once_and_gives_its_whole_batches(folder, compression):
    path = write(f"{folder}/s", table(), stream=True, compression=compression)
    with fsspec.open(path, "rb") as file:
        content = file.read()
    with fsspec.open(path, "wb") as file:
        file.write(content[:-40])
    bad = BadRecords(skip=True)
    reader = opened("arrow", path, bad=bad)
    assert all_of(reader) == rows_of(table(9)) and bad.counts == {"truncated_file": 1}


def test_dictionaries_views_and_nested_dictionaries_are_decoded(folder):
    n = 7
    source = pa.table(
        {
            "d": pa.array(["a", "bb", "a", "c", "a", "c", "bb"]).dictionary_encode(),
            "v": pa.array([f"view number {i}" for i in range(n)], pa.string_view()),
            "l": pa.array(
                [["x", "y"][: i % 3] for i in range(n)],
                pa.list_(pa.dictionary(pa.int8(), pa.string())),
            ),
            "b": pa.array([[True, False, True][: i % 4] for i in range(n)], pa.list_(pa.bool_())),
        }
    )
    want = rows_of(source)
    assert all_of(opened("arrow", write(f"{folder}/a", source))) == want
    assert all_of(opened("arrow", write(f"{folder}/s", source, stream=True))) == want


def test_tensors_of_fixed_shape_keep_it(folder):
    values = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    reader = opened("arrow", write(f"{folder}/a", pa.table({"x": column})))
    assert reader.fields == {"x": Field("float32", (2, 3))}
    assert [row["x"] for row in all_of(reader)] == values.tolist()


@KINDS
def test_a_null_is_missing_and_takes_the_default(folder, kind, compression):
    source = pa.table(
        {
            "n": pa.array([1, None, 3, 4]),
            "x": pa.array([[1.0], None, [], [2.0, 3.0]], FLOATS),
            "s": pa.array(["a", "b", None, "d"]),
            "f": pa.array([None, [1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        }
    )
    path = write(f"{folder}/a", source, kind, compression=compression, rows=2)
    features = {
        "n": Feature("scalar", "int64", (), -1, True),
        "x": Feature("sequence", "float32", (), [9.0, 9.0], True),
        "s": Feature("scalar", "bytes", (), b"none", True),
        "f": Feature("fixed", "int8", (2,), [0, 0], True),
        "absent": Feature("sequence", "bytes", (), [], True),
    }
    assert all_of(opened(kind, path, features=features)) == [
        {"n": 1, "x": [1.0], "s": b"a", "f": [0, 0], "absent": []},
        {"n": -1, "x": [9.0, 9.0], "s": b"b", "f": [1, 2], "absent": []},
        {"n": 3, "x": [], "s": b"none", "f": [3, 4], "absent": []},
        {"n": 4, "x": [2.0, 3.0], "s": b"d", "f": [5, 6], "absent": []},
    ]
    with pytest.raises(DataError, match=r"a, record 1, column 'n': it is null; give .* default"):
        opened(kind, path).take(slice(1, 2))
    bad = BadRecords(skip=True)
    reader = opened(kind, path, bad=bad)
    assert examples(reader.take(slice(0, 4))) == [{"n": 4, "x": [2.0, 3.0], "s": b"d", "f": [5, 6]}]
    assert bad.counts == {"missing_feature": 3}
    assert examples(reader.take(np.array([1, 3, 0, 3]))) == examples(reader.take(slice(0, 4))) * 2


@KINDS
def test_rows_that_are_no_array_are_named_and_skipped(folder, kind, compression):
    source = pa.table(
        {
            "g": pa.array([[[1.0], [2.0]], [[1.0], [2.0, 3.0]], [], [[4.0]]], pa.list_(FLOATS)),
            "n": pa.array([[1, 2], [3], [None], [4]], pa.list_(pa.int64())),
        }
    )
    path = write(f"{folder}/a", source, kind, compression=compression, rows=10)
    with pytest.raises(DataError, match=r"record 1, column 'g': its inner lists differ"):
        opened(kind, path).take(slice(0, 4))
    bad = BadRecords(skip=True)
    reader = opened(kind, path, bad=bad)
    rows = indexed(reader)
    assert rows == [{"g": [[1.0], [2.0]], "n": [1, 2]}, {"g": [[4.0]], "n": [4]}]
    with pytest.raises(DataError, match=r"record 2, column 'n': it holds a null within a list"):
        opened(kind, path).take(slice(2, 3))


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_a_file_that_is_cut_off_is_skipped(tmp_path, kind):
    whole = Path(write(tmp_path / "whole", table(4), kind))
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-100])
    bad = BadRecords(skip=True)
    reader = opened(kind, tmp_path / "cut", whole, bad=bad)
    assert all_of(reader) == rows_of(table(4))
    assert bad.counts == {"corrupt_file": 1}


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int8())])
def test_an_offset_that_points_outside_is_damage_and_not_a_crash(tmp_path, kind):
    values = ["aaaa", "bbbb", "cccc", "dddd"] if kind == pa.string() else [[1] * 4] * 4
    path = Path(write(tmp_path / "a", pa.table({"x": pa.array(values, kind)}), rows=10))
    offsets = np.array([0, 4, 8, 12, 16], np.int32).tobytes()
    content = path.read_bytes()
    assert content.count(offsets) == 1
    path.write_bytes(
        content.replace(offsets, np.array([0, 4, 1 << 30, 12, 16], np.int32).tobytes())
    )
    for bad_rows in ([0, 3], [0, 1, 2, 3], [1]):
        bad = BadRecords(skip=True)
        reader = opened("arrow", path, bad=bad)
        kept = reader.take(np.array(bad_rows))
        assert set(kept.ordinals.tolist()) == set(bad_rows) - {1, 2}
    assert bad.counts == {"corrupt_record": 1}
    with pytest.raises(DataError, match=r"record 1, column 'x': an offset of it points outside"):
        opened("arrow", path).take(slice(0, 4))
