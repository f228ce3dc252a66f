"""The owner's end of the relay: the order of messages, and the bounds of its queues."""

from __future__ import annotations

import tracemalloc
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from headrace_server.process.relay_messages import FROM_FRONT, Sent, TrainerMessage
from headrace_server.worker import front_channel
from headrace_server.worker.front_channel import FrontChannel


class Front:
    """A channel by which the front sends the messages of a test."""

    ended = False

    def __init__(self) -> None:
        self.said: list[list[bytes]] = []

    def receive(self) -> list[list[bytes]]:
        said, self.said = self.said, []
        return said


class Relay:
    """The channel to the front, and its other end."""

    def __init__(self) -> None:
        self.end: Any = Front()
        self.front = FrontChannel(self.end)

    def say(self, connection: bytes, *frames: bytes) -> None:
        self.end.said.append([FROM_FRONT.encode(TrainerMessage(connection, "key")), *frames])
        self.front.hear()

    def hear(self) -> list[tuple[bytes, bytes]]:
        """All that waits: connection and first frame."""
        heard = []
        while self.front.heard:
            key, connection, frames = self.front.receive()
            assert key == "key"
            heard.append((connection, frames[0]))
        return heard


@pytest.fixture
def at() -> Relay:
    return Relay()


def test_connections_take_turns_and_messages_of_each_stay_in_order(at: Relay):
    for number in range(3):
        at.say(b"a", b"%d" % number)
    at.say(b"b", b"0")
    at.say(b"b", b"1")
    turns = [(b"a", b"0"), (b"b", b"0"), (b"a", b"1"), (b"b", b"1"), (b"a", b"2")]
    assert at.hear() == turns
    at.say(b"a", b"3")
    assert at.hear() == [(b"a", b"3")]


def test_messages_of_a_connection_that_sends_endlessly_are_bounded(
    at: Relay, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(front_channel, "_MOST_WAITING", 10)
    at.say(b"b", b"0")
    for number in range(11):
        assert at.front.flooding == []
        at.say(b"a", b"%d" % number)
    assert at.front.flooding == [b"a"]
    assert at.hear() == [(b"b", b"0")]
    assert not at.front.is_full


def test_no_more_is_to_be_taken_while_many_bytes_wait(at: Relay, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(front_channel, "_MOST_WAITING_BYTES", 100_000)
    at.say(b"a", b"x", bytes(99_000))
    assert not at.front.is_full
    at.say(b"b", bytes(1000))
    assert at.front.is_full
    at.front.receive()
    assert not at.front.is_full
    for _ in range(3):
        at.say(b"b", bytes(50_000))
    assert at.front.is_full
    monkeypatch.setattr(front_channel, "_MOST_WAITING", 4)
    at.say(b"b", b"z")
    assert at.front.flooding == [b"b"] and not at.front.is_full


def test_small_messages_fill_the_queues_with_the_memory_that_they_take(
    at: Relay, monkeypatch: pytest.MonkeyPatch
):
    most = 1 << 20
    monkeypatch.setattr(front_channel, "_MOST_WAITING", most)
    monkeypatch.setattr(front_channel, "_MOST_WAITING_BYTES", most)
    header = FROM_FRONT.encode(TrainerMessage(b"a", "key"))
    tracemalloc.start()
    try:
        while not at.front.is_full:
            at.end.said += [[header, bytes(bytearray(10))] for _ in range(100)]
            at.front.hear()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most / 2 < held < 2 * most


def test_blocks_are_free_once_a_message_of_the_front_says_that_they_are_sent(at: Relay):
    freed = []
    body = SimpleNamespace(segment="slab-0-0-0", offset=0)
    at.end.send = lambda frames: None
    for number in range(3):
        batch: Any = SimpleNamespace(body=body, nbytes=64)
        at.front.send_block(b"a", b"header", batch, partial(freed.append, number))
    at.end.said += [[FROM_FRONT.encode(Sent(number))] for number in (2, 9)]
    at.front.hear()
    assert freed == [1]
