"""What is answered to a request of HTTP.  Sockets are not here: a request comes, a response goes.

    GET /  /metrics  /healthz  /readyz[?feed=]  /status.json  /history.json[?since=]
    GET /inspect?key=[&feed=]
    POST /drain  /snapshot[?feed=]  /end[?feed=&cancel=1]  /restart[?feed=&force=1]

Reading is for whoever reaches the port.  Changing something is for those who could as well send a
signal: a peer on this machine, or one that knows the token, if there is one.  A web page that
somebody on this machine has open must not act for them, so a request that changes something names
this machine as its host and has a header that no page can send to another site.  Where the port is
bound to this machine only, every request names it: a name that an attacker points here is refused.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from headrace_proto.errors import HeadraceError, UnknownFeed

from .exposition import CONTENT_TYPE, exposition
from .page import PAGE_POLICY, page
from .watch import Watch

__all__ = ["HEADER", "Answers", "Request", "Response"]

#: No page can send it to another site without that site's consent, which is never given.
HEADER = "x-headrace"
_LONGEST_KEY = 4096
#: How long stores and disks may take over a snapshot.
_SNAPSHOT_S = 600.0
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Request:
    """One request; names of headers are in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    peer: str  # its address


@dataclass(frozen=True, slots=True)
class Response:
    """What it is answered."""

    status: int
    body: bytes
    kind: str = _TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


