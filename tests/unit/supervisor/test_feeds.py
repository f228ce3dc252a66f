"""A feed that fails at one owner fails at all; a worker that dies too often ends the server."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.worker_diary import Diary
from headrace_server.supervisor.asks import FRONT
from headrace_server.supervisor.feeds import Feeds
from headrace_server.supervisor.liveness import FORGIVEN, Patience, Post
from headrace_server.supervisor.starts import Starts

PIPELINE = hs.from_examples([{"x": 1}]).options(on_bad_example="skip", max_bad_examples=3).batch(4)


class Server:
    def __init__(self, *feeds: str, workers: int = 2) -> None:
        configs = tuple(FeedConfig(name, PIPELINE.declaration(), (), 2) for name in feeds)
        starts = Starts(RunConfig(configs, "", (), workers=workers), None)
        self.orders: list[tuple[Any, ...]] = []
        self.feeds = Feeds(threading.Condition(), starts, self.order, None)

    def order(self, owner: int | None = None, /, **values: Any) -> None:
        self.orders.append((owner, values))


def test_deaths_of_a_worker_are_forgiven_a_few_times(tmp_path: Path):
    server, post = Server("a"), Post(0, tmp_path / "diary-0", Patience(8, 20))
    post.begin()
    Diary(post.diary_file.path)
    _, entry = post.vacate()
    for _ in range(FORGIVEN):
        assert server.feeds.died("it died", post, entry, 5.0)
    assert server.feeds.failure is None and server.orders == []
    assert not server.feeds.died("it died", post, entry, 5.0)
    text = "it died\nIt died 4 times within 60 s and is given up."
    assert str(server.feeds.failure) == text
    assert server.orders == [(FRONT, {"order": "fail", "code": "server", "text": text})]
    assert server.feeds.outcome() == {"a": ("server", text, {})}


def feeds(*names: str, owners: int = 1) -> Feeds:
    return Server(*names, workers=owners).feeds


@pytest.mark.parametrize("error", [ValueError("keys='k' has no x"), PermissionError(13, "no", "f")])
def test_a_fault_of_the_keys_is_the_error_that_the_front_met(error: ValueError | PermissionError):
    of = feeds("f")
    if isinstance(error, PermissionError):
        of.can_not_use_keys(FRONT, text="no", number=13, path="f")
    else:
        of.can_not_use_keys(FRONT, text=str(error))
    assert type(of.unusable) is type(error) and str(of.unusable) == str(error)


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
