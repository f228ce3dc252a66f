"""All are compared on the same data: names exist, readers read the files, checks can fail."""

import numpy as np

import headrace_server as hs
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.columns import row_of
from headrace_server.reading.source import IndexedSource
from headrace_server.reading.sources import open_reader
from tests.bench import records
from tests.bench.comparisons import ALL
from tests.bench.contestants import CONTESTANTS


def test_the_writer_writes_what_a_checking_reader_reads(tmp_path):
    x = np.arange(6, dtype=np.float32)
    rows = [{"n": 300, "name": b"first", "x": x[:4]}, {"n": 0, "name": b"", "x": x[:6]}]
    file = tmp_path / "a.tfrecord"
    records.write(file, map(records.example, rows))
    features = {
        "n": hs.scalar("int64"),
        "name": hs.scalar("bytes"),
        "x": hs.sequence("float32", (2,)),
    }
    source = hs.read_tfrecord(str(file), features).batch(1).declaration().source
    cache = IndexCache(str(tmp_path / "index"))
    reader = open_reader(source, resolve(source.paths), BadRecords(), cache)
    assert isinstance(reader, IndexedSource)
    columns = reader.take(slice(0, 2)).columns
    for i, row in enumerate(rows):
        assert row_of(columns["n"], i) == row["n"]
        assert row_of(columns["name"], i) == row["name"]
        np.testing.assert_array_equal(row_of(columns["x"], i).reshape(-1), row["x"])


def test_every_comparison_names_contestants_that_exist():
    named = {name for c in ALL for name in (c.ours, c.peer)}
    assert named <= set(CONTESTANTS)
    titles = [one.title for one in ALL]
    assert len(set(titles)) == len(titles)
