"""Why a server does not let this trainer in: the handshake failures that ZeroMQ reports.

    refused for its key, or one side has keys and the other has none     told at once
    broken off without a word, again and again                           with keys: after 3 s

ZeroMQ does not recover from the first two, and a wait would last to its deadline.  The last happens
with a server that has another key, but also with a server behind a proxy that is still starting; so
it counts only until this trainer has been let in once.

While a connection stands, nothing comes by the monitor, so it costs nothing.
"""

from __future__ import annotations

import contextlib
import struct

import zmq

from headrace_proto.errors import NotAllowed
from headrace_proto.keys import ENVIRONMENT

from .credentials import Keys

_AUTH = zmq.EVENT_HANDSHAKE_FAILED_AUTH
_PROTOCOL = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_NO_DETAIL = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_SUCCEEDED = zmq.EVENT_HANDSHAKE_SUCCEEDED
_CONNECTED, _RETRIED = zmq.EVENT_CONNECTED, zmq.EVENT_CONNECT_RETRIED
_DISCONNECTED = zmq.EVENT_DISCONNECTED
_ALL = _DISCONNECTED | _AUTH | _PROTOCOL | _NO_DETAIL | _SUCCEEDED | _CONNECTED | _RETRIED
#: Number of handshakes broken off in a row, and their least duration, that count as a refusal.
_IN_A_ROW = 5
_PATIENCE_S = 3.0


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
        self._broken = 0  # in a row
        self._since = 0.0
        self._refused = ""  # why this trainer is not let in
        self.unreached = False  # whether the last attempt to connect has failed
        endpoint = f"inproc://headrace-handshakes-{id(self)}"
        socket.monitor(endpoint, _ALL)
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.linger = 0
        self._monitor.rcvhwm = 0  # a full queue would hold up ZeroMQ's own thread
        self._monitor.connect(endpoint)

    def fileno(self) -> int:
        """Return the descriptor that is readable when ``look`` has something to read."""
        return int(self._monitor.getsockopt(zmq.FD))

    def look(self, now: float) -> bool:
        """Read what has happened; return whether a connection has ended."""
        lost = False
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            kind, value = struct.unpack("=HI", self._monitor.recv_multipart(zmq.NOBLOCK)[0][:6])
            if kind in (_CONNECTED, _RETRIED):
                self.unreached = kind == _RETRIED
            elif kind == _SUCCEEDED:
                self._broken = 0
            elif kind == _DISCONNECTED:
                lost = True
            elif kind == _AUTH:
                self._refused = self._refused or self._unknown_key()
            elif kind == _PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
                self._refused = self._refused or self._mismatch()
            else:
                self._since = now if not self._broken else self._since
                self._broken += 1
        return lost

    def fault(self, now: float, known: bool) -> NotAllowed | None:
        """Return why waiting is in vain.  ``known``: this trainer was let in before."""
        self.look(now)
        if self._refused:
            return NotAllowed(self._refused)
        lasting = self._broken >= _IN_A_ROW and now - self._since >= _PATIENCE_S
        if self._keys is not None and lasting and not known:
            return NotAllowed(
                f"what listens at {self._address} breaks off every connection: it is no headrace "
                f"server, or it has no keys, or its key is not server.public of "
                f"{self._keys.source}: copy server.public from the keys of the server, or connect "
                "without keys"
            )
        return None

    def _unknown_key(self) -> str:
        keys = self._keys
        if keys is None:
            return f"the server at {self._address} does not let this trainer in"
        return (
            f"the server at {self._address} does not know the public key {keys.public} of "
            f"{keys.source}: put {keys.name}.public into trainers/ of the server's keys"
        )

    def _mismatch(self) -> str:
        if self._keys is None:
            return (
                f"the server at {self._address} asks for keys, and this trainer has none: give "
                f"keys= or {ENVIRONMENT} (headrace keygen DIR --name NAME makes them)"
            )
        return (
            f"the server at {self._address} has no keys, and this trainer comes with some "
            f"({self._keys.source}): start the server with keys, or connect without"
        )

    def close(self) -> None:
        """Stop monitoring; call it before the socket is closed."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.disable_monitor()
        self._monitor.close()
