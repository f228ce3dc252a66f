"""A watch asks seldom, tells of a server that is not there, and judges what it sees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_server.server import watch as module
from headrace_server.server.watch import Watch

from .statuses import feed
from .watched import Watched


@pytest.fixture
def watch() -> Iterator[Watch]:
    one = Watch()
    yield one
    one.end()


def test_however_many_ask_the_server_is_looked_at_once_in_a_while(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_FRESH_S", 600.0)
    server = Watched()
    watch.begin(server)
    for _ in range(50):
        watch.status()
    assert server.looks == 1


def test_a_status_has_rates_and_a_verdict_for_each_feed(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "_FRESH_S", 0.0)
    watch.begin(Watched())
    watch.status()
    status = watch.status()
    assert status["feeds"]["a"]["rates"]["rows"] == 0.0
    assert status["feeds"]["a"]["trainers"][0]["rates"]["rows"] == 0.0
    assert status["feeds"]["a"]["verdict"]["text"]
    assert status["workers"][0]["shares"].keys() == {"work", "trainers", "states", "slab"}
    assert status["state"] == "serving" and status["addresses"] == ["tcp://127.0.0.1:5557"]


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (["open", "failed"], "serving"),
        (["ended", "ended"], "ended"),
        (["ended", "failed"], "feeds failed"),
    ],
)
def test_the_state_of_a_server_is_that_of_its_feeds_together(
    watch: Watch, states: list[str], state: str
):
    feeds = {str(i): feed(state=s, failure=["data", "x"]) for i, s in enumerate(states)}
    watch.begin(Watched(**feeds))
    assert watch.status()["state"] == state
