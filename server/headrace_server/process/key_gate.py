"""The gate before the public socket: which connections can send a Hello.

    connection ─► handshake (CURVE) ─► ZAP: is the key known? ─► messages, with the key they came by
                        │                      │
                        └── broken, other keys ┴─► refused, counted by reason

ZeroMQ asks ZAP over a socket of the same context.  The process answers in its own poll, so the gate
needs no thread; handshakes wait for one round at most.  Without keys there is no such socket.
``connections`` lists the handshakes that ZeroMQ broke off itself.  Where both sides see that their
keys do not fit, the first to hang up knows why; if that is the trainer, the gate counts a broken
handshake.
"""

from __future__ import annotations

import zmq
from zmq.utils import z85

from headrace_proto import limits
from headrace_proto.channel import Frame
from headrace_proto.errors import LimitExceeded

from .connections import ENDED, Connections
from .keyring import KeyRing
from .refusals import Refusals
from .sockets import NOBLOCK, waits

_ZAP = "inproc://zeromq.zap.01"
_DOMAIN = b"headrace"
#: Seconds between two looks at the trainers' keys …
_LOOK_S = 1.0
#: … and the least time between two, however many unknown keys come.
_LEAST_LOOK_S = 0.1

_BY_PROTOCOL: dict[int, str] = {
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "mechanism",
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "other_server_key",
}


class Gate:
    """The gate of one public socket; without keys it lets every connection in."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        ring: KeyRing | None,
        connections: Connections,
    ) -> None:
        self.refusals = Refusals()  # refused peers, by reason
        self._socket = socket
        self._ring = ring
        self._looked = 0.0
        self._unanswered: list[list[bytes]] = []  # until the keys are looked at again
        self._connections = connections
        self.last_from = b""  # the connection of the last message
        self._last: zmq.Frame | None = None  # with ZeroMQ's metadata of its connection
        #: The socket of questions, which its process polls; ``answer`` reads it.
        self.questions: zmq.Socket[bytes] | None = None
        if self._ring is not None:
            self.questions = context.socket(zmq.ROUTER)
            self.questions.linger = 0
            self.questions.bind(_ZAP)
            socket.curve_server = True
            socket.curve_secretkey = self._ring.secret.text.encode()
            socket.zap_domain = _DOMAIN

    def receive(self) -> tuple[str, bytes, list[Frame]]:
        """Return the next message: the public key that it came by, the connection, the frames.

        Payload stays in ZeroMQ's memory.  LimitExceeded: the message is too large.
        """
        receive = self._socket.recv
        connection = self.last_from = receive(NOBLOCK)
        head = self._last = receive(NOBLOCK, copy=False)  # a Frame costs more than bytes do
        frames: list[Frame] = [head.bytes]
        count, size, more = 1, 0, head.more
        while more:
            payload = receive(NOBLOCK, copy=False)
            more, count, size = payload.more, count + 1, size + len(payload)
            if count <= limits.MAX_FRAMES and size <= limits.MAX_UPLOAD_BYTES:
                frames.append(payload.buffer)
            else:  # read the rest, and keep none of it
                frames.clear()
        if not frames:
            raise LimitExceeded(
                f"a message of {count} frames came, {size} bytes after the first: at most "
                f"{limits.MAX_FRAMES} frames and {limits.MAX_UPLOAD_BYTES} bytes are allowed"
            )
        key = "" if self._ring is None else str(head.get("User-Id"))
        return key, connection, frames

    @property
    def last_came_by(self) -> int:
        """The descriptor by which the last message came; -1 if unknown.

        ZeroMQ knows none for a message that did not come over a stream, as from a raw peer.
        """
        if self._last is None:
            return -1
        try:
            return int(self._last.get(zmq.SRCFD))
        except zmq.ZMQError:
            return -1

    def name_of(self, key: str) -> str | None:
        """Return the name of a public key, "" without keys; None where no trainer has it."""
        return "" if self._ring is None else self._ring.name_of(key)

    @property
    def keys(self) -> dict[str, object]:
        """Whether there are keys, and the names that they let in."""
        names = [] if self._ring is None else self._ring.names
        return {"keys": self._ring is not None, "known": names}

    @property
    def is_asked(self) -> bool:
        """Whether a handshake waits for an answer."""
        return self.questions is not None and waits(self.questions)

    def answer(self, now: float) -> None:
        """Answer for each connection in its handshake whose key is known; others wait for a tick.

        Their keys may be new.
        """
        if self.questions is None:
            return
        while waits(self.questions):
            question = self.questions.recv_multipart(zmq.NOBLOCK)
            if self._known(question):
                self._decide(question, now)
            else:
                self._unanswered.append(question)

    def _known(self, question: list[bytes]) -> str:
        """Return the public key of a question, where it is known; else ""."""
        assert self._ring is not None
        if question[7] != b"CURVE" or len(question) != 9:
            return ""
        key = _key_of(question)
        return key if self._ring.name_of(key) is not None else ""

    def _decide(self, question: list[bytes], now: float) -> None:
        assert self.questions is not None
        asker, empty, version, request, _, address, *_ = question
        key = self._known(question)
        status = (b"200", b"OK", key.encode()) if key else (b"400", b"unknown key", b"")
        self.questions.send_multipart([asker, empty, version, request, *status, b""])
        if not key:
            peer = address.decode("ascii", "replace")
            unknown = _key_of(question)
            text = f"refused a trainer at {peer}: its public key {unknown} is not in trainers/"
            self.refusals.add("unknown_key", f"{peer} {unknown}", text, now)

    def tick(self, now: float) -> bool:
        """Count lost connections, and look at the keys; return whether these have changed."""
        for event in self._connections.take_lost():
            reason = self._reason(*event)
            self.refusals.add(reason, "", _TEXTS[reason], now)
        self.refusals.tick(now)
        after_s = _LEAST_LOOK_S if self._unanswered else _LOOK_S
        if self._ring is None or now - self._looked < after_s:
            return False
        self._looked = now
        changed = self._ring.refresh()
        for question in self._unanswered:
            self._decide(question, now)
        self._unanswered.clear()
        return changed

    def _reason(self, kind: int, value: int) -> str:
        """Return why a connection was lost.  ZeroMQ does not name the peer of a handshake."""
        reason = "connections" if kind == ENDED else "handshake"
        if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            reason = _BY_PROTOCOL.get(value, reason)
        if reason == "mechanism":
            reason = "keys_not_used" if self._ring is None else "no_keys"
        return reason

    def close(self) -> None:
        """Close the socket of questions."""
        if self.questions is not None:
            self.questions.close()


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
