"""The thread that owns the socket.

    trainer's thread ── take, commit, release ──► Session ◄── messages ── this thread ◄──► server
                                  │                                            ▲
                                  └──────────────── wake (eventfd) ────────────┘

The session machine is shared under one lock that is held for microseconds.  Released memory is
reported without it, since the last reader of a batch may go while any lock is held.  A wake costs
both threads some microseconds, so one that is still unheard is not repeated.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
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
        self.wake()
        if received is None:
            received = self._wait(claim, self._timeout_s, "a batch", or_end=True)
            self.wake()
        return received

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
        with self._changed:
            while True:
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
                self._waiting += 1
                try:
                    self._changed.wait(min(0.2, started + timeout_s - now))
                finally:
                    self._waiting -= 1

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
            self._say_goodbye(socket)
        except BaseException as error:
            self._fail(error)
        finally:
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
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        waker = self._waker
        if waker is None:  # closed before it began
            return
        poller.register(waker.fd, zmq.POLLIN)
        while not self._closing:
            now = time.monotonic()
            with self._changed:
                if self.session.connected and self.session.silence(now):
                    self.session.lose()
                messages = self.session.outgoing(now)
                due_s = self.session.due_in(now)
            for message in messages:
                self._send(socket, message)
            ready = dict(poller.poll(int(min(due_s, 0.5) * 1000) + 1))
            if waker.fd in ready:
                waker.hear()
            if socket in ready:
                self._hear(socket)

    def _hear(self, socket: zmq.Socket[bytes]) -> None:
        heard = []
        for _ in range(64):
            try:
                header, *frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
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
