"""Answers by HTTP: which peers may read, and bad requests."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from headrace_server.watch.answers import Answers, Response
from headrace_server.watch.watch import Watch

from .statuses import feed
from .watched import Watched

HERE = {"host": "127.0.0.1:8080"}
SEGMENTS = {"source": "npz", "stages": [], "shape": "sequences", "partitions": 1}


@pytest.fixture
def server() -> Watched:
    return Watched(a=feed(), s=feed(pipeline=SEGMENTS))


@pytest.fixture
def watch(server: Watched, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    monkeypatch.setattr("headrace_server.watch.watch._FRESH_S", 0.0)
    one = Watch()
    one.begin(server)
    yield one
    one.end()


def get(watch: Watch, target: str, local: bool = True, **headers: str) -> Response:
    return Answers(watch, local).answer("GET", target, {**HERE, **headers})


# Reading


def test_health_is_that_of_the_locator_and_readiness_that_of_the_feeds(
    watch: Watch, server: Watched
):
    assert get(watch, "/healthz").status == 200
    assert get(watch, "/readyz").status == 200
    server.feeds["a"]["state"] = "opening"
    watch = Watch()
    watch.begin(server)
    assert get(watch, "/healthz").status == 200
    assert get(watch, "/readyz").status == 503 and get(watch, "/readyz?feed=s").status == 200
    told = get(watch, "/readyz?feed=a")
    assert (told.status, told.body) == (503, b"a is opening\n")
    assert get(watch, "/readyz?feed=nonesuch").status == 404
    watch.end()


@pytest.mark.parametrize(("state", "status"), [("ended", 200), ("closing", 200), ("failed", 503)])
def test_a_feed_that_can_tell_its_trainers_the_end_is_ready(
    server: Watched, state: str, status: int
):
    server.feeds = {"a": feed(state=state, failure=["data", "x"])}
    watch = Watch()
    watch.begin(server)
    assert get(watch, "/readyz").status == status
    watch.end()


def test_a_server_that_can_not_store_lives_and_is_not_healthy(watch: Watch, server: Watched):
    store = {"commits": 1, "since_commit_s": 2.0, "faults": ["0.journal: No space left"]}
    server.feeds["a"] = feed(store=store)
    assert get(watch, "/livez").status == 200
    told = get(watch, "/healthz")
    assert (told.status, told.body) == (503, b"0.journal: No space left\n")
    server.feeds["a"] = feed()
    server.disk = {"path": "state", "free_bytes": 0, "fault": "the disk is full"}
    told = get(watch, "/healthz")
    assert (told.status, told.body) == (503, b"the disk is full\n")
    assert b"headrace_state_fault 1.0\n" in get(watch, "/metrics").body


def test_one_that_starts_lives_and_is_not_ready_and_one_that_failed_does_neither():
    starting = Watch()
    assert get(starting, "/healthz").status == 200 and get(starting, "/readyz").status == 503
    told = get(starting, "/inspect?key=k")
    assert (told.status, told.body) == (503, b"the workers are opening the sources\n")
    server = Watched()
    server.fail("the locator is gone")
    failed = Watch()
    failed.begin(server)
    told = get(failed, "/healthz")
    assert (told.status, told.body) == (503, b"the locator is gone\n")
    assert get(failed, "/readyz").status == 503 and get(failed, "/metrics").status == 200
    assert get(failed, "/").status == 200 and get(failed, "/status.json").status == 200
    failed.end()


def test_the_page_comes_with_a_policy_that_lets_nothing_else_in(watch: Watch):
    page = get(watch, "/")
    assert page.kind.startswith("text/html")
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_inspect_hands_the_key_on_byte_for_byte(watch: Watch, server: Watched):
    place = {"partition": 0, "epoch": 0, "segment": 1, "segments": 4, "where": "ready"}
    server.answer = {"found": [place], "event": "answer"}
    told = json.loads(get(watch, "/inspect?key=a%ffb%26c%2B").body)
    assert server.asked == [{"order": "inspect", "feed": "s", "key": b"a\xffb&c+".hex()}]
    assert told == {"feed": "s", "key": "a\\xffb&c+", "found": [place]}


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", b"a key has 1 to 4096 bytes, not 0"),
        ("?key=", b"a key has 1 to 4096 bytes, not 0"),
        ("?key=" + "x" * 5000, b"bytes, not 5000"),
        ("?key=k&feed=nonesuch", b"of the feeds of segments: s"),
        ("?key=k&feed=a", b"of the feeds of segments: s"),
    ],
)
def test_inspect_says_what_it_needs(watch: Watch, server: Watched, query: str, says: bytes):
    told = get(watch, f"/inspect{query}")
    assert told.status == 400 and says in told.body and server.asked == []


def test_what_is_not_there_is_not_found(watch: Watch):
    for target in ("/nonesuch", "/metrics/", "/../etc/passwd", "//status.json", "/%00"):
        assert get(watch, target).status == 404, target
    assert Answers(watch, True).answer("POST", "/metrics", HERE).status == 405


# Who may


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "10.0.0.1", "127.0.0.1.evil.example"]
)
def test_a_name_that_somebody_points_at_this_machine_is_not_answered(watch: Watch, host: str):
    assert get(watch, "/status.json", host=host).status == 421
    assert get(watch, "/status.json", local=False, host=host).status == 200
