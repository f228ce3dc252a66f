"""A verdict names the first cause that holds a feed up."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_server.watch.verdict import verdict

from .statuses import feed, server, worker

IDLE = {"work": 0.1, "trainers": 0.9, "states": 0.0, "slab": 0.0}


def judged(
    stall: float | None, *shares: dict[str, float], draining: bool = False, **more: Any
) -> tuple[str, str, str]:
    workers = [worker(number, shares=spent) for number, spent in enumerate(shares or (IDLE,))]
    places = [{"partition": one["worker"], "worker": one["worker"]} for one in workers]
    status = server(workers=workers) | {"draining": draining}
    found = verdict(feed(rates={"stall": stall}, partitions=places, **more), status)
    return found["level"], found["where"], found["text"]


def share(what: str) -> dict[str, float]:
    return {"work": 0.1, "trainers": 0.1, "states": 0.1, "slab": 0.1, what: 0.7}


def test_trainers_that_hardly_wait_set_the_pace():
    level, where, text = judged(0.01)
    assert (level, where) == ("good", "trainers") and "they wait 1 % of their time" in text


@pytest.mark.parametrize(("stall", "level"), [(0.1, "slow"), (0.5, "bad")])
@pytest.mark.parametrize(
    ("what", "where", "says"),
    [
        ("work", "workers", "the workers are busy. More workers would help."),
        ("slab", "slab", "shared memory of the workers is full"),
        ("states", "trainers", "need states that trainers hold"),
    ],
)
def test_trainers_that_wait_do_so_for_what_the_workers_are_at(
    stall: float, level: str, what: str, where: str, says: str
):
    found = judged(stall, share(what), share(what))
    assert found[:2] == (level, where) and says in found[2]


@pytest.mark.parametrize(
    ("slow", "says"),
    [
        ("reading", "busy reading (75 %, and the stages the rest). More workers or a faster"),
        ("map f:g", "busy in map f:g (75 %, and reading and other stages the rest). More workers"),
    ],
)
def test_busy_workers_are_told_from_one_another_by_what_takes_their_time(slow: str, says: str):
    seconds = {"reading": 1.0, "map f:g": 1.0, slow: 3.0}
    assert says in judged(0.5, share("work"), seconds=seconds)[2]
    words = "50 % of their time: the workers are busy reading. More workers or a faster source"
    assert words in judged(0.5, share("work"), seconds={"reading": 2.0})[2]


def test_workers_that_wait_for_a_core_need_no_others_and_no_faster_source():
    seconds, busy = {"reading": 2.0}, share("work")
    found = judged(0.5, busy | {"queued": 0.6}, busy | {"queued": 0.2}, seconds=seconds)
    assert found[:2] == ("bad", "workers")
    assert "this machine has no core free: the workers wait for one 57 % of the time" in found[2]
    found = judged(0.5, busy | {"queued": 0.6}, busy, seconds=seconds)
    assert "the workers are busy reading. More workers" in found[2]


def test_where_nothing_of_that_is_so_the_servers_words_stand():
    assert judged(0.4, waiting="2 ranks have not joined: 0, 1")[1:] == (
        "leases",
        "Trainers wait 40 % of their time: 2 ranks have not joined: 0, 1.",
    )


def test_a_server_that_has_no_words_delays_nobody():
    assert judged(0.4, waiting="")[2].endswith(": nothing delays them now.")


def test_a_full_disk_comes_before_all_that_follows_from_it():
    store = {
        "faults": ["0.journal: database or disk is full"],
        "commits": 0,
        "since_commit_s": None,
    }
    level, where, text = judged(0.9, share("states"), store=store)
    assert (level, where) == ("bad", "store") and "disk is full" in text


@pytest.mark.parametrize(
    ("more", "level", "says"),
    [
        ({"state": "failed", "failure": ["data", "row 7 is bad"]}, "bad", "row 7 is bad"),
        ({"state": "ended"}, "idle", "All batches are committed"),
        ({"state": "opening"}, "idle", "opening the source"),
        ({"trainers": []}, "idle", "No trainer is connected"),
    ],
)
def test_a_feed_that_does_not_run_is_not_judged(more: dict[str, Any], level: str, says: str):
    found = judged(0.9, share("work"), **more)
    assert found[:2] == (level, "") and says in found[2]
