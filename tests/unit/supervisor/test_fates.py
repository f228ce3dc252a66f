"""A feed that fails at one owner fails at all; a worker that dies too often ends the server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from headrace_proto.errors import UnknownFeed
from headrace_server import pipeline as hs
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.diary import Diary
from headrace_server.supervisor.asks import FRONT
from headrace_server.supervisor.fates import Fates
from headrace_server.supervisor.posts import FORGIVEN, Patience, Slot
from headrace_server.supervisor.starts import Starts
from tests.patience import eventually

PIPELINE = hs.from_examples([{"x": 1}]).options(on_bad_example="skip", max_bad_examples=3).batch(4)


class Server:
    def __init__(self, *feeds: str) -> None:
        configs = tuple(FeedConfig(name, PIPELINE.declaration(), (), 2) for name in feeds)
        starts = Starts(RunConfig(configs, "", (), workers=2), None)
        self.orders: list[tuple[Any, ...]] = []
        self.fates = Fates(threading.Condition(), starts, self.order, None)

    def order(self, owner: int | None = None, /, **values: Any) -> None:
        self.orders.append((owner, values))

    def hear(self, owner: int, kind: str, **values: Any) -> None:
        self.fates.hear({"event": kind, **values}, owner)


def test_a_feed_that_fails_at_one_owner_fails_at_all_and_once():
    server = Server("a")
    for owner in range(2):
        server.hear(owner, "over", feed="a", code="data", text="it broke", dropped={})
    eventually(lambda: server.orders)
    failed = {"order": "fail", "feed": "a", "code": "data", "text": "it broke"}
    assert server.orders == [(None, failed)] and server.fates.reports.failed
    assert [event["kind"] for event in server.fates.chronicle.told()] == ["feed failed"]


def test_bad_examples_of_all_owners_together_are_too_many():
    server = Server("a")
    for owner in range(2):
        assert not server.fates.reports.over
        server.hear(owner, "bad", feed="a", bad={"short": 2})
    eventually(lambda: server.orders)
    ((_, order),) = server.orders
    assert order["code"] == "data" and "max_bad_examples=3" in order["text"]
    server.hear(0, "bad", feed="a", bad={"short": 3})
    assert len(server.fates.reports.over) == 1


def test_owners_are_told_when_all_have_opened_what_each_knows():
    server = Server("a")
    server.hear(0, "open", before={})
    server.hear(0, "used", feed="a", generation=2)
    assert server.orders == []
    server.hear(1, "open", before={})
    eventually(lambda: server.orders)
    assert server.orders == [(None, {"order": "all_opened", "used": [["a", 2]], "touched": []})]


def test_deaths_of_a_worker_are_forgiven_a_few_times(tmp_path: Path):
    server, slot = Server("a"), Slot(0, tmp_path / "diary-0", Patience(8, 20))
    slot.begin()
    Diary(slot.diary)
    _, entry = slot.vacate()
    for _ in range(FORGIVEN):
        assert server.fates.died("it died", slot, entry, 5.0)
    assert server.fates.failure is None and server.orders == []
    assert not server.fates.died("it died", slot, entry, 5.0)
    text = "it died\nIt died 4 times within 60 s and is given up."
    assert str(server.fates.failure) == text
    assert server.orders == [(FRONT, {"order": "fail", "code": "server", "text": text})]
    assert server.fates.reports.outcome() == {"a": ("server", text, {})}


def test_a_feed_need_not_be_named_where_there_is_one():
    assert Server("a").fates.named(None) == "a"
    fates = Server("a", "b").fates
    assert fates.named("b") == "b"
    with pytest.raises(UnknownFeed, match="feed= is needed; this server has 'a', 'b'"):
        fates.named(None)
    with pytest.raises(UnknownFeed, match="feed='c' is none of a, b"):
        fates.named("c")
