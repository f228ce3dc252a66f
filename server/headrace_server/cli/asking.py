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
import time
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
from headrace_proto.handshakes import connecting
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

    def ask(self, what: str, timeout_s: float = TIMEOUT_S, **fields: Any) -> Any:
        """Return the result of a command; ``fields`` are those of the message."""
        command = Command(limits.PROTOCOL, __version__, 1, what, **fields)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            socket, handshakes = connecting(context, self._keys, self.address, self.address)
            with contextlib.suppress(zmq.Again):  # it was given up already: the monitor shows why
                socket.send(FROM_TRAINER.encode(command), zmq.NOBLOCK)
            deadline = Deadline(timeout_s)
            while left_s := deadline.left_s:
                zmq.select([socket, handshakes.monitor], [], [], left_s)
                if socket.poll(0):
                    return self._result(socket.recv_multipart())
                ended = handshakes.look(time.monotonic()) and not handshakes.broken_off
                if ended or handshakes.unreached:
                    raise ConnectionLost(
                        f"no server answers at {self.address}: it has ended, has not begun, or has "
                        "another address: give --address, the one that it prints"
                    )
                if fault := handshakes.fault(time.monotonic(), known=False, most=_BROKEN):
                    raise fault
            if handshakes.broken:
                raise NotAllowed(handshakes.broken)
        finally:
            context.destroy(linger=0)
        done = "" if what in ("status", "inspect") else ", and what was asked for may still be done"
        raise DeadlineExceeded(
            f"no server answers at {self.address}: no answer within {timeout_s:g} s{done}"
        )

    def _result(self, frames: Sequence[bytes]) -> object:
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
