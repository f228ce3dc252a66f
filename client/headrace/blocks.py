"""The bytes of a batch, aligned: a view of the server's memory, or memory of this process.

a reference ──► view of a mapped segment ─────────┐
     └── the slab runs low: copied, released ──┐  ├──► block
a frame ───────────────────────────── copied ──┴──┘
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from headrace_proto.errors import ProtocolError
from headrace_proto.layout import copy_bytes

from .batch_memory import BufferPool
from .session import Received


class BatchGone(Exception):
    """A batch that waited here can not be used: its rows go out again."""


class _Mapped:
    """Memory of a batch that was taken and put back: it is not mapped twice."""

    def __init__(self, block: np.ndarray) -> None:
        self.buffer = block

    def block(self, *_: Any) -> np.ndarray:
        return self.buffer


def taken_again(received: Received, block: np.ndarray) -> Received:
    """Return the delivery of a batch that has its block, so that it can be taken once more."""
    return Received(received.delivery, _Mapped(block), received.opening, received.mapped)


class Blocks:
    """Makes blocks of what was received, and reports when nobody reads them any more."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say  # reports a batch whose memory was released at once
        self._pool = BufferPool()

    def block(self, received: Received) -> np.ndarray:
        """Return the bytes of a batch; BatchGone where their server is gone."""
        delivery, held = received.delivery, received.source
        if not delivery.segment:
            # from a channel, or from ZeroMQ
            frame = held if isinstance(held, bytes) else held.buffer
            source = np.frombuffer(frame, np.uint8)
            if source.nbytes != delivery.nbytes:
                raise ProtocolError(f"a batch of {delivery.nbytes} bytes came with {source.nbytes}")
            return self._copied(source)
        if held is None:
            raise ProtocolError("the server sent a reference to memory that was not attached")
        release = partial(received.mapped.release, delivery.token)
        try:
            block: np.ndarray = held.block(
                delivery.segment, delivery.offset, delivery.nbytes, release
            )
        except FileNotFoundError:
            raise BatchGone from None
        if not delivery.copy_out:
            return block
        copied = self._copied(block)
        del block
        self._say()
        return copied

    def _copied(self, source: np.ndarray) -> np.ndarray:
        memory = self._pool.buffer(source.nbytes)
        copy_bytes(memory, source)
        return memory
