"""Commands to a running server, at the public address that trainers connect to, by the same keys.

    ServerAt.ask() ── Command ─► locator ─► Answered, with JSON
                                         ─► Refused, or no answer: an error that names the server

Each question has a connection of its own.  ZeroMQ's monitor shows why a connection is not there.

Texts of a server may come from a trainer or from data, and are shown on terminals, so control
characters are escaped.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import zmq

from headrace_proto import __version__, limits
from headrace_proto.clock import Deadline
from headrace_proto.credentials import Keys
from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    HeadraceError,
    NotAllowed,
    ProtocolError,
    ServerError,
    from_code,
)
from headrace_proto.keys import ENVIRONMENT
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Answered, Command, Refused
from headrace_proto.token import new_snapshot

from ..pipeline.declaration import Plain
from ..watch.statuses import ServerStatus

#: Number of servers that are asked at once.
AT_ONCE = 16
#: Maximum time for an answer.
TIMEOUT_S = 15.0
#: The same for the restart of a feed, which starts processes.
RESTART_S = 300.0
_LET_IN, _ENDED = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
_AUTH, _PROTOCOL = zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_CONNECTED, _RETRIED = zmq.EVENT_CONNECTED, zmq.EVENT_CONNECT_RETRIED
_EVENTS = _LET_IN | _ENDED | _AUTH | _PROTOCOL | _CONNECTED | _RETRIED
#: Connections that the peer has broken off without a reason before the command gives up: a later
#: attempt mostly shows the reason.
_BROKEN = 3


class ServerAt:
    """One server, at its public address."""

    def __init__(self, address: str, keys: Keys | None = None) -> None:
        self.address = address
        self._keys = keys

    def status(self) -> ServerStatus:
        """Return the status, as the page shows it."""
        return cast(ServerStatus, self.ask("status"))

    def seen(self) -> ServerStatus | str:
        """Return the status of the server, or why it has none."""
        try:
            return self.status()
        except HeadraceError as error:
            return str(error)

    def snapshot(
        self, feed: str | None, timeout_s: float, name: str = "", whole: bool = False
    ) -> dict[str, Plain]:
        """Take a snapshot of a feed; arguments and result are those of ``Supervisor.snapshot``."""
        return dict(self.ask("snapshot", timeout_s, feed=feed or "", name=name, whole=whole))

    def ask(self, what: str, timeout_s: float = TIMEOUT_S, **fields: Any) -> Plain:
        """Return the result of a command; ``fields`` are those of the message."""
        command = Command(limits.PROTOCOL, __version__, 1, what, **fields)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            socket = context.socket(zmq.DEALER)
            if self._keys is not None:
                self._keys.lock(socket)
            monitor = socket.get_monitor_socket(_EVENTS)
            socket.connect(self.address)
            with contextlib.suppress(zmq.Again):  # it was given up already: the monitor shows why
                socket.send(FROM_TRAINER.encode(command), zmq.NOBLOCK)
            return self._answer(socket, monitor, Deadline(timeout_s), what, timeout_s)
        finally:
            context.destroy(linger=0)

    def _answer(
        self,
        socket: zmq.Socket[bytes],
        monitor: zmq.Socket[bytes],
        deadline: Deadline,
        what: str,
        timeout_s: float,
    ) -> Plain:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(monitor, zmq.POLLIN)
        connected, let_in, broken = False, False, 0
        while left_s := deadline.left_s:
            ready = dict(poller.poll(int(1000 * left_s) + 1))
            if socket in ready:
                return self._result(socket.recv_multipart())
            if monitor not in ready:
                continue
            event, value = struct.unpack("=HI", monitor.recv_multipart()[0][:6])
            connected, let_in = connected or event == _CONNECTED, let_in or event == _LET_IN
            # ZeroMQ connects again after a connection has ended, or where there was none
            if (event == _RETRIED and not connected) or (event == _ENDED and let_in):
                raise ConnectionLost(
                    f"no server answers at {self.address}: it has ended, has not begun, or has "
                    "another address: give --address, the one that it prints"
                )
            connected, broken = connected and event != _RETRIED, broken + (event == _ENDED)
            mismatch = event == _PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
            if event == _AUTH or mismatch or broken >= _BROKEN:
                raise NotAllowed(self._not_let_in(event == _AUTH))
        if broken:
            raise NotAllowed(self._not_let_in(False))
        done = "" if what in ("status", "inspect") else ", and what was asked for may still be done"
        raise DeadlineExceeded(
            f"no server answers at {self.address}: no answer within {timeout_s:g} s{done}"
        )

    def _not_let_in(self, unknown: bool) -> str:
        keys = self._keys
        if keys is None:
            why = f"it asks for keys: give those of a trainer by --keys or {ENVIRONMENT}"
        elif unknown:
            why = (
                f"it does not know the public key of {keys.name!r}: copy {keys.name}.public into "
                "trainers/ of the server's keys"
            )
        else:
            why = f"it has no keys, or its key is not server.public of {keys.source}"
        return f"{self.address} lets this command not in: it is no headrace server, or {why}"

    def _result(self, frames: Sequence[bytes]) -> Plain:
        try:
            answer = FROM_SERVER.decode(frames[0])
            if isinstance(answer, Answered) and not answer.code:
                return json.loads(frames[1])
        except (ProtocolError, ValueError, IndexError, RecursionError):
            answer = None
        if isinstance(answer, (Answered, Refused)):
            raise from_code(answer.code, f"{self.address}: {answer.text}")
        raise ServerError(
            f"the peer at {self.address} is no headrace server, or not of this release "
            f"({__version__}): ask it by a command of its release"
        )


def snapshot_of_all(
    servers: Sequence[Callable[..., dict[str, Plain]]], feed: str | None, timeout_s: float
) -> dict[str, Plain]:
    """Have every server keep its share of a feed under one name; return the token of them all.

    ``servers`` take a snapshot each, together within ``timeout_s``.  Where one can not, the
    snapshot of the others stays unused.
    """
    if len(servers) == 1:
        return servers[0](feed, timeout_s)
    name, deadline = new_snapshot(), Deadline(timeout_s, gap_s=timeout_s)

    def taken(snapshot: Callable[..., dict[str, Plain]], whole: bool) -> dict[str, Plain]:
        left_s = round(deadline.left_s, 2)
        if not left_s:
            raise ServerError(f"the snapshot of all servers took longer than {timeout_s:g} s")
        return snapshot(feed, left_s, name, whole)

    with ThreadPoolExecutor(min(len(servers), AT_ONCE), "headrace-snapshot") as pool:
        for whole in (False, True):
            tokens = [*pool.map(taken, servers, [whole] * len(servers))]
    return tokens[0]
