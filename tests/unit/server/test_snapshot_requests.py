"""A thread of its own takes snapshots and takes feeds back, and answers the owners that asked."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.errors import DataError, ServerError
from headrace_server.journal.state_directory import StateDirectory
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.rewinding import BEGINNING
from headrace_server.server.snapshot_requests import SnapshotRequests
from tests.patience import PATIENCE_S

FEED = FeedConfig("a", hs.from_examples([{"x": 1}]).batch(4).declaration(), (), 1)


class Supervisor:
    def __init__(self, path: Path) -> None:
        self.durable = StateDirectory(path, "power")
        self.durable.begin(RunConfig((FEED,), "", ()), {})
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.notes: list[tuple[str, str]] = []
        self.terms: queue.Queue[int] = queue.Queue()
        self.answer = {"code": "", "text": ""}
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.requests = SnapshotRequests(
            self.durable, lambda: 4, self.ask, self.order, self.note, self.take_back
        )

    def ask(
        self, order: str, timeout_s: None, failure: Any, feed: str, directory: str
    ) -> dict[int, dict[str, str]]:
        Path(directory, "0.journal").write_bytes(b"store")
        self.asked.set()
        assert self.may_answer.wait(PATIENCE_S)
        if failure() is not None:
            raise failure()
        return {0: {"code": "", "text": ""}, 1: self.answer}

    def order(self, owner: int | None = None, /, **order: Any) -> None:
        self.orders.put(order)

    def note(self, kind: str, text: str) -> None:
        self.notes.append((kind, text))

    def take_back(self, feed: str, prepared: Any) -> None:
        assert feed == "a"
        self.terms.put(prepared(FEED))


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    one = Supervisor(tmp_path)
    yield one
    one.requests.close()
    one.durable.close()


def made(supervisor: Supervisor) -> str:
    supervisor.requests.on_snapshot(0, feed="a", session=3, request=1)
    answer = supervisor.orders.get(timeout=PATIENCE_S)
    assert (answer["order"], answer["session"]) == ("snapshotted", 3)
    return str(answer["value"]["snapshot"])


def test_without_a_state_directory_a_feed_goes_back_to_its_beginning_only():
    orders: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
    terms: list[int] = []

    def begin_next(feed: str, prepared: Any) -> None:
        terms.append(prepared(FEED))
        if len(terms) == 2:
            raise ServerError("no process to spare")

    def order(owner: int, **order: Any) -> None:
        orders.put((owner, order))

    supervisor: Any = None
    notes: list[tuple[str, str]] = []
    requests = SnapshotRequests(
        None, lambda: 4, supervisor, order, lambda *note: notes.append(note), begin_next
    )
    requests.take_back("a", BEGINNING)
    requests.on_take_back(1, feed="a", snapshot=BEGINNING)
    owner, refusal = orders.get(timeout=PATIENCE_S)
    assert (owner, refusal["order"], refusal["snapshot"]) == (1, "not_taken_back", BEGINNING)
    assert refusal["text"] == "no process to spare" and terms == [0, 0]
    assert notes == [("taken back", "feed 'a' to its beginning")] * 2
    with pytest.raises(ServerError, match="feed 'a' has no state_dir"):
        requests.snapshot("a", 0)


def test_a_request_to_a_life_that_has_ended_is_not_carried_out_in_the_next(
    supervisor: Supervisor,
):
    """1. A feed is to be taken back; 2. another has all workers replaced first."""
    name = made(supervisor)
    waits, ended = threading.Event(), threading.Event()
    done = threading.Event()

    def take_back(feed: str, prepared: Any) -> None:
        waits.set()
        ended.wait(PATIENCE_S)
        try:
            prepared(FEED)
        finally:
            done.set()

    supervisor.requests.begin_next = take_back
    supervisor.requests.on_take_back(0, feed="a", snapshot=name)
    assert waits.wait(PATIENCE_S)
    supervisor.requests.close()
    ended.set()
    assert done.wait(PATIENCE_S)
    assert supervisor.notes == []
    for thread in threading.enumerate():
        if thread.name == "headrace-state":
            thread.join(PATIENCE_S)
    assert supervisor.orders.empty()  # the next lives were not asked: they have nothing to refuse


def test_an_operators_snapshot_is_waited_for_until_its_time_is_over(supervisor: Supervisor):
    assert supervisor.requests.snapshot("a", PATIENCE_S)["feed"] == "a"
    supervisor.may_answer.clear()
    with pytest.raises(ServerError, match="took longer than 0 s"):
        supervisor.requests.snapshot("a", 0)
    supervisor.may_answer.set()


def test_a_trainer_gets_no_answer_to_its_snapshot_in_the_next_life(supervisor: Supervisor):
    """1. A snapshot is being made; 2. the server begins its next life, where it is asked again."""
    supervisor.may_answer.clear()
    supervisor.requests.on_snapshot(0, feed="a", session=3, request=1)
    assert supervisor.asked.wait(PATIENCE_S)
    supervisor.requests.close()
    supervisor.may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "headrace-state":
            thread.join(PATIENCE_S)
    assert supervisor.orders.empty()


def test_a_snapshot_that_can_not_be_made_is_an_error_and_leaves_no_file(
    supervisor: Supervisor, tmp_path: Path
):
    supervisor.answer = {"code": "data", "text": "partition 2: the disk is full"}
    with pytest.raises(DataError, match="the snapshot was not made: partition 2: the disk is full"):
        supervisor.requests.snapshot("a", PATIENCE_S)
    assert list((tmp_path / "snapshots" / "a").iterdir()) == []


def test_the_trainer_gets_the_error_of_a_directory_that_can_not_be_written(
    supervisor: Supervisor, tmp_path: Path
):
    (tmp_path / "snapshots").write_text("a file")
    supervisor.requests.on_snapshot(0, feed="a", session=3, request=1)
    answer = supervisor.orders.get(timeout=PATIENCE_S)
    assert (answer["value"], answer["code"]) == (None, "server") and "snapshots" in answer["text"]


def test_no_more_are_made_at_a_time_than_can_be(supervisor: Supervisor):
    """1. Sixteen are being made; 2. the next is refused; 3. once they are made, one more is."""
    supervisor.may_answer.clear()
    for request in range(17):
        supervisor.requests.on_snapshot(0, feed="a", session=3, request=request)
    assert "16 snapshots are being made" in supervisor.orders.get(timeout=PATIENCE_S)["text"]
    supervisor.may_answer.set()
    for _ in range(16):
        assert supervisor.orders.get(timeout=PATIENCE_S)["value"]
    assert supervisor.requests.snapshot("a", PATIENCE_S)
