"""HTTP on a few threads: requests are bounded in size, in time and in number.

    accept ─► one of 16 threads ─► head (16 KiB, 5 s) ─► answer ─► sent (10 s) ─► closed

One request a connection, and no body is read.  A peer that sends more, sends it too slowly or sends
nonsense gets an error, or is cut off.  When all threads are taken, a new connection cuts off the
one whose peer the server has waited for longest, so slow peers do not block others.  No thread of
a feed waits for one of these.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import io
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_proto import __version__
from headrace_proto.address import ranged
from headrace_proto.clock import Deadline
from headrace_proto.errors import ServerError
from headrace_proto.placement import WHOLE, Share

from ..files.durable_file import usable
from ..process.statuses import ServerStatus
from .answers import Answers, HttpRequest, Response, is_here
from .http_client import HttpClient
from .watch import Watch

if TYPE_CHECKING:
    from ..supervisor.supervisor import Supervisor

logger = logging.getLogger("headrace.http")

_THREADS = 16
_HEAD_BYTES = 16 * 1024
_HEAD_END = b"\r\n\r\n"
_HEAD_S = 5.0
_SEND_S = 10.0
#: Maximum wait of a new connection for a thread.
_TURN_S = 2.0
#: A peer that the server has waited for less long than this is not cut off for a new one: most
#: requests are there within a millisecond, and many may come at once.
_PATIENCE_S = 0.05
#: Maximum wait for a peer to close its end after the answer was sent.
_FINISH_S = 1.0
_CLOSE_S = 15.0
_SHORTEST_TOKEN = 16


class HttpService:
    """Serves one port.  It answers from the start, and watches a server once that has started."""

    def __init__(self, options: HttpOptions) -> None:
        host, port, token = options.host, options.port, options.token
        share, peers = options.share, options.peers
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            family, place = found[0], found[4]
            self._socket = socket.create_server(place[:2], family=family, backlog=64)
        except (OSError, UnicodeError) as error:
            # create_server appends the address, which the error has already.
            text = (getattr(error, "strerror", None) or str(error)).partition(" (while ")[0]
            raise ServerError(f"http={f'{host}:{port}'!r}: {text}") from None
        bound = self._socket.getsockname()
        host = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        self.address = f"http://{host}:{bound[1]}"
        self._watch = Watch(share, peers)
        #: The other servers of the feed.
        self.others = [HttpClient(url, token) for i, url in enumerate(peers) if i != share[0]]
        self._answers = Answers(self._watch, is_here(bound[0]), token)
        self._turns = threading.BoundedSemaphore(_THREADS)
        self._closing = False
        self._open: dict[socket.socket, threading.Thread] = {}
        #: Open connections whose peer must send or read something, and since when; oldest first.
        self._slow: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, name="headrace-http", daemon=True)
        self._acceptor.start()

    def watch(self, server: Supervisor) -> None:
        """Watch this server from now on."""
        self._watch.begin(server)

    def every(self) -> ServerStatus:
        """Return the status of all servers of the feed.  ServerError where no peers are known."""
        return self._watch.every()

    def close(self) -> None:
        """End all connections and threads."""
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
        for thread in list(self._open.values()):
            thread.join(_CLOSE_S)
        self._watch.end()

    def _accept(self) -> None:
        while not self._closing:
            try:
                connection, peer = self._socket.accept()
            except OSError:
                if not self._closing:
                    time.sleep(0.1)  # such as: no file descriptors are left
                continue
            if self._closing or not Deadline(_TURN_S).wait(self._take_turn):
                connection.close()
                continue
            name = "headrace-http-one"
            thread = threading.Thread(
                target=self._serve, args=(connection, peer[0]), name=name, daemon=True
            )
            with self._lock:
                self._open[connection] = thread
                self._slow[connection] = time.monotonic()
            try:
                thread.start()
            except RuntimeError as error:  # the limit of processes is reached
                logger.warning("a request from %s is not answered: %s", peer[0], error)
                self._end(connection)

    def _take_turn(self, at_most_s: float) -> bool:
        """Return whether a thread is free for a new connection; if none is, end the slowest one."""
        if self._turns.acquire(blocking=False):
            return True
        with self._lock:
            slowest, since = next(iter(self._slow.items()), (None, 0.0))
            if slowest is not None and time.monotonic() - since >= _PATIENCE_S:
                del self._slow[slowest]
                with contextlib.suppress(OSError):
                    slowest.shutdown(socket.SHUT_RDWR)
        return self._turns.acquire(timeout=min(at_most_s, _PATIENCE_S))

    def _serve(self, connection: socket.socket, peer: str) -> None:
        try:
            with contextlib.suppress(OSError):
                head = _read(connection, _HEAD_S, mark=_HEAD_END)
                with self._lock:
                    self._slow.pop(connection, None)
                response, with_body = self._respond(head, peer)
                with self._lock:
                    self._slow[connection] = time.monotonic()
                connection.settimeout(_SEND_S)
                connection.sendall(_wire(response, with_body))
                connection.shutdown(socket.SHUT_WR)
                # A close with unread bytes of the peer would cut off the answer.
                _read(connection, _FINISH_S)
        finally:
            self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.pop(connection, None)
            self._slow.pop(connection, None)
            connection.close()
        self._turns.release()

    def _respond(self, head: bytes, peer: str) -> tuple[Response, bool]:
        request = _parsed(head, peer)
        if request is None:
            return Response(400, b"this is no request that can be read\n"), True
        try:
            return self._answers.answer(request), request.method != "HEAD"
        except Exception:
            logger.exception("%s %.200s could not be answered", request.method, request.target)
            return Response(500, b"that could not be answered; the server's log says why\n"), True


def _read(connection: socket.socket, within_s: float, mark: bytes | None = None) -> bytes:
    """Read until the mark or the end has come, or it is too much or too late."""
    data = bytearray()

    def ended(at_most_s: float) -> bool:
        connection.settimeout(at_most_s)
        try:
            part = connection.recv(4096)
        except (TimeoutError, BlockingIOError):
            return False
        data.extend(part)
        return not part or len(data) >= _HEAD_BYTES or (mark is not None and mark in data)

    Deadline(within_s).wait(ended)
    return bytes(data)


def _parsed(head: bytes, peer: str) -> HttpRequest | None:
    """Return the request; None where its head is not whole, or no head of a request."""
    line, _, rest = head.partition(b"\r\n")
    if _HEAD_END not in head:
        return None
    try:
        method, target, version = line.decode("ascii").split(" ")
        parsed = http.client.parse_headers(io.BytesIO(rest))
    except (ValueError, http.client.HTTPException):
        return None
    if not version.startswith("HTTP/1.") or not target.startswith("/"):
        return None
    return HttpRequest(method, target, {k.lower(): str(v) for k, v in parsed.items()}, peer)


def _wire(response: Response, with_body: bool) -> bytes:
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
    status = http.HTTPStatus(response.status)
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{k}: {v}" for k, v in headers.items())]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head + response.body if with_body else head


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """``http``, ``http_token_file`` and ``peers`` of ``hs.run``."""

    host: str
    port: int
    token: str | None
    share: Share = WHOLE
    peers: tuple[str, ...] = ()  # by share, the URL of each server

    @classmethod
    def of(
        cls, http: Any, token_file: Any, share: Share = WHOLE, peers: Any = None
    ) -> HttpOptions | None:
        """Check the options; None where HTTP is not asked for."""
        if http is None:
            for name, value in (("http_token_file", token_file), ("peers", peers)):
                if value is not None:
                    raise ValueError(f"{name}={value!r:.200} needs http=HOST:PORT")
            return None
        token = None if token_file is None else read_token(token_file)
        return cls(*_address("http", http), token, share, _peers(peers, share))


def _peers(value: Any, share: Share) -> tuple[str, ...]:
    """Return the URLs of all servers by share, of a list or a text with commas and ranges."""
    if value is None:
        return ()
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise TypeError(f"peers={value!r:.200} is neither an address nor a list of them")
    listed = [one for part in parts for one in str(part).split(",")]
    places = [
        _address("peers", place.removeprefix("http://").rstrip("/"))
        for one in listed
        for place in ranged("peers", one.strip())
    ]
    if len(places) != share[1]:
        raise ValueError(
            f"peers={value!r:.200} names {len(places)} servers, and this one has share "
            f"{share[0]}/{share[1]}: give the HTTP addresses of all {share[1]}, by share"
        )
    return tuple(f"http://{f'[{host}]' if ':' in host else host}:{port}" for host, port in places)


def _address(argument: str, value: Any) -> tuple[str, int]:
    """Return host and port of "127.0.0.1:8080" or "[::1]:8080"; port 0 is a free one."""
    if not isinstance(value, str):
        raise TypeError(f"{argument}={value!r:.80} is not a text like '127.0.0.1:8080'")
    host, colon, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(
            f"{argument}={value!r:.80} is not HOST:PORT such as 127.0.0.1:8080 (every address of "
            "this machine is 0.0.0.0, port 0 is a free one)"
        )
    return host, int(port)


def read_token(path: Any) -> str:
    """Return the token in a file; ValueError where it holds none."""
    with usable("http_token_file", path), open(path, encoding="utf-8", errors="replace") as stream:
        token = stream.read(4096).strip()
    if len(token) < _SHORTEST_TOKEN or any(not "!" <= c <= "~" for c in token):
        raise ValueError(
            f"http_token_file={os.fsdecode(path)!r} holds no token: one line of {_SHORTEST_TOKEN} "
            "characters or more"
        )
    return token
