"""All are compared on the same data: names exist, readers read the files, checks can fail."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.reading.columns import row_of
from headrace_server.reading.reader import BadRecords, IndexedReader
from headrace_server.reading.sources import open_reader
from tests.bench import records, sequences, skewed, workloads
from tests.bench.alone import ALONE
from tests.bench.comparisons import ALL, comparisons
from tests.bench.contestants import CONTESTANTS, _headrace, _w1
from tests.bench.pairs import Comparison
from tests.bench.steps import LOADED, READY


def test_the_writer_writes_what_a_checking_reader_reads(tmp_path: Path):
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
    assert isinstance(reader, IndexedReader)
    columns = reader.take(slice(0, 2)).columns
    for i, row in enumerate(rows):
        assert row_of(columns["n"], i) == row["n"]
        assert row_of(columns["name"], i) == row["name"]
        np.testing.assert_array_equal(row_of(columns["x"], i).reshape(-1), row["x"])


def test_the_writer_refuses_what_it_would_write_wrongly():
    with pytest.raises(ValueError, match=r"value=-1: .* least is 0"):
        records.example({"n": -1})


def test_a_file_has_its_name_only_when_it_is_complete(tmp_path: Path):
    def broken():
        yield b"one"
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        records.write(tmp_path / "a.tfrecord", broken())
    assert not (tmp_path / "a.tfrecord").exists()


def sequence_batch() -> dict[str, np.ndarray]:
    steps, numbers = sequences.lengths(), sequences.pool()
    rows = np.flatnonzero(steps < sequences.BOUNDARIES[0])[: sequences.BATCH]
    x = np.zeros((len(rows), int(steps[rows].max()), sequences.WIDTH), np.float32)
    for place, row in enumerate(rows.tolist()):
        x[place, : steps[row]] = numbers[row : row + steps[row]]
    keys = np.array([sequences.key(row) for row in rows.tolist()], object)
    return {"key": keys, "length": steps[rows], "x": x}


def test_a_right_batch_of_sequences_passes_its_check():
    sequences.check(sequence_batch())


@pytest.mark.parametrize(
    ("name", "complaint"), [("length", "lengths of a batch"), ("x", "sequences of a batch")]
)
def test_a_wrong_batch_of_sequences_does_not(name: str, complaint: str):
    batch = sequence_batch()
    batch[name].reshape(-1)[-1] += 1  # of x: in the padding, or the last step of the longest
    with pytest.raises(AssertionError, match=complaint):
        sequences.check(batch)


def test_sequences_of_two_buckets_in_one_batch_do_not_pass():
    steps, numbers = sequences.lengths(), sequences.pool()
    rows = np.arange(sequences.BATCH)
    x = np.zeros((len(rows), int(steps[rows].max()), sequences.WIDTH), np.float32)
    for row in rows.tolist():
        x[row, : steps[row]] = numbers[row : row + steps[row]]
    keys = np.array([sequences.key(row) for row in rows.tolist()], object)
    with pytest.raises(AssertionError, match="mixes buckets"):
        sequences.check({"key": keys, "length": steps[rows], "x": x})


def test_five_rows_are_read_for_one_of_equal_parts():
    assert sum(skewed.SHARES) == pytest.approx(1)
    assert pytest.approx(5) == skewed.READ
    kept = np.array(skewed.SHARES) * skewed.ACCEPT
    np.testing.assert_allclose(kept / kept.sum(), skewed.TARGET)


def test_the_mix_of_the_source_itself_does_not_pass():
    skewed.check_mix({"label": np.arange(skewed.BATCH) % len(skewed.TARGET)})
    with pytest.raises(AssertionError, match="classes come in the shares"):
        skewed.check_mix({"label": skewed.labels()[: skewed.BATCH]})


def test_every_comparison_names_contestants_that_exist():
    named = {name for c in ALL for name in (c.ours, c.peer)}
    assert named <= set(CONTESTANTS)
    titles = [one.title for one in (*ALL, *ALONE)]
    assert len(set(titles)) == len(titles)


def _bounds(c: Comparison) -> list[tuple[str, float | None]]:
    return [("rate", c.aim), ("CPU", c.cpu), ("p99", c.p99_us), ("shares", c.shares)]


def test_no_target_is_left_to_a_long_run():
    judged = {(c.title, what) for c in ALL for what, bound in _bounds(c) if bound is not None}
    assert not [c.title for c in ALL if c.long and any(bound for _, bound in _bounds(c))]
    assert len(judged) >= 25


def test_comparisons_are_chosen_by_a_part_of_their_name_and_then_the_long_ones_too():
    chosen = comparisons(long=False, only="W2: headrace sequences from Arrow")
    assert [c.ours for c in chosen] == ["headrace sequences from Arrow"]
    assert [c.peer for c in comparisons(False, "Grain, 1")] == ["Grain, 1 worker"]
    usual, everything = comparisons(False, ""), comparisons(True, "")
    assert len(usual) < len(everything) == len(ALL)
    assert {c.workload for c in usual} >= {"W1", "W2", "W3", "W4", "sampling"}


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("columns")
    workloads.prepare_columns(directory)
    return directory


@pytest.mark.parametrize("kind", ["arrow", "parquet"])
def test_the_columns_of_another_format_are_the_same_first_rows(kind: str, columns: Path):
    steps = _headrace(f"headrace-w1-{kind}", "numpy", _w1)(columns)
    assert list(itertools.islice(steps, 4)) == [LOADED, READY, 1, 1]
    steps.close()
