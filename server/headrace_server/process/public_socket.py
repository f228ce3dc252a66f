"""A socket at which trainers of other hosts connect: that of the locator, or of one worker.

    trainer ══► CURVE ─► gate ─► receive() ─► locator, or reception of a worker
            ◄═══════════════════ say(), send_block()

ZeroMQ takes messages of all connections in turn, and holds 64 of each: a connection that sends more
is not read any further.  A fault at one message ends the connection that it came by.

The memory of a block that is sent belongs to ZeroMQ's thread until ``sweep`` finds it sent.

For one thread at a time.  ZeroMQ's descriptors signal changes only, so each use of the socket may
take a signal: call ``waits`` after it, and before any sleep.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence

import zmq

from headrace_proto.channel import Frame
from headrace_proto.errors import HeadraceError, ProtocolError, code_of
from headrace_proto.messages import FROM_SERVER, Refused

from .channel_server import is_channel
from .connections import Connections
from .key_gate import Gate
from .keyring import KeyRing
from .refusals import Refusals, fault_of_message
from .sockets import AND_MORE, NOBLOCK, bind_all, public_router, waits

#: Blocks up to this size are copied to ZeroMQ: that takes less than to wake the thread of pyzmq
#: that reports when ZeroMQ does not read memory any more.
_COPIED_BYTES = 64 << 10


class PublicSocket:
    """One ROUTER, the gate before it, and its connections."""

    def __init__(self, ring: KeyRing | None, most_connections: int) -> None:
        """``most_connections``: beyond that, those end that no session uses."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = public_router(self._context)
        self._connections = Connections(self._context, self._socket, most_connections)
        self._gate = Gate(self._context, self._socket, ring, self._connections)
        self._used = True  # since the socket was last found to have no message
        self._frees_memory = False  # at the next tick
        self._sending: list[tuple[zmq.MessageTracker, Callable[[], object]]] = []

    def bind(self, binds: Iterable[str]) -> list[str]:
        """Bind to these addresses; return them with their ports.  CanNotBind names one at fault."""
        return bind_all(self._socket, binds)

    @property
    def refusals(self) -> Refusals:
        """Refused connections and messages."""
        return self._gate.refusals

    @property
    def keys(self) -> dict[str, object]:
        """Whether there are keys, and the names that they let in."""
        return self._gate.keys

    def name_of(self, key: str) -> str | None:
        """Return the name of a public key, "" without keys; None where it is revoked."""
        return self._gate.name_of(key)

    # The poll

    def filenos(self) -> list[int]:
        """Return the descriptors that are readable when ``hear`` or ``receive`` has work."""
        numbers = [int(self._socket.getsockopt(zmq.FD)), self._connections.fileno()]
        if self._gate.questions is not None:
            numbers.append(int(self._gate.questions.getsockopt(zmq.FD)))
        return numbers

    def open_files(self) -> Iterator[int]:
        """Yield the descriptors of its listeners and connections."""
        return self._connections.open_files()

    @property
    def anybody(self) -> bool:
        """Whether a session uses a connection of this socket."""
        return self._connections.used

    @property
    def pending(self) -> bool:
        """Whether ``hear`` has work that no descriptor shows."""
        return self._connections.more or self._gate.is_asked

    def hear(self, now: float) -> None:
        """Note which connections came and went, and answer handshakes."""
        self._used = True
        self._connections.hear(now)
        self._connections.end_surplus(now)
        self._gate.answer(now)

    @property
    def waits(self) -> bool:
        """Whether a message can be received."""
        if self._used:
            self._used = waits(self._socket)
        return self._used

    # Messages

    def receive(self) -> tuple[str, bytes, list[Frame]]:
        """Return the next message: the public key that it came by, its connection, its frames.

        Payload stays in ZeroMQ's memory.  HeadraceError: it can not be taken, see ``refuse``.
        """
        self._used = True
        key, connection, frames = self._gate.receive()
        if is_channel(connection):  # ZeroMQ lets a peer choose its name
            raise ProtocolError("a connection has the name of another trainer's channel")
        return key, connection, frames

    def say(self, connection: bytes, header: bytes) -> bool:
        """Send a header; return False where the peer is gone, or does not read."""
        self._used = True
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
        self._used, small = True, block.nbytes <= _COPIED_BYTES
        try:
            self._socket.send(connection, AND_MORE)
            self._socket.send(header, AND_MORE)
            tracker = self._socket.send(block, NOBLOCK, copy=small, track=not small)
        except zmq.ZMQError:  # the peer is gone, or does not read
            tracker = None
        if tracker is None:
            sent()
        else:
            self._sending.append((tracker, sent))

    @property
    def sending(self) -> bool:
        """Whether blocks are being sent, for ``sweep``."""
        return bool(self._sending)

    def sweep(self) -> bool:
        """Report the blocks that are sent; return whether there were some."""
        if not any(tracker.done for tracker, _ in self._sending):
            return False
        sending, self._sending = self._sending, []
        for tracker, sent in sending:
            if tracker.done:
                sent()
            else:
                self._sending.append((tracker, sent))
        return True

    def refuse(self, error: Exception, now: float) -> None:
        """End the connection of the last message, which ``error`` kept from being handled."""
        connection = self._gate.last_from
        refused, reason, fault = error, "garbage", None
        if not isinstance(error, HeadraceError):
            refused, reason, fault = fault_of_message(error), "fault", error
        refusal = Refused(code_of(refused), str(refused)[:1000])
        text = f"ended the connection of a trainer: {refusal.text}"
        self.refusals.add(reason, connection.hex(), text, now, fault)
        self._frees_memory = True
        self.say(connection, FROM_SERVER.encode(refusal))
        self._connections.end_soon(self._gate.last_came_by, now)

    # Sessions and time

    @property
    def last_came_by(self) -> int:
        """The descriptor by which the last message came; -1 if unknown."""
        return self._gate.last_came_by

    @property
    def last_came_to(self) -> str:
        """The port or path to which the last message came; "" if unknown."""
        return Connections.place_of(self._gate.last_came_by)

    def opened(self, session: int, came_by: int, now: float) -> None:
        """Note that a session has the connection of this descriptor, which so stays."""
        self._connections.belongs(came_by, session, now)

    def left(self, session: int, now: float) -> None:
        """Note that a session has ended: its connection may make room for others."""
        self._connections.left(session, now)

    def tick(self, now: float) -> bool:
        """End surplus connections, log refusals; return whether the valid keys have changed."""
        self._connections.end_surplus(now)
        self._connections.end_refused(now)
        if self._frees_memory:
            self._frees_memory = False
            _free_memory()
        return self._gate.tick(now)

    def close(self, linger_ms: int = 300) -> None:
        """Close it, and give the last messages a moment to leave."""
        self._socket.linger = linger_ms
        self._gate.close()
        self._connections.close()
        self._socket.close()
        self._context.term()


