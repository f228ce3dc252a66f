"""The ways to a server: socket, channel where there is one, and what wakes who waits for them.

    Way.wait ─► socket, channel, waker: at which of them something has happened

ZeroMQ's file number tells of changes only, and a look at what waits costs as much as a small
message.  So while a channel is used the socket is looked at only when its number tells something.
"""

from __future__ import annotations

import contextlib
import os
import select
import time

import zmq

from headrace_proto.channel import Channel

__all__ = ["LINGER_MS", "Waker", "Way"]

#: What was said last may take so long to leave.
LINGER_MS = 500


class Waker:
    """An eventfd that another thread polls; closed when nobody can write to it any more."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unheard = False

    def wake(self) -> None:
        # What is to be said was said to the session before this, and is looked at after the wake
        # was heard: one that is still unheard will do.
        if not self._unheard:
            self._unheard = True
            os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        os.eventfd_read(self.fd)
        self._unheard = False

    def __del__(self) -> None:
        os.close(self.fd)


class Way:
    """The socket, the channel where there is one, and what wakes who waits for them."""

    def __init__(self, socket: zmq.Socket[bytes], waker: Waker) -> None:
        self.socket = socket
        self.waker = waker
        self.channel: Channel | None = None
        self.silent = True  # nothing came by the channel yet
        self.quiet = False  # nothing waits in the socket, and its file number tells when that ends
        self._watched = False  # whether it is told when more can be written
        self._number = int(socket.getsockopt(zmq.FD))
        self._poller = select.poll()
        self._poller.register(self._number, select.POLLIN)
        self._poller.register(waker.fd, select.POLLIN)

    def wait(self, at_most_ms: int) -> set[int]:
        """The file numbers at which something has happened."""
        # That of the socket tells of changes only: of one that was not looked at it tells no more.
        if not self.quiet and int(self.socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            at_most_ms = 0
        ready = {number for number, _ in self._poller.poll(at_most_ms)}
        self.quiet = self.quiet and self._number not in ready
        return ready

    def take(self, channel: Channel) -> None:
        self.channel, self.silent, self._watched = channel, True, False
        self._poller.register(channel, select.POLLIN)

    def drop(self) -> None:
        if self.channel is not None:
            self._poller.unregister(self.channel)
            self.channel.close()
            self.channel = None
            self.quiet = False

    def linger(self) -> None:
        """Give what was said last a moment to leave, and end the channel."""
        channel = self.channel
        if channel is not None and channel.waits:
            writable = select.poll()
            writable.register(channel, select.POLLOUT)
            until = time.monotonic() + LINGER_MS / 1000
            with contextlib.suppress(OSError):
                while channel.flush() and (left := until - time.monotonic()) > 0:
                    writable.poll(left * 1000)
        self.drop()

    def watch(self) -> None:
        """Be told when what waits in the channel can be written, and only then."""
        channel = self.channel
        if channel is not None and channel.waits != self._watched:
            self._watched = channel.waits
            self._poller.modify(channel, select.POLLIN | (select.POLLOUT if channel.waits else 0))
