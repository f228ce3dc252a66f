"""The address and the token of HTTP as ``hs.run`` gets them: checked, and nothing opened yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace_proto.address import ranged
from headrace_proto.placement import WHOLE, Share

if TYPE_CHECKING:
    from .http import HttpService

_SHORTEST_TOKEN = 16


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

    def service(self) -> HttpService:
        """Open the port."""
        from .http import HttpService

        return HttpService(self)


def _peers(value: Any, share: Share) -> tuple[str, ...]:
    """The URLs of all servers by share, of a list or a text with commas and ranges."""
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
    """Host and port: "127.0.0.1:8080", "[::1]:8080"; port 0 is a free one."""
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
    with open(path, encoding="utf-8") as stream:
        token = stream.read(4096).strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or any(c.isspace() for c in token):
        raise ValueError(
            f"{os.fsdecode(path)} holds no token: one line of {_SHORTEST_TOKEN} characters or more"
        )
    return token
