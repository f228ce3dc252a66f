"""Parquet files: the same columns as Arrow's, a row group at a time."""

from __future__ import annotations

import _thread
import queue
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature, ReadingOrder
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.partition_rows import partition_reader
from headrace_server.reading.sources import parquet
from tests.patience import PATIENCE_S
from tests.unit.readers import all_of, examples, opened
from tests.unit.reading.test_arrow import write


def test_a_row_group_that_is_damaged_is_named_and_skipped(tmp_path):
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


def test_the_next_row_group_is_decoded_while_rows_of_this_one_are_used(tmp_path, monkeypatch):
    """Rows at random places decode only the groups that they lie in."""
    decoded = queue.Queue[int]()
    table = parquet._table

    def noting(file: Any, number: int, names: tuple[str, ...]) -> Any:
        found = table(file, number, names)
        decoded.put(number)
        return found

    monkeypatch.setattr(parquet, "_table", noting)
    pq.write_table(pa.table({"x": np.arange(80)}), tmp_path / "a", row_group_size=10)
    reader = opened("parquet", tmp_path / "a")
    for start in range(0, 30, 5):
        assert [one["x"] for one in examples(reader.take(slice(start, start + 5)))] == [
            *range(start, start + 5)
        ]
    assert [decoded.get(timeout=PATIENCE_S) for _ in range(4)] == [0, 1, 2, 3]
    assert examples(reader.take(slice(28, 33)))[-1] == {"x": 32}
    assert decoded.get(timeout=PATIENCE_S) == 4
    scattered = opened("parquet", tmp_path / "a")
    for row in (5, 25, 45, 15, 65):
        scattered.take(np.array([row]))
    assert [decoded.get(timeout=PATIENCE_S) for _ in range(5)] == [0, 2, 4, 1, 6]
    scattered.take(np.array([5]))  # after whatever the thread was to decode before
    assert decoded.get(timeout=PATIENCE_S) == 0
    assert decoded.empty()


def test_a_read_that_ctrl_c_ends_can_be_made_again_while_its_row_group_is_decoded(
    tmp_path, monkeypatch
):
    path, released, table_of = tmp_path / "a", threading.Event(), parquet._table
    pq.write_table(pa.table({"x": np.arange(4)}), path)

    def interrupting(*given: Any) -> pa.Table:
        if not released.is_set():
            _thread.interrupt_main()
            assert released.wait(PATIENCE_S)
        return table_of(*given)

    monkeypatch.setattr(parquet, "_table", interrupting)
    reader = opened("parquet", path)
    with pytest.raises(KeyboardInterrupt):
        reader.take(slice(0, 4))
    released.set()
    assert len(reader.take(slice(0, 4))) == 4


def test_row_groups_that_are_mixed_are_decoded_once_in_an_epoch(tmp_path, monkeypatch):
    decoded = queue.Queue[int]()
    table = parquet._table

    def noting(file: Any, number: int, names: tuple[str, ...]) -> Any:
        decoded.put(number)
        return table(file, number, names)

    monkeypatch.setattr(parquet, "_table", noting)
    pq.write_table(pa.table({"x": np.arange(200)}), tmp_path / "a", row_group_size=10)
    reader = opened("parquet", tmp_path / "a")
    order = ReadingOrder(seed=1, blocks=4, block_bytes=1)
    shares = [partition_reader(reader, order, k, 2) for k in range(2)]
    places: list[Any] = [share.start for share in shares]
    found: list[int] = []
    while any(place is not None for place in places):  # both partitions of a worker, in turn
        for k, share in enumerate(shares):
            if places[k] is not None:
                chunk, places[k] = share.read(0, places[k], 7)
                found += chunk.columns["x"].tolist()
    assert sorted(found) == [*range(200)]
    assert sorted(decoded.queue) == [*range(20)]


def _steps(lengths: list[int]) -> pa.Table:
    """Episodes of these lengths, a row for each step."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    task = pa.array([f"task {e % 2}" for e in episode]).dictionary_encode()
    state = pa.FixedSizeListArray.from_arrays(np.arange(2.0 * len(episode)), 2)
    return pa.table({"episode": episode, "state": state, "task": task})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 12))
def test_neighbouring_rows_of_one_value_are_an_example_over_row_groups(lengths, group):
    with TemporaryDirectory() as directory:
        path = write(Path(directory) / "a", _steps(lengths), "parquet", rows=group)
        reader = opened("parquet", path, group_by="episode")
        assert reader.fields["state"] == Field("float64", (None, 2))
        assert reader.fields["episode"] == Field("int64", ())
        starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
        assert all_of(reader) == [
            {
                "episode": number,
                "state": [[2.0 * row, 2.0 * row + 1] for row in range(start, start + length)],
                "task": [b"task %d" % (number % 2)] * length,
            }
            for number, (start, length) in enumerate(zip(starts, lengths, strict=False))
        ]


def test_a_value_that_comes_again_and_another_file_begin_another_example(tmp_path):
    rows = pa.table({"key": ["a", "a", "b", "a"], "x": [1, 2, 3, 4]})
    paths = [write(tmp_path / name, rows, "parquet") for name in "ab"]
    features = {"x": Feature("sequence", "int32", ())}
    found = all_of(opened("parquet", *paths, features=features, group_by="key"))
    assert found == [{"x": [1, 2]}, {"x": [3]}, {"x": [4]}] * 2
