"""The socket's thread, against a server that is a socket in the test: waits, losses, closing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
import zmq

from headrace.link import Link
from headrace.session import Session
from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FeedClosed,
    ProtocolError,
    UnknownFeed,
)
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Bye,
    Ended,
    Hello,
    Pulse,
    Refused,
    Renew,
    Welcome,
)


class Peer:
    """A server that answers as a test says; its messages are kept."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"tcp://127.0.0.1:{port}"

    def hear(self, kind: type, timeout_s: float = 5.0) -> object:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._socket.poll(50):
                self.identity, header = self._socket.recv_multipart()
                message = FROM_TRAINER.decode(header)
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came")

    def say(self, message: object) -> None:
        self._socket.send_multipart([self.identity, FROM_SERVER.encode(message)])

    def say_raw(self, header: bytes) -> None:
        self._socket.send_multipart([self.identity, header])

    def welcome(self) -> None:
        self.hear(Hello)
        self.say(Welcome(1, "t", 7, "f", [], 0.2, 30.0, 64))

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@contextlib.contextmanager
def linked(address: str, timeout_s: float) -> Iterator[Link]:
    link = Link(address, Session("f", b"nonce", prefetch=2), timeout_s)
    try:
        yield link
    finally:
        link.close()


def test_it_greets_opens_and_says_goodbye(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        assert link.open().session == 7
    assert peer.hear(Bye) == Bye(7)


def test_a_refusal_is_raised_as_what_it_says(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.hear(Hello)
        peer.say(Refused("feed", "there is no feed 'f'"))
        with pytest.raises(UnknownFeed, match="no feed 'f'"):
            link.open()


def test_nobody_there_is_told_when_the_timeout_is_over():
    with linked("tcp://127.0.0.1:9", 0.3) as link:
        with pytest.raises(ConnectionLost, match=r"no server answered .* timeout=0.3 s"):
            link.open()


def test_a_server_that_is_not_ready_says_what_it_waits_for(peer: Peer):
    with linked(peer.address, 0.5) as link:
        peer.hear(Hello)
        peer.say(Pulse(0, "the workers are opening the feed's source"))
        with pytest.raises(DeadlineExceeded, match="workers are opening"):
            link.open()


def test_a_wait_for_a_batch_ends_with_the_servers_own_words(peer: Peer):
    with linked(peer.address, 0.6) as link:
        peer.welcome()
        link.open()
        failures: list[BaseException] = []

        def take() -> None:
            try:
                link.take()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=take)
        thread.start()
        while thread.is_alive():
            with contextlib.suppress(AssertionError):
                peer.hear(Renew, 0.1)
                peer.say(Pulse(7, "batch 3 of partition 0 is being made"))
        thread.join()
    assert isinstance(failures[0], DeadlineExceeded)
    assert "batch 3 of partition 0 is being made" in str(failures[0])


def test_a_server_that_falls_silent_is_lost(peer: Peer):
    with linked(peer.address, 1.0) as link:
        peer.welcome()
        link.open()
        with pytest.raises(ConnectionLost, match="nothing was heard of it"):
            link.take()


def test_the_end_and_a_failure_reach_who_waits(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        peer.say(Ended(7))
        assert link.take() is None
    with linked(peer.address, 5) as link:
        peer.welcome()
        link.open()
        peer.say(Ended(7, "lost", "the server was stopped"))
        with pytest.raises(ConnectionLost, match="was stopped"):
            link.take()


def test_a_peer_that_speaks_nonsense_is_a_protocol_error(peer: Peer):
    with linked(peer.address, 5) as link:
        peer.hear(Hello)
        peer.say_raw(b"\xff\xff")
        with pytest.raises(ProtocolError, match="sent nonsense"):
            link.open()


def test_closing_ends_the_wait_of_another_thread(peer: Peer):
    link = Link(peer.address, Session("f", b"nonce", prefetch=2), 30)
    peer.welcome()
    link.open()
    failures: list[BaseException] = []

    def take() -> None:
        try:
            link.take()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    link.close()
    thread.join(5)
    assert not thread.is_alive() and isinstance(failures[0], FeedClosed)
