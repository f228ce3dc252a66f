"""Parquet files: the same columns as Arrow's, a row group at a time."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace_proto.errors import DataError
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords
from tests.unit.readers import all_of, examples, opened
from tests.unit.reading.test_arrow import FIELDS, rows_of, table


def write(path: object, source: pa.Table, rows: int = 3) -> str:
    with fsspec.open(str(path), "wb") as sink:
        pq.write_table(source, sink, row_group_size=rows)
    return str(path)


def test_every_type_is_read_in_every_order(tmp_path: Path) -> None:
    reader = opened("parquet", write(tmp_path / "a.parquet", table()))
    assert reader.fields == FIELDS
    assert all_of(reader) == rows_of(table())


def test_features_choose_columns_and_fill_nulls(tmp_path: Path) -> None:
    source = pa.table({"x": pa.array([1, None, 3]), "other": pa.array([1, 2, 3], pa.date32())})
    features = {"x": Feature("scalar", "float32", (), 0.5, True)}
    reader = opened("parquet", write(tmp_path / "a", source), features=features)
    assert all_of(reader) == [{"x": 1.0}, {"x": 0.5}, {"x": 3.0}]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_that_no_file_has_is_refused_with_those_that_it_has(
    tmp_path: Path, kind: str
) -> None:
    path, rows = str(tmp_path / "a"), pa.table({"audio": [1, 2], "label": [0, 1]})
    if kind == "parquet":
        write(path, rows)
    else:
        with pa.ipc.new_file(path, rows.schema) as sink:
            sink.write_table(rows)
    text = (
        r"column 'adio': the file has no such column \(it has 'audio', 'label'\); .*mean 'audio'\?"
    )
    with pytest.raises(DataError, match=text):
        opened(kind, path, features={"adio": Feature("scalar", "int64")})


def test_a_file_that_is_cut_off_is_named_and_skipped(tmp_path: Path) -> None:
    whole = Path(write(tmp_path / "whole", table(4)))
    (tmp_path / "cut").write_bytes(whole.read_bytes()[:-50])
    (tmp_path / "none").write_bytes(b"")
    for name in ("cut", "none"):
        with pytest.raises(DataError, match=f"{name}: it is no Parquet file, or it is cut off"):
            opened("parquet", tmp_path / name)
    bad = BadRecords(skip=True)
    reader = opened("parquet", tmp_path / "cut", whole, bad=bad)
    assert all_of(reader) == rows_of(table(4))
    assert bad.counts == {"corrupt_file": 1}


def test_a_row_group_that_is_damaged_is_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a"
    source = pa.table({"x": np.arange(9)})
    pq.write_table(source, path, row_group_size=3, use_dictionary=False, compression="gzip")
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    content = bytearray(path.read_bytes())
    start = column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a, row group 1: it is damaged"):
        opened("parquet", path).take(slice(0, 9))
    bad = BadRecords(skip=True)
    reader = opened("parquet", path, bad=bad)
    assert [row["x"] for row in examples(reader.take(slice(0, 9)))] == [0, 1, 2, 6, 7, 8]
    assert bad.counts == {"corrupt_file": 3}
    assert reader.take(np.array([7, 4, 0])).ordinals.tolist() == [7, 0]
