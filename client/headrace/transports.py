"""The transports of a trainer to all its servers, and the wait for messages at all of them.

    Transport    the socket to one server, and the channel where there is one
    Sleep.wait ─► the waker, and the socket and channel of each transport: until an event at one

ZeroMQ's descriptor reports changes only, and checking for waiting messages costs as much as a small
message.  So while a channel is used, or where there are several transports, a socket is checked
only after a message was sent by it, or when its descriptor is readable.
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

#: Maximum time for the last messages to leave.
LINGER_MS = 500
#: Number of files that a session may open: 14 with libzmq 4.3.5, one for state buffers, and one for
#: each segment …
_FILES = 16
#: … and each further one of the same trainer: 8, one for state buffers, and one for each segment.
_FILES_MORE = 10
#: Polls take whole milliseconds: wait for one more, so that the awaited time has come.
_TICK_S = 0.001


def check_files(sessions: int = 1) -> None:
    """Check that this process can open the files of this many sessions.

    Otherwise libzmq would end the process (4.3.5 asserts that it gets an epoll).
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
        # The session has the message already, and the other thread checks the session after
        # the wake: one wake that it has not read yet is enough.
        if not self._unheard:
            self._unheard = True
            os.eventfd_write(self.fd, 1)

    def hear(self) -> None:
        os.eventfd_read(self.fd)
        self._unheard = False

    def __del__(self) -> None:
        os.close(self.fd)


class Sleep:
    """All transports of one trainer, where one of its threads sleeps, and that thread's waker.

    One thread at a time waits here, while others use sockets and channels.
    """

    def __init__(self, cores: float) -> None:
        self.waker = Waker()
        self.changes = 0  # counts changes of the awaited files, which a wait under way does not see
        self._transports: dict[int, Transport] = {}  # by the number of the socket
        self._monitors: dict[int, Transport] = {}  # by that of its monitor
        self._spin = Spin(cores)
        self._poller = select.poll()
        self._poller.register(self.waker.fd, select.POLLIN)
        self._looker = select.poll()  # the same transports, for threads other than the sleeping one

    def add(self, transport: Transport, number: int, monitor: int) -> None:
        """Wait for a transport from here on; its socket and monitor have these descriptors."""
        self._transports[number], self._monitors[monitor] = transport, transport
        self.register(number)
        self.register(monitor)

    def remove(self, number: int, monitor: int) -> None:
        """Stop waiting for the transport with these descriptors."""
        del self._transports[number], self._monitors[monitor]
        self.forget(number)
        self.forget(monitor)

    def register(self, file: int | Channel, events: int = select.POLLIN) -> None:
        """Wait for these events of a file, too; they replace earlier ones."""
        self._poller.register(file, events)
        self._looker.register(file, events)
        self.changes += 1

    def forget(self, file: int | Channel) -> None:
        """Stop waiting for a file."""
        self._poller.unregister(file)
        self._looker.unregister(file)
        self.changes += 1

    def wait(self, at_most_s: float) -> None:
        """Wait for an event; with channels poll first without sleep.

        A socket's descriptor reports changes only: read the socket before the wait and after it.
        """
        at_most_s, spins = max(0.0, at_most_s) + _TICK_S, True
        for transport in self._transports.values():
            if transport.more:
                at_most_s = 0.0
            if transport.channel is None:
                spins = False
        for number, _ in self._spin.wait(self._poll, at_most_s, spins):
            if number == self.waker.fd:
                self.waker.hear()
            else:
                self._note(number)

    def look(self) -> set[int]:
        """Return the descriptors of sockets and channels with an event, without a wait.

        The caller holds the driver's lock.
        """
        ready = {number for number, _ in self._looker.poll(0)}
        for number in ready:
            self._note(number)
        return ready

    def _note(self, number: int) -> None:
        """Note an event at a socket, or at its monitor."""
        if number in self._transports:
            self._transports[number].quiet = False
        elif number in self._monitors:
            transport = self._monitors[number]
            transport.disturbed, transport.quiet = True, False

    @property
    def several(self) -> bool:
        """Whether there is more than one transport."""
        return len(self._transports) > 1

    def _poll(self, seconds: float) -> list[tuple[int, int]]:
        return self._poller.poll(int(seconds * 1000))


class Transport:
    """The socket, and the channel where there is one."""

    def __init__(self, socket: zmq.Socket[bytes], sleep: Sleep, monitor: int) -> None:
        self.channel: Channel | None = None
        self.silent = True  # nothing has come by the channel yet
        # no message waits in the socket, and its descriptor reports the next one
        self.quiet = False
        self.more = False  # messages were left waiting in the socket
        self.disturbed = False  # something has happened to the socket's connection
        self._watched = False  # whether the wait covers writing, too
        self.sleep = sleep  # at the transports of all owners
        self._number = int(socket.getsockopt(zmq.FD))
        self._monitor = monitor
        sleep.add(self, self._number, monitor)

    def has_news(self, ready: set[int]) -> bool:
        """Return whether a message may have come, given the descriptors with an event."""
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
        """Close it; no thread waits here any more."""
        self.drop()
        self.sleep.remove(self._number, self._monitor)

    def linger(self) -> None:
        """Give the last messages a moment to leave, and end the channel."""
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
        """Wait for the channel to become writable exactly while messages wait in it."""
        channel = self.channel
        if channel is not None and channel.waits != self._watched:
            self._watched = channel.waits
            also = select.POLLOUT if channel.waits else 0
            self.sleep.register(channel, select.POLLIN | also)