class Answers:
    """All of one server."""

    def __init__(self, watch: Watch, local: bool, token: str | None = None) -> None:
        self._watch = watch
        self._local = local  # whether the port is bound to this machine only
        self._token = token

    def answer(self, request: Request) -> Response:
        """The response, whatever the request is."""
        try:
            return self._answer(request)
        except HeadraceError as error:
            return _said(503, str(error))
        except _Wrong as error:
            return _said(400, str(error))

    def _answer(self, request: Request) -> Response:
        if self._local and request.headers.get("host") and not _names_here(request):
            return _said(421, "this port is for this machine: ask it as 127.0.0.1 or localhost")
        try:
            parts = urlsplit(request.target)
        except ValueError:
            raise _Wrong("the target of the request is no path") from None
        query = parts.query
        if request.method == "POST":
            method = _POST.get(parts.path)
            if method is None:
                known = " ".join(_POST)
                return _said(404 if parts.path not in _GET else 405, f"to be posted to are {known}")
            return self._refusal(request) or getattr(self, method)(query)
        if request.method not in ("GET", "HEAD"):
            return Response(405, b"GET, HEAD and POST\n", headers={"Allow": "GET, HEAD, POST"})
        method = _GET.get(parts.path)
        if method is None:
            return _said(404, f"there are {' '.join(_GET)}")
        response: Response = getattr(self, method)(query)
        return response

    # Reading

    def _page(self, query: str) -> Response:
        policy = {"Content-Security-Policy": PAGE_POLICY}
        return Response(200, page(), "text/html; charset=utf-8", policy)

    def _metrics(self, query: str) -> Response:
        return Response(200, exposition(self._watch.status()).encode(), CONTENT_TYPE)

    def _health(self, query: str) -> Response:
        status = self._watch.status()
        alive = status["state"] != "failed"
        return _said(200 if alive else 503, status["state"] if alive else status["why"])

    def _ready(self, query: str) -> Response:
        status = self._watch.status()
        wanted = _value(query, "feed")
        if status["state"] in ("starting", "failed"):
            return _said(503, status["why"])
        if status["draining"]:
            return _said(503, "the server is draining")
        feeds = status["feeds"]
        if wanted is not None and wanted not in feeds:
            return _said(404, f"there is no feed of this name; there are {', '.join(feeds)}")
        asked = feeds if wanted is None else {wanted: feeds[wanted]}
        lacking = {n: f["state"] for n, f in asked.items() if f["state"] in ("opening", "failed")}
        if lacking:
            return _said(503, ", ".join(f"{name} is {state}" for name, state in lacking.items()))
        return _said(200, "ready")

    def _status(self, query: str) -> Response:
        return _json(self._watch.status())

    def _history(self, query: str) -> Response:
        try:
            since = float(_value(query, "since") or 0)
        except ValueError:
            since = math.nan
        if math.isnan(since):
            raise _Wrong("since is a time in seconds")
        return _json({"points": self._watch.history.points(since)})

    def _inspect(self, query: str) -> Response:
        key = _bytes(query, "key")
        if not key or len(key) > _LONGEST_KEY:
            raise _Wrong(f"key is a key of 1 to {_LONGEST_KEY} bytes, percent-encoded")
        feeds = self._watch.status()["feeds"]
        feed = _value(query, "feed")
        kept = [name for name, told in feeds.items() if told["pipeline"]["shape"] == "sequences"]
        if feed is None and len(kept) == 1:
            feed = kept[0]
        if feed is None or feed not in feeds:
            raise _Wrong(f"feed is one of the feeds of segments: {', '.join(kept) or 'none'}")
        if feed not in kept:
            raise _Wrong(f"feed {feed!r} has no segments, and knows no keys")
        answer = self._watch.server.ask("inspect", 10.0, feed=feed, key=key.hex())
        told = {name: answer[name] for name in ("found", "unheard")}
        return _json({"feed": feed, "key": key.decode(errors="backslashreplace"), **told})

    # Changing

    def _refusal(self, request: Request) -> Response | None:
        """Why this one may not change anything; None where it may."""
        headers = request.headers
        if self._token is not None:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            wanted = self._token.encode()
            if scheme.lower() != "bearer" or not hmac.compare_digest(
                given.strip().encode(errors="replace"), wanted
            ):
                return Response(
                    401, b"the token is needed\n", headers={"WWW-Authenticate": "Bearer"}
                )
            return None
        if not _is_here(request.peer) or not _names_here(request):
            return _said(403, "only from this machine, for the server has no token file")
        if HEADER not in headers:
            return _said(403, f"a header {HEADER}: 1 is needed")
        return None

    def _snapshot(self, query: str) -> Response:
        try:
            return _json(self._watch.server.snapshot(_value(query, "feed"), _SNAPSHOT_S))
        except UnknownFeed as error:
            raise _Wrong(str(error)) from None

    def _end(self, query: str) -> Response:
        feed, cancel = _value(query, "feed"), _value(query, "cancel") == "1"
        try:
            self._watch.server.end(feed, cancel)
        except UnknownFeed as error:
            raise _Wrong(str(error)) from None
        return _json({"ended": feed})

    def _restart(self, query: str) -> Response:
        feed, force = _value(query, "feed"), _value(query, "force") == "1"
        try:
            self._watch.server.restart(feed, force)
        except UnknownFeed as error:
            raise _Wrong(str(error)) from None
        return _json({"restarted": feed})

    def _drain(self, query: str) -> Response:
        self._watch.server.begin_drain()
        return _json({"draining": True})


_GET = {
    "/": "_page",
    "/metrics": "_metrics",
    "/healthz": "_health",
    "/readyz": "_ready",
    "/status.json": "_status",
    "/history.json": "_history",
    "/inspect": "_inspect",
}

_POST = {
    "/drain": "_drain",
    "/snapshot": "_snapshot",
    "/end": "_end",
    "/restart": "_restart",
}


class _Wrong(ValueError):
    """A request that can not be meant so."""


def _said(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(errors="replace"))


def _json(value: Any) -> Response:
    return Response(200, json.dumps(value).encode(), _JSON)


def _value(query: str, name: str) -> str | None:
    try:
        found = parse_qs(query, keep_blank_values=True, max_num_fields=20).get(name)
    except ValueError:
        raise _Wrong("the request has too many fields") from None
    return found[-1] if found else None


def _bytes(query: str, name: str) -> bytes | None:
    """A value that may be any bytes."""
    for pair in query.split("&"):
        key, _, value = pair.partition("=")
        if key == name:
            return unquote_to_bytes(value.replace("+", " "))
    return None


def _is_here(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _names_here(request: Request) -> bool:
    """Whether the host that a request is meant for is this machine, by a name that is always it."""
    host = request.headers.get("host", "").lower()
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name == "localhost" or _is_here(name)
