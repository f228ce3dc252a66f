"""Requests of commands to a running server, by its HTTP port.

GET, POST ─► JSON, or an error that names the server

Texts of a server may come from a trainer or from data, and are shown on terminals, so control
characters are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import cast
from urllib.parse import urlencode, urlsplit

from headrace_proto import __version__
from headrace_proto.clock import Deadline
from headrace_proto.errors import ConnectionLost, DeadlineExceeded, HeadraceError, ServerError
from headrace_proto.token import new_snapshot

from ..pipeline.declaration import Plain
from .statuses import ServerStatus

#: No page can send it to another site without that site's consent, which is never given.
HEADER = "x-headrace"
#: Number of servers that are asked at once.
AT_ONCE = 16
#: Maximum time for an answer.
TIMEOUT_S = 15.0
#: The same for the restart of a feed, which starts processes.
RESTART_S = 300.0
_MOST_BYTES = 64 * 1024**2


class HttpClient:
    """One server, at a URL."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._token = token

    def get(self, path: str) -> Plain:
        """Return the JSON at a path."""
        return self._ask("GET", path, TIMEOUT_S)

    def status(self) -> ServerStatus:
        """Return the status, as the page shows it."""
        status = self.get("/status.json")
        if not isinstance(status, dict) or not status.keys() >= ServerStatus.__required_keys__:
            raise self._stranger(200)
        return cast(ServerStatus, status)

    def seen(self) -> ServerStatus | str:
        """Return the status of the server, or why it has none."""
        try:
            return self.status()
        except (HeadraceError, ValueError) as error:
            return str(error)

    def post(self, path: str, timeout_s: float = TIMEOUT_S, **fields: str | bool | None) -> Plain:
        """Post a request with the fields that are set, to change something; return its JSON."""
        given = {k: "1" if v is True else v for k, v in fields.items() if v not in (None, False)}
        query = f"?{urlencode(given, errors='surrogateescape')}" if given else ""
        return self._ask("POST", path + query, timeout_s)

    def snapshot(
        self, feed: str | None, timeout_s: float, name: str = "", whole: bool = False
    ) -> Plain:
        """Take a snapshot of a feed; arguments and result are those of ``Supervisor.snapshot``."""
        return self.post("/snapshot", timeout_s, feed=feed, name=name, whole=whole)

    def end(self, feed: str | None, cancel: bool = False) -> None:
        """Close the input of a feed; arguments are those of ``Supervisor.end``."""
        self.post("/end", feed=feed, cancel=cancel)

    def restart(self, feed: str | None, force: bool = False, timeout_s: float = RESTART_S) -> None:
        """Start a feed from its beginning; arguments are those of ``Supervisor.restart``."""
        self.post("/restart", timeout_s, feed=feed, force=force)

    def _ask(self, method: str, path: str, timeout_s: float) -> Plain:
        headers = {HEADER: "1", "Accept": "application/json"}
        if method == "POST" and self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        # No proxy of the environment stands between a server and its operator, and a redirection is
        # an answer like any other: no other server gets the token.
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            with closing(connection):
                connection.request(method, parts.path + path, headers=headers)
                with connection.getresponse() as answer:
                    body = answer.read(_MOST_BYTES)
        except TimeoutError:  # a server that does not answer in time may live
            done = ", and what was asked for may still be done" * (method == "POST")
            raise DeadlineExceeded(
                f"no server answers at {self.url}: no answer within {timeout_s:g} s{done}"
            ) from None
        except (OSError, HTTPException, UnicodeError) as error:
            raise ConnectionLost(
                f"no server answers at {self.url}: {getattr(error, 'strerror', None) or error}.  "
                "It serves HTTP where it was started with --http HOST:PORT (http= of hs.run)"
            ) from None
        if answer.status == 200:
            with suppress(ValueError, RecursionError):
                return json.loads(body)
        if answer.status == 200 or answer.headers.get_content_type() != "text/plain":
            raise self._stranger(answer.status)  # the errors of a server of headrace are plain text
        text = shown(body[:4096].decode(errors="replace")).strip()
        if answer.status == 400:
            raise ValueError(text)
        raise ServerError(f"{self.url} answers {answer.status}: {text}")

    def _stranger(self, code: int) -> ServerError:
        return ServerError(
            f"the peer at {self.url} (which answers {code}) is no headrace server, or not of this "
            f"release ({__version__}): ask it by a command of its release"
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


def shown(text: str) -> str:
    """Escape the characters of a text of several lines that a terminal would obey."""
    return "\n".join(map(one_line, text.split("\n")))


def one_line(text: str) -> str:
    """Escape the characters of a text that a terminal would obey, and the ends of its lines."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
