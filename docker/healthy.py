"""Whether a headrace server answers, for a container's healthcheck: exit code 0 or 1, and a line.

    python healthy.py tcp://127.0.0.1:5557                    ZeroMQ greets
    python healthy.py http://127.0.0.1:9464/healthz           a page answers 2xx

Nothing but the standard library.  It joins no feed, so it takes no batch and no lane, and a server
whose trainers wait is as healthy as a busy one.  Of ``tcp://`` it sends the greeting of ZMTP and
waits for that of the other side: an open port alone, such as that of a proxy, does not pass.  A
greeting shows that the router lives and its sockets are served; it says nothing of the feeds.
"""

from __future__ import annotations

import socket
import sys
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

_PATIENCE_S = 3.0
#: Signature, version 3.0, mechanism NULL, no server, and filler: 64 bytes.
_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or urlsplit(arguments[0]).scheme not in ("tcp", "http"):
        print("usage: healthy.py tcp://HOST:PORT | http://HOST:PORT/PATH", file=sys.stderr)
        return 1
    [address] = arguments
    try:
        said = _page(address) if address.startswith("http:") else _greeting(address)
    except (OSError, ValueError, HTTPException) as error:
        print(f"{address}: {error!r}")
        return 1
    print(f"{address}: {said}")
    return 0


def _page(address: str) -> str:
    # No proxy of the environment is asked: this is about a server beside us.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=_PATIENCE_S) as answer:
        return f"{answer.status}"


def _greeting(address: str) -> str:
    parts = urlsplit(address)
    if parts.hostname is None or parts.port is None:
        raise ValueError("no host or no port")
    with socket.create_connection((parts.hostname, parts.port), timeout=_PATIENCE_S) as peer:
        peer.sendall(_GREETING)
        heard = b""
        while len(heard) < len(_GREETING):
            part = peer.recv(len(_GREETING) - len(heard))
            if not part:
                raise ValueError(f"closed after {len(heard)} bytes of a greeting")
            heard += part
    if heard[0] != 0xFF or heard[9] != 0x7F or heard[10] < 3:
        raise ValueError(f"{heard[:11].hex()} is no greeting of ZeroMQ")
    return f"greets with ZMTP {heard[10]}.{heard[11]}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
