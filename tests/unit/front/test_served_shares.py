"""The front answers with its server's share of a feed and the server's declaration."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import headrace_server as hs
from headrace_proto.messages import FROM_SERVER, Hello
from headrace_server.files.manifest import DataFile
from headrace_server.front.front import ServedShares, digests
from headrace_server.process.config import FeedConfig, RunConfig

SOURCE = hs.read_npz("/data/a-*.npz")
FILES = (DataFile("/data/a-1.npz", 10, "1"), DataFile("/data/a-2.npz", 20, "2"))


def feed(pipeline: Any = None, share: tuple[int, int] = (1, 2), **changes: Any) -> FeedConfig:
    declared = (pipeline or SOURCE.shuffle(seed=1).batch(4)).declaration()
    return dataclasses.replace(FeedConfig("f", declared, FILES, 6, share=share), **changes)


def served(*feeds: FeedConfig) -> ServedShares:
    return ServedShares(RunConfig(feeds, "/dev/shm/headrace-0-1-abc", ("tcp://127.0.0.1:*",)))


def hello(share: int = 0, shares: int = 1, feed: str = "f") -> Hello:
    return Hello(3, "t", feed, b"nonce", share=share, shares=shares)


@pytest.mark.parametrize(
    "greeting", [hello(), hello(0, 2), hello(1, 3), hello(0, 0), hello(feed="")]
)
def test_a_greeting_for_another_share_is_answered_with_this_one(greeting: Hello):
    answer = served(feed()).answer(greeting, [2, 3])
    assert answer is not None
    told = (answer.feed, answer.share, answer.shares, answer.partitions, answer.sessions)
    assert told == ("f", 1, 2, 6, 5)
    assert answer.server == "headrace-0-1-abc"
    assert FROM_SERVER.decode(FROM_SERVER.encode(answer)) == answer


def test_a_greeting_for_this_share_and_one_for_an_unknown_feed_go_to_an_owner():
    assert served(feed()).answer(hello(1, 2), []) is None
    assert served(feed(share=(0, 1))).answer(hello(), []) is None
    assert served(feed()).answer(hello(feed="other"), []) is None
    several = served(feed(), feed(name="g"))
    assert several.answer(hello(feed=""), []) is None
    other = several.answer(hello(feed="g"), [])
    assert other is not None and other.feed == "g"


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
