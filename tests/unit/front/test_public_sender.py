"""The front sends headers and blocks; the owner learns when a block is not read any more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import zmq

from headrace_server.front.front import PublicSender
from headrace_server.front.front_owner import FrontOwner
from headrace_server.process.channel_server import ChannelServer
from headrace_server.process.relay_messages import (
    FROM_FRONT,
    AllBack,
    Known,
    SendBlock,
    Sent,
)
from headrace_server.process.sockets import public_router
from tests.patience import PATIENCE_S

SEGMENT = "slab-0-0-0"


class World:
    """A public socket with a trainer, and an owner with a segment."""

    def __init__(self, directory: Path) -> None:
        self.told: list[Any] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.public = public_router(self.context)
        self.public.bind("tcp://127.0.0.1:*")
        self.trainer = self.context.socket(zmq.DEALER)
        self.trainer.linger = 0
        self.trainer.rcvtimeo = int(1000 * PATIENCE_S)
        self.trainer.connect(self.public.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        self.trainer.send(b"hello")
        assert self.public.poll(1000 * PATIENCE_S)
        self.connection = self.public.recv_multipart()[0]
        self.sender = PublicSender(self.public, directory)
        self.owner = FrontOwner(0, cast(ChannelServer, self), self.sender.say)
        self.owner.begin_life(0, b"1-0", Known(None))
        self.bytes = bytes(range(256)) * 4096
        (directory / SEGMENT).write_bytes(self.bytes)

    def tell(self, name: bytes, frames: Sequence[bytes]) -> bool:
        message = FROM_FRONT.decode(frames[0])
        if not isinstance(message, Known | AllBack):
            self.told.append(message)
        return True

    def send(self, number: int, nbytes: int, connection: bytes = b"", segment: str = "") -> None:
        connection, segment = connection or self.connection, segment or SEGMENT
        block = SendBlock(connection, number, segment, 4096, nbytes)
        self.sender.send_block(self.owner, block, b"header")

    def close(self) -> None:
        self.trainer.close()
        self.public.close()
        self.context.term()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


@pytest.mark.parametrize("nbytes", [64, 512 << 10])
def test_a_block_is_free_once_it_was_sent(world: World, nbytes: int):
    """Trainers that do not read fill no memory but that of the segments, which is bounded."""
    world.send(7, nbytes)
    assert len(world.owner.sending) == 1
    payload = world.bytes[4096 : 4096 + nbytes]
    assert world.trainer.recv_multipart() == [b"header", payload]
    world.owner.sending[0][0].wait(PATIENCE_S)
    world.owner.sweep()
    assert world.told == [Sent(7)] and not world.owner.sending


def test_a_block_whose_segment_is_gone_is_free_and_its_trainer_stays(world: World):
    world.send(7, 64, segment="slab-0-0-1")
    assert world.told == [Sent(7)]
