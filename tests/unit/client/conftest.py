"""Fixtures of the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from headrace.transports import Sleep, Transport

from .peer import Peer


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[zmq.Socket[bytes]]:
    """The sockets by which sessions of this process reach servers."""
    opened: list[zmq.Socket[bytes]] = []

    def noted(socket: zmq.Socket[bytes], sleep: Sleep, monitor: int) -> Transport:
        opened.append(socket)
        return Transport(socket, sleep, monitor)

    monkeypatch.setattr("headrace.connection.Transport", noted)
    return opened


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()
