"""A request that concerns all partitions of a feed is answered once, for all of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import headrace_server as hs
from headrace_proto.messages import Answered, Drain, Retarget, Snapshot
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.worker.desk import Desk
from headrace_server.worker.events import Opened
from headrace_server.worker.requests import FeedRequests
from headrace_server.worker.sessions import Session

HALVES = (0.5, 0.5)
SCHEMA = [["i", "int64", [4]]]


class Calls:
    """Records every call, by name."""

    def __init__(self, *answers: Any) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.found: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **values: Any) -> Any:
            self.made.append((name, *arguments, values) if values else (name, *arguments))
            return self.found

        return call


class Owner:
    def __init__(self, durable: bool = True, opened: bool = True) -> None:
        declaration = hs.from_examples([{"i": 1}]).batch(4).declaration()
        feed = FeedConfig("f", declaration, (), 2)
        there = "there" if durable else None
        self.desk = Desk(feed, RunConfig((feed,), "/nowhere", (), state_directory=there))
        self.partitions, self.outbox, self.pipe = Calls(), Calls(), Calls()
        self.now = 0.0
        given: Any = self.partitions, lambda call: call(), self.outbox, self.pipe, lambda: self.now
        self.requests = FeedRequests(*given)
        self.session = Session(7, b"n", "f", b"i", b"p", Path("trainer"))
        self.desk.on_opened(Opened(0, SCHEMA))
        if opened:
            self.desk.on_opened(Opened(1, SCHEMA))

    def say(self, message: Any) -> None:
        self.requests.handlers[type(message)](self.session, self.desk, message, [])
        self.act()

    def act(self) -> None:
        self.requests.act(self.desk)

    def changes(self) -> list[tuple[Any, ...]]:
        """Return the calls by which the first request changes a run."""
        ((*asked, change),) = self.partitions.made
        run: Any = Calls()
        change(run)
        assert asked == ["change", "f"]
        return cast("list[tuple[Any, ...]]", run.made)

    def answer(self, message: Any, found: Any) -> list[tuple[Any, ...]]:
        """Ask partitions that answer so; return the messages to the trainer."""
        self.partitions.found = found
        self.say(message)
        return self.outbox.made


@pytest.fixture
def owner() -> Owner:
    return Owner()


def test_a_feed_that_fails_answers_the_supervisor_and_no_trainer(owner: Owner):
    owner.requests.copy(owner.desk, 3, "there")
    owner.act()
    owner.desk.fail("data", "it broke")
    owner.requests.copy(owner.desk, 4, "there")
    assert owner.answer(Retarget(7, 40, HALVES), ([[0, 5], [1, 5]], "")) == []
    ((*_, copied),) = (call for call in owner.partitions.made if call[0] == "copy")
    copied(0, "")
    copied(1, "")
    failed = {"code": "data", "text": "it broke"}
    assert owner.pipe.made == [("report", "answer", {"request": n, **failed}) for n in (4, 3)]


@pytest.mark.parametrize(("fault", "code", "text"), [("", "", ""), ("full", "server", "full")])
def test_a_copy_is_answered_when_all_stores_are_copied(
    owner: Owner, fault: str, code: str, text: str
):
    owner.requests.copy(owner.desk, 3, "there")
    owner.act()
    ((*asked, copied),) = owner.partitions.made
    assert asked == ["copy", "f", "there"]
    copied(1, fault)
    assert owner.pipe.made == []
    copied(0, "")
    text = text and f"partition 1: {text}"
    assert owner.pipe.made == [("report", "answer", {"request": 3, "code": code, "text": text})]


def test_a_drain_is_answered_when_every_partition_has_been_closed_once(owner: Owner):
    owner.say(Drain(7, 8))
    assert owner.partitions.made == [("close", "f", False)]
    owner.say(Drain(7, 8))
    owner.say(Drain(7, 9, True))
    assert owner.partitions.made == [("close", "f", False), ("close", "f", True)]
    assert owner.outbox.made == [("tell", Answered(7, n)) for n in (8, 8, 9)]


def test_a_drain_waits_for_the_claims_of_trainers_of_an_earlier_life(owner: Owner):
    owner.desk.dispatcher.wait_for_others(True)
    owner.say(Drain(7, 8))
    owner.act()
    assert owner.partitions.made == [] and owner.outbox.made == []
    owner.desk.dispatcher.wait_for_others(False)
    owner.act()
    assert owner.partitions.made == [("close", "f", False)]
    assert owner.outbox.made == [("tell", Answered(7, 8))]


def test_a_snapshot_is_the_supervisors_and_one_that_asks_again_is_answered_again(owner: Owner):
    owner.say(Snapshot(7, 4))
    owner.say(Snapshot(7, 4))
    told = {"feed": "f", "session": 7, "request": 4, "name": "", "whole": False}
    assert owner.pipe.made == [("report", "snapshot", told)] and owner.outbox.made == []
    owner.session.snapshotted = SimpleNamespace()
    owner.say(Snapshot(7, 4))
    assert owner.outbox.made == [("send", b"i", owner.session.snapshotted)]
