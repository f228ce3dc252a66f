"""A look at an address where no server answered: whether anything listens there, and what.

    refused, unknown host  ─► nothing is there       the greeting of ZeroMQ    ─► no hint
    a socket that is gone  ─► nothing is there       an answer to HTTP's GET   ─► the port of --http

The hint is only for the text of an error, and takes a second at most: a thread asks, and the caller
does not wait for it longer, where a name server does not answer.
"""

from __future__ import annotations

import os
import socket
from threading import Thread

from headrace_proto.address import host_and_port

#: Seconds to connect, and then for each of two answers: a host that listens takes milliseconds.
_LOOK_S = 0.3
_MOST_S = 1.0
_GET = b"GET / HTTP/1.0\r\n\r\n"


def listening(address: str) -> str:
    """Return a hint about what listens at an address, or nothing."""
    scheme, _, path = address.partition("://")
    if scheme == "ipc":
        return "" if os.path.exists(path) or path[:1] == "@" else ": there is no such socket"
    if (place := host_and_port(address)) is None:
        return ""
    found: list[str] = []
    thread = Thread(target=lambda: found.append(_found(*place)), name="headrace-look", daemon=True)
    thread.start()
    thread.join(_MOST_S)
    return found[0] if found else ""


def _found(host: str, port: str) -> str:
    try:
        with socket.create_connection((host, int(port)), _LOOK_S) as connection:
            return _speaks(connection)
    except socket.gaierror:
        return f": no host {host!r} is known here"
    except ConnectionRefusedError:
        return ": nothing listens there"
    except (OSError, ValueError, OverflowError):
        return ""


def _speaks(connection: socket.socket) -> str:
    """Return a hint where the other end does not greet as ZeroMQ does, but answers to HTTP."""
    try:
        greeting = connection.recv(1)
    except TimeoutError:
        connection.sendall(_GET)
        greeting = connection.recv(4096)
        if greeting.startswith(b"HTTP/"):
            return (
                ": HTTP is served there; trainers connect to the address of --bind, not of --http"
            )
    if greeting[:1] not in (b"", b"\xff"):
        return ": what listens there is no server of headrace"
    return ""
