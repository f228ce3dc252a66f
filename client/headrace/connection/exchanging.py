"""The connections of one feed, and the threads of a trainer that use them.

    trainer's thread ──► exchange: what is due goes out, what has come is heard
                     ──► await_news: exchange, poll, sleep at the sockets
    lazy thread ───────► a look now and then: exchange where nobody did

A thread that asks, saves or commits sends its message itself, at once or with its next call, and
one that waits receives its answer itself: no other thread is woken for it.  One lock guards all; it
is held for microseconds and never during a wait.  One thread at a time sleeps at the sockets; it
notifies others that wait, and one of them follows when it leaves.  Released memory is reported
without the lock, since the last reader of a batch may go while any lock is held.

The lazy thread looks every moment, so heartbeats go out, released memory is reported and silence is
noticed whatever the trainer does.  Small notices wait a moment or two for the trainer's next call.

The client measures silence by a clock that stands still while this process is suspended; some
thread reads it twice a second or more.  After a suspension the lazy thread sends a heartbeat, since
leases end by the server's clock, and messages of the server are handled before it counts as silent.

    silent for 2.5 heartbeats ─► the session is lost, and says Hello
    silent for 10 s           ─► a line in the log; another one when the server is back
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection
from math import inf

import zmq

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.credentials import Keys
from headrace_proto.errors import ConnectionLost, HeadraceError
from headrace_proto.interrupts import start
from headrace_proto.spin import cores

from .connection import Connection, Sleep, check_files
from .session import Session

logger = logging.getLogger("headrace")

_CLOSE_S = 5.0
_BYE_S = 2.0  # owners that are away or stopped do not answer a Bye
_TICK_S = 0.001
#: Maximum number of ZeroMQ's sockets: three for each owner.  Its own limit, 1023, is 341 owners.
_SOCKETS = 12_288
#: Maximum time in which nobody hears the owners, and that part of a heartbeat.
_LOOK_S, _LOOKS = 0.5, 4
#: Time between two looks of the lazy thread.
_MOMENT_S = 0.05
#: Seconds of silence after which the log names a server.  A worker, or a server that restarts
#: quickly, is back sooner.
_AWAY_S = 10.0


class Wire:
    """The connections of one feed.  It belongs to one link."""

    def __init__(self, address: str, sessions: list[Session], keys: Keys | None) -> None:
        """``sessions``: with each owner, by its number, see placement.py; only replaced."""
        self.sessions = sessions
        self.lock = threading.RLock()  # of the sessions, the trainer and the connections
        self.changed = threading.Condition(self.lock)  # costs twice as much to enter as the lock
        self.clock = AwakeClock()
        self.closing = False
        self.closed = threading.Event()  # ends the lazy thread
        self.news = 0  # counts changes of sessions, for threads that wait
        self.context: zmq.Context[zmq.Socket[bytes]] | None = None  # of all connections
        self.connections: list[Connection] = []  # replaced, never changed; empty once closed

        self._address, self._keys = address, keys
        self._slept_s = 0.0  # by the clock, at the last look
        self._following = 0  # threads that wait for news that another thread receives
        self._listener: object = None  # identifies the wait of the thread that listens for all
        self._asleep = False  # the listener sleeps at the sockets, or is about to
        self._away: set[str] = set()  # addresses of servers that the log has named as silent
        self._in_use = False  # whether the thread that holds the lock uses the connections
        self._sleep = Sleep(cores())
        self._said_at = -inf  # when a thread last sent what was due
        self.slept = 0  # waits in which nothing was there at once
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)

    def start(self, each_moment: Callable[[], None]) -> None:
        """Start the lazy thread, which makes this call each moment, too."""
        self._each_moment = each_moment
        start(self._thread, self.close)

    def connect(self, sessions: list[Session]) -> None:
        """Have a connection of each of these sessions, at the address of its owner.

        Others end without a message.
        """
        with self.lock:
            if self.closing:
                return
            before = self.connections
            known = {
                connection.session: connection
                for connection in before
                if connection.session in sessions
                and not connection.dead
                and (connection.session.connected or connection.place == connection.session.address)
            }
            if new := [session for session in sessions if session not in known]:
                check_files(len(new))
            for session in new:
                session.heard_at = session.heard_at or self.clock()
                session.greet()
            self.connections = [
                known.get(session) or self._connection_of(session) for session in sessions
            ]
            for connection in before:
                if connection not in self.connections:
                    connection.close()
            self.notify()

    @property
    def failure(self) -> Exception | None:
        """Why this feed is unusable; a copy, since a traceback keeps all objects that it names."""
        failure = self.sessions[0].member.failure
        return None if failure is None else type(failure)(*failure.args)

    @property
    def connected(self) -> bool:
        return all(session.connected for session in self.sessions)

    # The threads that use the connections

    def exchange(self) -> None:
        """Send due messages and handle those that have arrived."""
        with self.lock:
            self._exchange()

    def notify(self) -> None:
        """Notify waiting threads of news of a session.  The caller holds the lock."""
        self.news += 1
        if self._following:
            self.changed.notify_all()
        if self._asleep:
            self._sleep.wake()

    def await_news(self, news: int, at_most_s: float, now: float | None = None) -> float:
        """Send due messages, ``now``, and wait for news after number ``news``; return the time."""
        me = object()  # not this thread: a handler of a signal may wait while it waits
        try:
            with self.lock:
                if self._listener is not None or not self.connections:
                    return self._follow(news, at_most_s)
                self._listener = me
                now = self._send(now)
                self._asleep = True  # from here on news of other threads wake this one
                if self.news != news or self.closing:
                    return now
                for connection in self.connections:
                    at_most_s = min(at_most_s, connection.session.due_at - now)
            self.slept += self._sleep.wait(at_most_s)
            with self.lock:
                self._asleep = False
                now = self._receive()
                if self.news == news:
                    self._away = lose_silent(self.sessions, self._away, now)
                return now
        finally:
            if self._listener is me:
                self._listener, self._asleep = None, False
                if self._following:
                    with self.lock:
                        self.changed.notify_all()  # one of the waiting threads listens from here on

    def _follow(self, news: int, at_most_s: float) -> float:
        """Wait for news that another thread receives; return the time."""
        self._exchange()
        self._following += 1
        try:
            if self.news == news and (self._listener is not None or not self.connections):
                self.slept += 1
                self.changed.wait(at_most_s)
        finally:
            self._following -= 1
        return self.clock()

    def close(self) -> None:
        """Leave the feed, give batches back, and end the thread.  Nothing is sent from now on."""
        with self.lock:
            if self.closing:
                return
            self.closing = True
            self.notify()
        self.closed.set()
        if threading.current_thread() is not self._thread:
            Deadline(_CLOSE_S).join(self._thread)

    # The connections, under the lock

    def _exchange(self) -> float:
        """Send due messages, and handle those that have arrived; return the time."""
        return self._receive(self._send(hears=False))

    def _send(self, now: float | None = None, hears: bool = True) -> float:
        """Send due messages; return the time.  The caller holds the lock.

        ``hears``: also handle messages that no poll would report.
        """
        now = self.clock() if now is None else now
        # Closed, or in a signal handler amid such a step.
        if not self.connections or self._in_use:
            return now
        self._in_use, self._said_at = True, now
        try:
            for connection in self.connections:
                connection.send(now)
                if hears and not connection.quiet:
                    connection.receive(now)
        except BaseException as error:
            self._end_by(error)
        finally:
            self._in_use = False
        return now

    def _receive(self, now: float | None = None) -> float:
        """Handle messages that have arrived; return the time.  The caller holds the lock."""
        now, connections = self.clock() if now is None else now, self.connections
        if not connections or self._in_use:
            return now
        self._in_use = True
        try:
            if len(connections) == 1:
                connections[0].receive(now)
            else:
                ready = self._sleep.look()
                for connection in connections:
                    if not connection.quiet or connection.channel_in(ready):
                        connection.receive(now)
        except BaseException as error:
            self._end_by(error)
        finally:
            self._in_use = False
        return now

    def _end_by(self, error: BaseException) -> None:
        """Let the feed fail with an error, or go on after Ctrl-C, say, which is raised again."""
        if isinstance(error, Exception):
            self.fail(error)
            return
        if any(connection.amid_message for connection in self.connections):
            # Half of it may be sent.
            self.fail(ConnectionLost("the connection was interrupted amid a message"))
        for connection in self.connections:  # messages that were just received may be lost
            connection.skip_rest()
            connection.session.greet()
        self.sessions[0].member.trainer.recount()
        raise error

    def fail(self, error: BaseException) -> None:
        with self.lock:
            if not isinstance(error, (HeadraceError, ValueError)):
                if self.failure is None:
                    logger.exception("the connection to %s failed", self._address)
                error = ConnectionLost(f"{type(error).__name__}: {error}")
            self.sessions[0].member.fail(error)
            self.notify()

    # The lazy thread

    def _connection_of(self, session: Session) -> Connection:
        assert self.context is not None
        return Connection(self.context, self._keys, session, self._sleep, self.notify)

    def _run(self) -> None:
        connections: list[Connection] = []
        try:
            self.context = zmq.Context()
            self.context.max_sockets = _SOCKETS
            self._each_moment()
            while not self.closed.wait(_MOMENT_S):
                self._look()
                self._each_moment()
            with self.lock:
                connections, self.connections = self.connections, []
                for connection in connections:
                    connection.say_goodbye(self.clock())
            self._await_end(connections)
            for connection in connections:  # no other thread uses them any more
                connection.linger()
        except BaseException as error:
            self.fail(error)
        finally:
            with self.lock:
                connections, self.connections = [*connections, *self.connections], []
                for connection in connections:
                    connection.close()
            if self.context is not None:
                self.context.term()  # waits until the last messages are sent

    def _await_end(self, connections: list[Connection]) -> None:
        """Wait until the owners have heard that this trainer leaves: a later one comes after it."""

        def heard(at_most_s: float) -> bool:
            for connection in connections:
                connection.quiet = False
                with contextlib.suppress(HeadraceError):
                    connection.receive(self.clock())
            if any(connection.leaves for connection in connections):
                time.sleep(min(at_most_s, _TICK_S))  # another thread may be in _sleep
                return False
            return True

        Deadline(_BYE_S).wait(heard)

    def _look(self) -> None:
        """Use the connections if a message is due, or if no other thread uses them."""
        with self.lock:
            now, welcome = self.clock(), self.sessions[0].welcome
            rest_s = 0.0
            if welcome is not None and all(session.connected for session in self.sessions):
                rest_s = min(_LOOK_S, welcome.heartbeat_s / _LOOKS)
            if self.clock.slept_s > self._slept_s:
                self._slept_s = self.clock.slept_s
                for session in self.sessions:
                    session.hurry()
            due = any(connection.session.due_in(now) <= 0 for connection in self.connections)
            if not due and now - self._said_at < rest_s:
                return
            for connection in self.connections:
                connection.quiet = False
            self._exchange()
            self._away = lose_silent(self.sessions, self._away, self.clock())


def lose_silent(sessions: Collection[Session], away: set[str], now: float) -> set[str]:
    """Lose sessions that were silent for too long; log a server that goes and comes back.

    ``away``: the addresses of the servers that the log has named.  Return those of now.
    """
    for session in sessions:
        silent, address = session.silence(now), session.server.address
        if silent and session.connected:
            session.greet()
        ended = session.stopped or session.finished or session.member.failure is not None
        if silent <= _AWAY_S or session.welcome is None or ended or address in away:
            continue
        away = {*away, address}
        text = "nothing was heard of the server at %s for %.0f s: trying again"
        logger.warning(text, session.server.where, silent)
    for address in away:
        there = [session for session in sessions if session.server.address == address]
        if all(session.connected for session in there):
            away = away - {address}
            for session in there[:1]:
                logger.warning("the server at %s is back", session.server.where)
    return away
