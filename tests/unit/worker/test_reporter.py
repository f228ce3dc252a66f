"""The reporter writes the present state, at a bounded cost."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_server.process.worker_diary import Diary, DiaryFile
from headrace_server.worker.reporter import Reporter


class Run:
    def __init__(self, read: int = 10, **more: Any) -> None:
        self.told = {
            "read": read,
            "epoch": 1,
            "position": 5,
            "share": 20,
            "seconds": {"reading": 0.5},
            **more,
        }

    def progress(self) -> dict[str, Any]:
        return self.told

    def next_turn(self, slot: int) -> tuple[int, int]:
        return 0, 7


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def diary_file(tmp_path: Path) -> DiaryFile:
    return DiaryFile(tmp_path / "diary")


def reporter(diary_file: DiaryFile, store: Any = None) -> Reporter:
    slab = SimpleNamespace(used_bytes=4096)
    return Reporter(Diary(diary_file.path).totals, ["a"], slab, lambda name: store)


def test_a_report_has_the_progress_of_partitions_and_their_sums(
    diary_file: DiaryFile, clock: Clock
):
    one = reporter(diary_file)
    runs = {("a", 0): Run(10, segments={"ready": 1}), ("a", 1): Run(5, segments={"ready": 2})}
    one.look(runs)
    told = one.feeds["a"]
    progress = {"number": 7, "epoch": 1, "position": 5, "share": 20}
    assert told.partitions == {0: progress, 1: progress}
    assert told.status == {
        "read": 15,
        "seconds": {"reading": 1.0},
        "segment_standing": {"ready": 3},
    }
    assert one.worker["slab_bytes"] == 4096


def test_before_the_partitions_are_open_there_is_a_report_all_the_same(
    diary_file: DiaryFile, clock: Clock
):
    one = reporter(diary_file)
    assert one.feeds["a"].status == {"read": 0} and one.feeds["a"].partitions == {}
    assert one.worker["work_s"] == 0.0


def test_a_report_has_the_last_commit_and_every_fault_of_the_stores(
    diary_file: DiaryFile, clock: Clock
):
    stores = {("a", 0): [3, 950.0, ""], ("a", 1): [4, 998.0, "1.journal: disk is full"]}
    one = Reporter(
        Diary(diary_file.path).totals, ["a"], SimpleNamespace(used_bytes=0), stores.__getitem__
    )
    runs = {name: Run() for name in stores}
    one.look(runs)
    clock.now += 1.0
    fault = "1.journal: disk is full"
    known = {"commits": 7, "since_commit_s": 3.0, "faults": [fault]}
    assert one.feeds["a"].status["store"] == known
    stores |= {("a", 0): [0, 0.0, ""], ("a", 1): [0, 0.0, ""]}
    one.look(runs)
    assert one.feeds["a"].status["store"]["since_commit_s"] is None


def test_counts_of_a_feed_do_not_fall_when_its_partitions_are_gone(
    diary_file: DiaryFile, clock: Clock
):
    """They are gone once the feed has failed; a counter that falls looks like a new server."""
    one = reporter(diary_file, [4, 990.0, ""])
    one.look({("a", 0): Run(10), ("a", 1): Run(5)})
    totals = list(Diary(diary_file.path).totals)
    clock.now += 1.0
    one.look({})
    assert one.feeds["a"].read == 15 and one.feeds["a"].commits == 8
    assert all(
        now >= before for now, before in zip(Diary(diary_file.path).totals, totals, strict=True)
    )
    assert one.feeds["a"].partitions == {}


def test_between_two_looks_nothing_is_written(diary_file: DiaryFile, clock: Clock):
    one = reporter(diary_file)
    one.look({("a", 0): Run(1)})
    one.look({("a", 0): Run(2)})
    assert one.feeds["a"].read == 1
    clock.now += 0.3
    one.look({("a", 0): Run(2)})
    assert one.feeds["a"].read == 2


def test_writing_that_takes_long_is_done_the_less_often(diary_file: DiaryFile, clock: Clock):
    class Slow(Run):
        def progress(self) -> dict[str, Any]:
            clock.now += 0.1
            return self.told

    one = reporter(diary_file)
    one.look({("a", 0): Slow(1)})
    clock.now += 9.0
    one.look({("a", 0): Slow(2)})
    assert one.feeds["a"].read == 1
    clock.now += 1.1
    one.look({("a", 0): Slow(2)})
    assert one.feeds["a"].read == 2


def test_time_that_a_worker_did_not_wait_is_work(diary_file: DiaryFile, clock: Clock):
    def poll(at_most_ms: int) -> str:
        clock.now += at_most_ms / 1000
        return "heard"

    one = reporter(diary_file)
    assert one.rest("slab", poll, 500) == "heard"
    one.rest("states", poll, 1000)
    clock.now += 2.0
    one.look({})
    assert one.worker["rests_s"] == {"trainers": 0.0, "states": 1.0, "slab": 0.5}
    assert one.worker["work_s"] == 2.0


def test_the_next_life_of_a_worker_adds_to_the_totals(diary_file: DiaryFile, clock: Clock):
    first = reporter(diary_file, [3, 990.0, ""])
    first.rest("slab", lambda at_most_s: setattr(clock, "now", clock.now + 1.5), 9)
    first.look({("a", 0): Run(10)})
    diary_file.begin()
    second = reporter(diary_file, [1, 999.0, ""])
    assert second.feeds["a"].status == {"read": 10}
    clock.now += 2.0
    second.look({("a", 0): Run(2)})
    assert (second.feeds["a"].read, second.feeds["a"].commits) == (12, 4)
    assert second.worker["work_s"] == 2.0 and second.worker["rests_s"]["slab"] == 1.5
