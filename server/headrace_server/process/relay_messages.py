"""The relay between the front, which has the public address, and the owner of the feeds.

    trainer ══ ZeroMQ ══► front ── TrainerMessage ─► owner
            ◄════════════       ◄─ Say, SendBlock ──

Trainers of this host greet by the public address, and then use a channel to the owner: only their
greetings are relayed.  A batch for another host crosses the relay as a reference; the front maps
the segment and sends from there.

The three messages of each step have packed layouts, as those of trainers have
(``headrace_proto/step_messages.py``):

    TrainerMessage   layout op │ bytes of connection │ …
    Say              layout op │ bytes of connection │ …
    SendBlock        layout op │ bytes of connection, of segment │ number offset nbytes │ …
"""

from __future__ import annotations

import struct
from typing import Any

from headrace_proto.checks import Blob, Count, Plain, Text
from headrace_proto.codec import LAYOUT, Registry, message
from headrace_proto.errors import ProtocolError
from headrace_proto.record import record

from ..core.arena import Block

FROM_FRONT = Registry("front")
FROM_OWNER = Registry("owner")


@record
class TrainerMessage:
    """A trainer's message follows, frame by frame; it came by this connection and public key."""

    connection: Blob
    key: Text


@message(FROM_FRONT, 2)
class Unreachable:
    """The connection is lost: a message for it could not be sent."""

    connection: Blob


@message(FROM_FRONT, 3)
class Sent:
    """The front does not read the bytes of a block any more."""

    number: Count


@message(FROM_FRONT, 4)
class Known:
    """Names of trainers by public key; None: the server has no keys."""

    names: Plain


@message(FROM_FRONT, 5)
class AllBack:
    """All trainers of the owner before this one have greeted this one, or have left."""


@record
class Say:
    """Frame 1 is for this connection."""

    connection: Blob


@record
class SendBlock:
    """Frame 1 is for this connection, followed by the bytes of a block; answered by ``Sent``."""

    connection: Blob
    number: Count
    segment: Text
    offset: Count
    nbytes: Count


@message(FROM_OWNER, 3)
class Left:
    """A session has ended; its connection is a stranger's again."""

    session: Count


@message(FROM_OWNER, 4)
class SegmentRetired:
    """A segment is empty, and will not be used again."""

    segment: Text


@message(FROM_OWNER, 5)
class Began:
    """The process of a life of an owner has begun; the first message on its channel."""

    owner: Count
    life: Count


@message(FROM_OWNER, 6)
class Ready:
    """The feeds are open: greetings are answered from now on."""


@record
class BlockPlace:
    """The body of a batch: where its bytes lie."""

    segment: str
    offset: int
    columns: Any
    crowded: bool
    block: Block | None = None  # the slab's, to be freed


# Packed layouts

#: First byte, op, bytes of the connection's name.
_TRAINER = struct.Struct("<BBB")
_SAY = struct.Struct("<BBB")
#: First byte, op, bytes of the connection's name and of the segment's name; number, offset, nbytes.
_BLOCK = struct.Struct("<BBBBQQQ")


def _pack_trainer(of: TrainerMessage) -> bytes | None:
    connection = of.connection
    if len(connection) > 255:
        return None
    return _TRAINER.pack(LAYOUT, 1, len(connection)) + connection + of.key.encode()


def _unpack_trainer(data: bytes) -> TrainerMessage:
    try:
        _, _, names = _TRAINER.unpack_from(data)
        at = _TRAINER.size + names
        return TrainerMessage(data[_TRAINER.size : at], data[at:].decode())
    except (struct.error, UnicodeDecodeError):
        raise _unfit("TrainerMessage", data) from None


def _pack_say(of: Say) -> bytes | None:
    size = len(of.connection)
    return _SAY.pack(LAYOUT, 1, size) + of.connection if size < 256 else None


def _unpack_say(data: bytes) -> Say:
    if len(data) < _SAY.size or len(data) != _SAY.size + data[_SAY.size - 1]:
        raise _unfit("Say", data)
    return Say(data[_SAY.size :])


def _pack_block(of: SendBlock) -> bytes | None:
    connection, segment = of.connection, of.segment.encode()
    sizes = len(connection), len(segment)
    try:
        head = _BLOCK.pack(LAYOUT, 2, *sizes, of.number, of.offset, of.nbytes)
    except struct.error:  # a long name
        return None
    return b"".join((head, connection, segment))


def _unpack_block(data: bytes) -> SendBlock:
    try:
        _, _, names, segments, number, offset, nbytes = _BLOCK.unpack_from(data)
        at = _BLOCK.size + names
        if len(data) != at + segments:
            raise _unfit("SendBlock", data)
        return SendBlock(data[_BLOCK.size : at], number, data[at:].decode(), offset, nbytes)
    except (struct.error, UnicodeDecodeError):
        raise _unfit("SendBlock", data) from None


def _unfit(what: str, data: bytes) -> ProtocolError:
    return ProtocolError(f"a packed {what} does not fit the {len(data)} bytes that came")


FROM_FRONT.packed(1, TrainerMessage, _pack_trainer, _unpack_trainer)
FROM_OWNER.packed(1, Say, _pack_say, _unpack_say)
FROM_OWNER.packed(2, SendBlock, _pack_block, _unpack_block)
