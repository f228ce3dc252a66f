"""The gate before the public socket: who gets as far as to say Hello.

    connection ─► handshake (CURVE) ─► ZAP: is the key known? ─► messages, with the key they came by
                        │                      │
                        └── broken, other keys ┴─► refused, counted by reason

ZeroMQ asks ZAP over a socket of the same context.  It is answered in the front's own poll, so no
thread is needed for it; handshakes wait for one round at most.  Without keys there is no such
socket.  ``connections`` tells which handshakes ZeroMQ broke off itself.
Where both sides see that their keys do not fit, the first to hang up knows why; if that is the
trainer, it is a broken handshake here.
"""

from __future__ import annotations

import zmq
from zmq.utils import z85

from ..process.refusals import Refusals
from ..process.sockets import waits
from .connections import Connections
from .keyring import KeyRing

__all__ = ["Gate"]

_ZAP = "inproc://zeromq.zap.01"
_DOMAIN = b"headrace"
#: Seconds between two looks at the trainers' keys.
_LOOK_S = 1.0
#: … and at least between two, however many strangers knock.
_LEAST_LOOK_S = 0.1

_BY_PROTOCOL: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "mechanism",
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "other_server_key",
}


class Gate:
    """The gate of one public socket; without keys it lets everybody in."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        keys: str | None,
        connections: Connections,
    ) -> None:
        self._refusals = Refusals()
        self._socket = socket
        self._ring = None if keys is None else KeyRing(keys)
        self._looked = 0.0
        self._changed = False
        self._unanswered: list[list[bytes]] = []  # until the keys are looked at again
        self._connections = connections
        self._last: zmq.Frame | None = None  # it has what ZeroMQ knows of its connection
        self._zap: zmq.Socket[bytes] | None = None
        if self._ring is not None:
            self._zap = context.socket(zmq.ROUTER)
            self._zap.linger = 0
            self._zap.bind(_ZAP)
            socket.curve_server = True
            socket.curve_secretkey = self._ring.secret.text.encode()
            socket.zap_domain = _DOMAIN

    @property
    def refusals(self) -> Refusals:
        """Who was refused, and why."""
        return self._refusals

    @property
    def locked(self) -> bool:
        """Whether keys are asked for."""
        return self._ring is not None

    @property
    def questions(self) -> zmq.Socket[bytes] | None:
        """The socket that the front polls for questions; ``answer`` reads them."""
        return self._zap

    def waits(self) -> bool:
        """Whether ``receive`` has a message."""
        return waits(self._socket)

    def receive(self) -> tuple[str, bytes, list[bytes]]:
        """The next message: the public key that it came by, the connection, the frames."""
        receive = self._socket.recv
        connection = receive(zmq.NOBLOCK)
        head = self._last = receive(zmq.NOBLOCK, copy=False)  # a Frame costs more than bytes do
        frames = [head.bytes]
        if head.more:
            frames += self._socket.recv_multipart(zmq.NOBLOCK)
        key = "" if self._ring is None else str(head.get("User-Id"))
        return key, connection, frames

    @property
    def last_came_by(self) -> int:
        """The descriptor of the connection of the message that was received last; -1 if unknown.

        ZeroMQ knows none of a message that did not come over a stream, as one of a raw peer.
        """
        if self._last is None:
            return -1
        try:
            return int(self._last.get(zmq.SRCFD))
        except zmq.ZMQError:
            return -1

    @property
    def names(self) -> dict[str, str] | None:
        """Names of trainers by public key; None without keys."""
        return None if self._ring is None else self._ring.by_key

    def belongs(self, session: int, now: float) -> None:
        """The message that was received last opened or resumed a session."""
        self._connections.belongs(self.last_came_by, session, now)

    def left(self, session: int, now: float) -> None:
        """A session has ended; the connection that it came by may end for others."""
        self._connections.left(session, now)

    def name_of(self, key: str) -> str | None:
        """Who came by a key; None where it lets nobody in any more."""
        return "" if self._ring is None else self._ring.name_of(key)

    def told(self) -> dict[str, object]:
        """Whether there are keys, who is let in by them, and how many were refused why."""
        names = [] if self._ring is None else self._ring.names
        return {"keys": self.locked, "known": names, "refused": dict(self.refusals.counts)}

    def answer(self, now: float) -> None:
        """Say of each connection that is in its handshake whether its key is known."""
        assert self._zap is not None
        while waits(self._zap):
            question = self._zap.recv_multipart(zmq.NOBLOCK)
            if not self._known(question):  # its key may have come a moment ago
                if now - self._looked < _LEAST_LOOK_S:
                    self._unanswered.append(question)
                    continue
                self._look(now, _LEAST_LOOK_S)
            self._decide(question, now)

    def _known(self, question: list[bytes]) -> str:
        """The public key of a question, where it is known; else empty."""
        assert self._ring is not None
        if question[7] != b"CURVE" or len(question) != 9:
            return ""
        key = _key_of(question)
        return key if self._ring.name_of(key) is not None else ""

    def _decide(self, question: list[bytes], now: float) -> None:
        assert self._zap is not None
        asker, empty, version, request, _, address, *_ = question
        key = self._known(question)
        status = (b"200", b"OK", key.encode()) if key else (b"400", b"unknown key", b"")
        self._zap.send_multipart([asker, empty, version, request, *status, b""])
        if not key:
            peer = address.decode("ascii", "replace")
            told = _key_of(question)
            text = f"refused a trainer at {peer}: its public key {told} is not in trainers/"
            self.refusals.add("unknown_key", f"{peer} {told}", text, now)

    def tick(self, now: float) -> bool:
        """Count broken handshakes, look at the keys; whether others are let in now."""
        for kind, value in self._connections.take_broken():
            reason = self._reason(kind, value)
            self.refusals.add(reason, "", _TEXTS[reason], now)
        for _ in range(self._connections.take_ended()):
            self.refusals.add("connections", "", _TEXTS["connections"], now)
        self.refusals.tick(now)
        self._look(now, _LEAST_LOOK_S if self._unanswered else _LOOK_S)
        if self._looked == now:
            for question in self._unanswered:
                self._decide(question, now)
            self._unanswered.clear()
        changed, self._changed = self._changed, False
        return changed

    def _look(self, now: float, after_s: float) -> None:
        """Look at the trainers' keys, if the last look is so long ago."""
        if self._ring is not None and now - self._looked >= after_s:
            self._looked = now
            self._changed = self._ring.refresh() or self._changed

    def _reason(self, kind: int, value: int) -> str:
        """Why ZeroMQ broke off a handshake.  Whose it was it does not tell."""
        reason = "handshake"
        if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            reason = _BY_PROTOCOL.get(value, reason)
        if reason == "mechanism":
            reason = "no_keys" if self.locked else "keys_not_used"
        return reason

    def close(self) -> None:
        """Nothing is asked any more."""
        if self._zap is not None:
            self._zap.close()


def _key_of(question: list[bytes]) -> str:
    return z85.encode(question[8]).decode() if len(question) == 9 else ""


_TEXTS = {
    "no_keys": "refused a trainer without keys: give it keys= (headrace keygen makes them)",
    "keys_not_used": "refused a trainer with keys: this server has none (keys=, --keys)",
    "other_server_key": "refused a trainer that takes this server for another: its copy of "
    "server.public is not this server's",
    "connections": "ended a connection that no trainer uses, to make room for others: the limit of "
    "open files (RLIMIT_NOFILE) allows no more",
    "handshake": "",  # every probe of a port is one
}
