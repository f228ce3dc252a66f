"""The status of a feed is current, and bounded for any number of trainers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.messages import Renew
from headrace_server.core.dispatch_effects import Batch
from headrace_server.process.config import MOST_TRAINERS, FeedConfig, RunConfig
from headrace_server.worker.desk import Desk
from headrace_server.worker.events import Opened
from headrace_server.worker.feed_status import example_status, feed_status, state_of
from headrace_server.worker.reporter import FeedReport
from headrace_server.worker.sessions import Session


@pytest.fixture
def desk() -> Desk:
    declaration = hs.from_examples([{"i": 1}]).batch(4).declaration()
    feed = FeedConfig("a", declaration, (), 2)
    return Desk(feed, RunConfig((feed,), "/nowhere", (), lease_ttl_s=10))


def session(number: int, feed: str = "a") -> Session:
    one = Session(number, b"n", feed, b"i", b"p", Path("trainer"))
    one.seen, one.host = 8.0, "there:7"
    return one


def opened(desk: Desk, *partitions: int) -> None:
    for partition in partitions:
        desk.on_opened(Opened(partition, [["i", "int64", [4]]]))


def test_the_state_of_a_feed_goes_from_opening_to_its_end(desk: Desk):
    assert state_of(desk) == "opening"
    opened(desk, 0, 1)
    assert state_of(desk) == "open"
    assert desk.close(False)
    assert state_of(desk) == "closing"
    for partition in range(2):
        desk.on_finished(partition, {"dropped": {}})
    assert state_of(desk) == "ended"
    desk.fail("data", "it broke")
    told = feed_status(desk, [], 10.0, FeedReport())
    assert (told["state"], told["failure"]) == ("failed", ["data", "it broke"])


def test_the_status_of_a_partition_has_its_progress_and_the_reason_of_its_wait(desk: Desk):
    opened(desk, 0)
    desk.on_waiting(0, "rows are rare")
    desk.on_finished(1, {"dropped": {}})
    report = FeedReport(partitions={1: {"number": 7, "epoch": 2}})
    assert feed_status(desk, [], 10.0, report)["partitions"] == [
        {"partition": 0, "worker": 0, "open": True, "done": False, "waits": "rows are rare"},
        {
            "partition": 1,
            "worker": 0,
            "open": False,
            "done": True,
            "waits": "",
            "number": 7,
            "epoch": 2,
        },
    ]


def test_the_status_of_a_trainer_has_its_leases_and_its_own_reports(desk: Desk):
    opened(desk, 0, 1)
    desk.dispatcher.join(3, 9.0)
    desk.dispatcher.window(3, 2)
    desk.dispatcher.made(Batch(0, 0, 4))
    desk.dispatcher.take_effects()
    one = session(3)
    one.tally.sent(4, 32)
    one.tally.wire_batches, one.tally.wire_bytes = 1, 32
    one.tally.on_renew(Renew(3, 1, 0, blocked_s=1.23456, busy_s=7.0, awaited_s=0.5))
    told = feed_status(desk, [session(9, "b"), one], 10.0, FeedReport())
    (trainer,) = told["trainers"]
    expected: dict[str, Any] = {
        "trainer": 3,
        "host": "there:7",
        "name": "",
        "local": False,
        "silent_s": 2.0,
    }
    expected |= {"rank": -1, "window": 1, "leases": 1, "batches": 1, "rows": 4, "bytes": 32}
    expected |= {"committed": 0, "stale": 0, "refused": {}, "blocked_s": 1.235, "busy_s": 7.0}
    # The only owner is awaited in all waits; one of several in those that the trainer names.
    expected |= {"id": trainer["id"], "awaited_s": {"0/1": 1.235}}
    assert trainer == expected | {"wire_batches": 1, "wire_bytes": 32}
    assert len(trainer["id"]) == 12 and one.nonce.hex() not in trainer["id"]
    assert told["sent"] == {"batches": {"shm": 0, "wire": 1}, "bytes": {"shm": 0, "wire": 32}}
    desk.counters.on_left(one.tally)
    assert feed_status(desk, [], 10.0, FeedReport())["sent"] == told["sent"]
    assert told["standing"]["leased"] == 1 and told["trainers_more"] == 0


def test_trainers_beyond_the_bound_are_only_counted(desk: Desk):
    many = [session(n) for n in range(MOST_TRAINERS + 5, 0, -1)]
    told = feed_status(desk, many, 10.0, FeedReport())
    assert [t["trainer"] for t in told["trainers"]] == list(range(1, MOST_TRAINERS + 1))
    assert told["trainers_more"] == 5


def test_an_example_that_is_out_is_shown_with_its_holder(desk: Desk):
    desk.dispatcher.join(3, 5.0)
    desk.dispatcher.window(3, 1)
    desk.dispatcher.made(Batch(0, 0, 4))
    desk.dispatcher.made(Batch(1, 0, 4))
    desk.dispatcher.take_effects()
    place = {"partition": 0, "epoch": 2, "segment": 1, "segments": 4}
    assert example_status(desk, [0, 2, 1, 4, "ready", -1], 9.0) == {**place, "where": "ready"}
    held = {"where": "leased", "batch": 0, "trainer": 3, "since_s": 4.0}
    assert example_status(desk, [0, 2, 1, 4, "out", 0], 9.0) == {**place, **held}
    unheld = example_status(desk, [1, 2, 1, 4, "out", 0], 9.0)
    assert unheld["where"] == "in a batch that nobody has" and "trainer" not in unheld