def _free_memory() -> None:
    """Give free memory back to the kernel: the heap keeps that of refused messages, up to all."""
    with contextlib.suppress(AttributeError):  # not every C library has this function
        ctypes.CDLL(None).malloc_trim(0)


def place_in(address: str) -> str:
    """Return the port or path of an address, as ``last_came_to`` has it."""
    scheme, _, rest = address.partition("://")
    return rest.rpartition(":")[2] if scheme == "tcp" else rest


def worker_binds(
    binds: Sequence[str], worker: int, ports: tuple[int, int] | None, before: Sequence[str] = ()
) -> list[str]:
    """Return where a worker binds for each address of the server.

    ``ports``: the range of all workers.  ``before``: the addresses of its earlier life, which count
    where the server's port is any free one.
    """
    found = []
    for place, bind in enumerate(binds):
        scheme, _, rest = bind.partition("://")
        host, _, port = rest.rpartition(":")
        if scheme != "tcp":
            found.append(bind if rest == "*" else f"{bind}-{worker}")
        elif ports is not None:
            found.append(f"tcp://{host}:{ports[0] + worker}")
        elif port not in ("*", "0"):
            found.append(f"tcp://{host}:{int(port) + 1 + worker}")
        else:
            found.append(before[place] if place < len(before) else bind)
    return found
