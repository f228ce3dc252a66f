"""One Arrow file with its checksums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace_proto.schema import Field
from headrace_server.reading import conversion
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import column_from_rows
from headrace_server.reading.conversion import ArrowPart

FIELDS = {"id": Field("int64"), "x": Field("float32", (None,))}


def chunk(start: int, stop: int) -> Chunk:
    numbers = np.arange(start, stop)
    rows = [[float(i)] * (i % 3) for i in range(start, stop)]
    columns = {"id": numbers, "x": column_from_rows(rows, FIELDS["x"])}
    return Chunk(columns, numbers, Origin.single("here", numbers))


def test_small_chunks_become_large_record_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversion, "_BATCH_ROWS", 40)
    part = ArrowPart(tmp_path / "a.arrow", FIELDS)
    for start in range(0, 100, 10):
        assert part.add(chunk(start, start + 10)) > 0
    assert part.add(chunk(5, 5)) == 0
    part.finish()
    assert part.rows == 100 and not part.file.exists()
    with pa.ipc.open_file(str(part.path)) as reader:
        sizes = [reader.get_batch(i).num_rows for i in range(reader.num_record_batches)]
        assert sizes == [40, 40, 20]
        assert reader.read_all()["id"].to_pylist() == list(range(100))
    noted = part.noted()
    assert (noted["name"], noted["rows"]) == ("a.arrow", 100) and set(noted["sums"]) == {"id", "x"}


@pytest.mark.parametrize("finished", [False, True])
def test_a_file_that_is_dropped_is_removed(tmp_path: Path, finished: bool):
    part = ArrowPart(tmp_path / "a.arrow", FIELDS)
    part.add(chunk(0, 5))
    if finished:
        part.finish()
    assert part.path.exists()
    part.drop()
    assert list(tmp_path.iterdir()) == []
