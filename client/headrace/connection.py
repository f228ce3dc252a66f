"""The connection of a session: sends and receives its messages, by the channel or the socket.

    Session ── messages due ──► say ──► channel, or socket ──► server
       ▲                                      │
       └── receive ◄── hear ◄─────────────────┘   neither waits for anything

On the server's host messages go by a channel, once this process has mapped the server's memory; the
socket is then only for a Hello, after the channel has ended.

The threads of a process use it in turn, under the driver's lock.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zmq

from headrace_proto import limits
from headrace_proto.channel import Channel
from headrace_proto.errors import ProtocolError
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Attach, Welcome

from .batch_memory import Attachment
from .free_buffers import FreeBuffers
from .refused_handshakes import Handshakes
from .session import Session
from .transports import LINGER_MS, Sleep, Transport

if TYPE_CHECKING:
    from .credentials import Keys

logger = logging.getLogger("headrace")

#: Maximum time of one attempt to connect.  The next one resolves the name again and sends a new
#: SYN; the kernel would repeat the old one to the old address, ever more seldom, for two minutes.
_CONNECT_MS = 2000
#: Messages handed to the session at once, and number of times, before other sessions get a turn.
_BURST, _BURSTS = 64, 8

#: Silence of an owner after which its server's locator is asked.
_SILENT_S = 1.5

#: As plain numbers: an operator of two flags of an enum takes longer than the call of ZeroMQ.
_EVENTS, _READABLE, _MORE = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.RCVMORE)
_NOBLOCK, _AND_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
#: States up to this size are copied to ZeroMQ.  That takes less than to wake the thread of pyzmq
#: that reports when ZeroMQ does not read memory any more.
_COPIED_BYTES = 512 << 10

_decoded = FROM_SERVER.decode


class Connection:
    """A session's socket, and its channel where there is one."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        keys: Keys | None,
        session: Session,
        tell: Callable[[], None],
        clock: Callable[[], float],
        sleep: Sleep,
        place: str,
    ) -> None:
        """``tell`` is called when the session has received a message.

        ``place``: where the server of this address is tried.
        """
        self.address, self.place = address, place
        self.hint = ""  # a likely reason why no server answers
        self.amid_message = False
        self.session = session
        self._tell = tell
        self._clock = clock
        self._no_channel = False  # no channel works here
        self._socket = context.socket(zmq.DEALER)
        self._set_up(keys)
        self._handshakes = Handshakes(context, self._socket, address, keys)
        try:
            self._socket.connect(place)
        except zmq.ZMQError as error:
            self._handshakes.close()
            self._socket.close()
            raise ValueError(f"address={address!r}: {error}") from None
        self.transport = Transport(self._socket, sleep, self._handshakes.fileno())

    def _set_up(self, keys: Keys | None) -> None:
        socket = self._socket
        socket.linger = 0
        socket.maxmsgsize = limits.MAX_PAYLOAD_BYTES
        socket.rcvhwm = 0  # requests bound the number of messages
        socket.sndhwm = 0
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 200
        socket.heartbeat_ivl = 2000
        socket.heartbeat_timeout = 10_000
        socket.connect_timeout = _CONNECT_MS
        if keys is not None:
            keys.lock(socket)

    @property
    def unreached(self) -> bool:
        """Whether the last attempt to connect has failed."""
        return not self.session.connected and self._handshakes.unreached

    def away(self, now: float) -> bool:
        """Return whether its server is to be looked for."""
        session = self.session
        if session.connected:
            return False
        silent = bool(session.owner_address) and now - session.heard_at > _SILENT_S
        return self.unreached or silent or bool(session.regrouped)

    # Saying

    def say(self, now: float) -> None:
        """Send due messages.

        Receive afterwards: ZeroMQ's descriptor does not report what came meanwhile.
        """
        session = self.session
        if not session.connected:
            self._look_at_handshakes(now)
            self.transport.drop()
        messages = session.outgoing(now)
        if messages:
            connected = session.connected
            self.amid_message = True
            for message, frames in messages:
                self._send(message, frames)
                if session.connected is not connected:  # all is sent again after the greeting
                    break
            self.amid_message = False

    def _look_at_handshakes(self, now: float) -> None:
        """Check whether the server refuses this trainer."""
        # The locator has let this trainer in; a busy owner may break handshakes off.
        known = self.session.welcome is not None or bool(self.session.owner_address)
        fault = self._handshakes.fault(now, known)
        self.hint = self._handshakes.hint
        if fault is not None:
            raise fault

    def _send(self, message: Any, frames: list[Any]) -> None:
        header = FROM_TRAINER.encode(message)
        channel = self.transport.channel
        if channel is not None:
            try:
                if channel.post([header, *frames]):
                    self.transport.watch()
            except OSError:
                channel.ended = True
                self._hear_channel(channel)
            return
        try:
            for part in (header, *frames[:-1]) if frames else ():
                self._socket.send(part, _AND_MORE)
            last = frames[-1] if frames else header
            self._socket.send(last, _NOBLOCK, copy=len(last) <= _COPIED_BYTES)
            self.transport.quiet = False  # ZeroMQ may have received messages meanwhile
        except zmq.Again:  # ZeroMQ has given the connection up: the handshake shows why
            self.session.greet()

    # Hearing

    def hear(self) -> None:
        """Handle messages that have arrived."""
        if self.transport.disturbed:
            self._look_at_connection()
        channel = self.transport.channel
        if channel is not None:
            self._hear_channel(channel)
        if not self.transport.quiet:
            self._hear_socket()

    def _look_at_connection(self) -> None:
        """Greet the server again if the connection to it has ended."""
        self.transport.disturbed = False
        lost = self._handshakes.look(self._clock())
        if lost and self.session.connected and self.transport.channel is None:
            self.session.greet()
            self._tell()

    def _hear_socket(self) -> None:
        transport = self.transport
        heard = self._burst()
        for _ in range(_BURSTS):
            if not heard:
                break
            self._receive(heard)
            heard = self._burst()
        transport.more = bool(heard)
        if heard:
            self._receive(heard)
        # Checking the socket costs most: none is needed while a channel is used, and one poll does
        # for the sockets of all owners.
        transport.quiet = not transport.more and (
            transport.channel is not None or transport.sleep.several
        )

    def _burst(self) -> list[tuple[Any, list[Any]]]:
        """Receive some of the messages that wait in the socket; none only where none is left."""
        socket = self._socket
        heard: list[tuple[Any, list[Any]]] = []
        while len(heard) < _BURST and int(socket.getsockopt(_EVENTS)) & _READABLE:
            header = frame = socket.recv(_NOBLOCK, copy=False)
            frames = []
            while frame.more:
                frame = socket.recv(_NOBLOCK, copy=False)
                frames.append(frame)
            try:
                heard.append((_decoded(header.buffer), frames))
            except ProtocolError as error:
                raise self._nonsense(error) from None
        return heard

    def skip_rest(self) -> None:
        """Drop the rest of a message of the socket whose receipt was interrupted."""
        while int(self._socket.getsockopt(_MORE)):
            self._socket.recv(_NOBLOCK)

    def _hear_channel(self, channel: Channel) -> None:
        """Receive from a channel, even a broken one: its last message says why it ends."""
        if channel.waits:
            try:
                channel.flush()
            except OSError:
                channel.ended = True
            self.transport.watch()
        messages = channel.take()
        try:
            heard = [(_decoded(frames[0]), frames[1:]) for frames in messages]
        except ProtocolError as error:
            raise self._nonsense(error) from None
        if channel.fault:
            raise self._nonsense(channel.fault)
        if heard:
            self.transport.silent = False
            self._receive(heard)
        if channel.ended:
            self._lose_channel()

    def _lose_channel(self) -> None:
        """Greet the server again after the channel has ended."""
        # A channel by which nothing ever came is not tried again.
        self._no_channel = self.transport.silent
        self.transport.drop()
        self.session.greet()
        self._tell()

    def _nonsense(self, error: Exception | str) -> ProtocolError:
        return ProtocolError(f"the peer at {self.address} sent nonsense: {error}")

    def _receive(self, heard: list[tuple[Any, list[Any]]]) -> None:
        attach = None
        session = self.session
        now = self._clock()
        stopped = session.stopped
        for message, frames in heard:
            if isinstance(message, Welcome) and session.awaits(message):
                attach = self._attach(message)
            session.receive(message, frames, now)
        if session.retired:
            self._forget_segments()
        self._tell()
        if session.stopped is not stopped:
            self._warn(session.stopped)
        if attach is not None and self.transport.channel is None and session.connected:
            self._send(attach, [])

    def _forget_segments(self) -> None:
        session = self.session
        if session.memory is not None:
            for segment in session.retired:
                session.memory.forget(segment)
        session.retired.clear()

    def _warn(self, stopped: bool) -> None:
        state = "was stopped and announced its return: waiting for it" if stopped else "is back"
        logger.warning("the server at %s %s", self.address, state)

    def _attach(self, welcome: Welcome) -> Attach | None:
        """Try to map the server's memory and, if that works, to open a channel."""
        session, transport = self.session, self.transport
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
        if welcome.channel and not self._no_channel and transport.channel is None:
            with contextlib.suppress(OSError):
                first, most = FROM_TRAINER.encode(attach), limits.MAX_PAYLOAD_BYTES
                transport.take(Channel.connect(welcome.channel, [first], most_bytes=most))
        return attach

    # The end

    def say_goodbye(self, now: float) -> None:
        """Send due messages, and that this trainer leaves."""
        session = self.session
        for message, frames in session.outgoing(now) if session.connected else []:
            self._send(message, frames)
        bye = session.goodbye()
        if bye is not None:
            self._send(bye, [])

    def linger(self) -> None:
        """Give the last messages a moment to arrive."""
        self._socket.linger = LINGER_MS
        self.transport.linger()

    def close(self) -> None:
        self.transport.close()
        self._handshakes.close()
        self._socket.close()
