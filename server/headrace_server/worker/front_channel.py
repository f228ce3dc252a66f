"""The owner's end of the relay, by which messages of trainers come from the front.

front ── TrainerMessage ─► hear() ─► [ one queue for each connection ] ─► receive()
      ◄─ Say, SendBlock ── say(), send_block()
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from headrace_proto.channel import Channel
from headrace_proto.errors import ServerError

from ..leasing.protocol import Batch
from ..process.refusals import Refusals
from ..process.relay_messages import (
    FROM_FRONT,
    FROM_OWNER,
    AllBack,
    Known,
    Left,
    Say,
    SendBlock,
    Sent,
    TrainerMessage,
    Unreachable,
)
from .blocks import Body

#: Maximum number of queued messages of one connection.  A trainer that waits for answers has far
#: fewer under way, so a connection that sends more is muted.
_MOST_WAITING = 4096
#: Maximum bytes queued of all connections; beyond that, messages wait at the front.
_MOST_WAITING_BYTES = 64 << 20
#: Memory of a queued message besides its bytes (measured): small messages are mostly that.
_OBJECT_BYTES = 260

#: The public key of a message, and its frames.
_Waiting = tuple[str, list[bytes]]


def _size(frames: list[bytes]) -> int:
    return _OBJECT_BYTES + sum(map(len, frames))


class FrontGone(ServerError):
    """The front has ended, and with it the server."""


class FrontChannel:
    """The channel to the front, with queues of the trainers' messages that it relays."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.heard: dict[bytes, deque[_Waiting]] = {}  # by connection, in turn
        self._waiting_bytes = 0
        self.flooding: list[bytes] = []  # connections whose queue was full
        self._names: dict[str, str] | None = None
        self._changed = False
        self.refusals = Refusals()  # refusals by this process
        #: By number of a block that the front is sending: the call once it is sent.
        self._sending: dict[int, Callable[[], object]] = {}
        self._blocks = 0
        self.unreachable: set[bytes] = set()
        self._handlers: dict[type, Callable[[Any, list[bytes]], None]] = {
            TrainerMessage: self._on_heard,
            Unreachable: lambda gone, frames: self.unreachable.add(gone.connection),
            Sent: self._on_sent,
            Known: self._on_known,
            AllBack: self._on_all_back,
        }
        self.all_back = False  # whether all trainers of the earlier life have greeted or left

    def fileno(self) -> int:
        """Return the descriptor that is readable when the front has sent a message."""
        return self._channel.fileno()

    def hear(self) -> None:
        """Take the messages of the front.  FrontGone where it has ended."""
        for header, *frames in self._channel.receive():
            message = FROM_FRONT.decode(header)
            self._handlers[type(message)](message, frames)
        if self._channel.ended:
            raise FrontGone("the front has closed its channel")

    def _on_heard(self, heard: TrainerMessage, frames: list[bytes]) -> None:
        queue = self.heard.setdefault(heard.connection, deque())
        queue.append((heard.key, frames))
        self._waiting_bytes += _size(frames)
        if len(queue) > _MOST_WAITING:
            self._waiting_bytes -= sum(_size(frames) for _, frames in queue)
            del self.heard[heard.connection]
            self.flooding.append(heard.connection)

    def _on_sent(self, sent: Sent, frames: list[bytes]) -> None:
        if sent.number in self._sending:
            self._sending.pop(sent.number)()

    def _on_known(self, known: Known, frames: list[bytes]) -> None:
        self._changed = self._changed or known.names != self._names
        self._names = known.names

    def _on_all_back(self, all_back: AllBack, frames: list[bytes]) -> None:
        self.all_back = True

    def tell(self, message: object, frames: Sequence[bytes] = ()) -> None:
        """Send a message to the front."""
        self._channel.send([FROM_OWNER.encode(message), *frames])

    def send_block(
        self, connection: bytes, header: bytes, batch: Batch, sent: Callable[[], object]
    ) -> None:
        """Have the front send a batch's bytes; call ``sent`` afterwards."""
        self._blocks += 1
        self._sending[self._blocks] = sent
        body: Body = batch.body
        block = SendBlock(connection, self._blocks, body.segment, body.offset, batch.nbytes)
        self.tell(block, [header])

    def say(self, connection: bytes, header: bytes) -> bool:
        """Have the front send a header; return False where the connection is known to be gone."""
        if connection in self.unreachable:
            self.unreachable.discard(connection)
            return False
        self.tell(Say(connection), [header])
        return True

    @property
    def is_full(self) -> bool:
        """Whether the queues are so full that the owner takes no more messages."""
        return self._waiting_bytes > _MOST_WAITING_BYTES

    # Trainers

    def receive(self) -> tuple[str, bytes, list[bytes]]:
        """Return the next message: its public key, its connection, its frames.

        Connections take turns, so one that sends much delays only itself.
        """
        connection = next(iter(self.heard))
        queue = self.heard.pop(connection)
        key, frames = queue.popleft()
        self._waiting_bytes -= _size(frames)
        if queue:
            self.heard[connection] = queue
        return key, connection, frames

    def left(self, session: int) -> None:
        """Tell the front that a session has ended, so that its connection may make room."""
        self.tell(Left(session))

    def name_of(self, key: str) -> str | None:
        """Return the name of a key; None where the key is revoked."""
        return "" if self._names is None else self._names.get(key)

    def tick(self, now: float) -> bool:
        """Log recent refusals; return whether the set of valid keys has changed."""
        self.refusals.tick(now)
        changed, self._changed = self._changed, False
        return changed
