"""A server that is a socket in the test, which sends the messages for it.

It is its own locator: it answers greetings that ask where its owners are, unless the test does.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

from headrace.connection.link import Link
from headrace.connection.session import Member
from headrace.machine.prefetch import Prefetch
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Get,
    Give,
    Given,
    Hello,
    Over,
    Pulse,
    ServedShare,
    Step,
    Welcome,
)
from headrace_proto.placement import partitions_of
from tests.patience import PATIENCE_S

__all__ = ["Peer", "given", "linked", "opening", "welcome_to"]


def welcome_to(hello: Hello, session: int = 7, **told: Any) -> Welcome:
    """The answer to a greeting, of an owner that has given nothing yet."""
    known = {"schema": [], "heartbeat_s": 30.0, "max_credits": 64, **told}
    owner, owners = max(hello.owner, 0), known.get("owners", 1)
    share = hello.share, max(hello.shares, 1)
    owned = partitions_of(owner, owners, known.get("partitions", 1), share)
    known.setdefault("next", tuple(number for p in owned for number in (p, 0, 0)))
    return Welcome(session, "f", connection=hello.connection, **known)


def given(request: int, token: int, partition: int = 0, number: int = 0) -> Given:
    """A batch of one row without columns, which comes with the message."""
    return Given(request, token, partition, number, 0, number, 0, 1, 0, frame=1)


class Peer:
    """A socket by which a test answers a trainer."""

    def __init__(self, address: str = "") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(address or "tcp://127.0.0.1:*")
        self.address = self._socket.last_endpoint.decode()
        self._said: dict[bytes, int] = {}  # messages since the Welcome, by connection
        self._gets: list[Get] = []  # requests without an answer
        self.greeted: Hello | None = None  # the last greeting
        self.owners = 1  # so many are at its address; 0: a test answers lookups
        self.partitions = 1

    def hear(self, kind: type, timeout_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._socket.poll(50):
                self.identity, header, *_ = self._socket.recv_multipart()
                message = FROM_TRAINER.decode(header)
                lookup = isinstance(message, Hello) and not message.shares
                if lookup and self.owners:
                    self.locate()
                    continue
                if isinstance(message, Hello):
                    self.greeted = message
                if isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came")

    def say(self, message: object, *frames: bytes) -> None:
        said = self._said.get(self.identity, 0)
        if isinstance(message, Pulse):
            message = Pulse(message.session, said, message.waiting)
        self._said[self.identity] = 0 if isinstance(message, Welcome) else said + 1
        self._socket.send_multipart([self.identity, FROM_SERVER.encode(message), *frames])

    def locate(self, share: int = 0, shares: int = 1, owner: str = "") -> None:
        """Answer a greeting that asks where the owners are: here, or at ``owner``."""
        workers = (owner or self.address,) * max(1, self.owners)
        self.say(ServedShare("f", share, shares, self.partitions, self.address, {}, workers))

    def welcome(self, session: int = 7, **told: Any) -> Hello:
        """Let a trainer in; only with a short heartbeat can it take a pause for the peer's end."""
        hello: Hello = self.hear(Hello)
        self.say(welcome_to(hello, session, **told))
        return hello

    def hear_gets(self, count: int = 1) -> list[Get]:
        """The next requests for batches."""
        gets: list[Get] = []
        while len(gets) < count:
            gets += self.hear(Step).gets
        return gets

    def end(self, session: int = 7) -> None:
        """Answer the next request, of the greeting or later: nothing more comes."""
        numbers = () if self.greeted is None else self.greeted.gets
        self._gets += [Get(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]
        while not self._gets:
            self._gets += self.hear_gets()
        get = self._gets.pop(0)
        self.say(Over(session, get.request, get.partition, -1))

    def give(self, token: int, number: int = 0) -> None:
        """Answer the next request for a batch."""
        while not self._gets:
            self._gets += self.hear_gets()
        get = self._gets.pop(0)
        self.say(Give(7, (given(get.request, token, get.partition, number),)), b"")

    def close(self) -> None:
        self._socket.close()
        self._context.term()


@contextlib.contextmanager
def linked(
    peer: Peer, timeout_s: float = PATIENCE_S, prefetch: int = 0, **told: Any
) -> Iterator[Link]:
    """A link that the peer has let in."""
    link = Link(peer.address, Member(), timeout_s, Prefetch(prefetch))
    try:
        opening(link, lambda: peer.welcome(**told))
        yield link
    finally:
        link.close()


def opening(link: Link, meanwhile: Callable[[], object]) -> None:
    """Open a link while another end of it acts."""
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(link.open)
        meanwhile()
        opened.result()
