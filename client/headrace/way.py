"""The ways to a server: socket, channel where there is one, and what wakes who waits for them.

    Sleep.wait ─► waker, and of each way socket and channel: until something has happened at one

ZeroMQ's file number tells of changes only, and a look at what waits costs as much as a small
message.  So while a channel is used, or where there are several ways, a socket is looked at only
after a message was sent by it, or when its number tells something.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
from collections.abc import Iterator

import zmq

from headrace_proto.channel import Channel
from headrace_proto.clock import Deadline
from headrace_proto.errors import LimitExceeded
from headrace_proto.spin import Spin

#: The last messages may take so long to leave.
LINGER_MS = 500
#: Number of files that a session may open: 14 with libzmq 4.3.5, and one for each segment …
_FILES = 16
#: … and each further one of the same trainer: 8, and one for each segment.
_FILES_MORE = 10
#: Polls take whole milliseconds: one more, so that what is waited for is due afterwards.
_TICK_S = 0.001


def check_files(sessions: int = 1) -> None:
    """Check that this process can open the files of so many sessions.

    Where it can not, libzmq would end the process (4.3.5 asserts that it gets an epoll).
    """
    need = _FILES + (sessions - 1) * _FILES_MORE
    with opening_files(f"a feed needs {need} open files"), contextlib.ExitStack() as opened:
        for _ in range(need):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


@contextlib.contextmanager
def opening_files(need: str) -> Iterator[None]:
    """Turn an OSError for lack of descriptors into a LimitExceeded that names the limit."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise LimitExceeded(
            f"{need}, and this process can not open so many more: {os.strerror(error.errno)}.  "
            f"Its limit is {soft} (RLIMIT_NOFILE; the hard limit is {hard}): close files, or raise "
            "it (ulimit -n, resource.setrlimit)"
        ) from None


class Waker:
    """An eventfd that another thread polls; closed when nobody can write to it any more."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unheard = False

    def wake(self) -> None:
        # The session has the message before this, and the other thread looks at the session after
        # it hears the wake: one that it has not heard yet is enough.
        if not self._unheard:
            self._unheard = True
            os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        os.eventfd_read(self.fd)
        self._unheard = False

    def __del__(self) -> None:
        os.close(self.fd)


class Sleep:
    """All ways of one trainer, at which one of its threads sleeps, and the waker of that thread.

    One thread at a time waits here, while others use sockets and channels.
    """

    def __init__(self, cores: float) -> None:
        self.waker = Waker()
        self.changes = 0  # of what a wait is for, which one that has begun does not see
        self._ways: dict[int, Way] = {}  # by the number of the socket
        self._spin = Spin(cores)
        self._poller = select.poll()
        self._poller.register(self.waker.fd, select.POLLIN)
        self._looker = select.poll()  # the same ways, for other threads than that which sleeps

    def add(self, way: Way, number: int) -> None:
        """Wait for a way from here on, whose socket has this number."""
        self._ways[number] = way
        self.register(number)

    def remove(self, number: int) -> None:
        """Wait for the way of this number no more."""
        del self._ways[number]
        self.forget(number)

    def register(self, file: int | Channel, events: int = select.POLLIN) -> None:
        """Wait for these events, too, or for others of this file."""
        self._poller.register(file, events)
        self._looker.register(file, events)
        self.changes += 1

    def forget(self, file: int | Channel) -> None:
        """Wait for a file no more."""
        self._poller.unregister(file)
        self._looker.unregister(file)
        self.changes += 1

    def wait(self, at_most_s: float) -> None:
        """Wait until something has happened; by channels at first without sleep.

        A socket's number tells of changes only: it must have been heard before, and since.
        """
        at_most_s, spins = max(0.0, at_most_s) + _TICK_S, True
        for way in self._ways.values():
            if way.more:
                at_most_s = 0.0
            if way.channel is None:
                spins = False
        for number, _ in self._spin.wait(self._poll, at_most_s, spins):
            if number == self.waker.fd:
                self.waker.hear()
            elif number in self._ways:
                self._ways[number].quiet = False

    def look(self) -> set[int]:
        """The numbers of sockets and channels at which something has happened, without a wait.

        Under the lock of those who use the ways.
        """
        ready = {number for number, _ in self._looker.poll(0)}
        for number in ready & self._ways.keys():
            self._ways[number].quiet = False
        return ready

    @property
    def several(self) -> bool:
        """Whether there is more than one way."""
        return len(self._ways) > 1

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        return self._poller.poll(int(seconds * 1000))


class Way:
    """The socket, and the channel where there is one."""

    def __init__(self, socket: zmq.Socket[bytes], sleep: Sleep) -> None:
        self.channel: Channel | None = None
        self.silent = True  # nothing came by the channel yet
        self.quiet = False  # nothing waits in the socket, and its file number tells when that ends
        self.more = False  # some of what waits in the socket was left there
        self._watched = False  # whether it is told when more can be written
        self.sleep = sleep  # at the ways of all owners
        self._number = int(socket.getsockopt(zmq.FD))
        sleep.add(self, self._number)

    def has_news(self, ready: set[int]) -> bool:
        """Whether something may have come, where something has happened at these numbers."""
        return not self.quiet or (self.channel is not None and self.channel.fileno() in ready)

    def take(self, channel: Channel) -> None:
        self.channel, self.silent, self._watched = channel, True, False
        self.sleep.register(channel)

    def drop(self) -> None:
        if self.channel is not None:
            self.sleep.forget(self.channel)
            self.channel.close()
            self.channel = None
            self.quiet = False

    def close(self) -> None:
        """Nobody waits here any more."""
        self.drop()
        self.sleep.remove(self._number)

    def linger(self) -> None:
        """Give what was said last a moment to leave, and end the channel."""
        channel = self.channel
        if channel is not None and channel.waits:
            writable = select.poll()
            writable.register(channel, select.POLLOUT)

            def written(at_most_s: float) -> bool:
                writable.poll(at_most_s * 1000)
                return not channel.flush()

            with contextlib.suppress(OSError):
                Deadline(LINGER_MS / 1000).wait(written)
        self.drop()

    def watch(self) -> None:
        """Be told when what waits in the channel can be written, and only then."""
        channel = self.channel
        if channel is not None and channel.waits != self._watched:
            self._watched = channel.waits
            also = select.POLLOUT if channel.waits else 0
            self.sleep.register(channel, select.POLLIN | also)
