"""A server that is a socket in the test, which sends the messages for it.

It is its own locator: it answers greetings that ask where its owners are, unless the test does.
"""

from __future__ import annotations

import time
from typing import Any

import zmq

from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, ServedShare, Welcome
from tests.patience import PATIENCE_S

__all__ = ["Peer"]


class Peer:
    """A socket by which a test answers a trainer."""

    def __init__(self, address: str = "") -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(address or "tcp://127.0.0.1:*")
        self.address = self._socket.last_endpoint.decode()
        self.owners = 1  # so many are at its address; 0: a test answers lookups

    def hear(self, kind: type, timeout_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self._socket.poll(50):
                self.identity, header, *_ = self._socket.recv_multipart()
                message = FROM_TRAINER.decode(header)
                if isinstance(message, Hello) and not message.shares and self.owners:
                    self.locate()
                elif isinstance(message, kind):
                    return message
        raise AssertionError(f"no {kind.__name__} came")

    def say(self, message: object, *frames: bytes) -> None:
        self._socket.send_multipart([self.identity, FROM_SERVER.encode(message), *frames])

    def locate(self, share: int = 0, shares: int = 1) -> None:
        """Answer a greeting that asks where the owners are."""
        workers = (self.address,) * max(1, self.owners)
        self.say(ServedShare("f", share, shares, 4, self.address, {}, workers))

    def say_raw(self, header: bytes) -> None:
        self._socket.send_multipart([self.identity, header])

    def welcome(self, schema: Any = (), heartbeat_s: float = 30.0) -> None:
        """Let a trainer in; only with a short heartbeat can it take a pause for the peer's end."""
        self.hear(Hello)
        self.say(Welcome(1, "t", 7, "f", list(schema), heartbeat_s, 30.0, 64))

    def close(self) -> None:
        self._socket.close()
        self._context.term()
