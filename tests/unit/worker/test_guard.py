"""A guarded reader notes rows, leaves rows out, tries rows alone and reports passed ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.index_cache import IndexCache
from headrace_server.process.worker_diary import Diary, DiaryFile
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.reader import (
    BadRecords,
    ChecksAhead,
    IndexedReader,
    Reader,
    StreamReader,
)
from headrace_server.reading.sources import open_reader
from headrace_server.worker.guard import Guard, Rehearsal

CALLS: list[int] = []


def noting(example: dict[str, Any]) -> dict[str, Any]:
    """Make a user function that notes the rows that it gets."""
    CALLS.append(int(example["i"]))
    return example


class World:
    """A guarded reader of 20 examples, its diary, and the rows that passed."""

    def __init__(self, path: Path, marks: Mapping[str, Any], streams: bool, skip: bool) -> None:
        CALLS.clear()
        self.diary_file = DiaryFile(path / "diary")
        self.bad = BadRecords(skip=skip)
        self.passed: list[int] = []
        source = hs.from_function(numbers) if streams else hs.from_examples(list(numbers()))
        declaration = source.resample_at_rate(0.0, seed=1).map(noting).batch(2).declaration()
        cache = IndexCache(str(path / "index"))
        inner = open_reader(declaration.source, (), self.bad, cache)
        diary = Diary(self.diary_file.path)
        self.guard = Guard("f", declaration, 1, diary, self.bad, marks, self._on_passed)
        self.reader: Reader = self.guard.around(inner)

    def _on_passed(self, feed: str, rows: list[int]) -> None:
        assert feed == "f"
        self.passed += rows

    def take(self, rows: list[int]) -> Chunk:
        assert isinstance(self.reader, IndexedReader)
        return self.reader.take(np.array(rows))

    def slice(self, start: int, stop: int) -> Chunk:
        assert isinstance(self.reader, IndexedReader)
        return self.reader.take(slice(start, stop))


def numbers() -> Any:
    return ({"i": i} for i in range(20))


def world(path: Path, streams: bool = False, skip: bool = True, **marks: Any) -> World:
    return World(path, marks, streams, skip)


def test_rows_are_in_the_diary_while_a_step_lasts(tmp_path: Path):
    one = world(tmp_path)
    with one.guard.step(3):
        assert one.take([4, 2]).ordinals.tolist() == [4, 2]
        entry = one.diary_file.read()
        assert (entry.partition, entry.rows, entry.alone) == (3, (4, 2), False)
        assert "record 4" in entry.where and "record 2" in entry.where
    assert one.diary_file.read().rows == ()


class Checking:
    """A reader that notes which examples are checked ahead, and what the diary has meanwhile."""

    fields: Mapping[str, Any] = {}
    length = 20

    def __init__(self, diary_file: DiaryFile) -> None:
        self.diary_file, self.seen = diary_file, []

    def take(self, rows: Any) -> Chunk:
        raise AssertionError("nothing is read")

    def check_ahead(self, rows: np.ndarray, stop: Any) -> int:
        self.seen.append(self.diary_file.read().rows)
        return len(rows)

    def close(self) -> None:
        return


def test_rows_are_in_the_diary_while_they_are_checked_and_have_not_passed(tmp_path: Path):
    one = world(tmp_path)
    inner = Checking(one.diary_file)
    reader = one.guard.around(inner)
    assert isinstance(reader, ChecksAhead)
    with one.guard.step(3, reads=False):
        assert reader.check_ahead(np.array([4, 2]), lambda: None) == 2
    assert inner.seen == [(4, 2)]
    assert one.passed == []
    assert one.diary_file.read().rows == ()


@pytest.mark.parametrize("mark", [{"suspect": [9]}, {"watched": [9]}, {"out": [[9, "it kills"]]}])
def test_nothing_is_checked_ahead_while_a_row_may_kill(tmp_path: Path, mark: dict[str, Any]):
    one = world(tmp_path, **mark)
    inner = Checking(one.diary_file)
    reader = one.guard.around(inner)
    assert isinstance(reader, ChecksAhead)
    assert reader.check_ahead(np.array([4, 2]), lambda: None) == 0
    assert inner.seen == []


def test_a_reader_that_checks_nothing_ahead_is_left_alone(tmp_path: Path):
    reader = world(tmp_path).reader
    assert isinstance(reader, ChecksAhead)
    assert reader.check_ahead(np.array([4, 2]), lambda: None) == 0


def test_a_step_that_raises_stays_in_the_diary_and_has_not_passed(tmp_path: Path):
    one = world(tmp_path, watched=[4])

    def step() -> None:
        with one.guard.step(0):
            one.take([4])
            raise MemoryError

    with pytest.raises(MemoryError):
        step()
    assert one.diary_file.read().rows == (4,) and one.passed == []


def test_rows_that_are_out_are_bad_examples(tmp_path: Path):
    one = world(tmp_path, out=[[3, "FILE, record 3: it kills"], [9, "no matter"]])
    with one.guard.step(0):
        assert one.slice(1, 6).ordinals.tolist() == [1, 2, 4, 5]
        assert one.take([5, 3, 1]).ordinals.tolist() == [5, 1]
        assert len(one.slice(3, 4)) == 0
    assert one.bad.counts == {"quarantined": 3}
    two = world(tmp_path, skip=False, out=[[3, "FILE, record 3: it kills"]])
    with pytest.raises(DataError, match="record 3: it kills"):
        two.slice(0, 6)


def test_suspects_are_taken_alone_through_functions_behind_samplers_too(tmp_path: Path):
    one = world(tmp_path, suspect=[2, 3], watched=[1, 2, 3, 17])
    with one.guard.step(0):
        assert one.slice(0, 5).ordinals.tolist() == [0, 1, 2, 3, 4]
        assert sorted(set(CALLS)) == [2, 3]
    assert one.passed == [1, 2, 3]
    with one.guard.step(0):
        one.slice(0, 5)
    assert one.passed == [1, 2, 3]


def test_rows_read_while_a_partition_opens_are_not_reported_as_passed(tmp_path: Path):
    one = world(tmp_path, watched=[1])
    with one.guard.step(0, opening=True):
        one.slice(0, 5)
    assert one.passed == []
    with one.guard.step(0):
        one.slice(0, 5)
    assert one.passed == [1]


def test_a_stream_under_suspicion_is_read_one_by_one_and_gives_the_same(tmp_path: Path):
    one, other = world(tmp_path, streams=True), world(tmp_path, streams=True, suspect=[-1])
    assert isinstance(one.reader, StreamReader) and isinstance(other.reader, StreamReader)
    with one.guard.step(0):
        chunk, after = one.reader.read(0, b"", 7)
    with other.guard.step(0):
        slowly, after_slowly = other.reader.read(0, b"", 7)
        assert other.diary_file.read().rows == tuple(range(7))
    assert chunk.ordinals.tolist() == slowly.ordinals.tolist() == list(range(7))
    assert after == after_slowly


def test_a_row_is_tried_alone_where_a_later_stage_leaves_out_a_column_without_a_name():
    CALLS.clear()
    source = hs.from_examples([{"i": 1}]).rejection_sample(0.9).select(["i"]).map(noting)
    fields, one = {"": Field("int64"), "i": Field("int64")}, np.array([7])
    rehearsal = Rehearsal(source.batch(2).declaration(), fields, BadRecords())
    rehearsal.row(Chunk({"": one, "i": one}, one, Origin.single("here", one)))
    assert CALLS == [7]
