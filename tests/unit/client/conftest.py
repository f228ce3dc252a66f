"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from headrace.connection.connection import Connection

from .peer import Peer


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[zmq.Socket[bytes]]:
    """The sockets by which sessions of this process reach servers."""
    opened: list[zmq.Socket[bytes]] = []

    class Noted(Connection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            opened.append(self._socket)

    monkeypatch.setattr("headrace.connection.exchanging.Connection", Noted)
    return opened


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture(autouse=True)
def no_wait_for_an_answer_to_bye(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers of tests are asked by these alone: they do not answer by themselves."""
    monkeypatch.setattr("headrace.connection.exchanging._BYE_S", 0.0)
