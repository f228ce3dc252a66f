"""The address and the token of HTTP as ``hs.run`` gets them: checked, and nothing opened yet."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .http import HttpService

__all__ = ["HttpOptions", "read_token"]

_SHORTEST_TOKEN = 16


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """``http`` and ``http_token_file`` of ``hs.run``."""

    host: str
    port: int
    token: str | None

    @classmethod
    def of(cls, http: Any, token_file: Any) -> HttpOptions | None:
        """Check the options; None where HTTP is not asked for."""
        if http is None:
            if token_file is not None:
                raise ValueError(f"http_token_file={token_file!r:.200} needs http=HOST:PORT")
            return None
        token = None if token_file is None else read_token(token_file)
        return cls(*_address(http), token)

    def service(self) -> HttpService:
        """Open the port."""
        from .http import HttpService

        return HttpService(self.host, self.port, self.token)


def _address(value: Any) -> tuple[str, int]:
    """Host and port of ``http=``: "127.0.0.1:8080", "[::1]:8080"; port 0 is a free one."""
    if not isinstance(value, str):
        raise TypeError(f"http={value!r:.80} is not a text like '127.0.0.1:8080'")
    host, colon, port = value.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(
            f"http={value!r:.80} is not HOST:PORT such as 127.0.0.1:8080 (every address of this "
            "machine is 0.0.0.0, port 0 is a free one)"
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
