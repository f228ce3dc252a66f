"""Sends to trainers by the public socket: headers, and batches from the owners' memory.

    Say         ─► header
    SendBlock   ─► header, bytes of a segment, which ZeroMQ's thread reads until they are sent

The owner frees a block once the front does not read it any more (``Sent``).
"""

from __future__ import annotations

import logging
from pathlib import Path

import zmq

from ..making.slab import map_segment
from ..process.descriptors import own
from ..process.relay_messages import SendBlock, Sent, Unreachable
from ..process.sockets import AND_MORE, NOBLOCK
from .front_owner import FrontOwner

logger = logging.getLogger("headrace.front")


class PublicSender:
    """The sending side of the public socket.  It never waits."""

    def __init__(self, socket: zmq.Socket[bytes], directory: Path) -> None:
        self._socket = socket
        self._directory = directory  # of the segments

    def say(self, connection: bytes, header: bytes) -> bool:
        """Send a header; return False where the peer is gone, or does not read."""
        try:
            self._socket.send(connection, AND_MORE)
            self._socket.send(header, NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def send_block(self, owner: FrontOwner, block: SendBlock, header: bytes) -> None:
        """Send a batch from the memory of its segment."""
        try:
            memory = owner.segments.get(block.segment)
            if memory is None:
                with own():
                    memory = map_segment(self._directory / block.segment)
                owner.segments[block.segment] = memory
        except OSError as error:
            logger.warning("a batch is not sent before its lease has ended: %s", error)
            owner.tell(Sent(block.number))
            return
        payload = memory[block.offset : block.offset + block.nbytes].data
        try:
            self._socket.send(block.connection, AND_MORE)
            self._socket.send(header, AND_MORE)
            # A copy would be quicker, but trainers that do not read would fill this process.
            tracker = self._socket.send(payload, NOBLOCK, copy=False, track=True)
        except zmq.ZMQError:  # the peer is gone, or does not read
            owner.tell(Sent(block.number))
            owner.tell(Unreachable(block.connection))
            return
        owner.sending.append((tracker, block.number))
