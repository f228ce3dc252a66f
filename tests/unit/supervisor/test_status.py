"""The status joins the answers of the front and of owners with what the supervisor knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_server.process.config import MOST_FOUND, MOST_TRAINERS, FeedConfig, RunConfig
from headrace_server.process.statuses import OwnersAnswer, SeenServer, joined
from headrace_server.supervisor.liveness import Patience, Post
from headrace_server.supervisor.status import overview


def trainer(number: int, nonce: str, **changes: Any) -> dict[str, Any]:
    told = {"trainer": number, "id": nonce, "host": "there:7", "name": "", "local": True}
    told |= {"silent_s": 1.0, "rank": -1, "window": 2, "leases": 1, "batches": 3, "rows": 9}
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


def test_the_answer_of_one_owner_is_that_of_the_server():
    told = feed(trainers=[trainer(1, "a")], segments={"begun": 3})
    assert stats(told) == told


def test_counts_are_added_and_partitions_are_listed_in_order():
    one = feed(partitions=[{"partition": 1}], classes={"a": [1, 2], "changes": [["x"]]})
    two = feed(
        partitions=[{"partition": 0}, {"partition": 2}],
        dropped={"bad:x": 2, "short": 3},
        padding={"3": [1, 1], "9": [5, 4]},
        classes={"a": [10, 20], "changes": [["y"]]},
        segments={"begun": 3},
    )
    told = stats(one, two)
    assert (told["batches"], told["made"]["rows"], told["standing"]) == (
        *(8, 30),
        {"ready": 2, "leased": 4},
    )
    assert told["dropped"] == {"bad:x": 3, "short": 3}
    assert told["padding"] == {"3": [11, 8], "9": [5, 4]}
    assert told["classes"] == {"a": [11, 22], "changes": [["x"], ["y"]]}
    assert told["segments"] == {"begun": 3}
    assert [one["partition"] for one in told["partitions"]] == [0, 1, 2]


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


def test_a_trainer_with_sessions_at_several_owners_appears_once():
    one = feed(trainers=[trainer(4, "b"), trainer(7, "a", refused={"state": 1}, silent_s=0.5)])
    two = feed(trainers=[trainer(2, "a", local=False, busy_s=3.0, refused={"state": 2})])
    first, second = stats(one, two)["trainers"]
    assert (first["trainer"], second["trainer"]) == (2, 4)
    assert (first["window"], first["leases"], first["rows"]) == (4, 2, 18)
    assert first["refused"] == {"state": 3} and not first["local"]
    assert (first["silent_s"], first["blocked_s"], first["busy_s"]) == (0.5, 1.5, 3.0)
    assert first["awaited_s"] == {"0/1": 1.0} and second["leases"] == 1


def test_the_first_of_many_trainers_are_listed_and_the_others_counted():
    many = [trainer(n, f"{n}") for n in range(MOST_TRAINERS)]
    told = stats(feed(trainers=many), feed(trainers=[trainer(1000, "last")], trainers_more=0))
    assert len(told["trainers"]) == MOST_TRAINERS and told["trainers_more"] == 1


def test_refusals_of_front_and_owners_are_added_and_a_trainer_counts_once():
    front = {"access": {"keys": True, "known": ["a"], "refused": {"garbage": 5}}}
    refused: list[dict[str, int]] = [{"garbage": 2}, {}, {"garbage": 1}]
    owners = [{"access": {"refused": here, "present": {"a": 1}}} for here in refused]
    told = joined(SeenServer, [front, *owners])["access"]
    assert told == {"keys": True, "known": ["a"], "present": {"a": 1}, "refused": {"garbage": 8}}


def test_users_are_named_once_and_examples_are_found_at_any_owner():
    users = [{"users": ["trainer 2", "trainer 1"]}, {"users": ["trainer 2"]}]
    assert joined(OwnersAnswer, users) == {"users": ["trainer 1", "trainer 2"]}
    seen = [{"found": [1] * MOST_FOUND}, {"found": [2]}]
    assert joined(OwnersAnswer, seen) == {"found": [1] * MOST_FOUND}
    assert joined(OwnersAnswer, [{}, {}]) == {}


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
