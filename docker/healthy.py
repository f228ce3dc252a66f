"""Whether a headrace server answers, for a container's healthcheck: exit code 0 or 1, and a line.

    python healthy.py http://127.0.0.1:9464/healthz     they answer, and can store
    python healthy.py http://127.0.0.1:9464/readyz      and every feed is open, or has ended
    python healthy.py tcp://127.0.0.1:5557              a socket of ZeroMQ greets

Nothing but the standard library.  It joins no feed, so it takes no batch and no lane, and a server
whose trainers wait is as healthy as a busy one.  A page passes that answers 2xx; what another one
says, such as why a feed is not open, is printed.

``tcp://`` is for a server without HTTP, and says less: it sends the greeting of ZMTP and waits for
that of the other side, so an open port alone, such as that of a proxy, does not pass.  The greeting
comes from ZeroMQ's own thread, also where the locator hangs.
"""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from http.client import HTTPException
from urllib.parse import urlsplit

#: More than the 5 s after which a server calls a process dead that does not answer.
_PATIENCE_S = 6.0
_LONGEST_ANSWER = 500
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
        print(f"{address}: {str(error) or repr(error)}")
        return 1
    print(f"{address}: {said}")
    return 0


def _page(address: str) -> str:
    # No proxy of the environment is asked: this is about a server beside us.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(address, timeout=_PATIENCE_S) as answer:
            return f"{answer.status}"
    except urllib.error.HTTPError as error:
        said = error.read(_LONGEST_ANSWER).decode(errors="replace").strip()
        raise ValueError(f"{error.code} {said}") from None


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
