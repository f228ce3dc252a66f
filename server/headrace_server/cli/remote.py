"""Which servers a command asks: those of ``--http``, or of the environment.

--http HOST:PORT, or a URL, several with commas between ─► askers
--all                      ─► the statuses of all servers, as one
"""

from __future__ import annotations

import os
from argparse import Namespace
from urllib.parse import urlsplit

from ..process.statuses import ServerStatus
from ..watch.every import every
from ..watch.http_client import HttpClient
from ..watch.http_options import read_token
from .options import Option
from .places import variable

SERVERS = Option(
    "http",
    "text",
    "where the server serves HTTP: HOST:PORT or a URL; of several servers with commas between",
    absent="HEADRACE_HTTP, else 127.0.0.1:8080",
    metavar="HOST:PORT",
)
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


def askers(options: Namespace) -> list[HttpClient]:
    """Return each server that the options or the environment name, with commas between them."""
    given, path = _set(options, SERVERS) or "127.0.0.1:8080", _set(options, TOKEN)
    token = None if path is None else read_token(path)
    return [HttpClient(_url(address.strip() or given), token) for address in given.split(",")]


def status_of_all(servers: list[HttpClient]) -> ServerStatus:
    """Return the joined status of these servers, or of one and all its peers."""
    if len(servers) == 1:
        return servers[0].status(every=True)
    return every([one.seen() for one in servers])


def _url(given: str) -> str:
    """Return the URL of a server; ValueError unless it names a host, and a port that can be."""
    url = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(url)
        asks = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        asks = False
    if not asks or not url.isprintable() or " " in url:
        raise ValueError(f"--http {given!r:.200} is neither HOST:PORT nor a URL with http://")
    # A server listens at these addresses; a request goes to this machine.
    for everywhere, here in (("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")):
        url = url.replace(f"//{everywhere}:", f"//{here}:")
    return url


def _set(options: Namespace, option: Option) -> str | None:
    """Return the value of an option, or of the environment variable that a server reads too."""
    given = getattr(options, option.name, None)
    return given if given is not None else os.environ.get(variable(option)) or None
