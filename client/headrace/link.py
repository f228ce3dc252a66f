"""The socket of a session, and who uses it.

    trainer's thread ── take, commit, release ──► Session ◄── messages ── driver ◄──► server
                                  │                                         ▲
                                  └──────────────── wake (eventfd) ─────────┘

The driver is a thread of this link, or a trainer's thread while that has to wait: it hears what it
waits for without being woken, and says what it has to say without waking anybody.  A lock says
whose the socket is.  When no trainer's thread came for some milliseconds the link's own thread has
it, so heartbeats, commits and windows go on whatever the trainer does.

The session machine is shared under one lock that is held for microseconds.  Released memory is
reported without it, since the last reader of a batch may go while any lock is held.  A wake costs
both threads some microseconds, so one that is still unheard is not repeated.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import zmq

from headrace_proto import limits
from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FeedClosed,
    ForkedProcess,
    HeadraceError,
    ProtocolError,
)
from headrace_proto.messages import (
    FROM_SERVER,
    FROM_TRAINER,
    Attach,
    Delivery,
    Flushed,
    Handed,
    Retargeted,
    Welcome,
)

from .holding import Attachment
from .session import Received, Session
from .uploads import StatesPart

__all__ = ["Link"]

logger = logging.getLogger("headrace")

#: A server that was lost for this long is given up, also where the timeout is longer.
_GIVE_UP_S = 30.0
_CLOSE_S = 5.0
#: A thread that waits takes the socket over; its own thread lets go within microseconds.
_TAKE_OVER_S = 0.05
#: After such a thread has left, the socket is left to it for so long: it mostly comes again.
_RECENT_S = 0.005


class _Waker:
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


@dataclass(frozen=True, slots=True)
class _Lane:
    """The socket, and what is polled with it."""

    socket: zmq.Socket[bytes]
    poller: zmq.Poller
    waker: _Waker


class Link:
    """A session with its socket and its thread."""

    def __init__(self, address: str, session: Session, timeout_s: float) -> None:
        self.address = address
        self.session = session
        self.attachment: Attachment | None = None
        self.left = False  # the trainer closed the feed
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._waiting = 0  # threads that wait for news of the session
        self._waker: _Waker | None = _Waker()
        self.explain: Callable[[float], str] = lambda now: ""  # what a trainer owes, in words
        self._closing = False
        self._io = threading.Lock()  # of whoever uses the socket
        self._io_wanted = 0  # trainer's threads that wait, and would rather use it themselves
        self._driven_at = -inf  # when one of them last did
        self._sending = False
        self._lane: _Lane | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        session.heard_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        self._thread.start()

    # For the trainer's thread

    def open(self) -> Welcome:
        """Wait for the server's Welcome."""
        self._wait(lambda s: s.welcome is not None, self._timeout_s, "a server to answer")
        assert self.session.welcome is not None
        return self.session.welcome

    def check_usable(self) -> None:
        """ForkedProcess or FeedClosed where this can not be used any more."""
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"this feed was connected in process {self._pid} and is used in its fork "
                f"{os.getpid()}: connect in the process that uses it (in a torch DataLoader: in "
                "the dataset's __iter__, or use num_workers=0 and let headrace do the reading)"
            )
        if self.left:
            raise FeedClosed("this feed was closed; connect again")

    def take(self, claim: Callable[[Session], Received | None] = Session.take) -> Received | None:
        """The next batch; None when the feed has ended.

        ``claim`` takes it from the session, and may leave it there until something was saved.
        """
        session = self.session
        with self._changed:
            received = claim(session) if not session.failure and not session.refused else None
            if received is None:
                session.want()
        if received is not None:
            self.wake()
            return received
        return self._wait(claim, self._timeout_s, "a batch", or_end=True)  # type: ignore[no-any-return]

    def commit(self, token: int) -> None:
        """Say, soon, that a batch is done."""
        with self._changed:
            self.session.commit(token)

    def place(self, delivery: Delivery, segments: bytes) -> None:
        """A batch goes to the trainer: what a server that is started anew would know it by."""
        d = delivery
        with self._changed:
            self.session.place(Handed(d.token, d.partition, d.number, d.rows, segments))

    def give_back(self, token: int) -> None:
        with self._changed:
            self.session.give_back(token)

    def save(self, token: int, columns: list[Any], block: Any) -> bool:
        """Say, now, that the states of a batch are saved.  False when it is not held any more."""
        with self._changed:
            saved = self.session.save(token, columns, block)
            self._tell()
        if self._io.acquire(blocking=False):
            try:
                self._guarded(self._say)
            finally:
                self._driven_at = time.monotonic()
                self._io.release()
        else:
            self.wake()
        return saved

    def drain(self, cancel: bool) -> None:
        """Close the feed's input, and wait for the server's word."""
        with self._changed:
            self.session.drain(cancel)
        self.wake()
        self._wait(lambda s: s.drained, self._timeout_s, "the answer to drain", or_end=True)

    def retarget(self, probs: tuple[float, ...]) -> Retargeted:
        """Ask for other proportions of classes, and wait for the answer."""
        with self._changed:
            self.session.retarget(probs)
        self.wake()
        answer: Retargeted = self._wait(
            lambda s: s.retargeted, self._timeout_s, "the answer to set_target_probs"
        )
        return answer

    def flush(self, token: int, parts: list[StatesPart], at_most_s: float = inf) -> Flushed:
        """Hand over the states of lanes, and wait for the answer."""
        with self._changed:
            self.session.flush(token, parts)
        self.wake()
        answer: Flushed = self._wait(
            lambda s: s.uploads.flushed,
            min(self._timeout_s, at_most_s),
            "the answer to flush_states",
            raise_refused=False,
        )
        return answer

    def settle(self, at_most_s: float = inf) -> None:
        """Wait until every commit was answered."""
        self.wake()
        self._wait(
            lambda s: s.settled,
            min(self._timeout_s, at_most_s),
            "answers to commits",
            raise_refused=False,
        )

    def wake(self) -> None:
        """There is something to say."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    def _tell(self) -> None:
        """There is news of the session for those who wait.  Under the lock."""
        if self._waiting:
            self._changed.notify_all()

    def close(self) -> None:
        """Leave: what is held goes back.  Ends the thread, and every wait with FeedClosed."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._tell()
        self.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_S)
        self._waker = None

    def _wait(
        self,
        done: Callable[[Session], Any],
        timeout_s: float,
        what: str,
        or_end: bool = False,
        raise_refused: bool = True,
    ) -> Any:
        """Wait until ``done`` yields something; every wait of a trainer is this one."""
        session = self.session
        started = time.monotonic()
        drives = False
        try:
            while True:
                with self._changed:
                    if session.failure is not None:
                        raise session.failed()
                    if self._closing:
                        raise FeedClosed(f"the feed was closed while this thread waited for {what}")
                    if raise_refused and session.refused:
                        raise session.refused.popleft()
                    result = done(session)
                    if result:
                        return result
                    # The end is told when this trainer's own commits were answered too.
                    if or_end and session.finished and session.settled:
                        return None
                    now = time.monotonic()
                    self._check_deadline(now, started, timeout_s, what)
                    rest_s = min(0.2, started + timeout_s - now)
                    if not drives and not (drives := self._drive()):
                        self._waiting += 1
                        try:
                            self._changed.wait(rest_s)
                        finally:
                            self._waiting -= 1
                        continue
                self._guarded(lambda: self._round(rest_s))  # noqa: B023  (it is called at once)
        finally:
            if drives:
                self._guarded(self._say)  # what a batch that was taken makes room for
                self._driven_at = time.monotonic()
                self._io.release()
            else:
                self.wake()

    # The socket, in the hands of whichever thread has it

    def _drive(self) -> bool:
        """Take the socket from the thread of this link: who waits hears sooner what comes."""
        if self._lane is None:
            return False
        if self._io.acquire(blocking=False):
            return self._still_there()
        self._io_wanted += 1
        self.wake()
        self._changed.release()  # that thread may need it to come to an end
        try:
            return self._io.acquire(timeout=_TAKE_OVER_S) and self._still_there()
        finally:
            self._changed.acquire()
            self._io_wanted -= 1

    def _still_there(self) -> bool:
        """Whether there is a socket to use; the link may have been closed before this had it."""
        if self._lane is None:
            self._io.release()
            return False
        return True

    def _guarded(self, step: Callable[[], None]) -> None:
        """A step with the socket; what goes wrong is the session's failure."""
        try:
            step()
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
        now = time.monotonic()
        with self._changed:
            messages = self.session.outgoing(now)
        self._sending = True
        for message in messages:
            self._send(lane.socket, message)
        self._sending = False

    def _round(self, at_most_s: float) -> None:
        """Send what is due, wait for something to happen, and hear what has come."""
        lane = self._lane
        assert lane is not None
        now = time.monotonic()
        with self._changed:
            if self.session.connected and self.session.silence(now):
                self.session.lose()
        self._say()
        with self._changed:
            due_s = self.session.due_in(now)
        ready = dict(lane.poller.poll(int(max(0.0, min(due_s, at_most_s)) * 1000) + 1))
        if lane.waker.fd in ready:
            lane.waker.hear()
        if lane.socket in ready:
            self._hear(lane.socket)

    def _check_deadline(self, now: float, started: float, timeout_s: float, what: str) -> None:
        session = self.session
        silence = session.silence(now)
        over = now - started >= timeout_s
        if session.welcome is not None and (silence > _GIVE_UP_S or (over and silence)):
            raise ConnectionLost(
                f"the server at {self.address} was lost: nothing was heard of it for "
                f"{silence:.0f} s, while this trainer waited for {what}"
            )
        if not over:
            return
        if session.welcome is None and session.waiting:
            raise DeadlineExceeded(
                f"waited timeout={timeout_s:g} s for the feed at {self.address} to open; "
                f"the server says: {session.waiting}"
            )
        if session.welcome is None:
            raise ConnectionLost(
                f"no server answered at {self.address} within timeout={timeout_s:g} s: "
                "is it running, and is the address right?"
            )
        reason = (
            f"the server says: {session.waiting}" if session.waiting else "no word of the server"
        )
        raise DeadlineExceeded(
            f"waited timeout={timeout_s:g} s for {what} of feed {session.welcome.feed!r} "
            f"at {self.address}; {reason}; this trainer holds {session.held()} batches"
            f"{self.explain(now)}"
        )

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
                self._lane = None
                self._say_goodbye(socket)
        except BaseException as error:
            self._fail(error)
        finally:
            with self._io:
                self._lane = None
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
        try:
            socket.connect(self.address)
        except zmq.ZMQError as error:
            socket.close()
            self._context.term()
            raise ValueError(f"address={self.address!r}: {error}") from None
        return socket

    def _serve(self, socket: zmq.Socket[bytes]) -> None:
        """Keep the session going while no thread that waits does it."""
        waker = self._waker
        if waker is None:  # closed before it began
            return
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(waker.fd, zmq.POLLIN)
        self._lane = _Lane(socket, poller, waker)
        parked = select.poll()
        parked.register(waker.fd, select.POLLIN)
        while not self._closing:
            quiet_s = self._driven_at + _RECENT_S - time.monotonic()
            if quiet_s > 0 and not parked.poll(quiet_s * 1000):
                continue
            if self._io_wanted:
                time.sleep(_RECENT_S / 10)
                continue
            with self._io:  # a thread that waits may have it for long: it does all that is to do
                recent = time.monotonic() - self._driven_at < _RECENT_S
                self._round(0.0 if recent else 0.5)

    def _hear(self, socket: zmq.Socket[bytes]) -> None:
        heard = []
        for _ in range(64):
            if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                break
            header, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            try:
                heard.append((FROM_SERVER.decode(header.buffer), frames))
            except ProtocolError as error:
                raise ProtocolError(f"the peer at {self.address} sent nonsense: {error}") from None
        now = time.monotonic()
        attach = None
        with self._changed:
            for message, frames in heard:
                if isinstance(message, Welcome) and not self.session.continues(message):
                    attach = self._attach(message)
                    self.session.memory = self.attachment
                self.session.receive(message, frames, now)
            if self.attachment is not None:
                for segment in self.session.retired:
                    self.attachment.forget(segment)
            self.session.retired.clear()
            self._tell()
        if attach is not None:
            self._send(socket, attach)

    def _attach(self, welcome: Welcome) -> Attach | None:
        """Try whether the server's memory can be seen from here."""
        self.attachment = None
        if not welcome.session_file:
            return None
        try:
            self.attachment = Attachment(welcome.directory, welcome.session_file)
        except OSError:
            return None  # another host, container or user: bytes come over the wire
        return Attach(welcome.session, self.attachment.proof)

    def _send(self, socket: zmq.Socket[bytes], message: Any) -> None:
        header = FROM_TRAINER.encode(message)
        frames = self.session.uploads.frames_of(message)
        if frames:
            socket.send_multipart([header, *frames], copy=False)
        else:
            socket.send(header)

    def _say_goodbye(self, socket: zmq.Socket[bytes]) -> None:
        with self._changed:
            messages = self.session.outgoing(time.monotonic()) if self.session.connected else []
            bye = self.session.goodbye()
        for message in [*messages, *([bye] if bye else [])]:
            self._send(socket, message)
        socket.linger = 500

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self.session.failure is None:
                if isinstance(error, (HeadraceError, ValueError)):
                    self.session.failure = error  # type: ignore[assignment]
                else:
                    logger.exception("the connection to %s failed", self.address)
                    self.session.failure = ConnectionLost(f"{type(error).__name__}: {error}")
            self._tell()
