"""The locator answers with its server's share of a feed, its declaration, and its workers."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto import limits
from headrace_proto.errors import UnknownFeed, VersionMismatch
from headrace_proto.messages import FROM_SERVER, Hello, Pulse, ServedShare
from headrace_server.files.manifest import DataFile
from headrace_server.process.config import FeedConfig, RunConfig
from headrace_server.server.locator import ServedShares, digests

SOURCE = hs.read_npz("/data/a-*.npz")
FILES = (DataFile("/data/a-1.npz", 10, "1"), DataFile("/data/a-2.npz", 20, "2"))


def feed(pipeline: Any = None, share: tuple[int, int] = (1, 2), **changes: Any) -> FeedConfig:
    declared = (pipeline or SOURCE.shuffle(seed=1).batch(4)).declaration()
    return dataclasses.replace(FeedConfig("f", declared, FILES, 6, share=share), **changes)


def served(*feeds: FeedConfig, workers: int = 2) -> ServedShares:
    binds = ("tcp://127.0.0.1:*",)
    found = ServedShares(RunConfig(feeds, "/dev/shm/headrace-0-1-abc", binds, workers=workers))
    for worker in range(workers):
        found.located(worker, {"5557": f"tcp://h:{5558 + worker}", "/x": f"ipc:///x-{worker}"})
    return found


def hello(share: int = 0, shares: int = 0, feed: str = "f") -> Hello:
    return Hello(limits.PROTOCOL, "t", feed, b"nonce", share=share, shares=shares)


@pytest.mark.parametrize("greeting", [hello(), hello(0, 2), hello(1, 2), hello(feed="")])
def test_a_greeting_is_answered_with_the_share_and_the_addresses_of_its_workers(greeting: Hello):
    answer = served(feed()).answer(greeting, "5557")
    assert isinstance(answer, ServedShare)
    told = (answer.feed, answer.share, answer.shares, answer.partitions, answer.server)
    assert told == ("f", 1, 2, 6, "headrace-0-1-abc")
    assert answer.workers == ("tcp://h:5558", "tcp://h:5559")
    assert FROM_SERVER.decode(FROM_SERVER.encode(answer)) == answer


def test_workers_have_an_address_beside_each_of_the_server_and_those_without_partitions_none():
    whole = served(feed(), workers=5)
    by_path, unknown = whole.answer(hello(), "/x"), whole.answer(hello(), "")
    assert isinstance(by_path, ServedShare) and isinstance(unknown, ServedShare)
    assert by_path.workers == ("ipc:///x-0", "ipc:///x-1", "ipc:///x-2")
    assert unknown.workers[0] == "tcp://h:5558"


def test_a_greeting_waits_for_the_start_of_all_workers_and_hears_of_their_deaths():
    found = ServedShares(RunConfig((feed(),), "/d", ("tcp://127.0.0.1:*",), workers=2))
    found.located(1, {"5557": "tcp://h:5559"})
    assert isinstance(found.answer(hello(), "5557"), Pulse)
    found.located(0, {"5557": "tcp://h:5558"})
    found.died(1)
    answer = found.answer(hello(), "5557")
    assert isinstance(answer, ServedShare) and answer.waiting == "the worker is being started"
    found.located(1, {"5557": "tcp://h:6000"})
    again = found.answer(hello(), "5557")
    assert isinstance(again, ServedShare) and not again.waiting
    assert again.workers == ("tcp://h:5558", "tcp://h:6000")


def test_a_greeting_for_an_unknown_feed_or_of_another_version_is_refused():
    with pytest.raises(UnknownFeed, match="there is no feed 'other'; this server has 'f'"):
        served(feed()).answer(hello(feed="other"), "")
    with pytest.raises(UnknownFeed, match="feed= is needed"):
        served(feed(), feed(name="g")).answer(hello(feed=""), "")
    with pytest.raises(VersionMismatch):
        served(feed()).answer(dataclasses.replace(hello(), version=1), "")


def test_files_count_by_name_and_size_wherever_they_lie():
    moved = (DataFile("/mnt/a-1.npz", 10, "7"), DataFile("/mnt/a-2.npz", 20, "8"))
    elsewhere = hs.read_npz("/mnt/a-*.npz").shuffle(seed=1).batch(4)
    assert digests(feed()) == digests(feed(elsewhere, files=moved))
    assert digests(feed()) == digests(feed(share=(0, 2)))


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        (feed(files=FILES[:1]), ["files"]),
        (feed(files=(FILES[0], DataFile("/data/a-2.npz", 21, "2"))), ["files"]),
        (feed(SOURCE.shuffle(seed=2).batch(4)), ["order"]),
        (feed(SOURCE.shuffle(seed=1).batch(5)), ["shape"]),
        (feed(SOURCE.shuffle(seed=1).select(["x"]).batch(4)), ["stages"]),
        (feed(hs.read_jsonl("/data/a-*.npz").shuffle(seed=1).batch(4)), ["source"]),
    ],
)
def test_each_part_of_a_declaration_has_a_digest_of_its_own(other: FeedConfig, parts: list[str]):
    here, there = digests(feed()), digests(other)
    assert [part for part in here if here[part] != there[part]] == parts
