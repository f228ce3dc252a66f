"""HTTP on a few threads: requests are bounded in size, in time and in number.

    accept ─► one of 16 threads ─► head (16 KiB) ─► answer ─► sent ─► closed

One request a connection.  A peer that sends more, sends it too slowly or sends nonsense gets an
error, or is cut off.  When all threads are taken, a new connection cuts off the one whose peer the
server has waited for longest, so slow peers do not block others.  No thread of a feed waits for one
of these.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

from headrace_proto import __version__
from headrace_proto.errors import ServerError, one_line

from .answers import Answers, Response, is_here
from .watch import Watch

logger = logging.getLogger("headrace.http")

_THREADS = 16
_HEAD_BYTES = 16 * 1024
#: Maximum time for a peer to send its request, or to take the answer and close.
_PEER_S = 10.0
#: Maximum wait of a new connection for a thread.
_TURN_S = 2.0
#: A peer that the server has waited for less long than this is not cut off for a new one: most
#: requests are there within a millisecond, and many may come at once.
_PATIENCE_S = 0.05
#: Interval at which slow peers are looked for.
_LOOK_S = 0.1
_CLOSE_S = 15.0
_HEADERS = {
    "Connection": "close",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class HttpService(socketserver.ThreadingTCPServer):
    """Serves one port.  It answers from the start, and watches a server once that has started.

    Each connection gets a thread while there are some.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, wanted: tuple[str, int], watch: Watch) -> None:
        host, port = wanted
        #: Connections that have a thread: since when their peer must send or read something, which
        #: is never where it need not, or where the connection has been ended.
        self._since: dict[socket.socket, float] = {}
        self._changed = threading.Condition()
        try:
            found: Any = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family, place = found[0], found[4][:2]
            self.answers = Answers(watch, is_here(place[0]))
            super().__init__(place, _Handler)
        except (OSError, UnicodeError) as error:
            text = getattr(error, "strerror", None) or str(error)
            raise ServerError(f"http={f'{host}:{port}'!r}: {text}") from None
        bound = self.socket.getsockname()
        self.address = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_LOOK_S,), name="headrace-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End all connections and threads."""
        self.shutdown()
        self._thread.join(_CLOSE_S)
        with self._changed:
            for connection in self._since:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()

    def waits(self, connection: socket.socket, for_peer: bool) -> None:
        """Note whether a connection waits for its peer, or for the server."""
        with self._changed:
            self._since[connection] = time.monotonic() if for_peer else math.inf

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:  # such as: no file descriptors are left
            time.sleep(_LOOK_S)
            raise

    def service_actions(self) -> None:
        self._end_slowest(_PEER_S)

    def _end_slowest(self, longer_than_s: float) -> None:
        """End the connection that has waited longest for its peer, if it was so long."""
        with self._changed:
            slowest = min(self._since, key=self._since.__getitem__, default=None)
            if slowest is not None and time.monotonic() - self._since[slowest] >= longer_than_s:
                self._since[slowest] = math.inf
                with contextlib.suppress(OSError):
                    slowest.shutdown(socket.SHUT_RDWR)

    def verify_request(self, request: Any, client_address: object) -> bool:
        """Return whether a thread is free for a new connection; if none is, end the slowest."""
        until = time.monotonic() + _TURN_S
        with self._changed:
            while len(self._since) >= _THREADS:
                if time.monotonic() > until:
                    return False
                self._end_slowest(_PATIENCE_S)
                self._changed.wait(_PATIENCE_S)
            self.waits(request, for_peer=True)
        return True

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._since.pop(request, None)
            request.close()
            self._changed.notify()

    def handle_error(self, request: object, client_address: Any) -> None:
        """Log what happened: a peer that goes away is no fault of the server."""
        logger.debug("a request from %s has no answer", client_address[0], exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One connection, which is one request."""

    server: HttpService
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # of a line that can not be read: its answer has a head
    server_version = f"headrace/{__version__}"
    sys_version = ""
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s\n"
    timeout = _PEER_S

    def setup(self) -> None:
        super().setup()
        head = b""
        while not re.search(rb"\n\r?\n", head):
            more = self.connection.recv(_HEAD_BYTES - len(head))
            if not more:
                raise OSError(f"a request has no end within {_HEAD_BYTES} bytes")
            head += more
        self.rfile = io.BytesIO(head)

    def handle(self) -> None:
        self.handle_one_request()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            # A close with unread bytes of the peer would cut off the answer.
            while self.connection.recv(4096):
                pass

    def do_GET(self) -> None:
        """Answer any request."""
        self.server.waits(self.connection, for_peer=False)
        headers = {k.lower(): ", ".join(self.headers.get_all(k, ())) for k in self.headers}
        try:
            response = self.server.answers.answer(self.command, self.path, headers)
        except Exception:
            asked = one_line(f"{self.command} {self.path}", 200)
            logger.exception("%s could not be answered", asked)
            response = Response(500, b"that could not be answered; the server's log says why\n")
        self.server.waits(self.connection, for_peer=True)
        self.send_response(response.status)
        length = {"Content-Type": response.kind, "Content-Length": str(len(response.body))}
        for name, value in {**length, **response.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_HEAD = do_POST = do_GET

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        logger.debug("%s", one_line(format % args, 200))


def http_place(value: object) -> tuple[str, int]:
    """Return host and port of "127.0.0.1:8080" or "[::1]:8080"; port 0 is a free one."""
    found = re.fullmatch(r"(\[.+\]|[^:]+):([0-9]{1,5})", str(value))
    if found is None or int(found[2]) > 65535:
        raise ValueError(
            f"http={value!r:.80} is not HOST:PORT such as 127.0.0.1:8080 (every address of "
            "this machine is 0.0.0.0, port 0 is a free one)"
        )
    return found[1].strip("[]"), int(found[2])
