"""The owner's end of the relay: the door by which trainers' messages come from the front.

front ── Heard ─► hear() ─► [ one queue for each connection ] ─► receive()
      ◄─ Say, Block ── say(), send_block()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from headrace_proto.channel import Channel
from headrace_proto.errors import ServerError

from ..process.refusals import Refusals
from ..process.relay import (
    FROM_FRONT,
    FROM_OWNER,
    AllBack,
    Block,
    Heard,
    Known,
    Left,
    Place,
    Say,
    Sent,
    Unreachable,
)

__all__ = ["FrontGone", "RelayDoor"]

#: Messages of one connection that wait to be heard.  A trainer that waits for answers has far fewer
#: under way, so one that sends more is listened to no more.
_MOST_WAITING = 4096
#: Bytes that wait, of all connections; beyond them messages wait at the front.
_MOST_WAITING_BYTES = 64 << 20

#: A message and the public key that it came by.
_Waiting = tuple[str, list[bytes]]


def _size(frames: list[bytes]) -> int:
    return sum(map(len, frames))


class FrontGone(ServerError):
    """The front has ended, and with it the server."""


class _Tracker:
    """Whether a block that the front sends is still being read."""

    def __init__(self) -> None:
        self.done = False


class RelayDoor:
    """The owner's end: the door by which trainers' messages come from the front."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._heard: dict[bytes, deque[_Waiting]] = {}  # by connection, the next first
        self._waiting_bytes = 0
        self.flooding: list[bytes] = []  # connections of which more came than may wait
        self._names: dict[str, str] | None = None
        self._access: dict[str, Any] = {"keys": False, "known": [], "refused": {}}
        self._changed = False
        self._refusals = Refusals()
        self._trackers: dict[int, _Tracker] = {}
        self._blocks = 0
        self.unreachable: set[bytes] = set()
        self.all_back = False  # trainers of the owner before this one

    def fileno(self) -> int:
        """Readable when the front says something."""
        return self._channel.fileno()

    def hear(self) -> None:
        """Take what the front has said.  FrontGone: it is there no more."""
        for header, *frames in self._channel.receive():
            message = FROM_FRONT.decode(header)
            if isinstance(message, Heard):
                self._keep(message.connection, message.key, frames)
            elif isinstance(message, Unreachable):
                self.unreachable.add(message.connection)
            elif isinstance(message, Sent):
                tracker = self._trackers.pop(message.number, None)
                if tracker is not None:
                    tracker.done = True
            elif isinstance(message, Known):
                self._changed = self._changed or message.names != self._names
                self._names, self._access = message.names, message.access
            elif isinstance(message, AllBack):
                self.all_back = True
        if self._channel.ended:
            raise FrontGone("the front has closed its channel")

    def tell(self, message: object, frames: Sequence[bytes] = ()) -> None:
        """Say something to the front."""
        self._channel.send([FROM_OWNER.encode(message), *frames])

    def send_block(self, connection: bytes, header: bytes, place: Place) -> _Tracker:
        """Have the front send the bytes of a batch."""
        self._blocks += 1
        tracker = self._trackers[self._blocks] = _Tracker()
        block = Block(connection, self._blocks, place.segment, place.offset, place.nbytes)
        self.tell(block, [header])
        return tracker

    def say(self, connection: bytes, header: bytes) -> bool:
        """Have the front send a header; False where the connection is known to be gone."""
        if connection in self.unreachable:
            self.unreachable.discard(connection)
            return False
        self.tell(Say(connection), [header])
        return True

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be heard that no more is to be taken."""
        return self._waiting_bytes > _MOST_WAITING_BYTES

    # As of a gate

    @property
    def refusals(self) -> Refusals:
        """Who was refused by this process, and why."""
        return self._refusals

    def waits(self) -> bool:
        """Whether ``receive`` has a message."""
        return bool(self._heard)

    def receive(self) -> tuple[str, bytes, list[bytes]]:
        """The next message: the public key that it came by, the connection, the frames.

        Connections take turns, so one that sends much waits for itself only.
        """
        connection = next(iter(self._heard))
        queue = self._heard.pop(connection)
        key, frames = queue.popleft()
        self._waiting_bytes -= _size(frames)
        if queue:
            self._heard[connection] = queue
        return key, connection, frames

    def _keep(self, connection: bytes, key: str, frames: list[bytes]) -> None:
        queue = self._heard.setdefault(connection, deque())
        queue.append((key, frames))
        self._waiting_bytes += _size(frames)
        if len(queue) > _MOST_WAITING:
            self._waiting_bytes -= sum(_size(frames) for _, frames in queue)
            del self._heard[connection]
            self.flooding.append(connection)

    def left(self, session: int, now: float) -> None:
        """A session has ended; the connection that it came by may end for others."""
        self.tell(Left(session))

    def name_of(self, key: str) -> str | None:
        """Whose a key is; None where it lets nobody in any more."""
        return "" if self._names is None else self._names.get(key)

    def told(self) -> dict[str, object]:
        """Who is let in, and how many were refused by front and owner."""
        refused = dict(self._access["refused"])
        for reason, count in self._refusals.counts.items():
            refused[reason] = refused.get(reason, 0) + count
        return {**self._access, "refused": refused}

    def tick(self, now: float) -> bool:
        """Whether other keys are let in now."""
        self._refusals.tick(now)
        changed, self._changed = self._changed, False
        return changed
