"""The socket of a session, and who uses it.

    trainer's thread ── take_over, turn, hand_back ──┐
                                                     ├──► socket ◄──► server
    driver's thread ─── while no trainer's waits ────┘
           ▲
           └── wake (eventfd): there is something to say

The socket is used by a thread of this driver, or by a trainer's thread while that has to wait: it
hears what it waits for without being woken, and says what it has to say without waking anybody.  A
lock says whose the socket is.  When no trainer's thread came for some milliseconds the driver's own
has it, so heartbeats, commits and windows go on whatever the trainer does.

On the server's host messages go by a channel, once the server's memory can be seen from here; the
socket is then only for a Hello, after the channel has ended.

A clock that stands still while this process is suspended measures all silence: some thread looks
at it at least twice a second.  After such a time a heartbeat goes out at once, since leases end by
the server's clock; and the server is heard before its silence is judged.

The session machine is shared under one lock that is held for microseconds.  A wake costs both
threads some microseconds, so one that is still unheard is not repeated.
"""

from __future__ import annotations

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import zmq

from headrace_proto import limits
from headrace_proto.channel import Channel
from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.errors import ConnectionLost, HeadraceError, ProtocolError
from headrace_proto.messages import FROM_SERVER, FROM_TRAINER, Attach, Welcome

from .handshakes import Handshakes
from .holding import Attachment
from .session import Session
from .way import LINGER_MS, Waker, Way, check_files

if TYPE_CHECKING:
    from .keys import Keys

__all__ = ["Driver"]

logger = logging.getLogger("headrace")

_CLOSE_S = 5.0
#: Maximum time of one attempt to connect.  The next one looks the name up again and sends a new
#: SYN; the kernel would repeat the old one to the old address, ever more seldom, for two minutes.
_CONNECT_MS = 2000
#: Messages that are taken from the socket at once.
_BURST = 64
#: A thread that waits takes the socket over; its own thread lets go within microseconds.
_TAKE_OVER_S = 0.05
#: After such a thread has left, the socket is left to it for so long: it mostly comes again.
_RECENT_S = 0.005


