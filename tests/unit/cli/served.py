"""A port that answers as a server would, for tests of the commands that ask one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from headrace_server.watch.http import HttpOptions, HttpService

from ..watch.watched import Watched

__all__ = ["Served", "other", "served"]


class Served(Watched):
    """A watched server and its address."""

    address = ""


@contextlib.contextmanager
def serving() -> Iterator[Served]:
    server = Served()
    service = HttpService(HttpOptions("127.0.0.1", 0, None))
    service.watch(server)
    server.address = service.address
    yield server
    service.close()


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


@pytest.fixture
def other() -> Iterator[Served]:
    """Another server of the same feed."""
    with serving() as server:
        yield server
