"""Requests of commands to a running server, by its HTTP port and nothing else.

    --http HOST:PORT, or a URL ─► GET, POST ─► JSON

Texts of a server may come from a trainer or from data.  They are shown on terminals, so control
characters are escaped.
"""

from __future__ import annotations

import http.client
import json
import os
from argparse import Namespace
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from headrace_proto.errors import ConnectionLost, ServerError

from ..watch.answers import HEADER
from ..watch.http_options import read_token
from .exits import paragraph
from .options import Option
from .places import variable

__all__ = ["HTTP", "SERVERS", "TIMEOUT_S", "TOKEN", "Asker", "askers", "shown"]

HTTP = Option(
    "http",
    "text",
    "where the server serves HTTP: HOST:PORT or a URL",
    absent="HEADRACE_HTTP, else 127.0.0.1:8080",
    metavar="HOST:PORT",
)
#: The same for commands that ask all servers of a feed.
SERVERS = replace(HTTP, help=f"{HTTP.help}; of several servers with commas between")
TOKEN = Option(
    "http_token_file",
    "path",
    "the file with the token, where the server has one",
    absent="HEADRACE_HTTP_TOKEN_FILE",
    metavar="FILE",
)
_DEFAULT = "127.0.0.1:8080"
#: Maximum time for an answer.
TIMEOUT_S = 15.0
_MOST_BYTES = 64 * 1024**2


class Asker:
    """One server."""

    def __init__(self, options: Namespace, address: str = "") -> None:
        """``address``: of one of several servers; else the options name one."""
        given = address or _set(options, HTTP) or _DEFAULT
        if "," in given:
            raise ValueError(
                f"--http {given!r:.200} names several servers, and this command asks one: call it "
                "for each"
            )
        url = given if "://" in given else f"http://{given}"
        if not _asks(url):
            raise ValueError(f"--http {given!r:.200} is neither HOST:PORT nor a URL with http://")
        # A server listens at these addresses; a request goes to this machine.
        for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
            url = url.replace(f"//{everywhere}:", f"//{here}:")
        self.url = url.rstrip("/")
        path = _set(options, TOKEN)
        self._token = None if path is None else read_token(path)

    def get(self, path: str) -> Any:
        """Return the JSON at a path."""
        return self._ask("GET", path, TIMEOUT_S)

    def status(self) -> dict[str, Any]:
        """Return the status, as the page shows it."""
        status = self.get("/status.json")
        if not isinstance(status, dict) or not isinstance(status.get("feeds"), dict):
            raise _Stranger(self.url, 200)
        return status

    def post(self, path: str, timeout_s: float = TIMEOUT_S) -> Any:
        """Post a request to change something; return its JSON."""
        return self._ask("POST", path, timeout_s)

    def _ask(self, method: str, path: str, timeout_s: float) -> Any:
        headers = {HEADER: "1", "Accept": "application/json"}
        if method == "POST" and self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        parts = urlsplit(self.url)
        secure, plain = http.client.HTTPSConnection, http.client.HTTPConnection
        kind = secure if parts.scheme == "https" else plain
        # No proxy of the environment stands between a server and its operator, and a redirection is
        # an answer like any other: nobody else gets the token.
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
        try:
            with closing(connection):
                connection.request(method, parts.path + path, headers=headers)
                with connection.getresponse() as answer:
                    body = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            reason = f"no answer within {timeout_s:g} s"
            if not isinstance(error, TimeoutError):
                reason = paragraph(error)
            raise ConnectionLost(
                f"no server answers at {self.url}: {reason}.  It serves HTTP where it was started "
                "with --http HOST:PORT (http= of hs.run)"
            ) from None
        if answer.status == 200:
            try:
                return json.loads(body)
            except ValueError:
                raise _Stranger(self.url, 200) from None
        if answer.headers.get_content_type() != "text/plain":  # ours always is
            raise _Stranger(self.url, answer.status)
        text = shown(body[:4096].decode(errors="replace")).strip()
        if answer.status == 400:
            raise ValueError(text)
        raise ServerError(f"{self.url} answers {answer.status}: {text}")


def askers(options: Namespace) -> list[Asker]:
    """Return each server that the options name, with commas between them."""
    given = _set(options, SERVERS) or _DEFAULT
    return [Asker(options, address.strip() or given) for address in given.split(",")]


def _asks(url: str) -> bool:
    """Whether a URL names a host, and a port that can be."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return False
    printable = url.isprintable() and " " not in url
    return printable and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


class _Stranger(ServerError):
    """The answer is not of a headrace server."""

    def __init__(self, url: str, code: int) -> None:
        super().__init__(f"what answers at {url} (with {code}) is no headrace server")


def _set(options: Namespace, option: Option) -> str | None:
    """Return the value of an option, or of the environment variable that a server reads too."""
    given = getattr(options, option.name, None)
    return given if given is not None else os.environ.get(variable(option)) or None


def shown(text: str) -> str:
    """Escape the characters of a text that a terminal would obey."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )
