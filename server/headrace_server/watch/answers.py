"""The answers to requests of HTTP, without sockets: a request comes, a response goes.

    GET /  /metrics[?all=1]  /status.json[?all=1]
    GET /livez  /healthz  /readyz[?feed=]
    GET /inspect?key=[&feed=]
    POST /drain  /snapshot[?feed=&name=&whole=1]  /end[?feed=&cancel=1]  /restart[?feed=&force=1]

No request has a body: one that comes with a body is refused, and changes nothing.

Every peer that reaches the port may read.  Only a peer that could as well send a signal may change
something: one on this machine, or one that knows the token where there is one.  A web page that a
user of this machine has open must not act for them, so a request that changes something names this
machine as its host and has a header that no page can send to another site.  Where the port is
bound to this machine only, every request names it: a name that an attacker points here is refused.

The page is one file that loads nothing from elsewhere.  Its policy names the script and the style
of the file by their hashes.  So no text of a feed, an error or a trainer can become a script, even
where the page should fail to escape it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from headrace_proto.errors import HeadraceError, UnknownFeed
from headrace_proto.token import SNAPSHOT

from ..files.extras import require
from ..process.statuses import ServerStatus
from .http_client import HEADER
from .verdict import store_faults
from .watch import Watch

_LONGEST_KEY = 4096
_MOST_FIELDS = 20
#: Maximum time for a snapshot, which waits for stores and disks.
_SNAPSHOT_S = 600.0
_PLAIN = "text/plain; charset=utf-8"
_JSON = "application/json"

_Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """One request; names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    peer: str  # its address


_TOKEN_NEEDED = b"the token is needed: give the file that the server has to --http-token-file\n"


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    status: int
    body: bytes
    kind: str = _PLAIN
    headers: Mapping[str, str] = field(default_factory=dict)


class Answers:
    """The answers of one server."""

    def __init__(self, watch: Watch, local: bool, token: str | None = None) -> None:
        self._watch = watch
        self._local = local  # whether the port is bound to this machine only
        self._token = token
        self._get: dict[str, Callable[[_Query], Response]] = {
            "/": self._page,
            "/metrics": self._metrics,
            "/livez": self._lives,
            "/healthz": self._health,
            "/readyz": self._ready,
            "/status.json": lambda query: _json(self._seen(query)),
            "/inspect": self._inspect,
        }
        self._post: dict[str, Callable[[_Query], Response]] = {
            "/drain": self._drain,
            "/snapshot": self._snapshot,
            "/end": self._end,
            "/restart": self._restart,
        }

    def answer(self, request: HttpRequest) -> Response:
        """Return the response to any request, also to a bad one."""
        try:
            return self._answer(request)
        except (_Wrong, UnknownFeed) as error:
            return _text(400, str(error))
        except HeadraceError as error:
            return _text(503, str(error))

    def _answer(self, request: HttpRequest) -> Response:
        if self._local and request.headers.get("host") and not _names_here(request):
            return _text(421, "this port is for this machine: ask it as 127.0.0.1 or localhost")
        try:
            parts = urlsplit(request.target if request.target.startswith("/") else "[")
        except ValueError:
            raise _Wrong("the target of the request is no path") from None
        changes = request.method == "POST"
        if not changes and request.method not in ("GET", "HEAD"):
            return Response(405, b"GET, HEAD and POST\n", headers={"Allow": "GET, HEAD, POST"})
        if (
            request.headers.get("content-length", "0") != "0"
            or "transfer-encoding" in request.headers
        ):
            raise _Wrong(f"{request.method} {parts.path:.80} takes no body: send none")
        method = (self._post if changes else self._get).get(parts.path)
        if method is None and changes:
            status = 405 if parts.path in self._get else 404
            return _text(status, f"to be posted to are {' '.join(self._post)}")
        if method is None:
            return _text(404, f"there are {' '.join(self._get)}")
        return (changes and self._refusal(request)) or method(_query(parts.query))

    # Reading

    def _page(self, query: _Query) -> Response:
        policy = {"Content-Security-Policy": PAGE_POLICY}
        return Response(200, page(), "text/html; charset=utf-8", policy)

    def _metrics(self, query: _Query) -> Response:
        require("prometheus_client", "server", "/metrics")
        from .metrics import CONTENT_TYPE, exposition

        return Response(200, exposition(self._seen(query)), CONTENT_TYPE)

    def _seen(self, query: _Query) -> ServerStatus:
        """Return the status of this server, or of all servers of its feeds."""
        return self._watch.every() if query.get("all") == "1" else self._watch.status()

    def _lives(self, query: _Query) -> Response:
        status = self._watch.status()
        alive = status["state"] != "failed"
        return _text(200 if alive else 503, status["state"] if alive else status["why"])

    def _health(self, query: _Query) -> Response:
        status = self._watch.status()
        faults = store_faults(status)
        return _text(503, "; ".join(faults)) if faults else self._lives(query)

    def _ready(self, query: _Query) -> Response:
        status = self._watch.status()
        if status["state"] in ("starting", "failed"):
            return _text(503, status["why"])
        if status["draining"]:
            return _text(503, "the server is draining")
        feeds = status["feeds"]
        wanted = query.get("feed")
        if wanted is not None and wanted not in feeds:
            return _text(404, f"there is no feed of this name; there are {', '.join(feeds)}")
        asked = feeds if wanted is None else {wanted: feeds[wanted]}
        lacking = {n: f["state"] for n, f in asked.items() if f["state"] in ("opening", "failed")}
        if lacking:
            return _text(503, ", ".join(f"{name} is {state}" for name, state in lacking.items()))
        return _text(200, "ready")

    def _inspect(self, query: _Query) -> Response:
        key = query.get("key", "").encode(errors="surrogateescape")
        if not key or len(key) > _LONGEST_KEY:
            raise _Wrong(f"key is a key of 1 to {_LONGEST_KEY} bytes, percent-encoded")
        status = self._watch.status()
        feeds, feed = status["feeds"], query.get("feed")
        if not feeds:  # it is starting, or has failed
            return _text(503, status["why"])
        keyed = [n for n, feed in feeds.items() if feed["pipeline"]["shape"] == "sequences"]
        if feed is None and len(keyed) == 1:
            feed = keyed[0]
        listed = ", ".join(keyed) or "none"
        if feed is None:
            raise _Wrong(f"feed= is needed (--feed of a command), one of segments: {listed}")
        if feed not in feeds:
            raise _Wrong(f"feed={feed!r:.120} is none of the feeds of segments: {listed}")
        if feed not in keyed:
            raise _Wrong(f"feed {feed!r} has no segments, and knows no keys")
        answer = self._watch.server.ask("inspect", 10.0, feed=feed, key=key.hex())
        name = key.decode(errors="backslashreplace")
        return _json({"feed": feed, "key": name, "found": answer["found"]})

    # Changing

    def _refusal(self, request: HttpRequest) -> Response | None:
        """Return why this peer may not change anything; None where it may."""
        headers = request.headers
        if self._token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            wanted = self._token.encode()
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                given.strip().encode(errors="replace"), wanted
            ):
                return Response(401, _TOKEN_NEEDED, headers={"WWW-Authenticate": "Bearer"})
            return None
        if not is_here(request.peer) or not _names_here(request):
            return _text(403, "only from this machine, for the server has no token file")
        if HEADER not in headers:
            return _text(403, f"a header {HEADER}: 1 is needed")
        return None

    def _snapshot(self, query: _Query) -> Response:
        name, whole = query.get("name", ""), query.get("whole") == "1"
        if (name and not SNAPSHOT.fullmatch(name)) or (whole and not name):
            raise _Wrong("name is the name of a snapshot, which every server of a feed gets")
        return _json(self._watch.server.snapshot(query.get("feed"), _SNAPSHOT_S, name, whole))

    def _end(self, query: _Query) -> Response:
        self._watch.server.end(query.get("feed"), query.get("cancel") == "1")
        return _json({"ended": query.get("feed")})

    def _restart(self, query: _Query) -> Response:
        self._watch.server.restart(query.get("feed"), query.get("force") == "1")
        self._watch.forget_look()
        return _json({"restarted": query.get("feed")})

    def _drain(self, query: _Query) -> Response:
        self._watch.server.begin_drain()
        return _json({"draining": True})


class _Wrong(ValueError):
    """A request that makes no sense."""


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(errors="replace"))


def _json(value: Any) -> Response:
    return Response(200, json.dumps(value).encode(), _JSON)


def _query(text: str) -> _Query:
    """Return the last value of each field, in which any bytes can come back (a key has any)."""
    try:
        found = parse_qs(
            text, keep_blank_values=True, errors="surrogateescape", max_num_fields=_MOST_FIELDS
        )
    except ValueError:
        raise _Wrong("the request has too many fields") from None
    return {name: values[-1] for name, values in found.items()}


def is_here(host: str) -> bool:
    """Return whether a name or an address of IP always means this machine."""
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(host.partition("%")[0])
        return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
    return host == "localhost"


def _names_here(request: HttpRequest) -> bool:
    """Return whether a request is meant for this machine, by a name that always means it."""
    host = request.headers.get("host", "").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_here(name)


_FILE = Path(__file__).with_name("page.html")


@cache
def page() -> bytes:
    """Return the file."""
    return _FILE.read_bytes()


def _hashes(tag: str) -> str:
    """Return the hashes, as in the policy, of the contents of all elements of a kind."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), page(), re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


PAGE_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
