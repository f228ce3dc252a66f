"""Which connections end when there are too many: the oldest that no session uses."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from headrace_server.process.connections import _SEND_BYTES, ENDED, Connections, Strangers
from headrace_server.process.sockets import public_router
from tests.patience import PATIENCE_S


def crowd(most: int, *numbers: int) -> Strangers:
    strangers = Strangers(most)
    for number in numbers:
        strangers.accepted(number, number / 100)
    return strangers


def test_the_older_half_ends_when_there_are_too_many():
    strangers = crowd(4, 1, 2, 3, 4, 5)
    assert strangers.spare(100.0) == [1, 2, 3]
    assert len(strangers) == 2 and strangers.spare(100.0) == []


class Port:
    """A public socket that echoes, and its connections."""

    def __init__(self, most: int, address: str) -> None:
        self.context: Any = zmq.Context()
        self.public = public_router(self.context)
        self.public.handshake_ivl = 0  # ZeroMQ ends nothing by itself
        self.connections = Connections(self.context, self.public, most)
        self.public.bind(address)
        self.address = self.public.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        self.ends: list[Any] = []

    def knock(self) -> socket.socket:
        scheme, _, place = self.address.partition("://")
        if scheme == "ipc":
            end = socket.socket(socket.AF_UNIX)
            end.connect(place)
        else:
            host, _, port = place.rpartition(":")
            end = socket.create_connection((host, int(port)))
        end.settimeout(PATIENCE_S)
        self.ends.append(end)
        return end

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, (len(self.connections), self.ends)
            self.connections.hear(time.monotonic())
            self.public.poll(5)

    def close(self) -> None:
        for end in self.ends:
            end.close()
        self.connections.close()
        self.public.close()
        self.context.term()


@pytest.fixture(params=["tcp", "ipc"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Port]:
    found = Port(4, "tcp://127.0.0.1:*" if request.param == "tcp" else f"ipc://{tmp_path}/s")
    yield found
    found.close()


def test_a_trainers_connection_outlives_any_number_of_silent_ones(port: Port):
    trainer = port.context.socket(zmq.DEALER)
    trainer.linger = 0
    port.ends.append(trainer)
    trainer.connect(port.address)
    trainer.send(b"hello")
    port.until(lambda: bool(port.public.poll(0)))
    last = port.public.recv_multipart(copy=False)[-1]
    port.connections.belongs(int(last.get(zmq.SRCFD)), 1, time.monotonic())
    silent = [port.knock() for _ in range(8)]
    port.until(lambda: len(port.connections) == 9)
    port.connections.end_surplus(time.monotonic() + PATIENCE_S)
    assert [event for event, _ in port.connections.take_lost()] == [ENDED] * 4
    assert not port.connections.take_lost()
    for end in silent[:4]:  # the oldest
        with contextlib.suppress(ConnectionResetError):
            while end.recv(100):
                pass
    assert silent[-1].recv(1)
    trainer.send(b"still there")
    port.until(lambda: bool(port.public.poll(0)))
    assert port.public.recv_multipart()[-1] == b"still there"


def test_only_connections_of_the_port_are_ended_though_other_files_have_their_numbers(
    port: Port, tmp_path
):
    ours, theirs = socket.socketpair()
    file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    for number in (ours.fileno(), file, 9999):
        port.connections._strangers.accepted(number, 0.0)
    for _ in range(4):
        port.connections._strangers.accepted(10_000 + len(port.connections), 0.0)
    port.connections.end_surplus(100.0)
    assert not port.connections.take_lost()
    ours.send(b"x")
    assert theirs.recv(1) == b"x" and os.write(file, b"x") == 1
    for end in (ours, theirs):
        end.close()
    os.close(file)


def test_the_send_buffer_is_bounded_only_where_a_trainer_has_the_address_of_the_server():
    port = Port(4, "tcp://0.0.0.0:*")
    number = int(port.address.rpartition(":")[2])
    try:
        sizes = []
        for host in ("127.0.0.1", "127.0.0.2"):
            trainer = port.context.socket(zmq.DEALER)
            trainer.linger = 0
            port.ends.append(trainer)
            trainer.connect(f"tcp://127.0.0.2:0;{host}:{number}")  # from 127.0.0.2
            trainer.send(b"hello")
            port.until(lambda: bool(port.public.poll(0)))
            came_by = int(port.public.recv_multipart(copy=False)[-1].get(zmq.SRCFD))

            def size(of: int = came_by) -> int:
                with socket.socket(fileno=os.dup(of)) as end:
                    return end.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)

            before = size()
            port.connections.belongs(came_by, len(sizes) + 1, time.monotonic())
            sizes.append((before, size()))
        (before, other), (_, bounded) = sizes
        assert other == before and bounded == 2 * _SEND_BYTES  # the kernel doubles it
    finally:
        port.close()
