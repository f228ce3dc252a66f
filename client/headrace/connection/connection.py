"""The connection of a session, by channel or socket, and the wait for messages at all of them.

    Session ── messages due ──► send ─► channel, or socket ──► owner
       ▲                                      │
       └── message ◄── receive ◄──────────────┘   neither waits for anything

    Sleep.wait ─► its own eventfd, and socket, monitor and channel of each connection

On the server's host messages go by a channel, once this process has mapped the server's memory; the
socket is then only for a Hello, after the channel has ended.

The threads of a process use it in turn, under the lock of their link.

ZeroMQ's descriptor reports changes only, and checking for waiting messages costs as much as a small
message.  So while a channel is used, or where there are several connections, a socket is checked
only after a message was sent by it, or when its descriptor is readable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
from collections.abc import Callable, Collection
from typing import Any

import zmq

from headrace_proto import limits
from headrace_proto.channel import Channel
from headrace_proto.clock import Deadline
from headrace_proto.credentials import Keys
from headrace_proto.errors import ProtocolError
from headrace_proto.handshakes import connecting
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Attach, Welcome
from headrace_proto.spin import Spin

from .batch_memory import Attachment, opening_files
from .session import Session
from .state_block import FreeBuffers

logger = logging.getLogger("headrace")

#: Maximum time for the last messages to leave.
_LINGER_MS = 500
#: Number of files that a session may open: 14 with libzmq 4.3.5, one for state buffers, and one for
#: each segment …
_FILES = 16
#: … and each further one of the same trainer: 8, one for state buffers, and one for each segment.
_FILES_MORE = 10
#: Messages of a socket that are handled before other sessions get a turn.
_MOST_HEARD = 512
#: Silence of an owner after which its server's locator is asked.
_SILENT_S = 1.5
#: As plain numbers: an operator of two flags of an enum takes longer than the call of ZeroMQ.
_EVENTS, _READABLE, _MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
_NOBLOCK, _AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
#: States up to this size are copied to ZeroMQ.  That takes less than to wake the thread of pyzmq
#: that reports when ZeroMQ does not read memory any more.
_COPIED_BYTES = 512 << 10

_decoded = FROM_SERVER.decode


def check_files(sessions: int = 1) -> None:
    """Check that this process can open the files of this many sessions.

    Otherwise libzmq would end the process (4.3.5 asserts that it gets an epoll).
    """
    need = _FILES + (sessions - 1) * _FILES_MORE
    with opening_files(f"a feed needs {need} open files"), contextlib.ExitStack() as opened:
        for _ in range(need):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def nonsense(address: str, error: Exception | str) -> ProtocolError:
    """Return the error of a message that can not be read."""
    return ProtocolError(f"the peer at {address} sent nonsense: {error}")


class Sleep:
    """Where a thread of a trainer sleeps, at all connections, and an eventfd that wakes it.

    One thread at a time waits here, while others use sockets and channels.
    """

    def __init__(self, cores: float) -> None:
        self.files = select.epoll()  # others may change it, and look, while a thread sleeps there
        self.connections: dict[int, Connection] = {}  # by the number of the socket
        self.monitors: dict[int, Connection] = {}  # by that of its monitor
        self._spin = Spin(cores)
        self._awake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._woken = False  # by a wake that the sleeping thread has not read
        self.files.register(self._awake, select.EPOLLIN)

    def __del__(self) -> None:
        if (file := getattr(self, "_awake", None)) is not None:
            os.close(file)

    def wake(self) -> None:
        """Wake the sleeping thread, or the next one that would sleep."""
        if not self._woken:
            self._woken = True
            os.eventfd_write(self._awake, 1)

    def wait(self, at_most_s: float) -> bool:
        """Wait for an event; with channels poll first without sleep.

        Return whether there was none at once.  A socket's descriptor reports changes only: read the
        socket before the wait and after it.
        """
        spins = True
        for one in self.connections.values():
            if one.more:
                at_most_s = 0.0
            if one.channel is None:
                spins = False
        events = self.files.poll(0)
        waits = not events and at_most_s > 0
        if waits:
            events = self._spin.wait(self.files.poll, at_most_s, spins)
        for number, _ in events:
            if number == self._awake:
                os.eventfd_read(number)
                self._woken = False
            elif number in self.connections or number in self.monitors:  # not a channel
                self._note(number)
        return waits

    def look(self) -> set[int]:
        """Return the descriptors of sockets and channels with an event, without a wait.

        The caller holds the lock of their link.
        """
        ready = {number for number, _ in self.files.poll(0)}
        for number in ready:
            if number in self.connections or number in self.monitors:
                self._note(number)
        return ready

    def _note(self, number: int) -> None:
        """Note an event at a socket, or at its monitor."""
        one = self.connections.get(number) or self.monitors[number]
        one.quiet, one.disturbed = False, one.disturbed or number in self.monitors


class Connection:
    """A session's socket, and its channel where there is one."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        keys: Keys | None,
        session: Session,
        sleep: Sleep,
        notify: Callable[[], None],
    ) -> None:
        """``notify`` reports that its session has news."""
        self.session = session
        self.address, self.place = session.server.address, session.address
        self.amid_message = False
        self.dead = False  # ZeroMQ has given the socket up
        self.channel: Channel | None = None
        # no message waits in the socket, and its descriptor reports the next one
        self.quiet = False
        self.more = False  # messages were left waiting in the socket
        self.disturbed = False  # something has happened to the socket's connection
        self._silent = True  # nothing has come by the channel yet
        self._no_channel = False  # no channel works here
        self._watched = False  # whether the wait at the channel covers writing, too
        self._sleep, self._notify = sleep, notify
        self._now = 0.0  # of the last look at what has come
        self._socket, self._handshakes = connecting(context, keys, self.address, self.place)
        self._files = int(self._socket.getsockopt(zmq.FD)), self._handshakes.fileno()
        sleep.connections[self._files[0]] = sleep.monitors[self._files[1]] = self
        for file in self._files:
            sleep.files.register(file, select.EPOLLIN)

    def away(self, now: float) -> bool:
        """Return whether its server is to be looked for."""
        silent = now - self.session.heard_at > _SILENT_S
        return not self.session.connected and (self._handshakes.unreached or silent)

    # Sending

    def send(self, now: float) -> None:
        """Send due messages.

        Receive afterwards: ZeroMQ's descriptor does not report what came meanwhile.
        """
        session = self.session
        if not session.connected:
            # The locator has let this trainer in; a busy owner may break handshakes off.
            if (refused := self._handshakes.fault(now, known=True)) is not None:
                raise refused
            self._drop_channel()
        messages, connected = session.outgoing(now), session.connected
        self.amid_message = True
        for message, frames in messages:
            self._send(message, frames)
            if session.connected is not connected:  # all is sent again after the greeting
                break
        self.amid_message = False

    def _send(self, message: Any, frames: list[Any]) -> None:
        header = FROM_TRAINER.encode(message)
        channel = self.channel
        if channel is not None:
            try:
                if channel.post([header, *frames]):
                    self._watch(channel)
            except OSError:
                channel.ended = True
                self._receive_from_channel(channel)
            return
        try:
            for part in (header, *frames[:-1]) if frames else ():
                self._socket.send(part, _AND_MORE)
            last = frames[-1] if frames else header
            self._socket.send(last, _NOBLOCK, copy=len(last) <= _COPIED_BYTES)
            self.quiet = False  # ZeroMQ may have received messages meanwhile
        except zmq.Again:  # the handshake shows why
            self.dead = True
            self.session.greet()

    def _watch(self, channel: Channel) -> None:
        """Wait for the channel to become writable exactly while messages wait in it."""
        if channel.waits != self._watched:
            self._watched = channel.waits
            also = select.EPOLLOUT if channel.waits else 0
            self._sleep.files.modify(channel, select.EPOLLIN | also)

    # Hearing

    def channel_in(self, ready: Collection[int]) -> bool:
        """Return whether its channel has an event, by the descriptors with one."""
        return self.channel is not None and self.channel.fileno() in ready

    def receive(self, now: float) -> None:
        """Handle messages that have arrived."""
        self._now = now
        if self.disturbed:
            self.disturbed = False
            lost = self._handshakes.look(now)
            if lost and self.session.connected and self.channel is None:
                self._lose()
        if (channel := self.channel) is not None:
            self._receive_from_channel(channel)
        if not self.quiet:
            self._receive_from_socket()

    def _lose(self) -> None:
        """Greet the owner again after the connection to it has ended."""
        self.session.greet()
        self._notify()

    def _receive_from_socket(self) -> None:
        socket, heard = self._socket, 0
        while heard < _MOST_HEARD and int(socket.getsockopt(_EVENTS)) & _READABLE:
            header = frame = socket.recv(_NOBLOCK, copy=False)
            frames = []
            while frame.more:
                frame = socket.recv(_NOBLOCK, copy=False)
                frames.append(frame)
            self._receive(header.buffer, frames)
            heard += 1
        if heard:
            self._notify()
        # Checking the socket costs most: none is needed while a channel is used, and one poll does
        # for the sockets of all owners.
        self.more, several = heard == _MOST_HEARD, len(self._sleep.connections) > 1
        self.quiet = not self.more and (self.channel is not None or several)

    def skip_rest(self) -> None:
        """Drop the rest of a message of the socket whose receipt was interrupted."""
        while int(self._socket.getsockopt(_MORE)):
            self._socket.recv(_NOBLOCK)

    def _receive_from_channel(self, channel: Channel) -> None:
        """Receive from a channel, even a broken one: its last message says why it ends."""
        if channel.waits:
            try:
                channel.flush()
            except OSError:
                channel.ended = True
            self._watch(channel)
        messages = channel.take()
        if channel.fault:
            raise nonsense(self.address, channel.fault)
        for frames in messages:
            self._silent = False
            self._receive(frames[0], frames[1:])
        if messages:
            self._notify()
        if channel.ended:
            self._no_channel = self._silent  # one by which nothing ever came is not tried again
            self._drop_channel()
            self._lose()

    def _receive(self, header: Any, frames: list[Any]) -> None:
        try:
            message = _decoded(header)
        except ProtocolError as error:
            raise nonsense(self.address, error) from None
        session, attach = self.session, None
        stopped = session.stopped
        if type(message) is Welcome and session.awaits(message):
            attach = self._attach(message)
        session.receive(message, frames, self._now)
        if session.stopped is not stopped:
            state = "is back" if stopped else "was stopped and announced its return: waiting for it"
            logger.warning("the server at %s %s", self.address, state)
        if attach is not None and self.channel is None and session.connected:
            self._send(attach, [])

    def _attach(self, welcome: Welcome) -> Attach | None:
        """Try to map the server's memory and, if that works, to open a channel."""
        session = self.session
        if not session.continues(welcome):
            session.memory = session.buffers = None
            self._no_channel = False
            if not welcome.session_file:
                return None
            try:
                session.memory = Attachment(welcome.directory, welcome.session_file)
            except OSError:
                return None  # another host, container or user: bytes come over the wire
            session.buffers = FreeBuffers(
                welcome.session_file, welcome.state_buffer, session.memory.proof
            )
        if session.memory is None:
            return None
        attach = Attach(welcome.session, session.memory.proof)
        if welcome.channel and not self._no_channel and self.channel is None:
            with contextlib.suppress(OSError):
                first, most = FROM_TRAINER.encode(attach), limits.MAX_PAYLOAD_BYTES
                channel = Channel.connect(welcome.channel, [first], most_bytes=most)
                self._sleep.files.register(channel, select.EPOLLIN)  # first: Ctrl-C may come
                self.channel, self._silent, self._watched = channel, True, False
        return attach

    # The end

    def _drop_channel(self) -> None:
        self.quiet = False
        channel, self.channel = self.channel, None  # first: Ctrl-C may come
        if channel is not None:
            self._sleep.files.unregister(channel)
            channel.close()

    def say_goodbye(self, now: float) -> None:
        """Send due messages, and that this trainer leaves."""
        session = self.session
        session.hurry()
        for message, frames in session.outgoing(now) if session.connected else []:
            self._send(message, frames)
        bye = session.goodbye()
        if bye is not None:
            self._send(bye, [])

    @property
    def leaves(self) -> bool:
        """Whether a Bye has no answer so far."""
        return self.session.connected or (self.session.greets and not self._handshakes.unreached)

    def linger(self) -> None:
        """Give the last messages a moment to leave, and end the channel."""
        self._socket.linger = _LINGER_MS
        channel = self.channel
        if channel is not None and channel.waits:
            writable = select.poll()
            writable.register(channel, select.POLLOUT)

            def written(at_most_s: float) -> bool:
                writable.poll(at_most_s * 1000)
                return not channel.flush()

            with contextlib.suppress(OSError):
                Deadline(_LINGER_MS / 1000).wait(written)
        self._drop_channel()

    def close(self) -> None:
        """Close it; no thread waits here any more."""
        self._drop_channel()
        del self._sleep.connections[self._files[0]], self._sleep.monitors[self._files[1]]
        for file in self._files:
            self._sleep.files.unregister(file)
        self._handshakes.close()
