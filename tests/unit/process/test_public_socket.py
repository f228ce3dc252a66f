"""A public socket sends headers and blocks; a bad message costs its sender the connection."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from headrace_proto import limits
from headrace_proto.messages import FROM_SERVER, Refused
from headrace_server.process.public_socket import PublicSocket, worker_binds
from tests.patience import PATIENCE_S, eventually


class World:
    """A public socket with a trainer."""

    def __init__(self) -> None:
        self.public = PublicSocket(None, 100)
        (self.address,) = self.public.bind(["tcp://127.0.0.1:*"])
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.trainer = self.knock()

    def knock(self) -> zmq.Socket[bytes]:
        trainer = self.context.socket(zmq.DEALER)
        trainer.linger = 0
        trainer.rcvtimeo = int(1000 * PATIENCE_S)
        trainer.connect(self.address)
        return trainer

    def hear(self) -> tuple[str, bytes, list[Any]]:
        return eventually(lambda: self._waits() and self.public.receive())

    def _waits(self) -> bool:
        self.public.hear(time.monotonic())
        return self.public.waits

    def close(self) -> None:
        self.trainer.close()
        self.public.close(0)
        self.context.term()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.mark.parametrize("nbytes", [64, 512 << 10])
def test_a_block_is_free_once_it_was_sent(world: World, nbytes: int):
    """Trainers that do not read fill no memory but that of the segments, which is bounded."""
    world.trainer.send(b"hello")
    key, connection, frames = world.hear()
    assert (key, frames) == ("", [b"hello"])
    sent: list[int] = []
    block = memoryview(bytes(range(256)) * (nbytes // 64))[4:]
    world.public.send_block(connection, b"header", block[:nbytes], lambda: sent.append(7))
    assert world.public.sending == (nbytes > 64) == (not sent)
    assert world.trainer.recv_multipart() == [b"header", bytes(block[:nbytes])]
    eventually(lambda: sent or world.public.sweep())
    assert sent == [7] and not world.public.sending


def test_a_block_for_a_peer_that_is_gone_is_free_at_once(world: World):
    sent: list[int] = []
    world.public.send_block(b"gone", b"header", memoryview(bytes(1 << 20)), lambda: sent.append(7))
    assert sent == [7] and not world.public.sending
    assert not world.public.say(b"gone", b"header")


def test_a_message_of_too_many_frames_ends_its_connection_and_no_other(world: World):
    other = world.knock()
    try:
        world.trainer.send_multipart([b"x"] * (limits.MAX_FRAMES + 2))
        with pytest.raises(Exception, match="frames came") as caught:
            world.hear()
        world.public.refuse(caught.value, time.monotonic())
        refused = FROM_SERVER.decode(world.trainer.recv())
        assert isinstance(refused, Refused) and refused.code == "limit"
        assert world.public.refusals.counts == {"garbage": 1}
        other.send(b"hello")
        assert world.hear()[2] == [b"hello"]
    finally:
        other.close()


def test_a_connection_that_floods_waits_in_its_own_buffers_and_delays_no_other(world: World):
    other = world.knock()
    other.send(b"hello")
    _, first, _ = world.hear()
    try:
        with contextlib.suppress(zmq.Again):
            while True:
                world.trainer.send(b"flood" * 100, zmq.NOBLOCK)
        _, flooding, _ = world.hear()
        other.send(b"again")
        eventually(lambda: _heard(world, first, flooding))
    finally:
        other.close()


def _heard(world: World, wanted: bytes, flooding: bytes) -> bool:
    for _ in range(200):  # 64 of each connection wait here
        _, connection, _ = world.hear()
        if connection == wanted:
            return True
    return False


@pytest.mark.parametrize(
    ("binds", "more", "found"),
    [
        (["tcp://0.0.0.0:5557"], {}, ["tcp://0.0.0.0:5560"]),
        (["tcp://a:1", "tcp://b:9"], {}, ["tcp://a:4", "tcp://b:12"]),
        (["tcp://a:1", "tcp://b:*"], {"ports": (7000, 7007)}, ["tcp://a:7002", "tcp://b:7002"]),
        (["tcp://127.0.0.1:*"], {}, ["tcp://127.0.0.1:*"]),
        (["tcp://h:*"], {"before": ["tcp://h:6001"]}, ["tcp://h:6001"]),
        (["ipc:///tmp/x"], {}, ["ipc:///tmp/x-2"]),
    ],
)
def test_a_worker_binds_beside_each_address_of_its_server(
    binds: list[str], more: dict[str, Any], found: list[str]
):
    assert worker_binds(binds, 2, more.get("ports"), more.get("before", ())) == found
