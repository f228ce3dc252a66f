"""Saves are answered once, when they are kept, and along with a batch where that is soon enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_server.core.dispatch_effects import Batch, StoreCommit
from headrace_server.worker.commits import Stores
from headrace_server.worker.desk import Desk
from headrace_server.worker.state_blocks import StateFlush
from tests.unit.lives import House, step

NAME = ("f", 0)
SCHEMA = {"k": hs.scalar("bytes"), "x": hs.sequence("int64")}
#: Each partition has 100 batches of one segment.
SEGMENTS = hs.from_examples([{"k": b"k%d" % i, "x": [i]} for i in range(200)], SCHEMA)
STATES = {"s": hs.zeros((2,))}
SHAPED = SEGMENTS.batch_sequences_with_states("k", ["x"], [], None, STATES, 1, 1, capacity=200)
Open = Callable[..., tuple[House, Stores, Any]]


@pytest.fixture
def at_work(tmp_path: Path) -> Iterator[Open]:
    houses: list[House] = []
    (tmp_path / "lives").mkdir()

    def open_(
        durable: bool, wanted: int = 100, durability: str = "power"
    ) -> tuple[House, Stores, Any]:
        state = tmp_path / "state" if durable else None
        one = House(SHAPED, tmp_path / "lives", state, durability)
        houses.append(one)
        run = one.open()
        run.commits.want(wanted, 0)
        for _ in range(wanted):
            step(run)
        return one, one.stores, run

    yield open_
    for one in houses:
        one.stores.close()


def save(commits: Stores, run: Any, number: int, token: int = 0) -> None:
    batch = Batch(NAME[1], number, 1)
    commits.save(NAME, run, StoreCommit(batch, ([[0, 8, [1, 2]]], bytes(8)), token))


def test_a_save_that_is_refused_is_answered_with_why(at_work: Open):
    one, commits, run = at_work(durable=False, wanted=1)
    save(commits, run, 0)
    save(commits, run, 0)
    told = [kept for event in one.until_sent(1) for kept in event[-1]]
    assert told == [(0, "", ""), (0, "stale", "batch 0 is not out")]


def test_with_a_store_a_save_is_answered_when_it_is_committed(at_work: Open):
    one, commits, run = at_work(durable=True, wanted=2)
    save(commits, run, 0, 70)
    save(commits, run, 0, 71)
    assert one.sent == []
    told = [kept for event in one.until_sent(1) for kept in event[-1]]
    assert told == [(0, "", ""), (0, "stale", "batch 0 is not out")]
    one.stores.close()
    two, commits, run = at_work(durable=True, wanted=0)
    assert two.stores.knows(NAME, 70) and not two.stores.knows(NAME, 71), "what is refused is not"
    save(commits, run, 0, 70)
    assert two.until_sent(1) == [("f", Desk.on_stored, 0, [(0, "", "")])], (
        "as it was answered before"
    )


def test_commits_written_without_a_thread_are_answered_when_they_are_written(at_work: Open):
    one, commits, run = at_work(durable=True, wanted=2, durability="process")
    save(commits, run, 0, 70)
    assert one.sent == []
    assert one.write() == [] and one.sent == [("f", Desk.on_stored, 0, [(0, "", "")])]


@pytest.mark.parametrize("durable", [False, True])
def test_a_flush_is_answered_after_the_last_message_of_it(at_work: Open, durable: bool):
    one, commits, run = at_work(durable, wanted=1)
    commits.flush(NAME, run, StateFlush(0, 5, 6, (), [], True), b"")
    commits.flush(NAME, run, StateFlush(0, 5, 6, (), []), b"")
    assert one.until_sent(1) == [("f", Desk.on_flushed, 5, 6)]
