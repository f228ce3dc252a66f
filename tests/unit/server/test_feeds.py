"""A feed that fails at one owner fails at all; a worker that dies too often ends the server."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.rewinding import USED
from headrace_server.process.worker_diary import Diary
from headrace_server.server.asks import LOCATOR
from headrace_server.server.feeds import Feeds
from headrace_server.server.liveness import FORGIVEN, Patience, Post
from headrace_server.server.starts import Starts

PIPELINE = hs.from_examples([{"x": 1}]).options(on_bad_example="skip", max_bad_examples=3).batch(4)


class Server:
    def __init__(self, *feeds: str, workers: int = 2) -> None:
        configs = tuple(FeedConfig(name, PIPELINE.declaration(), (), 2) for name in feeds)
        starts = Starts(RunConfig(configs, "", (), workers=workers), None)
        self.orders: list[tuple[Any, ...]] = []
        self.feeds = Feeds(threading.Condition(), starts, self.order, None)

    def order(self, owner: int | None = None, /, **values: Any) -> None:
        self.orders.append((owner, values))


def test_a_feed_that_fails_at_one_owner_fails_at_all_and_once():
    server = Server("a")
    for owner in range(2):
        server.feeds.over(owner, feed="a", code="data", text="it broke", batches=0, dropped={})
    failed = {"order": "fail", "feed": "a", "code": "data", "text": "it broke"}
    assert server.orders == [(None, failed)] and server.feeds.begun(0)["failed"]
    assert [event["kind"] for event in server.feeds.events] == ["feed failed"]


def test_owners_get_the_marks_of_all_once_all_have_opened():
    server = Server("a")
    server.feeds.opened(0, before={})
    server.feeds.marked(USED, 0, "a", 2)
    assert server.orders == []
    server.feeds.opened(1, before={})
    assert server.orders == [(None, {"order": "all_opened", "used": [["a", 2]], "touched": []})]


def test_deaths_of_a_worker_are_forgiven_a_few_times(tmp_path: Path):
    server, post = Server("a"), Post(0, tmp_path / "diary-0", Patience(8, 20))
    post.begin()
    Diary(post.diary_file.path)
    entry = post.vacate()
    for _ in range(FORGIVEN):
        assert server.feeds.died("it died", post, entry, 5.0)
    assert server.feeds.failure is None and server.orders == []
    assert not server.feeds.died("it died", post, entry, 5.0)
    text = "it died\nIt died 4 times within 60 s and is given up."
    assert str(server.feeds.failure) == text
    assert server.orders == [(LOCATOR, {"order": "fail", "code": "server", "text": text})]
    assert server.feeds.outcome() == {"a": ("server", text, {})}


def feeds(*names: str, owners: int = 1) -> Feeds:
    return Server(*names, workers=owners).feeds


def over(of: Feeds, owner: int, feed: str, code: str = "", text: str = "") -> None:
    of.over(owner, feed=feed, code=code, text=text, batches=3, dropped={"bad": 2})


@pytest.mark.parametrize("error", [ValueError("keys='k' has no x"), PermissionError(13, "no", "f")])
def test_a_fault_of_the_keys_is_the_error_that_the_locator_met(error: ValueError | PermissionError):
    of = feeds("f")
    if isinstance(error, PermissionError):
        of.can_not_use_keys(LOCATOR, text="no", number=13, path="f")
    else:
        of.can_not_use_keys(LOCATOR, text=str(error))
    assert type(of.unusable) is type(error) and str(of.unusable) == str(error)


def test_the_next_life_of_an_owner_begins_with_what_was_reported_before():
    of = feeds("f", owners=2)
    of.opened(0, before={"f": 1})
    of.opened(0, before={"f": 9})  # of its next life
    of.marked(USED, 1, "f", 3)
    assert of.begun(0) == {"failed": {}, "all_opened": None, "before": {"f": 1}}
    of.opened(1, before={})
    of.fail("f", "data", "why")
    marks = {"used": [["f", 3]], "touched": []}
    failed = {"f": ("data", "why")}
    assert of.begun(1) == {"failed": failed, "all_opened": marks, "before": {}}
    of.begin_anew("f")
    assert of.begun(1)["failed"] == {} and of.begun(0)["before"] == {}
    of.opened(0, before={"f": 5})  # the commits of the snapshot
    assert of.begun(0)["before"] == {"f": 5}


def test_feeds_that_have_failed_are_tried_again_when_another_is_taken_back():
    of = feeds("f", "ill", "well")
    over(of, 0, "ill", "data", "why")
    over(of, 0, "well")
    of.fail("ill", "data", "why")
    of.begin_anew("f")
    assert of.outcome() == {"well": ("", "", {"bad": 2})} and of.begun(0)["failed"] == {}


def test_a_feed_has_ended_when_it_has_at_the_last_owner(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "headrace.server")
    of = feeds("f", owners=2)
    for owner in range(2):
        assert not (of.open or of.all_over)
        of.opened(owner, before={})
        over(of, owner, "f")
        over(of, owner, "f")  # its next life reports it again
    assert of.open and of.all_over
    assert of.outcome() == {"f": ("", "", {"bad": 4})}
    assert caplog.messages == ["feed 'f' has ended after 6 batches"]
    of.begin_anew("f")
    assert of.outcome() == {} and of.open


def test_committed_counts_do_not_fall_while_the_next_life_of_an_owner_opens():
    of = feeds("f")
    seen = []
    for state, n in (("opening", 0), ("open", 5), ("opening", 0), ("open", 6)):
        feed = {"state": state, "batches": n, "rows": n, "stale": n}
        seen.append(of.lasting(0, {"feeds": {"f": feed}, "access": {}})["feeds"]["f"])
    assert [one["batches"] for one in seen] == [0, 5, 5, 6]
    assert [one["stale"] for one in seen] == [0, 5, 0, 6]


def test_the_oldest_events_go_and_long_texts_are_cut():
    of = feeds("f")
    for n in range(60):
        of.note("n", f"{n} " + "x" * 10_000)
    assert len(of.events) == 50 and of.events[-1]["text"].startswith("10 ")
    assert all(len(event["text"]) == 4000 for event in of.events)