class Driver:
    """A session's socket and its thread."""

    def __init__(self, address: str, session: Session, keys: Keys | None = None) -> None:
        check_files()
        self.address = address
        self.hint = ""  # why nobody may answer, in words
        self.clock = AwakeClock()
        self._slept_s = 0.0  # by that clock, at the last look
        self._keys = keys
        self._handshakes: Handshakes | None = None
        self.session = session
        self.changed = threading.Condition()  # the lock of the session
        self.closing = False
        self.news = 0  # counts changes of the session, for those who wait
        self._waiting = 0  # threads that wait for news of the session
        self._waker: Waker | None = Waker()
        self._io = threading.Lock()  # of whoever uses the socket
        self._lent = False  # a trainer's thread that waits uses the socket
        self._io_wanted = 0  # trainer's threads that wait, and would rather use it themselves
        self._driven_at = -inf  # when one of them last did
        self._sending = False
        self._lane: Way | None = None
        self._no_channel = False  # a channel does not do here
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        session.heard_at = self.clock()
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        self._thread.start()

    # For trainers' threads

    def wake(self) -> None:
        """There is something to say."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    def say_now(self) -> None:
        """There is something to say, and this thread says it where nobody uses the socket."""
        if self._io.acquire(blocking=False):
            self.hand_back()
        else:
            self.wake()

    def say_soon(self, now: bool) -> None:
        """There is something to say: ``now``, or with the next of it that comes in a moment.

        Where a thread that waits has used the socket just now, the driver's own looks soon.
        """
        if now or time.monotonic() - self._driven_at > _RECENT_S / 2:
            self.say_now()

    def tell(self) -> None:
        """There is news of the session for those who wait.  Under the lock."""
        self.news += 1
        if self._waiting:
            self.changed.notify_all()

    def wait_for_news(self, at_most_s: float) -> None:
        """Let another thread use the socket.  Under the lock, which is let go meanwhile."""
        self._waiting += 1
        try:
            self.changed.wait(at_most_s)
        finally:
            self._waiting -= 1

    def take_over(self) -> bool:
        """Whether this thread has the socket now, until it hands it back.

        Under the lock, which is let go while the driver's own thread comes to an end.
        """
        if self._lane is None:
            return False
        if self._io.acquire(blocking=False):
            return self._still_there()
        if self._lent:  # to a trainer's thread, which may use it for long: it hears for this one
            self.wake()
            return False
        self._io_wanted += 1
        self.wake()
        self.changed.release()
        try:
            return self._io.acquire(timeout=_TAKE_OVER_S) and self._still_there()
        finally:
            self.changed.acquire()
            self._io_wanted -= 1

    def turn(self, at_most_s: float) -> None:
        """Send what is due and hear what comes, in the thread that has the socket."""
        self._guarded(self._round, at_most_s)

    def hand_back(self) -> None:
        """Send what is due, and leave the socket to others."""
        try:
            self._guarded(self._say)
        finally:
            self._driven_at = time.monotonic()
            self._lent = False
            self._io.release()

    def close(self) -> None:
        """Leave: what is held goes back.  Ends the thread; nothing is said from now on."""
        with self.changed:
            if self.closing:
                return
            self.closing = True
            self.tell()
        self.wake()
        if threading.current_thread() is not self._thread:
            Deadline(_CLOSE_S).join(self._thread)
        self._waker = None

    # The socket, in the hands of whichever thread has it

    def _still_there(self) -> bool:
        """Whether there is a socket to use; it may have been closed before this thread had it."""
        if self._lane is None:
            self._io.release()
            return False
        self._lent = True
        return True

    def _guarded(self, step: Callable[..., None], *values: float) -> None:
        """A step with the socket; what goes wrong is the session's failure."""
        try:
            step(*values)
        except Exception as error:
            self._fail(error)
        except BaseException:  # Ctrl-C, say
            if self._sending:  # half a message may have been said
                self._fail(ConnectionLost("the connection was interrupted amid a message"))
            raise

    def _say(self) -> None:
        """Send what is due."""
        lane = self._lane
        if lane is None:
            return
        now = self.clock()
        with self.changed:
            if self.clock.slept_s > self._slept_s:
                self._slept_s = self.clock.slept_s
                self.session.hurry()
            messages = self._due(now)
            connected = self.session.connected
        if not connected:
            lane.drop()
        self._sending = True
        for message, frames in messages:
            self._send(lane, message, frames)
        self._sending = False

    def _due(self, now: float) -> list[tuple[Any, list[Any]]]:
        """Messages that are due, with the frames that go after their headers.  Under the lock."""
        session = self.session
        return [(message, session.frames_of(message)) for message in session.outgoing(now)]

    def _round(self, at_most_s: float) -> None:
        """Send what is due, wait for something to happen, and hear what has come."""
        lane = self._lane
        assert lane is not None
        now = self.clock()
        if not self.session.connected:
            self._look_at_handshakes(now)
        self._say()
        with self.changed:
            due_s = self.session.due_in(now)
        ready = lane.wait(int(max(0.0, min(due_s, at_most_s)) * 1000) + 1)
        if lane.waker.fd in ready:
            lane.waker.hear()
        channel = lane.channel
        if channel is not None and channel.fileno() in ready:
            self._hear_channel(lane, channel)
        self._hear_socket(lane)
        with self.changed:
            if self.session.connected and self.session.silence(self.clock()):
                self.session.lose()

    # The thread

    def _run(self) -> None:
        try:
            socket = self._socket()
        except BaseException as error:
            self._fail(error)
            return
        try:
            self._serve(socket)
            with self._io:
                lane, self._lane = self._lane, None
                if lane is not None:
                    self._say_goodbye(lane)
        except BaseException as error:
            self._fail(error)
        finally:
            with self._io:
                if self._lane is not None:
                    self._lane.drop()
                    self._lane = None
                if self._handshakes is not None:
                    self._handshakes.close()
                    self._handshakes = None
                socket.close()
                self._context.term()

    def _socket(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.maxmsgsize = limits.MAX_PAYLOAD_BYTES
        socket.rcvhwm = 0  # credits bound what comes
        socket.sndhwm = 0
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 1000
        socket.heartbeat_ivl = 2000
        socket.heartbeat_timeout = 10_000
        socket.connect_timeout = _CONNECT_MS
        if self._keys is not None:
            self._keys.lock(socket)
        self._handshakes = Handshakes(self._context, socket, self.address, self._keys)
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            self._handshakes.close()
            socket.close()
            self._context.term()
            raise ValueError(f"address={self.address!r}: {error}") from None
        return socket

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        """Keep the session going while no thread that waits does it."""
        waker = self._waker
        if waker is None:  # closed before it began
            return
        self._lane = Way(socket, waker)
        parked = select.poll()
        parked.register(waker.fd, select.POLLIN)
        while not self.closing:
            quiet_s = self._driven_at + _RECENT_S - time.monotonic()
            if quiet_s > 0 and not parked.poll(quiet_s * 1000):
                continue
            if self._io_wanted:
                time.sleep(_RECENT_S / 10)
                continue
            with self._io:  # a thread that waits may have it for long: it does all that is to do
                recent = time.monotonic() - self._driven_at < _RECENT_S
                self._round(0.0 if recent else 0.5)

    def _look_at_handshakes(self, now: float) -> None:
        """Whether this trainer is not let in."""
        handshakes = self._handshakes
        if handshakes is None:
            return
        fault = handshakes.fault(now, known=self.session.welcome is not None)
        self.hint = handshakes.hint
        if fault is not None:
            raise fault

    def _hear_socket(self, lane: Way) -> None:
        if lane.quiet:
            return
        socket = lane.socket
        heard: list[tuple[Any, list[Any]]] = []
        while len(heard) < _BURST and int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            header, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            heard.append((self._decoded(header.buffer), frames))
        if heard:
            self._receive(lane, heard)
        else:  # a look costs more than all else: none is needed while a channel is used
            lane.quiet = lane.channel is not None

    def _hear_channel(self, lane: Way, channel: Channel) -> None:
        """Hear a channel, also one that takes nothing more: a server says last why it ends."""
        try:
            channel.flush()
        except OSError:
            channel.ended = True
        try:
            heard = [(self._decoded(header), frames) for header, *frames in channel.receive()]
        except ValueError as error:
            raise ProtocolError(f"the server at {self.address} sent nonsense: {error}") from None
        lane.watch()
        if heard:
            lane.silent = False
            self._receive(lane, heard)
        if channel.ended:
            self._lose_channel(lane)

    def _lose_channel(self, lane: Way) -> None:
        """The channel has ended: the server is greeted again."""
        self._no_channel = lane.silent  # where nothing ever came by one it is not tried again
        lane.drop()
        with self.changed:
            self.session.greet()

    def _decoded(self, header: Any) -> Any:
        try:
            return FROM_SERVER.decode(header)
        except ProtocolError as error:
            raise ProtocolError(f"the peer at {self.address} sent nonsense: {error}") from None

    def _receive(self, lane: Way, heard: list[tuple[Any, list[Any]]]) -> None:
        now = self.clock()
        attach = None
        session = self.session
        with self.changed:
            stopped = session.stopped
            for message, frames in heard:
                if isinstance(message, Welcome):
                    attach = self._attach(lane, message)
                session.receive(message, frames, now)
            if session.memory is not None:
                for segment in session.retired:
                    session.memory.forget(segment)
            session.retired.clear()
            self.tell()
        if session.stopped and not stopped:
            logger.warning(
                "the server at %s was stopped and announced its return: waiting for it",
                self.address,
            )
        elif stopped and not session.stopped:
            logger.warning("the server at %s is back", self.address)
        if attach is not None and lane.channel is None:
            self._send(lane, attach, [])

    def _attach(self, lane: Way, welcome: Welcome) -> Attach | None:
        """Try whether the server's memory can be seen from here, and by a channel if it can."""
        session = self.session
        known = session.continues(welcome)
        if not known:
            session.memory, self._no_channel = None, False
            if not welcome.session_file:
                return None
            try:
                session.memory = Attachment(welcome.directory, welcome.session_file)
            except OSError:
                return None  # another host, container or user: bytes come over the wire
        if session.memory is None:
            return None
        attach = Attach(welcome.session, session.memory.proof, session.last_seq if known else 0)
        if welcome.channel and not self._no_channel and lane.channel is None:
            with contextlib.suppress(OSError):
                first, most = FROM_TRAINER.encode(attach), limits.MAX_PAYLOAD_BYTES
                lane.take(Channel.connect(welcome.channel, [first], most_bytes=most))
        return attach

    def _send(self, lane: Way, message: Any, frames: list[Any]) -> None:
        header = FROM_TRAINER.encode(message)
        channel, socket = lane.channel, lane.socket
        if channel is not None:
            try:
                channel.post([header, *frames])
            except OSError:
                channel.ended = True
                self._hear_channel(lane, channel)
            else:
                lane.watch()
            return
        try:
            if frames:
                socket.send_multipart([header, *frames], zmq.NOBLOCK, copy=False)
            else:
                socket.send(header, zmq.NOBLOCK)
        except zmq.Again:  # ZeroMQ has given the connection up: a handshake says why
            with self.changed:
                self.session.lose()

    def _say_goodbye(self, lane: Way) -> None:
        with self.changed:
            messages = self._due(self.clock()) if self.session.connected else []
            bye = self.session.goodbye()
        for message, frames in [*messages, *([(bye, [])] if bye else [])]:
            self._send(lane, message, frames)
        lane.socket.linger = LINGER_MS
        lane.linger()

    def _fail(self, error: BaseException) -> None:
        with self.changed:
            if self.session.failure is None:
                if isinstance(error, (HeadraceError, ValueError)):
                    self.session.failure = error  # type: ignore[assignment]
                else:
                    logger.exception("the connection to %s failed", self.address)
                    self.session.failure = ConnectionLost(f"{type(error).__name__}: {error}")
            self.tell()
