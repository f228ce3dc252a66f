"""The status of all servers is joined, and names the share that trainers wait for."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_server.server.watch import every

from .statuses import feed, server, trainer, worker

A, B = "http://a:1", "http://b:1"


def status(share: int, awaited: float = 0.0, servers: int = 2, **more: Any) -> Any:
    """The status of a server of feed "f", for which trainers wait a part of their time."""
    label = f"{share}/{servers}"
    rates = {"rows": 5.0, "stall": 0.5, "awaited": {label: awaited}}
    told = feed(
        rates=rates,
        waiting="batch 3 is being made",
        trainers=[trainer(7 + share, id="x", awaited_s={label: awaited}, rates=rates)],
        partitions=[{"partition": share, "worker": 0, "open": True, "done": False, "waits": ""}],
        **more,
    )
    busy = {"work": 0.9, "trainers": 0.1} if awaited > 0.2 else {"work": 0.1, "trainers": 0.9}
    whole = server(f=told, workers=[worker(shares=busy)])
    whole["share"] = [share, servers]
    whole["events"] = [{"at": float(share), "kind": "death", "text": "a worker died"}]
    return whole


def test_the_share_that_trainers_wait_for_is_named_with_what_holds_it_up():
    whole = every([(A, status(0, 0.1)), (B, status(1, 0.4))])
    verdict = whole["feeds"]["f"]["verdict"]
    assert verdict["where"] == "workers"
    assert verdict["text"].startswith(
        "Trainers wait 50 % of their time, most of it for share 1/2 at http://b:1: the workers are"
    )
    assert [(one["share"], one["url"]) for one in whole["feeds"]["f"]["shares"]] == [
        ("0/2", A),
        ("1/2", B),
    ]


def test_a_trainer_is_there_once_and_workers_are_named_by_their_share():
    whole = every([(A, status(0, 0.1)), (B, status(1, 0.4))])
    (one,) = whole["feeds"]["f"]["trainers"]
    assert (one["trainer"], one["batches"], one["rates"]["rows"]) == ("x", 10, 10.0)
    assert one["awaited_s"] == one["rates"]["awaited"] == {"0/2": 0.1, "1/2": 0.4}
    assert [w["worker"] for w in whole["workers"]] == ["0.0", "1.0"]
    assert [p["worker"] for p in whole["feeds"]["f"]["partitions"]] == ["0.0", "1.0"]
    assert whole["events"][0]["text"] == "share 1/2: a worker died"
    assert whole["feeds"]["f"]["waiting"].startswith("share 0/2: batch 3 is being made; share 1/2")


def test_a_share_that_is_away_is_named_and_the_others_are_shown():
    whole = every([(A, status(0)), (B, "no answer within 2 s")])
    feed = whole["feeds"]["f"]
    assert feed["verdict"]["level"] == "bad"
    assert feed["verdict"]["text"] == whole["why"]
    assert whole["why"] == "Share 1/2 at http://b:1 is away: no answer within 2 s"
    assert [one["state"] for one in feed["shares"]] == ["open", "away"] and feed["batches"] == 3


def test_servers_that_do_not_share_a_feed_are_refused():
    with pytest.raises(ValueError, match="http://b:1 has share 1/3, and is the server 1 of 2 that"):
        every([(A, status(0)), (B, status(1, servers=3))])
