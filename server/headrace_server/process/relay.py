"""The relay between the front, which has the public address, and the owner of the feeds.

    trainer ══ ZeroMQ ══► front ── Heard ─────────► owner
            ◄════════════       ◄─ Say, Block ─────

Trainers of this host greet by the public address, and then use the owner's own socket: only their
greetings are relayed.  A batch for another host crosses the relay as a reference; the front maps
the segment and sends from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace_proto.checks import Blob, Count, Plain, Text
from headrace_proto.codec import Registry

FROM_FRONT = Registry("front")
FROM_OWNER = Registry("owner")


@FROM_FRONT.message(1)
@dataclass(frozen=True, slots=True)
class TrainerMessage:
    """A trainer's message follows, frame by frame; it came by this connection and public key."""

    connection: Blob
    key: Text


@FROM_FRONT.message(2)
@dataclass(frozen=True, slots=True)
class Unreachable:
    """The connection is lost: a message for it could not be sent."""

    connection: Blob


@FROM_FRONT.message(3)
@dataclass(frozen=True, slots=True)
class Sent:
    """The front reads the bytes of a block no more."""

    number: Count


@FROM_FRONT.message(4)
@dataclass(frozen=True, slots=True)
class Known:
    """Names of trainers by public key (None: the server has no keys); counts of the gate."""

    names: Plain
    access: Plain


@FROM_FRONT.message(5)
@dataclass(frozen=True, slots=True)
class AllBack:
    """All trainers of the owner before this one have greeted this one, or have left."""


@FROM_OWNER.message(1)
@dataclass(frozen=True, slots=True)
class Say:
    """Frame 1 is for this connection."""

    connection: Blob


@FROM_OWNER.message(2)
@dataclass(frozen=True, slots=True)
class SendBlock:
    """Frame 1 is for this connection, followed by the bytes of a block; answered by ``Sent``."""

    connection: Blob
    number: Count
    segment: Text
    offset: Count
    nbytes: Count


@FROM_OWNER.message(3)
@dataclass(frozen=True, slots=True)
class Left:
    """A session has ended; its connection is a stranger's again."""

    session: Count


@FROM_OWNER.message(4)
@dataclass(frozen=True, slots=True)
class SegmentRetired:
    """A segment is empty, and will not be used again."""

    segment: Text


@FROM_OWNER.message(5)
@dataclass(frozen=True, slots=True)
class Began:
    """The process of the owner has begun."""


@FROM_OWNER.message(6)
@dataclass(frozen=True, slots=True)
class Ready:
    """The feeds are open: greetings are answered from now on."""


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """The body of a batch: where its bytes lie."""

    segment: str
    offset: int
    nbytes: int
    columns: Any
    crowded: bool
