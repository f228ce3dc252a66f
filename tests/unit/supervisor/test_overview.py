"""A whole server in one value: what the front said, and what workers wrote, joined by feed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from headrace_server import pipeline as hs
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.process.diary import Diary
from headrace_server.supervisor.overview import overview
from headrace_server.supervisor.posts import Patience, Post

PIPELINE = hs.from_examples([{"i": 1}]).shuffle(seed=1).select(["i"]).batch(4)
FEED = FeedConfig("a", PIPELINE.declaration(), (), 2)
CONFIG = RunConfig((FEED,), "d", (), workers=2, slab_bytes=1000)


def entry(partition: int, **more: Any) -> dict[str, Any]:
    progress = {"number": 5, "epoch": 0, "position": 3, "share": 10, "read": 7}
    return {"feed": "a", "partition": partition, **progress, **more}


def told(posts: list[Post], **feed: Any) -> dict[str, Any]:
    partitions = [{"partition": p, "worker": p} for p in range(2)]
    answer = {"feeds": {"a": {"partitions": partitions, **feed}}, "access": {"keys": True}}
    return overview(CONFIG, answer, posts, {"a": 1})


@pytest.fixture
def posts(tmp_path: Path) -> list[Post]:
    places = [Post(n, tmp_path / f"diary-{n}", Patience(8, 20), 2) for n in range(2)]
    for post in places:
        post.begin()
    return places


def write(
    post: Post, *entries: dict[str, Any], read: int = 0, commits: int = 0, **rests: float
) -> None:
    totals = {"rests": rests, "feed:a": {"read": read, "commits": commits}}
    Diary(post.notebook.path).report({"slab": 64, "totals": totals, "partitions": list(entries)})


def test_workers_that_have_written_nothing_yet_are_there_all_the_same(posts: list[Post]):
    seen = told(posts)
    feed = seen["feeds"]["a"]
    assert (feed["read"], feed["quarantined"], seen["access"]) == (0, 1, {"keys": True})
    assert "store" not in feed and "segments" not in feed and "epoch" not in feed["partitions"][0]
    assert [w["slab_bytes"] for w in seen["workers"]] == [0, 0]
    assert feed["pipeline"] == {
        "source": "examples",
        "stages": ["shuffle", "select"],
        "shape": "batch",
        "partitions": 2,
    }


def test_rows_read_are_those_of_all_workers_and_all_their_lives(posts: list[Post]):
    write(posts[0], entry(0), read=7)
    posts[0].begin()
    write(posts[0], entry(0), read=2)
    write(posts[1], entry(1), read=10)
    feed = told(posts)["feeds"]["a"]
    assert feed["read"] == 19
    assert [p["position"] for p in feed["partitions"]] == [3, 3]


def test_time_that_a_worker_did_not_wait_is_work(posts: list[Post]):
    write(posts[0], life=10.0, trainers=3.0, states=0.0, slab=1.0)
    worker = told(posts)["workers"][0]
    assert worker["work_s"] == 6.0
    assert worker["rests_s"] == {"trainers": 3.0, "states": 0.0, "slab": 1.0}
    assert (worker["slab_bytes"], worker["slab_limit_bytes"], worker["restarts"]) == (64, 1000, 0)


def test_what_segments_wait_for_is_added_over_partitions(posts: list[Post]):
    write(posts[0], entry(0, segments={"ready": 1, "leased": 2, "full": 3}))
    write(posts[1], entry(1, segments={"ready": 10, "leased": 20, "full": 30}))
    feed = told(posts, segments={"in_flight": 5, "rewound": 0})["feeds"]["a"]
    assert feed["segment_standing"] == {"ready": 11, "leased": 22, "full": 33}
    assert feed["segments"] == {"in_flight": 5, "rewound": 0}


def test_of_stores_the_last_commit_counts_and_every_fault_is_told(posts: list[Post]):
    now = time.monotonic()
    write(posts[0], entry(0, committed_at=now - 50, fault=""), commits=3)
    write(posts[1], entry(1, committed_at=now - 2, fault="1.journal: disk is full"), commits=4)
    store = told(posts)["feeds"]["a"]["store"]
    assert store["commits"] == 7 and store["faults"] == ["1.journal: disk is full"]
    assert 2 <= store["since_commit_s"] < 10
    write(posts[0], entry(0, committed_at=0.0, fault=""))
    write(posts[1], entry(1, committed_at=0.0, fault=""))
    assert told(posts)["feeds"]["a"]["store"]["since_commit_s"] is None
