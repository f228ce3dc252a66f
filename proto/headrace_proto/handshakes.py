"""A socket that connects to a server, and the monitor of its handshakes.

Trainers, producers and commands connect by it.  ZeroMQ reports handshakes that fail, which show why
a server does not let one in:

    refused for its key, or one side has keys and the other has none     NotAllowed at once
    broken off without a reason, again and again                         NotAllowed after 5 s

After the first two ZeroMQ never connects that socket again.  If the server hangs up first, even
these show only as a broken connection; a later attempt mostly shows the reason.  A server that has
another key breaks every connection off, but so does a proxy whose server is still starting; so this
counts only until this trainer has been let in once.  While a connection stands, nothing comes by
the monitor, so it costs nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import struct

import zmq

from . import limits
from .credentials import Keys
from .errors import NotAllowed
from .keys import ENVIRONMENT

_AUTH = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_PROTOCOL = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_SUCCEEDED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_CONNECTED, _RETRIED = zmq.EVENT_CONNECTED, zmq.EVENT_CONNECT_RETRIED
_DISCONNECTED = zmq.EVENT_DISCONNECTED
_EVENTS, _READABLE = int(zmq.EVENTS), int(zmq.POLLIN)
_ALL = _DISCONNECTED | _AUTH | _PROTOCOL | _SUCCEEDED | _CONNECTED | _RETRIED
#: Connections broken off in a row, and the least time since the first, that count as a refusal.
_IN_A_ROW = 5
_PATIENCE_S = 5.0
#: Numbers of monitors: ZeroMQ may keep the address of one for a moment after its end.
_NUMBERS = itertools.count()
#: Maximum time of one attempt to connect.  The next one resolves the name again and sends a new
#: SYN; the kernel would repeat the old one to the old address, ever more seldom, for two minutes.
_CONNECT_MS = 2000


class Handshakes:
    """The monitor of one socket; made before that connects."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        address: str,
        keys: Keys | None,
    ) -> None:
        self._socket = socket
        self._address = address
        self._keys = keys
        self.broken_off = 0  # connections in a row that ended before they could be used
        self._since = 0.0  # when the first of them ended
        self._last = 0  # the last event
        self._refused = ""  # why it is not let in
        self._reached = False  # since ZeroMQ tried to connect last
        self.unreached = False  # whether the last attempt to connect has failed
        endpoint = f"inproc://headrace-handshakes-{next(_NUMBERS)}"
        socket.monitor(endpoint, _ALL)
        self.monitor = context.socket(zmq.PAIR)
        self.monitor.linger = 0
        self.monitor.rcvhwm = 0  # a full queue would hold up ZeroMQ's own thread
        self.monitor.connect(endpoint)

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``look`` has something to read."""
        return int(self.monitor.getsockopt(zmq.FD))

    def look(self, now: float) -> bool:
        """Read what has happened; return whether a connection has ended."""
        lost = False
        while int(self.monitor.getsockopt(_EVENTS)) & _READABLE:
            kind, value = struct.unpack("=HI", self.monitor.recv_multipart(zmq.NOBLOCK)[0][:6])
            if kind in (_CONNECTED, _RETRIED):
                # it retries after the end of a connection, too
                self.unreached = kind == _RETRIED and not self._reached
                self._reached = kind == _CONNECTED
            elif kind == _SUCCEEDED:
                self.broken_off = 0
            elif kind == _DISCONNECTED:
                lost = True
                if self._last != _SUCCEEDED:
                    self._since = self._since if self.broken_off else now
                    self.broken_off += 1
            elif kind == _AUTH:
                self._refused = self._refused or self._unknown_key()
            elif kind == _PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                self._refused = self._refused or self._mismatch()
            self._last = kind
        return lost

    @property
    def broken(self) -> str:
        """Why the last connections may have ended before they could be used, if they did."""
        if not self.broken_off:
            return ""
        keys = self._keys
        why = (
            f"it asks for keys: give those of a trainer by keys= (--keys) or {ENVIRONMENT}"
            if keys is None
            else f"it has no keys, or its key is not server.public of {keys.source}: copy "
            "server.public from the keys of the server, or connect without keys"
        )
        return (
            f"what listens at {self._address} breaks off every connection: it is no headrace "
            f"server, or {why}"
        )

    def fault(self, now: float, known: bool, most: int = 0) -> NotAllowed | None:
        """Return why waiting is in vain.

        ``known``: it was let in before.  ``most``: connections broken off that are enough.
        """
        self.look(now)
        if self._refused:
            return NotAllowed(self._refused)
        # After its last event ZeroMQ tries again, unless it has given up.
        lasting = self.broken_off >= _IN_A_ROW or self._last == _DISCONNECTED
        lasts = lasting and now - self._since >= _PATIENCE_S
        if not known and self.broken_off and (lasts or 0 < most <= self.broken_off):
            return NotAllowed(self.broken)
        return None

    def _unknown_key(self) -> str:
        keys = self._keys
        if keys is None:
            return f"the server at {self._address} lets nobody in without keys"
        return (
            f"the server at {self._address} does not know the public key {keys.public} of "
            f"{keys.source}: put {keys.name}.public into trainers/ of the server's keys"
        )

    def _mismatch(self) -> str:
        if self._keys is None:
            return (
                f"the server at {self._address} asks for keys: give those of a trainer by keys= "
                f"(--keys) or {ENVIRONMENT} (headrace keygen DIR --name NAME makes them)"
            )
        return (
            f"the server at {self._address} has no keys, and some were given "
            f"({self._keys.source}): start the server with keys, or connect without"
        )

    def close(self) -> None:
        """Stop monitoring, and close the socket."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self.monitor.close()
        self._socket.close()


def connecting(
    context: zmq.Context[zmq.Socket[bytes]], keys: Keys | None, address: str, place: str
) -> tuple[zmq.Socket[bytes], Handshakes]:
    """Return a socket that connects to a place of a server, and its monitor."""
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.maxmsgsize = limits.MAX_PAYLOAD_BYTES
    socket.rcvhwm = socket.sndhwm = 0  # requests bound the number of messages
    socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 200
    socket.heartbeat_ivl, socket.heartbeat_timeout = 2000, 10_000
    socket.connect_timeout = _CONNECT_MS
    if keys is not None:
        keys.lock(socket)
    handshakes = Handshakes(context, socket, address, keys)
    try:
        socket.connect(place)
    except zmq.ZMQError as error:
        handshakes.close()
        raise ValueError(f"address={address!r}: {error}") from None
    return socket, handshakes
