"""Partitions that make no batch report what they lack, once a second."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_server.worker.desk import Desk
from headrace_server.worker.partitions import StallReports

NAME = ("f", 0)
STARVED = ("f", Desk.on_starved, 0)


class OneRun:
    """A run that lacks the states of batch 7."""

    made_ahead = True

    @property
    def commits(self) -> OneRun:
        return self

    def lacks(self) -> tuple[str, int]:
        return "states", 7


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock: its only element."""
    clock = [0.0]
    monkeypatch.setattr("headrace_server.worker.partitions.time.monotonic", lambda: clock[0])
    return clock


def test_a_partition_reports_why_it_waits_after_a_second_and_then_once_a_second(now: list[float]):
    sent: list[Any] = []
    run: Any = OneRun()
    lacks = StallReports(sent.append)
    for now[0] in (0.0, 0.5, 0.9, 1.5, 2.0, 2.6):
        lacks.wait(NAME, run)
    assert sent == [("f", Desk.on_waiting, 0, "states", 7)] * 2
    lacks.made(NAME, 3.0)
    for now[0] in (3.5, 3.9):
        lacks.wait(NAME, run)
    assert len(sent) == 2, "it has made a batch a moment ago"
    now[0] = 4.5
    lacks.wait(NAME, run, "room")
    assert sent[2:] == [("f", Desk.on_waiting, 0, "room", -1)]


def test_a_run_that_knows_of_nothing_that_it_lacks_reports_nothing(now: list[float]):
    sent: list[Any] = []
    run: Any = OneRun()
    run.lacks = lambda: ("", -1)
    lacks = StallReports(sent.append)
    for now[0] in (0.0, 5.0):
        lacks.wait(NAME, run)
    assert sent == []


def test_a_full_slab_is_reported_once_to_each_feed_that_makes_batches_ahead():
    sent: list[Any] = []
    lacks, ahead, wanted = StallReports(sent.append), OneRun(), OneRun()
    wanted.made_ahead = False
    running: Any = {NAME: ahead, ("f", 1): ahead, ("s", 0): wanted}
    lacks.full(running)
    lacks.full(running)
    assert sent == [STARVED]
    lacks.made(("f", 1), 0.0)
    lacks.full(running)
    assert sent == [STARVED] * 2


def test_a_partition_that_waits_for_states_reports_it_once_until_it_works_on():
    sent: list[Any] = []
    lacks = StallReports(sent.append)
    for starved in (False, True, True):
        lacks.starve(NAME, starved)
    assert sent == [STARVED] and lacks.starved == {NAME}
    lacks.starved.discard(NAME)
    lacks.starve(NAME, True)
    assert len(sent) == 2
