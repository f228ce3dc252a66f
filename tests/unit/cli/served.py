"""A port that answers as a server would, for tests of the commands that ask one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_server.watch.http import HttpService

from ..watch.watched import Watched

__all__ = ["Served", "served"]


class Served(Watched):
    """What is watched, and where."""

    address = ""


@pytest.fixture
def served() -> Iterator[Served]:
    server = Served()
    service = HttpService("127.0.0.1", 0)
    service.watch(server)
    server.address = service.address
    yield server
    service.close()
