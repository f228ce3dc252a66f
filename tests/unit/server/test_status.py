"""The status joins the answers of the locator and of owners with what the supervisor knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_server.process.config import MOST_TRAINERS, FeedConfig, RunConfig
from headrace_server.process.statuses import SeenServer, joined
from headrace_server.server.liveness import Patience, Post
from headrace_server.server.status import overview


def trainer(number: int, nonce: str, **changes: Any) -> dict[str, Any]:
    told = {"trainer": number, "id": nonce, "host": "there:7", "name": "", "local": True}
    told |= {"silent_s": 1.0, "rank": -1, "requests": 2, "leases": 1, "batches": 3, "rows": 9}
    told |= {"bytes": 90, "committed": 2, "stale": 0, "refused": {}, "blocked_s": 1.5}
    told |= {"wire_batches": 0, "wire_bytes": 0, "awaited_s": {"0/1": 0.5}}
    return {**told, "busy_s": 2.5, **changes}


def feed(**changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"batches": 4, "rows": 12, "redelivered": 1, "stale": 0, "expired": 0}
    told |= {"made": {"batches": 5, "rows": 15, "bytes": 150}, "refused": {"state": 1}}
    told |= {"dropped": {"bad:x": 1}, "padding": {"3": [10, 7]}, "classes": {}, "state": "open"}
    told |= {"failure": None, "waiting": "nothing", "standing": {"ready": 1, "leased": 2}}
    return {**told, "partitions": [], "trainers": [], "trainers_more": 0, **changes}


def stats(*feeds: dict[str, Any]) -> Any:
    return joined(SeenServer, [{"feeds": {"f": told}} for told in feeds])["feeds"]["f"]


def test_a_feed_is_failed_or_opening_if_one_owner_reports_it_and_ended_if_all_do():
    states = [
        (("open", "ended"), "open"),
        (("ended", "ended"), "ended"),
        (("opening", "open"), "opening"),
        (("open", "failed"), "failed"),
        (("closing", "open"), "closing"),
    ]
    for owners, whole in states:
        assert stats(*(feed(state=state) for state in owners))["state"] == whole
    told = stats(feed(waiting="a"), feed(waiting="b", failure=["data", "why"]), feed(waiting="a"))
    assert told["waiting"] == "a; b" and told["failure"] == ["data", "why"]


def test_the_first_of_many_trainers_are_listed_and_the_others_counted():
    many = [trainer(n, f"{n}") for n in range(MOST_TRAINERS)]
    told = stats(feed(trainers=many), feed(trainers=[trainer(1000, "last")], trainers_more=0))
    assert len(told["trainers"]) == MOST_TRAINERS and told["trainers_more"] == 1


PIPELINE = hs.from_examples([{"i": 1}]).shuffle(seed=1).select(["i"]).batch(4)
FEED = FeedConfig("a", PIPELINE.declaration(), (), 2)
CONFIG = RunConfig((FEED,), "d", (), workers=2, slab_bytes=1000)


def seen_of(posts: list[Post], *owners: dict[str, Any]) -> Any:
    return overview(CONFIG, [{"access": {"keys": True}}, *owners], posts)


@pytest.fixture
def posts(tmp_path: Path) -> list[Post]:
    places = [Post(n, tmp_path / f"diary-{n}", Patience(8, 20)) for n in range(2)]
    for post in places:
        post.begin()
    return places


def owner(number: int) -> dict[str, Any]:
    worker = {"worker": number, "slab_bytes": 64, "work_s": 6.0, "rests_s": {"slab": 1.0}}
    store = {"commits": 3, "since_commit_s": 5.0 - number, "faults": [f"{number}.journal"]}
    partition = {"partition": number, "worker": number, "position": 3}
    standing = {"ready": 1, "full": 3}
    return {
        "feeds": {
            "a": feed(read=7, store=store, partitions=[partition], segment_standing=standing)
        },
        "workers": [worker],
    }


def test_a_status_has_the_answers_of_all_and_what_the_supervisor_knows(posts: list[Post]):
    seen = seen_of(posts, owner(0), owner(1))
    told = seen["feeds"]["a"]
    assert (told["read"], seen["access"]) == (14, {"keys": True})
    assert [p["position"] for p in told["partitions"]] == [3, 3]
    assert told["segment_standing"] == {"ready": 2, "full": 6}
    faults = ["0.journal", "1.journal"]
    assert told["store"] == {"commits": 6, "since_commit_s": 5.0, "faults": faults}
    assert told["pipeline"] == {
        "source": "examples",
        "stages": ["shuffle", "select"],
        "shape": "batch",
        "partitions": 2,
    }
    assert seen["workers"][1] == {
        "worker": 1,
        "pid": None,
        "restarts": 0,
        "doing": "it is dead, and will be started again",
        "slab_bytes": 64,
        "slab_limit_bytes": 1000,
        "work_s": 6.0,
        "rests_s": {"slab": 1.0},
        "shares": {},
    }
