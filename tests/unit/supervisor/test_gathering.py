"""What owners answer for their partitions is joined to the answer of the whole server."""

from __future__ import annotations

from typing import Any

from headrace_server.process.config import MOST_FOUND, MOST_TRAINERS
from headrace_server.supervisor.gathering import gathered


def trainer(number: int, nonce: str, **changes: Any) -> dict[str, Any]:
    told = {"trainer": number, "nonce": nonce, "host": "there:7", "name": "", "local": True}
    told |= {"silent_s": 1.0, "rank": -1, "window": 2, "leases": 1, "batches": 3, "rows": 9}
    told |= {"bytes": 90, "committed": 2, "stale": 0, "refused": {}, "blocked_s": 1.5}
    return {**told, "busy_s": 2.5, **changes}


def feed(**changes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {"batches": 4, "rows": 12, "redelivered": 1, "stale": 0, "expired": 0}
    told |= {"made": {"batches": 5, "rows": 15, "bytes": 150}, "refused": {"state": 1}}
    told |= {"dropped": {"bad:x": 1}, "padding": {"3": [10, 7]}, "classes": {}, "state": "open"}
    told |= {"failure": None, "waiting": "nothing", "standing": {"ready": 1, "leased": 2}}
    return {**told, "partitions": [], "trainers": [], "trainers_more": 0, **changes}


def stats(*feeds: dict[str, Any], **access: Any) -> dict[str, Any]:
    known = {"keys": False, "known": [], "present": {}, "refused": {}, **access}
    answers = [{"feeds": {"f": told}, "access": known, "refused_here": {}} for told in feeds]
    joined: dict[str, Any] = gathered("stats", answers)["feeds"]["f"]
    return joined


def test_the_answer_of_one_owner_is_that_of_the_server_without_the_trainers_nonces():
    told = feed(trainers=[trainer(1, "a")], segments={"begun": 3})
    expected = {name: value for name, value in trainer(1, "a").items() if name != "nonce"}
    assert stats(told) == {**told, "trainers": [expected]}


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


def test_a_feed_has_failed_or_opens_where_one_owner_says_so_and_has_ended_when_all_do():
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
    assert second["leases"] == 1 and "nonce" not in first


def test_of_many_trainers_the_first_are_listed_and_the_others_counted():
    many = [trainer(n, f"{n}") for n in range(MOST_TRAINERS)]
    told = stats(feed(trainers=many), feed(trainers=[trainer(1000, "last")], trainers_more=0))
    assert len(told["trainers"]) == MOST_TRAINERS and told["trainers_more"] == 1


def test_what_the_front_refused_counts_once_and_what_owners_refused_is_added():
    def answer(by_front: int, here: int) -> dict[str, Any]:
        refused = {"garbage": by_front + here} if by_front + here else {}
        access = {"keys": True, "known": ["a"], "present": {"a": 1}, "refused": refused}
        return {"feeds": {}, "access": access, "refused_here": {"garbage": here} if here else {}}

    told = gathered("stats", [answer(5, 2), answer(5, 0), answer(4, 1)])["access"]
    assert told == {"keys": True, "known": ["a"], "present": {"a": 1}, "refused": {"garbage": 8}}


def test_users_are_named_once_and_examples_are_found_at_any_owner():
    users = [{"users": ["trainer 2", "trainer 1"]}, {"users": ["trainer 2"]}]
    assert gathered("users", users) == {"users": ["trainer 1", "trainer 2"]}
    seen = [{"found": [1] * MOST_FOUND, "unheard": [4]}, {"found": [2], "unheard": [1]}]
    assert gathered("inspect", seen) == {"found": [1] * MOST_FOUND, "unheard": [1, 4]}
    assert gathered("close", [{"request": 1}, {"request": 1}]) == {"request": 1}
