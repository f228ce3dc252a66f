"""The reporter writes the present state, at a bounded cost."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_server.process.diary import Diary, Notebook
from headrace_server.worker.reporter import Reporter


class Run:
    next_number = 7

    def __init__(self, read: int = 10, **more: Any) -> None:
        self.told = {"read": read, "epoch": 1, "position": 5, "share": 20, **more}

    def progress(self) -> dict[str, Any]:
        return self.told


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def reader(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path / "diary", 2)


def reporter(reader: Notebook, store: Any = None) -> Reporter:
    slab = SimpleNamespace(used_bytes=4096)
    return Reporter(Diary(reader.path), slab, lambda name: store)


def test_a_report_has_partitions_and_their_sums(reader: Notebook, clock: Clock):
    told = reporter(reader, [3, 99.0, "the disk is full"])
    clock.now += 2
    told.look({("a", 0): Run(10)}, {("a", 1): Run(5, segments={"ready": 2})})
    sheet = reader.report()
    assert sheet["slab"] == 4096
    assert sheet["totals"]["feed:a"] == {"read": 15, "commits": 6}
    assert sheet["totals"]["rests"]["life"] == 2.0
    first, second = sheet["partitions"]
    assert (first["partition"], first["number"], first["position"]) == (0, 7, 5)
    assert (first["committed_at"], first["fault"]) == (99.0, "the disk is full")
    assert second["segments"] == {"ready": 2}


def test_a_report_without_a_store_has_no_entry_for_it(reader: Notebook, clock: Clock):
    reporter(reader).look({("a", 0): Run()})
    assert "fault" not in reader.report()["partitions"][0]


def test_between_two_looks_nothing_is_written(reader: Notebook, clock: Clock):
    told = reporter(reader)
    told.look({("a", 0): Run(1)})
    told.look({("a", 0): Run(2)})
    assert reader.report()["totals"]["feed:a"]["read"] == 1
    clock.now += 0.3
    told.look({("a", 0): Run(2)})
    assert reader.report()["totals"]["feed:a"]["read"] == 2


def test_writing_that_takes_long_is_done_the_less_often(reader: Notebook, clock: Clock):
    class Slow(Run):
        def progress(self) -> dict[str, Any]:
            clock.now += 0.1
            return self.told

    told = reporter(reader)
    told.look({("a", 0): Slow(1)})
    clock.now += 9.0
    told.look({("a", 0): Slow(2)})
    assert reader.report()["totals"]["feed:a"]["read"] == 1
    clock.now += 1.1
    told.look({("a", 0): Slow(2)})
    assert reader.report()["totals"]["feed:a"]["read"] == 2


def test_a_wait_counts_for_what_was_waited_for(reader: Notebook, clock: Clock):
    def poll(at_most_ms: int) -> str:
        clock.now += at_most_ms / 1000
        return "heard"

    told = reporter(reader)
    assert told.rest("slab", poll, 500) == "heard"
    told.rest("states", poll, 1000)
    told.look()
    rests = reader.report()["totals"]["rests"]
    assert rests == {"trainers": 0.0, "states": 1.0, "slab": 0.5, "life": 1.5}


def test_partitions_that_do_not_fit_are_left_out_and_their_sums_stay(
    reader: Notebook, clock: Clock
):
    many = {("a", n): Run(1, segments={"x" * 50: n}) for n in range(100)}
    reporter(reader).look(many)
    sheet = reader.report()
    assert sheet["partitions"] == [] and sheet["totals"]["feed:a"]["read"] == 100
