"""A port that answers as a server would, for tests of the commands that ask one."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headrace_server.watch.http import HttpOptions, HttpService

from ..watch.watched import Watched

__all__ = ["Served", "other", "served", "stranger"]


class Served(Watched):
    """A watched server, its address, and what ends its port."""

    address = ""
    stop: Callable[[], None]


@contextlib.contextmanager
def serving() -> Iterator[Served]:
    server = Served()
    service = HttpService(HttpOptions("127.0.0.1", 0, None))
    service.watch.begin(server)
    server.address, server.stop = service.address, service.close
    yield server
    service.close()


@contextlib.contextmanager
def stranger(status: int, kind: str, body: bytes) -> Iterator[str]:
    """Yield the URL of another kind of server, which has one answer to everything."""

    class Stranger(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Served]:
    """Another server of the same feed."""
    with serving() as server:
        yield server
