"""The bytes of a batch, aligned: a view of the server's memory, or memory of this process.

a reference ──► view of a mapped segment ─────────┐
     └── the slab runs low: copied, released ──┐  ├──► block
a frame ───────────────────────────── copied ──┴──┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace_proto.errors import ProtocolError
from headrace_proto.layout import copy_bytes

from .batch_memory import BufferPool
from .trainer import Held


class BatchGone(Exception):
    """A batch that waited here can not be used: its rows go out again."""


class _Mapped(NamedTuple):
    """Memory of a batch that was taken and put back: it is not mapped twice."""

    block: np.ndarray


def put_back(held: Held, block: np.ndarray) -> Held:
    """Give a batch that has its block back the block, so that it can be taken once more."""
    held.source.memory = _Mapped(block)
    return held


class Blocks:
    """Makes blocks of what was received, and reports when nobody reads them any more."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say  # reports a batch whose memory was released at once
        self._pool = BufferPool()

    def block(self, held: Held) -> np.ndarray:
        """Return the bytes of a batch; BatchGone where their server is gone."""
        given, memory = held.given, held.source.memory
        if type(memory) is _Mapped:
            held.source.memory = None
            return memory.block
        if not given.segment:
            # from a channel, or from ZeroMQ
            frame = memory if isinstance(memory, bytes) else memory.buffer
            source = np.frombuffer(frame, np.uint8)
            if source.nbytes != given.nbytes:
                raise ProtocolError(f"a batch of {given.nbytes} bytes came with {source.nbytes}")
            held.source.memory = None
            return self._copied(source)
        if memory is None:
            raise ProtocolError("the server sent a reference to memory that was not attached")
        release = held.source.release
        try:
            block: np.ndarray = memory.block(given.segment, given.offset, given.nbytes, release)
        except FileNotFoundError:
            raise BatchGone from None
        held.source.mapped_now()
        if not given.copy_out:
            return block
        copied = self._copied(block)
        del block
        self._say()
        return copied

    def _copied(self, source: np.ndarray) -> np.ndarray:
        memory = self._pool.buffer(source.nbytes)
        copy_bytes(memory, source)
        return memory
