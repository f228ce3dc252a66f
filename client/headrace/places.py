"""Where servers and owners are: the addresses of a name, and what a server's locator tells.

    ServedShare of each server ─► places_of() ─► by owner its address: tcp://host-of-the-server:port

The host is the one by which this trainer has reached the locator.  A trainer asks again, by
``ask``, while an owner is away: it may have another address, or the server other owners.
"""

from __future__ import annotations

import ipaddress
import socket as sockets
from typing import TYPE_CHECKING, Any

import zmq

from headrace_proto import limits
from headrace_proto.address import host_and_port
from headrace_proto.errors import ConnectionLost, HeadraceError
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Hello, ServedShare

if TYPE_CHECKING:
    from .credentials import Keys

#: Maximum wait for the answer of a locator.
_ANSWER_MS = 1000


def looked_up(address: str) -> list[str]:
    """Return the addresses that a host name resolves to now; none where the host is no name."""
    place = host_and_port(address)
    if place is None:
        return []
    host, port = place
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        pass
    else:
        return []
    try:
        found = sockets.getaddrinfo(host, port, sockets.AF_INET, sockets.SOCK_STREAM)
    except OSError as error:
        raise ConnectionLost(f"the name in {address} can not be looked up: {error}") from None
    return sorted({f"tcp://{place[0]}:{port}" for *_, place in found})


def places_of(served: ServedShare, reached: str) -> tuple[str, ...]:
    """Return the address of each owner of a server whose locator was ``reached`` at this one."""
    here = host_and_port(reached)
    return tuple(_beside(worker, here and here[0]) for worker in served.workers)


def _beside(worker: str, host: str | None) -> str:
    there = host_and_port(worker)
    return worker if there is None or host is None else f"tcp://{host}:{there[1]}"


def ask(
    context: zmq.Context[zmq.Socket[bytes]], reached: str, keys: Keys | None, hello: Hello
) -> Any:
    """Return the answer of a locator to a greeting; None where there is none in time."""
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.maxmsgsize = limits.MAX_HEADER_BYTES
            if keys is not None:
                keys.lock(socket)
            socket.connect(reached)
            socket.send(FROM_TRAINER.encode(hello))
            return FROM_SERVER.decode(socket.recv()) if socket.poll(_ANSWER_MS) else None
    except (zmq.ZMQError, HeadraceError):  # this trainer leaves, or what is there is no server
        return None
