"""One end of all channels to an owner: those of trainers of its host.

    owner    Channel.connect, Began  ─┐
                                      ├─►  ChannelServer.receive, send
    trainer  Channel.connect, Attach ─┘

It never waits: bytes that can not be written now are buffered, and written when the other end reads
on.  Beyond a bound of these it cuts the peer off.  Each connection gets a name that no connection
of ZeroMQ can have; its first message says which process it is.  A malformed message ends the
channel that it came on, and no other.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace_proto import limits
from headrace_proto.channel import Channel, Frame, address_of

from .sockets import is_shortage

logger = logging.getLogger("headrace.trainers")

#: Maximum unsent bytes (headers only) to a trainer that does not read; then it is cut off.
_MOST_UNSENT = 128 * limits.MAX_HEADER_BYTES
#: Connections at once beyond those that there should be: strangers, and some that are about to end.
SPARE = 16
#: Maximum time for the messages of one connection before the others get their turn.
TURN_S = 0.005
#: Connections that are accepted in one turn.
_BURST = 64
#: Names of channels begin so, and no name of ZeroMQ's does.
_CHANNEL = b"\0channel-"


def is_channel(identity: bytes) -> bool:
    """Return whether this is the name of a channel, present or past."""
    return identity.startswith(_CHANNEL)


class _Connection(Channel):
    """A channel and its name."""

    def __init__(self, end: socket.socket, name: bytes) -> None:
        most_bytes = limits.MAX_HEADER_BYTES + limits.MAX_UPLOAD_BYTES
        super().__init__(end, limits.MAX_FRAMES, most_bytes)
        self.number = end.fileno()
        self.name = name
        self.watched = False  # polled until it can be written


class ChannelServer:
    """All connections by name."""

    def __init__(
        self,
        path: Path,
        most: int,
        is_used: Callable[[bytes], bool],
        most_unsent: int = _MOST_UNSENT,
    ) -> None:
        """``most``: connections at once; a new one ends the oldest that is unused.

        ``is_used``: whether a process is known that has the connection of this name.
        """
        self.path = path
        self._most = most
        self._is_used = is_used
        self._most_unsent = most_unsent
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
        self._count = itertools.count(1)
        self._deaf = False  # no connection can be accepted now: descriptors are short
        #: Messages that the poll does not show.
        self.unread: dict[_Connection, list[list[bytes]]] = {}

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

    def receive(self, handle: Callable[[bytes, list[bytes]], object]) -> None:
        """Have the messages handled that have come, each with the name of its connection.

        Those of each connection get ``TURN_S``; the next call continues.
        """
        late = list(self.unread)
        for number, events in self._epoll.poll(0):
            if number == self._listener.fileno():
                self._accept()
                continue
            channel = self._channels.get(number)
            if channel is None:  # an earlier message has ended it
                continue
            if events & select.EPOLLOUT:
                self._write(channel)
            if events & ~select.EPOLLOUT and channel not in self.unread:  # else its turn comes
                self._listen(channel, channel.take(), handle)
        for channel in late:
            if channel in self.unread:
                self._listen(channel, self.unread.pop(channel), handle)

    def tick(self) -> None:
        """Accept connections again, after descriptors were short."""
        if self._deaf:
            self._deaf = False
            self._epoll.register(self._listener, select.EPOLLIN)

    def send(self, identity: bytes, frames: Sequence[Frame]) -> bool:
        """Send a message; return False when no peer has this name."""
        channel = self._named.get(identity)
        if channel is None:
            return False
        if channel.unsent_memory > self._most_unsent:
            self._drop(channel)  # when a trainer greets again, all important messages are resent
            return False
        there = True
        try:
            channel.post(frames)
        except OSError:  # dead: its earlier messages can still be read
            there = False
        if channel.waits or channel.watched:
            self._watch(channel, there and channel.waits)
        return there

    def drop(self, identity: bytes) -> None:
        """End a connection; the other end can still read what was sent before."""
        if (channel := self._named.get(identity)) is not None:
            self._drop(channel)

    def close(self) -> None:
        for channel in list(self._channels.values()):
            self._drop(channel)
        self._epoll.close()
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()

    # A channel

    def _listen(
        self,
        channel: _Connection,
        messages: list[list[bytes]],
        handle: Callable[[bytes, list[bytes]], object],
    ) -> None:
        name, until, now = channel.name, 0.0, 0.0
        for heard, frames in enumerate(messages):
            if heard:
                now = time.monotonic()
                until = until or now + TURN_S
            if now and now >= until:
                self.unread[channel] = messages[heard:]
                return
            handle(name, frames)
            if name not in self._named:
                return  # its message has ended it
        if channel.fault:
            who, place = name[1:].decode(), self.path.name
            logger.error("%s to %s is closed: %s", who, place, channel.fault)
        if channel.fault or channel.ended:
            self._drop(channel)

    def _accept(self) -> None:
        for _ in range(_BURST):
            try:
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
            end.setblocking(False)
            # No peer can choose such a name on a ZeroMQ socket, and ZeroMQ's own have 5 bytes.
            channel = _Connection(end, _CHANNEL + b"%d" % next(self._count))
            self._channels[channel.number] = self._named[channel.name] = channel
            self._epoll.register(channel, select.EPOLLIN)
            if len(self._channels) > self._most:
                every = self._channels.values()
                self._drop(next(one for one in every if not self._is_used(one.name)))

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

    def _drop(self, channel: _Connection) -> None:
        self._epoll.unregister(channel)
        self.unread.pop(channel, None)
        self._named.pop(channel.name, None)
        self._channels.pop(channel.number).close()
