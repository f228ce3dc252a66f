"""The connections of a public socket, and which of them end when there are too many.

    accepted ─► stranger ─── Hello ──► a session's ─── the session ends ──► stranger
                   │
                   └── too many connections: the older half of the strangers ends

A peer needs no key to hold a connection open, and each costs the server a descriptor.  So the
oldest connection without a session makes room for a new one; a trainer that is cut off this way
reconnects.  ``most`` is a soft bound: ZeroMQ accepts in a thread of its own.  The hard bound is the
limit of open files, at which connections wait in the kernel's queue.

ZeroMQ's monitor names each connection by its descriptor, and so does the metadata of a message
(ZMQ_SRCFD).  Only ZeroMQ's thread opens and closes these; the caller's thread shuts one down after
a check that the number is a connection of this port.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Iterator

import zmq

from .sockets import waits

_MONITOR = "inproc://headrace-connections"
#: In place of the event of a handshake: a connection that no session used was ended.
ENDED = 0
_BROKEN = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | _BROKEN
#: Least time for a handshake and a Hello.  The longer, the fewer newcomers a second in a flood.
_PATIENCE_S = 0.05
#: Time for a refused peer to read the answer, which the end of its connection would discard.
_ANSWER_S = 0.5
#: Maximum number of events read in one round, so that many connections do not delay trainers.
_BURST = 256
#: … and how many such rounds come before a session gets its connection.
_CATCH_UP = 20
#: Send buffer of a connection within this host.  With the kernel's own size, which grows to 4 MB,
#: the sender gets so far ahead of the reader that no cache holds the bytes any more.  Between hosts
#: the kernel's size is needed: such a bound would limit the rate.
_SEND_BYTES = 256 << 10
#: SO_LINGER: closing resets the connection, so the kernel keeps nothing of it.
_RESET = struct.pack("ii", 1, 0)


class Connections:
    """All connections of one public socket."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], public: zmq.Socket[bytes], most: int
    ) -> None:
        self._public, self._most = public, most
        self._since: dict[int, float] = {}  # of those without a session, the oldest first
        self._session: dict[int, int] = {}  # of the others
        self._connection: dict[int, int] = {}  # by session
        self._places: set[object] = set()  # ports, and paths of ipc://
        self._listeners: list[int] = []  # their descriptors
        self._lost: list[tuple[int, int]] = []
        self._refused: dict[int, float] = {}  # connections to end, and since when
        self.more = True  # whether events may wait though ``fileno`` is not readable
        public.monitor(_MONITOR, _EVENTS)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.rcvhwm = 0  # a full queue would block ZeroMQ's thread
        self._monitor.connect(_MONITOR)
        self._number = int(self._monitor.getsockopt(zmq.FD))

    def fileno(self) -> int:
        """Return the descriptor that is readable when events have come."""
        return self._number

    def open_files(self) -> Iterator[int]:
        """Yield the descriptors of all listeners and connections."""
        return itertools.chain(self._listeners, self._since, self._session)

    @property
    def used(self) -> bool:
        """Whether a session has a connection."""
        return bool(self._session)

    def update(self, now: float) -> None:
        """Read events: which connections came and ended."""
        for _ in range(_BURST):
            if not waits(self._monitor):
                self.more = False
                return
            event, *_ = self._monitor.recv_multipart(zmq.NOBLOCK)
            kind, value = struct.unpack("=HI", event[:6])
            if kind == zmq.EVENT_ACCEPTED:
                self._gone(value)  # an earlier one of that number
                self._since[value] = now
            elif kind == zmq.EVENT_DISCONNECTED:
                self._gone(value)
                self._refused.pop(value, None)
            elif kind == zmq.EVENT_LISTENING:
                self._listeners.append(value)
                with _borrowed(value) as listener:
                    self._places.add(_place(listener))
            else:
                self._lost.append((kind, value))
        self.more = True

    def _gone(self, number: int) -> None:
        self._since.pop(number, None)
        session = self._session.pop(number, None)
        if session is not None:
            del self._connection[session]

    def take_lost(self) -> list[tuple[int, int]]:
        """Return and forget what was refused: ENDED, or the event of a handshake, and its value."""
        lost, self._lost = self._lost, []
        return lost

    def belongs(self, number: int, session: int, now: float) -> None:
        """Note that a session came by this connection: it protects this one, and no other."""
        for _ in range(_CATCH_UP):  # the event of its coming may still wait
            self.update(now)
            if not self.more:
                break
        if number in self._since or number in self._session:
            self.left(session, now)
            self.left(self._session.get(number, -1), now)
            del self._since[number]
            self._session[number], self._connection[session] = session, number
        if number >= 0:
            self._bound_backlog(number)

    def left(self, session: int, now: float) -> None:
        """Note that a session has ended; its connection may make room for others."""
        number = self._connection.pop(session, None)
        if number is not None:
            del self._session[number]
            self._since[number] = now

    def end_surplus(self, now: float) -> None:
        """End connections without a session where there are too many connections.

        It ends the older half of them, so that many can come before the next look.
        """
        if len(self._since) + len(self._session) <= self._most:
            return
        half = itertools.islice(self._since.items(), (len(self._since) + 1) // 2)
        for number in [number for number, since in half if now - since >= _PATIENCE_S]:
            del self._since[number]
            if self._end(number):
                self._lost.append((ENDED, number))

    def end_soon(self, number: int, now: float) -> None:
        """Have ``end_refused`` end a connection, once its peer had time to read an answer."""
        if number >= 0:
            self._refused.setdefault(number, now)

    def end_refused(self, now: float) -> None:
        """End the connections whose message was refused."""
        for number, since in list(self._refused.items()):
            if now - since >= _ANSWER_S:
                del self._refused[number]
                self._end(number)

    def _bound_backlog(self, number: int) -> None:
        """Bound the send buffer of a connection both of whose ends have the same address."""
        with contextlib.suppress(OSError), _borrowed(number) as end:
            if _place(end) in self._places and _is_within_host(end):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)

    def _end(self, number: int) -> bool:
        """Shut a connection down; ZeroMQ's thread notices and closes it."""
        with contextlib.suppress(OSError), _borrowed(number) as end:
            # It may be gone, and its number that of another file.
            if _place(end) in self._places:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                end.shutdown(socket.SHUT_RDWR)
                return True
        return False

    @staticmethod
    def place_of(number: int) -> str:
        """Return the port or the path of this end of a connection, "" if unknown."""
        with contextlib.suppress(OSError), _borrowed(number) as end:
            return str(_place(end))
        return ""

    def close(self) -> None:
        """Close the monitor."""
        self._public.disable_monitor()
        self._monitor.close()


@contextlib.contextmanager
def _borrowed(number: int) -> Iterator[socket.socket]:
    """Yield ZeroMQ's socket of a descriptor, without closing it.  OSError: it is no socket."""
    end = socket.socket(fileno=number)
    try:
        yield end
    finally:
        end.detach()


def _is_within_host(end: socket.socket) -> bool:
    """Return whether both ends of an Internet socket have the same address."""
    name, peer = end.getsockname(), end.getpeername()
    return isinstance(name, tuple) and bool(name[0] == peer[0])


def _place(end: socket.socket) -> object:
    """Return the port of an Internet socket, the path of a Unix socket."""
    name = end.getsockname()
    return name[1] if isinstance(name, tuple) else name
