"""HTTP on a few threads: what is said is bounded in size, in time and in number.

    accept ─► one of 16 threads ─► head (16 KiB, 5 s) ─► answer ─► sent (10 s) ─► closed

One request a connection, and no body is read.  Whoever says more, says it too slowly or says
nonsense is answered so, or cut off, and harms nobody but those who wait behind: no thread of a feed
waits for one of these.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import io
import logging
import socket
import threading
import time

from headrace_proto import __version__
from headrace_proto.errors import ServerError

from .answers import Answers, Request, Response
from .watch import Watch, Watched

__all__ = ["HttpService"]

logger = logging.getLogger("headrace.http")

_THREADS = 16
_HEAD_BYTES = 16 * 1024
_HEAD_S = 5.0
_SEND_S = 10.0
#: What a connection waits for a thread before it is cut off.
_TURN_S = 2.0
_CLOSE_S = 15.0


class HttpService:
    """One port.  It answers from the start, and watches a server once there is one."""

    def __init__(self, host: str, port: int, token: str | None = None) -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            family, place = found[0], found[4]
            self._socket = socket.create_server(place[:2], family=family, backlog=64)
        except OSError as error:
            # What create_server adds to the text of the system says nothing more.
            text = (error.strerror or str(error)).partition(" (while ")[0]
            raise ServerError(f"http={f'{host}:{port}'!r}: {text}") from None
        bound = self._socket.getsockname()
        told = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"http://{told}:{bound[1]}"
        self._watch = Watch()
        local = bound[0].startswith("127.") or bound[0] == "::1"
        self._answers = Answers(self._watch, local, token)
        self._turns = threading.BoundedSemaphore(_THREADS)
        self._closing = False
        self._open: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, name="headrace-http", daemon=True)
        self._acceptor.start()

    def watch(self, server: Watched) -> None:
        """There is a server from now on."""
        self._watch.begin(server)

    def close(self) -> None:
        """Answer no more."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # by which accept returns
        self._acceptor.join(_CLOSE_S)
        self._socket.close()
        for thread in list(self._threads):
            thread.join(_CLOSE_S)
        self._watch.end()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, peer = self._socket.accept()
            except OSError:
                if not self._closing:
                    time.sleep(0.1)  # no file descriptors are left, say
                continue
            if self._closing or not self._turns.acquire(timeout=_TURN_S):
                connection.close()
                continue
            thread = threading.Thread(
                target=self._serve,
                args=(connection, peer[0]),
                name="headrace-http-one",
                daemon=True,
            )
            with self._lock:
                self._open.add(connection)
                self._threads.add(thread)
            thread.start()

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            with contextlib.suppress(OSError):
                response, with_body = self._respond(connection, peer)
                connection.settimeout(_SEND_S)
                connection.sendall(_wire(response, with_body))
                connection.shutdown(socket.SHUT_WR)
                _let_finish(connection)
        finally:
            with self._lock:
                self._open.discard(connection)
                self._threads.discard(threading.current_thread())
            connection.close()
            self._turns.release()

    def _respond(self, connection: socket.socket, peer: str) -> tuple[Response, bool]:
        head = _head(connection)
        request = None if head is None else _parsed(head, peer)
        if request is None:
            return Response(400, b"this is no request that can be read\n"), True
        try:
            return self._answers.answer(request), request.method != "HEAD"
        except Exception:
            logger.exception("%s %.200s could not be answered", request.method, request.target)
            return Response(500, b"that could not be answered; the server's log says why\n"), True


def _head(connection: socket.socket) -> bytes | None:
    """A request up to the empty line; None where it is too long, or does not come in time."""
    deadline = time.monotonic() + _HEAD_S
    head = bytearray()
    while b"\r\n\r\n" not in head:
        left = deadline - time.monotonic()
        if left <= 0 or len(head) >= _HEAD_BYTES:
            return None
        connection.settimeout(left)
        part = connection.recv(4096)
        if not part:
            return None
        head += part
    return bytes(head)


def _parsed(head: bytes, peer: str) -> Request | None:
    line, _, rest = head.partition(b"\r\n")
    try:
        method, target, version = line.decode("ascii").split(" ")
        parsed = http.client.parse_headers(io.BytesIO(rest))
    except (ValueError, http.client.HTTPException):
        return None
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        return None
    return Request(method, target, {k.lower(): str(v) for k, v in parsed.items()}, peer)


def _wire(response: Response, with_body: bool) -> bytes:
    try:
        phrase = http.HTTPStatus(response.status).phrase
    except ValueError:
        phrase = ""
    headers = {
        "Server": f"headrace/{__version__}",
        "Content-Type": response.kind,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + response.body if with_body else head


def _let_finish(connection: socket.socket) -> None:
    """Let the peer read what was sent: closing with unread bytes of its would cut that off."""
    connection.settimeout(1.0)
    left = _HEAD_BYTES
    while left > 0 and (part := connection.recv(4096)):
        left -= len(part)
