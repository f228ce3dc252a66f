"""The relay between the front, which has the public address, and the owner of the feeds.

    trainer ══ ZeroMQ ══► front ── TrainerMessage ─► owner
            ◄════════════       ◄─ Say, SendBlock ──

Trainers of this host greet by the public address, and then use a channel to the owner: only their
greetings are relayed.  A batch for another host crosses the relay as a reference; the front maps
the segment and sends from there.
"""

from __future__ import annotations

from headrace_proto.checks import Blob, Count, Plain, Text
from headrace_proto.codec import Registry, message

FROM_FRONT = Registry("front")
FROM_OWNER = Registry("owner")


@message(FROM_FRONT, 1)
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


@message(FROM_OWNER, 1)
class Say:
    """Frame 1 is for this connection."""

    connection: Blob


@message(FROM_OWNER, 2)
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
