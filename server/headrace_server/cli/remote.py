"""Which servers a command asks: those of ``--http``, or of the environment.

--http HOST:PORT, or a URL ─► Asker      several, with commas between ─► askers
--all                      ─► the statuses of all servers, as one
"""

from __future__ import annotations

import os
from argparse import Namespace
from dataclasses import replace
from urllib.parse import urlsplit

from ..process.statuses import ServerStatus
from ..watch.every import every
from ..watch.http_client import HttpClient
from ..watch.http_options import read_token
from .options import Option
from .places import variable

HTTP = Option(
    "http",
    "text",
    "where the server serves HTTP: HOST:PORT or a URL",
    absent="HEADRACE_HTTP, else 127.0.0.1:8080",
    metavar="HOST:PORT",
)
#: The same for commands that ask all servers of a feed.
SERVERS = replace(HTTP, help=f"{HTTP.help}; of several servers with commas between")
ALL = Option(
    "all",
    "flag",
    "all servers of the feed as one: of a server that was started with peers=, or of all that "
    "--http names, by share",
    default=False,
)
TOKEN = Option(
    "http_token_file",
    "path",
    "the file with the token, where the server has one",
    absent="HEADRACE_HTTP_TOKEN_FILE",
    metavar="FILE",
)
_DEFAULT = "127.0.0.1:8080"


class Asker(HttpClient):
    """One server, as the options or the environment name it."""

    def __init__(self, options: Namespace, address: str = "") -> None:
        """``address``: of one of several servers; else the options name one."""
        given = address or _set(options, HTTP) or _DEFAULT
        url = given if "://" in given else f"http://{given}"
        if not _asks(url):
            raise ValueError(f"--http {given!r:.200} is neither HOST:PORT nor a URL with http://")
        # A server listens at these addresses; a request goes to this machine.
        for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
            url = url.replace(f"//{everywhere}:", f"//{here}:")
        path = _set(options, TOKEN)
        super().__init__(url, None if path is None else read_token(path))


def askers(options: Namespace) -> list[Asker]:
    """Return each server that the options name, with commas between them."""
    given = _set(options, SERVERS) or _DEFAULT
    return [Asker(options, address.strip() or given) for address in given.split(",")]


def status_of_all(servers: list[Asker]) -> ServerStatus:
    """Return the joined status of these servers, or of one and all its peers."""
    if len(servers) == 1:
        return servers[0].status(every=True)
    return every([one.seen() for one in servers])


def _asks(url: str) -> bool:
    """Whether a URL names a host, and a port that can be."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        return False
    printable = url.isprintable() and " " not in url
    return printable and parts.scheme in ("http", "https") and bool(parts.hostname) and port != 0


def _set(options: Namespace, option: Option) -> str | None:
    """Return the value of an option, or of the environment variable that a server reads too."""
    given = getattr(options, option.name, None)
    return given if given is not None else os.environ.get(variable(option)) or None
