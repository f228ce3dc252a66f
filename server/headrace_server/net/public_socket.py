"""A socket at which trainers of other hosts connect: that of the locator, or of one worker.

    trainer ══► handshake (CURVE) ─► ZAP: is the key known? ─► receive() ─► locator, or reception
            ◄══════════════════════════════════════════════ say(), send_block()
                        │                      │
                        └── broken, other keys ┴─► refused, counted by reason

ZeroMQ takes messages of all connections in turn, and holds 64 of each: a connection that sends more
is not read any further.  A fault at one message ends the connection that it came by.

ZeroMQ asks ZAP over a socket of the same context.  The process answers in its own poll, so that
needs no thread; handshakes wait for one round at most.  Without keys there is no such socket, and
every connection is let in.  ``connections`` lists the handshakes that ZeroMQ broke off itself.
Where both sides see that their keys do not fit, the first to hang up knows why; if that is the
trainer, a broken handshake is counted.

The memory of a block that is sent belongs to ZeroMQ's thread until ``sweep`` finds it sent.

For one thread at a time.  ZeroMQ's descriptors signal changes only, so each use of the socket may
take a signal: call ``waits`` after it, and before any sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import itertools
from collections.abc import Callable, Iterable, Sequence

import zmq
from zmq.utils import z85

from headrace_proto import limits
from headrace_proto.channel import Frame
from headrace_proto.errors import HeadraceError, LimitExceeded, ProtocolError, code_of, shown
from headrace_proto.messages import FROM_SERVER, Refused

from ..process.config import RunConfig
from .channel_server import is_channel
from .connections import ENDED, Connections
from .keyring import TRAINERS, KeyRing
from .refusals import Refusals, fault_of_message
from .sockets import AND_MORE, NOBLOCK, bind_all, public_router, waits

#: Blocks up to this size are copied to ZeroMQ: that takes less than to wake the thread of pyzmq
#: that reports when ZeroMQ does not read memory any more.
_COPIED_BYTES = 64 << 10
_LAST_PORT = 65535
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


class PublicSocket:
    """One ROUTER, its connections, and the keys with which it lets trainers in."""

    def __init__(self, ring: KeyRing | None, most_connections: int) -> None:
        """``most_connections``: beyond that, those end that no session uses."""
        self.refusals = Refusals()  # of connections and messages, by reason
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = public_router(self._context)
        self.connections = Connections(self._context, self._socket, most_connections)
        self._ring = ring
        self._looked = 0.0
        self._unanswered: list[list[bytes]] = []  # until the keys are looked at again
        self._questions: zmq.Socket[bytes] | None = None
        if ring is not None:
            self._questions = self._context.socket(zmq.ROUTER)
            self._questions.linger = 0
            self._questions.bind(_ZAP)
            self._socket.curve_server = True
            self._socket.curve_secretkey = ring.secret.text.encode()
            self._socket.zap_domain = _DOMAIN
        self._last_from = b""  # the connection of the last message
        self._last: zmq.Frame | None = None  # with ZeroMQ's metadata of its connection
        #: Whether it was used since ``look`` found nothing: no descriptor may show what has come.
        self.stirred = True
        self._frees_memory = False  # at the next tick
        #: Blocks that are being sent, for ``sweep``.
        self.sending: list[tuple[zmq.MessageTracker, Callable[[], object]]] = []

    def bind(self, binds: Iterable[str]) -> list[str]:
        """Bind to these addresses; return them with their ports.  CanNotBind names one at fault."""
        return bind_all(self._socket, binds)

    # The poll

    def filenos(self) -> list[int]:
        """Return the descriptors that are readable when ``update`` or ``receive`` has work."""
        numbers = [int(self._socket.getsockopt(zmq.FD)), self.connections.fileno()]
        if self._questions is not None:
            numbers.append(int(self._questions.getsockopt(zmq.FD)))
        return numbers

    @property
    def pending(self) -> bool:
        """Whether ``update`` has work that no descriptor shows."""
        asked = self._questions is not None and waits(self._questions)
        return self.connections.more or asked

    def update(self, now: float) -> None:
        """Note which connections came and went, and answer handshakes."""
        self.stirred = True
        self.connections.update(now)
        self.connections.end_surplus(now)
        self._answer_handshakes(now)

    @property
    def waits(self) -> bool:
        """Whether a message can be received."""
        return self.stirred and waits(self._socket)

    def look(self) -> bool:
        """Return whether there is something that no descriptor shows."""
        self.stirred = waits(self._socket) or self.pending
        return self.stirred

    # Messages

    def receive(self) -> tuple[str, bytes, list[Frame]]:
        """Return the next message: the public key that it came by, its connection, its frames.

        Payload stays in ZeroMQ's memory.  HeadraceError: it can not be taken, see ``refuse``.
        """
        self.stirred = True
        receive = self._socket.recv
        connection = self._last_from = receive(NOBLOCK)
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
        if is_channel(connection):  # ZeroMQ lets a peer choose its name
            raise ProtocolError("a connection has the name of another trainer's channel")
        key = "" if self._ring is None else str(head.get("User-Id"))
        return key, connection, frames

    def send(self, connection: bytes, header: bytes) -> bool:
        """Send a header; return False where the peer is gone, or does not read."""
        self.stirred = True
        try:
            self._socket.send(connection, AND_MORE)
            self._socket.send(header, NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def send_block(
        self, connection: bytes, header: bytes, block: memoryview, sent: Callable[[], object]
    ) -> None:
        """Send a header and a block; call ``sent`` once nobody reads the block any more."""
        self.stirred, small = True, block.nbytes <= _COPIED_BYTES
        try:
            self._socket.send(connection, AND_MORE)
            self._socket.send(header, AND_MORE)
            tracker = self._socket.send(block, NOBLOCK, copy=small, track=not small)
        except zmq.ZMQError:  # the peer is gone, or does not read
            tracker = None
        if tracker is None:
            sent()
        else:
            self.sending.append((tracker, sent))

    def sweep(self) -> bool:
        """Report the blocks that are sent; return whether there were some."""
        if not any(tracker.done for tracker, _ in self.sending):
            return False
        sending, self.sending = self.sending, []
        for tracker, sent in sending:
            if tracker.done:
                sent()
            else:
                self.sending.append((tracker, sent))
        return True

    def refuse(self, error: Exception, now: float) -> None:
        """End the connection of the last message, which ``error`` kept from being handled."""
        connection = self._last_from
        refused, reason, fault = error, "garbage", None
        if not isinstance(error, HeadraceError):
            refused, reason, fault = fault_of_message(error), "fault", error
        refusal = Refused(code_of(refused), shown(str(refused), 1000))
        text = f"ended the connection of a trainer: {refusal.text}"
        self.refusals.add(reason, text, now, fault)
        self._frees_memory = True
        self.send(connection, FROM_SERVER.encode(refusal))
        self.connections.end_soon(self.last_came_by, now)

    # Sessions and time

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

    @property
    def last_came_to(self) -> str:
        """The port or path to which the last message came; "" if unknown."""
        return Connections.place_of(self.last_came_by)

    def tick(self, now: float) -> bool:
        """End surplus connections, log refusals, read keys; return whether these have changed."""
        self.connections.end_surplus(now)
        self.connections.end_refused(now)
        if self._frees_memory:
            self._frees_memory = False
            free_memory()
        for event in self.connections.take_lost():
            reason = self._reason(*event)
            self.refusals.add(reason, _TEXTS[reason], now)
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

    # Keys

    def name_of(self, key: str, right: str = TRAINERS) -> str | None:
        """Return the name of a public key, "" without keys; None where nobody with the right has
        it."""
        return "" if self._ring is None else self._ring.name_of(key, right)

    @property
    def keys(self) -> dict[str, object]:
        """Whether there are keys, and the names that they let in."""
        names = [] if self._ring is None else self._ring.names
        return {"keys": self._ring is not None, "known": names}

    def _answer_handshakes(self, now: float) -> None:
        """Answer for each connection in its handshake whose key is known; others wait for a tick.

        Their keys may be new.
        """
        if self._questions is None:
            return
        while waits(self._questions):
            question = self._questions.recv_multipart(zmq.NOBLOCK)
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
        return key if self._ring.knows(key) else ""

    def _decide(self, question: list[bytes], now: float) -> None:
        assert self._questions is not None
        self.stirred = True
        asker, empty, version, request, _, address, *_ = question
        key = self._known(question)
        status = (b"200", b"OK", key.encode()) if key else (b"400", b"unknown key", b"")
        self._questions.send_multipart([asker, empty, version, request, *status, b""])
        if not key:
            peer = address.decode("ascii", "replace")
            unknown = _key_of(question)
            text = f"refused a trainer at {peer}: its public key {unknown} is not in trainers/"
            self.refusals.add("unknown_key", text, now)

    def _reason(self, kind: int, value: int) -> str:
        """Return why a connection was lost.  ZeroMQ does not name the peer of a handshake."""
        reason = "connections" if kind == ENDED else "handshake"
        if kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            reason = _BY_PROTOCOL.get(value, reason)
        if reason == "mechanism":
            reason = "keys_not_used" if self._ring is None else "no_keys"
        return reason

    def close(self, linger_ms: int = 300) -> None:
        """Close it, and give the last messages a moment to leave."""
        self._socket.linger = linger_ms
        if self._questions is not None:
            self._questions.close()
        self.connections.close()
        self._socket.close()
        self._context.term()


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


def free_memory() -> None:
    """Give free memory back to the kernel: the heap keeps that of refused messages, or of columns
    that have grown."""
    with contextlib.suppress(AttributeError):  # not every C library has this function
        ctypes.CDLL(None).malloc_trim(0)


def place_in(address: str) -> str:
    """Return the port or path of an address, as ``last_came_to`` has it."""
    scheme, _, rest = address.partition("://")
    return rest.rpartition(":")[2] if scheme == "tcp" else rest


def clash(one: str, other: str) -> bool:
    """Return whether two HOST:PORT may be one socket; a host may be all addresses, or a name."""
    (host, _, port), (there, _, at) = one.rpartition(":"), other.rpartition(":")
    if port != at or port in ("*", "0"):
        return False
    any_host = not {"*", "0.0.0.0", "[::]"}.isdisjoint((host, there))
    return host == there or any_host or _is_numeric(host) != _is_numeric(there)


def _is_numeric(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(host.strip("[]")))
    return False


def worker_binds(config: RunConfig, worker: int, before: Sequence[str]) -> list[str]:
    """Return where a worker binds for each address of the server.

    ``before``: the addresses of its earlier life, which count where the server's port is any free
    one.  No worker gets ``taken`` of the config, nor one of ``binds``.  ValueError: these leave too
    few ports.
    """
    found, ports, workers = [], config.worker_ports, config.workers
    used = [*config.taken, *(bind.removeprefix("tcp://") for bind in config.binds)]
    for place, bind in enumerate(config.binds):
        scheme, _, rest = bind.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme != "tcp":
            found.append(bind if rest == "*" else f"{bind}-{worker}")
        elif ports is None and port in ("*", "0"):
            found.append(before[place] if place < len(before) else bind)
        else:
            first, last = ports or (int(port) + 1, _LAST_PORT)
            every = (f"{host}:{number}" for number in range(first, last + 1))
            free = (one for one in every if not any(clash(one, other) for other in used))
            chosen = [*itertools.islice(free, workers)]
            if len(chosen) < workers:
                raise ValueError(
                    f"the ports {first} to {last}, without those of bind= and http=, are fewer "
                    f"than workers={workers}, each of which needs one for {bind}: give other "
                    "worker_ports="
                )
            used += chosen
            found.append(f"tcp://{chosen[worker]}")
    return found
