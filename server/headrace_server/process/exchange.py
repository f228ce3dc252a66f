"""One end of all channels to processes of the host: owners at the front, trainers at an owner.

    worker   Channel.connect, its name ─┐
                                        ├─►  Exchange.hear, tell
    trainer  Channel.connect, Attach   ─┘

An exchange never waits: bytes that can not be written now are buffered, and written when the other
end reads on.  Only memory bounds the buffer, so a sender has to bound it (by credits, or by the
batches that a worker has announced), or the exchange of trainers cuts the peer off.  A malformed
message ends the channel that it came on, and no other.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace_proto import limits
from headrace_proto.channel import Channel, address_of

from .descriptors import aside, is_shortage, own

logger = logging.getLogger("headrace.trainers")

Frame = bytes | memoryview

_IDENTITY = re.compile(rb"[0-9]{1,9}-[0-9]{1,9}")  # worker-life
#: Maximum unsent bytes (headers only) to a trainer that does not read; then it is cut off.
_MOST_KEPT = 128 * limits.MAX_HEADER_BYTES
#: Connections at once beyond those that there should be: strangers, and some that are about to end.
SPARE = 16
#: Maximum time for the messages of one trainer before the others get their turn.
TURN_S = 0.005
#: Connections that are accepted in one turn.
_BURST = 64
#: Names of connections by channel begin so, and none of ZeroMQ's does.
_NEAR = b"\0near-"


def is_near(identity: bytes) -> bool:
    """Return whether this is the name of a connection by channel, present or past."""
    return identity.startswith(_NEAR)


class _Connection(Channel):
    """A channel, and what the exchange knows of it."""

    def __init__(self, end: socket.socket, *limits: int) -> None:
        super().__init__(end, *limits)
        self.number = end.fileno()
        self.name = b""  # of a worker its first message
        self.allowed = _MOST_KEPT  # unsent bytes; more where payload waits to be written
        self.watched = False  # polled until it can be written


class Exchange:
    """All connections of workers, by identity, which is the first message of each, or of trainers.

    A trainer that connects gets a name that none of ZeroMQ's can have.  It has still to prove its
    session.
    """

    def __init__(
        self, path: Path, most: int, is_used: Callable[[bytes], bool] | None = None
    ) -> None:
        """``most``: connections at once; a new one ends the oldest that is unused.

        ``is_used``, of trainers: whether the connection of this name is that of a session.
        """
        self.path = path
        self._most = most
        self._is_used = is_used
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address_of(path) as address:
                self._listener.bind(address)
            self._listener.listen(1024)
        except OSError:
            self._listener.close()
            raise
        self._listener.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._listener, select.EPOLLIN)
        self._channels: dict[int, _Connection] = {}  # by file number
        self._named: dict[bytes, _Connection] = {}
        self._count = itertools.count(1)  # of trainers
        self._deaf = False  # no connection can be accepted now: descriptors are short
        #: Messages that the poll does not show.
        self.unheard: dict[_Connection, deque[list[bytes]]] = {}

    def fileno(self) -> int:
        """Return the file that is readable when a message has come or a channel is writable."""
        return self._epoll.fileno()

    def filenos(self) -> list[int]:
        """Return the numbers of all its open files."""
        return [self._epoll.fileno(), self._listener.fileno(), *self._channels]

    @property
    def anybody(self) -> bool:
        """Whether anybody is connected."""
        return bool(self._channels)

    def hear(self) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the messages that have come, each with its identity; exhaust the iterator.

        It yields messages of each trainer for ``TURN_S``; the next call continues.
        """
        late = list(self.unheard)
        for number, events in self._epoll.poll(0):
            if number == self._listener.fileno():
                self._accept()
                continue
            channel = self._channels.get(number)
            if channel is None:  # an earlier message has ended it
                continue
            if events & select.EPOLLOUT:
                self._write(channel)
            if events & ~select.EPOLLOUT and channel not in self.unheard:  # else its turn comes
                yield from self._listen(channel, deque(channel.take()))
        for channel in late:
            if channel in self.unheard:
                yield from self._listen(channel, self.unheard.pop(channel))

    def tick(self) -> None:
        """Accept connections again, after descriptors were short."""
        if self._deaf:
            self._deaf = False
            self._epoll.register(self._listener, select.EPOLLIN)

    def tell(self, identity: bytes, frames: Sequence[Frame]) -> bool:
        """Send a message; return False when no peer has this name."""
        channel = self._named.get(identity)
        return channel is not None and self._tell(channel, frames)

    def send_payload(self, identity: bytes, frames: Sequence[Frame], most_bytes: int) -> bool:
        """Send a message with payload; at most ``most_bytes`` of payload may wait."""
        channel = self._named.get(identity)
        if channel is None:
            return False
        channel.allowed = most_bytes + _MOST_KEPT
        there = self._tell(channel, frames)
        if not channel.waits:
            channel.allowed = _MOST_KEPT
        return there

    def drop(self, identity: bytes) -> None:
        """End a connection; the other end can still read what was sent before."""
        if (channel := self._named.get(identity)) is not None:
            self._drop(channel)

    def unsent_memory(self, identity: bytes) -> int:
        """Return the memory of unsent messages to one peer."""
        channel = self._named.get(identity)
        return 0 if channel is None else channel.unsent_memory

    def close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    # A channel

    def _listen(
        self, channel: _Connection, messages: deque[list[bytes]]
    ) -> Iterator[tuple[bytes, list[bytes]]]:
        until = 0.0
        while messages:
            frames = messages.popleft()
            if not channel.name:
                if fault := self._name(channel, frames):
                    channel.fault = fault
                    break
                continue
            yield channel.name, frames
            if self._named.get(channel.name) is not channel:
                return  # its message has ended it
            if messages and self._is_used is not None:
                now = time.monotonic()
                until = until or now + TURN_S
                if now >= until:
                    self.unheard[channel] = messages
                    return
        if channel.fault:
            logger.error("the channel of %s is closed: %s", self._who(channel), channel.fault)
        if channel.fault or channel.ended:
            self._drop(channel)

    def _who(self, channel: _Connection) -> str:
        name = (channel.name or b"a process that did not say which").decode()
        return f"worker {name}" if self._is_used is None else f"a trainer of this host ({name[1:]})"

    def _name(self, channel: _Connection, frames: list[bytes]) -> str:
        """Take a first message, the name of the peer; return its fault, empty for none."""
        name = frames[0]
        if len(frames) != 1 or not _IDENTITY.fullmatch(name):
            return f"its first message is {len(frames)} frames, {name[:32]!r} …, and no identity"
        if name in self._named:
            return f"worker {name.decode()} is connected already, and that connection stands"
        channel.name = name
        self._named[name] = channel
        return ""

    def _accept(self) -> None:
        for _ in range(_BURST):
            try:
                with own():
                    end, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # else the poll would return at once until descriptors are free
                if is_shortage(error):
                    self._deaf = True
                    self._epoll.unregister(self._listener)
                    return
                continue  # the peer has disconnected
            end = socket.socket(fileno=aside(end.detach()))
            end.setblocking(False)
            self._take(end)
            if len(self._channels) > self._most:
                self._drop(next(filter(self._is_unused, self._channels.values())))

    def _is_unused(self, channel: _Connection) -> bool:
        name = channel.name
        return not name or (self._is_used is not None and not self._is_used(name))

    def _take(self, end: socket.socket) -> None:
        channel = _Connection(end)
        if self._is_used is not None:
            channel = _Connection(end, limits.MAX_FRAMES, limits.MAX_UPLOAD_BYTES)
            # No peer can choose such a name on a ZeroMQ socket, and ZeroMQ's own have 5 bytes.
            channel.name = _NEAR + b"%d" % next(self._count)
            self._named[channel.name] = channel
        self._channels[channel.number] = channel
        self._epoll.register(channel, select.EPOLLIN)

    def _tell(self, channel: _Connection, frames: Sequence[Frame]) -> bool:
        if self._is_used is not None and channel.unsent_memory > channel.allowed:
            self._drop(channel)  # when the trainer greets again, all important messages are resent
            return False
        there = True
        try:
            channel.post(frames)
        except OSError:  # dead: its earlier messages can still be read
            there = False
        if channel.waits or channel.watched:
            self._watch(channel, there and channel.waits)
        return there

    def _write(self, channel: _Connection) -> None:
        """Write what can be written now."""
        try:
            waits = channel.flush()
        except OSError:
            waits = False
        self._watch(channel, waits)

    def _watch(self, channel: _Connection, waits: bool) -> None:
        """Start or stop polling for a channel to become writable."""
        if waits != channel.watched:
            channel.watched = waits
            self._epoll.modify(channel, select.EPOLLIN | (select.EPOLLOUT if waits else 0))
        if not waits:
            channel.allowed = _MOST_KEPT

    def _drop(self, channel: _Connection) -> None:
        self._epoll.unregister(channel)
        self.unheard.pop(channel, None)
        self._named.pop(channel.name, None)
        self._channels.pop(channel.number).close()
