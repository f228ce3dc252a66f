"""The answers to requests of HTTP, without sockets: a request comes, a response goes.

    GET /  /metrics  /status.json
    GET /livez  /healthz  /readyz[?feed=]
    GET /inspect?key=[&feed=]

Every peer that reaches the port may read, and none can change anything: commands go to the public
address.  No request has a body: one that comes with a body is refused.  Where the port is bound to
this machine only, every request names it: a name that an attacker points here is refused.

The page is one file that loads nothing from elsewhere.  Its policy names the script and the style
of the file by their hashes.  So no text of a feed, an error or a trainer can become a script, even
where the page should fail to escape it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs

from headrace_proto.errors import HeadraceError, UnknownFeed

from ..files.extras import require
from .verdict import store_faults
from .watch import Watch

_Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one request."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class Answers:
    """The answers of one server."""

    def __init__(self, watch: Watch, local: bool) -> None:
        self._watch = watch
        self._local = local  # whether the port is bound to this machine only
        self._get: dict[str, Callable[[_Query], Response]] = {
            "/": lambda _: Response(200, PAGE, "text/html; charset=utf-8", _POLICY),
            "/metrics": self._metrics,
            "/livez": self._lives,
            "/healthz": self._health,
            "/readyz": self._ready,
            "/status.json": lambda _: _json(self._watch.status()),
            "/inspect": self._inspect,
        }

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Response:
        """Return the response to any request, also to a bad one; names of headers in lower case."""
        host = headers.get("host", "")
        if self._local and host and not _names_here(host):
            return _text(421, "this port is for this machine: ask it as 127.0.0.1 or localhost")
        path, _, fields = target.partition("?")
        listed = parse_qs(fields, keep_blank_values=True, errors="surrogateescape")  # of any bytes
        query = {name: values[-1] for name, values in listed.items()}
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return _text(400, f"{method} {path:.80} takes no body: send none")
        if method == "POST":
            return _text(405, "this port only shows: `headrace drain` and others change something")
        if path not in self._get:
            return _text(404, f"there are {' '.join(self._get)}")
        try:
            return self._get[path](query)
        except (UnknownFeed, ValueError) as error:
            return _text(400, str(error))
        except HeadraceError as error:
            return _text(503, str(error))

    # Reading

    def _metrics(self, query: _Query) -> Response:
        require("prometheus_client", "server", "/metrics")
        from .metrics import CONTENT_TYPE, exposition

        return Response(200, exposition(self._watch.status()), CONTENT_TYPE)

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
        if status["state"] in ("starting", "failed", "draining"):
            return _text(503, status["why"] or "the server is draining")
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
        return _json(self._watch.inspect(key, query.get("feed")))


def _text(status: int, text: str) -> Response:
    return Response(status, f"{text}\n".encode(errors="replace"))


def _json(value: object) -> Response:
    return Response(200, json.dumps(value).encode(), "application/json")


def is_here(host: str) -> bool:
    """Return whether a name or an address of IP always means this machine."""
    with contextlib.suppress(ValueError):
        parsed = ipaddress.ip_address(host.partition("%")[0])
        return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback
    return host == "localhost"


def _names_here(host: str) -> bool:
    """Return whether the host of a request is this machine, by a name that always means it."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return is_here(name.lower())


PAGE = Path(__file__).with_name("page.html").read_bytes()


def _hashes(tag: str) -> str:
    """Return the hashes, as in the policy, of the contents of all elements of a kind."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>".encode(), PAGE, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in found)
    return " ".join(f"'sha256-{digest}'" for digest in digests)


PAGE_POLICY = (
    f"default-src 'none'; script-src {_hashes('script')}; style-src {_hashes('style')}; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_POLICY = {"Content-Security-Policy": PAGE_POLICY}
