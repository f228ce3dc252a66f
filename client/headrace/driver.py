"""The threads that use the connections of a feed, one for each session, and when each does.

    trainer's thread ── exchange: what is due goes out, what has come is heard ──┐
    trainer's thread ── await_news: exchange, poll, sleep at the sockets ────────┼──► connections
    lazy thread ─────── a look now and then: exchange where nobody did ──────────┘

A thread that asks, saves or commits sends its message itself, at once, and one that waits receives
its answer itself: no other thread is woken for it.  One lock guards all; it is held for
microseconds and never during a wait.  One thread at a time sleeps at the sockets; it notifies
others that wait, and one of them follows when it leaves.

The lazy thread looks every moment, so heartbeats go out, released memory is reported and silence is
noticed whatever the trainer does.  Small notices wait a moment or two for the trainer's next call.

The client measures silence by a clock that stands still while this process is suspended; some
thread reads it twice a second or more.  After a suspension a heartbeat goes out at once, since
leases end by the server's clock, and messages of the server are handled before it counts as silent.

    silent for 2.5 heartbeats ─► the session is lost, and says Hello
    silent for 10 s           ─► a line in the log; another one when the server is back
    away, once a second       ─► ray://      the directory ─► its new address
                              ─► the locator ─► the addresses of the owners, or why one is away
                              ─► a DNS name  looked up     ─► its next address

ZeroMQ tries the first address of a name only.  A look-up may take long, so a thread of its own
waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

import zmq

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.errors import ConnectionLost, HeadraceError, LimitExceeded
from headrace_proto.interrupts import start
from headrace_proto.messages import Pulse, Refused, ServedShare
from headrace_proto.spin import cores

from .connection import Connection, Sleep, check_files
from .credentials import Keys
from .places import ask, looked_up, places_of
from .session import Session

logger = logging.getLogger("headrace")

_CLOSE_S = 5.0
_BYE_S = 0.5  # owners that are away or stopped do not answer a Bye
_TICK_S = 0.001
#: Maximum number of ZeroMQ's sockets: three for each owner.  Its own limit, 1023, is 341 owners.
_SOCKETS = 12_288
#: Maximum time in which nobody hears the owners, and that part of a heartbeat.
_LOOK_S, _LOOKS = 0.5, 4
#: Time between two looks of the lazy thread.
_MOMENT_S = 0.05
#: In steps that take longer than this, a separate message costs less than 1 %.
_RECENT_S = 0.01
_ASK_S = 1.0  # between two lookups of the address of a server that is away
#: Seconds of silence after which the log names a server.  A worker, or a server that restarts
#: quickly, is back sooner.
_AWAY_S = 10.0


class Driver:
    """The connections of a feed's sessions, and the threads that use them."""

    def __init__(self, address: str, sessions: Sequence[Session], keys: Keys | None = None) -> None:
        check_files(len(sessions))
        self.address = address
        self.clock = AwakeClock()
        self._slept_s = 0.0  # by that clock, at the last look
        self._keys = keys
        self.sessions = [*sessions]  # replaced, never changed
        self.lock = threading.RLock()  # of the sessions and of the connections
        self.changed = threading.Condition(self.lock)  # costs twice as much to enter as the lock
        self.closing = False
        self.news = 0  # counts changes of sessions, for threads that wait
        self._following = 0  # threads that wait for news that another thread receives
        self._listener: object = None  # identifies the wait of the thread that listens for all
        self._asleep = False  # the listener sleeps at the sockets, or is about to
        self._silent_servers = SilentServers()
        self._in_use = False  # whether the thread that holds the lock uses the connections
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None  # of all connections
        self.connections: list[Connection] = []  # replaced, never changed; empty once closed
        self._sleep = Sleep(cores())
        self._said_at = -inf  # when a thread last sent what was due
        self._closed = threading.Event()  # ends the lazy thread
        for one in self.sessions:
            one.heard_at = self.clock()
        # returns the sessions after a change of owners
        self.regroup: Callable[[], list[Session]] = lambda: self.sessions
        self.moved: Callable[[], Mapping[str, str]] | None = None  # new addresses by old ones
        self._asked_at = self.clock()  # when an address was looked up last; inf while one is
        self._places: dict[str, str] = {}  # by name: the address that is tried now
        self._turns: dict[str, int] = {}  # by name: how many of its addresses were tried
        self._words: dict[str, str] = {}  # by name: the tried addresses, for people
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        start(self._thread, self.close)

    # For trainers' threads

    @property
    def hint(self) -> str:
        """The addresses that were tried for names of servers, in words."""
        names = {one.session.address: None for one in self.connections if one.unreached}
        return "".join(self._words.get(name, "") for name in names)

    def reached(self, address: str) -> str:
        """Return the address at which the server of a name is tried."""
        return self._places.get(address, address)

    def drive(self, sessions: Sequence[Session], anew: Connection | None = None) -> None:
        """Drive these sessions; drop others without a message, and connect one ``anew``."""
        with self.lock:
            if not self.connections:  # it was closed meanwhile
                return
            before = self.connections
            known = {id(one.session): one for one in before if one is not anew}
            if fresh := sum(id(session) not in known for session in sessions):
                check_files(fresh)
            for session in sessions:
                session.heard_at = session.heard_at or self.clock()
            self.sessions = [*sessions]
            self.connections = [
                known.get(id(one)) or self._connection_of(one) for one in self.sessions
            ]
            for one in before:
                if one not in self.connections:
                    one.close()
            self.tell()
            self._sleep.wake()

    def exchange(self) -> None:
        """Send due messages and handle those that have arrived."""
        self._guarded(self._exchange)

    def hear(self) -> None:
        """Handle messages that have arrived."""
        self._guarded(self._hear)

    def say_soon(self, now: bool, heard: bool = False) -> None:
        """Send a message ``now``, or leave it to the next call, or to the lazy thread.

        With ``heard`` this thread has just handled all that has arrived.
        """
        if not now:
            recent = self.clock() - _RECENT_S
            now = self._said_at < recent and all(one.heard_at < recent for one in self.sessions)
        if now:
            self._guarded(self._say_and_poll if heard else self._exchange)

    def tell(self) -> None:
        """Notify waiting threads of news of a session.  The caller holds the lock."""
        self.news += 1
        if self._following:
            self.changed.notify_all()
        if self._asleep:
            self._sleep.wake()

    def await_news(self, news: int, at_most_s: float) -> None:
        """Send due messages, and wait for news after number ``news``."""
        me = object()  # not this thread: a handler of a signal may wait while it waits
        try:
            with self.lock:
                if self._listener is None and self.connections:
                    self._listener = me
                if self._listener is not me:
                    self._guarded(self._exchange)
                    self._follow(news, at_most_s)
                    return
                self._guarded(self._say_and_poll)
                self._asleep = True  # from here on news of other threads wake this one
                if self.news != news or self.closing:
                    return
                at_most_s = min(at_most_s, self._due_in(self._said_at))
            self._sleep.wait(at_most_s)
            with self.lock:
                self._asleep = False
                self._guarded(self._hear)
                if self.news == news:
                    self._silent_servers.judge(self.sessions, self.clock())
        finally:
            if self._listener is me:
                self._listener, self._asleep = None, False
                if self._following:
                    with self.lock:
                        self.changed.notify_all()  # one of the waiting threads listens from here on

    def close(self) -> None:
        """Leave the feed, give batches back, and end the thread.  Nothing is sent from now on."""
        with self.lock:
            if self.closing:
                return
            self.closing = True
            self.tell()
        self._closed.set()
        if threading.current_thread() is not self._thread:
            Deadline(_CLOSE_S).join(self._thread)

    # Waiting

    def _follow(self, news: int, at_most_s: float) -> None:
        """Wait for news that another thread receives.  The caller holds the lock."""
        self._following += 1
        try:
            if self.news == news and (self._listener is not None or not self.connections):
                self.changed.wait(at_most_s)
        finally:
            self._following -= 1

    def _due_in(self, now: float) -> float:
        """Return the seconds until a session has a message to send without a new event."""
        return min([session.due_in(now) for session in self.sessions], default=inf)

    # The connections, under the lock

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step that uses the connections; sessions fail with the error of a step."""
        with self.lock:
            # Closed, or in a signal handler amid such a step.
            if not self.connections or self._in_use:
                return
            changes = self._sleep.changes
            self._in_use = True
            try:
                step()
            except Exception as error:
                self.fail(error)
            except BaseException:  # Ctrl-C, say
                if any(one.amid_message for one in self.connections):  # half of it may be sent
                    self.fail(ConnectionLost("the connection was interrupted amid a message"))
                for one in self.connections:  # messages that were just received may be lost
                    one.skip_rest()
                    one.session.greet()
                raise
            finally:
                self._in_use = False
            if self._asleep and changes != self._sleep.changes:
                self._sleep.wake()  # the sockets at which it sleeps have been replaced

    def _exchange(self) -> None:
        self._say()
        self._hear()

    def _say_and_poll(self) -> None:
        """Send due messages, and receive only those that no poll would report."""
        self._say()
        for one in self.connections:
            if not one.quiet:  # else a poll reports all that has arrived
                one.hear()

    def _say(self) -> None:
        self._said_at = now = self.clock()
        if self.clock.slept_s > self._slept_s:
            self._slept_s = self.clock.slept_s
            for session in self.sessions:
                session.hurry()
        for one in self.connections:
            one.say(now)

    def _hear(self) -> None:
        if len(self.connections) == 1:
            self.connections[0].hear()
            return
        ready = self._sleep.look()
        for one in self.connections:
            if one.has_news(ready):
                one.hear()

    def fail(self, error: BaseException) -> None:
        with self.lock:
            if not isinstance(error, (HeadraceError, ValueError)):
                if not self.sessions[0].failure:
                    logger.exception("the connection to %s failed", self.address)
                error = ConnectionLost(f"{type(error).__name__}: {error}")
            for session in self.sessions:
                session.failure = session.failure or error  # type: ignore[assignment]
            self.tell()

    # The lazy thread

    def _connection_of(self, session: Session) -> Connection:
        assert self._context is not None
        place = session.owner_address or self.reached(session.address)
        return Connection(
            self._context, self._keys, session, place, self._sleep, self.clock, self.tell
        )

    def _run(self) -> None:
        connections: list[Connection] = []
        try:
            self._context = zmq.Context()
            self._context.max_sockets = _SOCKETS
            with self.lock:
                self.connections = [self._connection_of(session) for session in self.sessions]
                self.tell()
            while not self._closed.wait(_MOMENT_S):
                self._look()
                if any(session.regroups for session in self.sessions):
                    with self.lock:
                        self.drive(self.regroup())
                if not all(session.connected for session in self.sessions):
                    self._look_up()
            with self.lock:
                connections, self.connections = self.connections, []
                for one in connections:
                    one.say_goodbye(self.clock())
            self._await_end(connections)
            for one in connections:  # no other thread uses them any more
                one.linger()
        except BaseException as error:
            self.fail(error)
        finally:
            with self.lock:
                connections, self.connections = [*connections, *self.connections], []
                for one in connections:
                    one.close()
            if self._context is not None:
                self._context.term()  # waits until the last messages are sent

    def _await_end(self, connections: list[Connection]) -> None:
        """Wait until the owners have heard that this trainer leaves: a later one comes after it."""

        def heard(at_most_s: float) -> bool:
            for one in connections:
                one.quiet = False
                with contextlib.suppress(HeadraceError):
                    one.hear()
            if any(one.leaves for one in connections):
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
            if self._due_in(now) > 0 and now - self._said_at < rest_s:
                return
            for one in self.connections:
                one.quiet = False
            self._guarded(self._exchange)
            self._silent_servers.judge(self.sessions, self.clock())

    # Addresses of servers that are away

    def _look_up(self) -> None:
        """Look for servers that are away, in another thread."""
        now = self.clock()
        if now - self._asked_at <= _ASK_S:
            return
        if self.moved is not None or any(one.away(now) for one in self.connections):
            self._asked_at = inf  # until the answer, which may take longer than a heartbeat
            threading.Thread(target=self._search, name="headrace-search", daemon=True).start()

    def _search(self) -> None:
        try:
            moved = {} if self.moved is None else self.moved()
            with self.lock:
                now, away = self.clock(), dict[str, Session]()
                for one in self.connections:
                    if one.address in moved:
                        one.session.address = moved[one.address]
                    if one.away(now) or one.address in moved:
                        away[one.session.address] = one.session
            for address, session in away.items():
                self._locate(address, session)
            with self.lock:
                for one in self.connections:
                    session = one.session
                    if session.address not in away or session.regroups:  # others take its place
                        continue
                    if one.place != (session.owner_address or self.reached(session.address)):
                        session.greet()
                        self.drive(self.sessions, anew=one)
        except Exception as error:
            self.fail(error)
        self._asked_at = self.clock()

    def _locate(self, address: str, away: Session) -> None:
        """Ask the locator of a server where its owners are, one of which is away."""
        answer, reached = None, self.reached(address)
        if away.owner_address and self._context is not None:
            with contextlib.suppress(LimitExceeded):  # libzmq needs files to ask
                check_files()
                answer = ask(self._context, reached, self._keys, away.lookup())
        if answer is None:
            self._try_next(address)
            return
        with self.lock:
            for session in self.sessions:
                if session.address != address or session.connected:
                    continue
                if isinstance(answer, ServedShare):
                    session.located(answer, places_of(answer, reached))
                elif isinstance(answer, Refused):
                    session.refused(answer)
                elif isinstance(answer, Pulse):
                    session.waiting = answer.waiting
            self.tell()

    def _try_next(self, name: str) -> None:
        """Choose the address of a name that is tried next."""
        try:
            found = looked_up(name)
        except ConnectionLost as error:
            self._words[name] = f"  {error}"
            return
        if not found:  # it is an address already
            return
        self._words[name] = f"  Its name stands for {', '.join(found)}"
        if len(found) > 1 or name in self._places:  # ZeroMQ has tried the first one
            turn = self._turns[name] = self._turns.get(name, 0) + 1
            self._places[name] = found[turn % len(found)]


class SilentServers:
    """The servers of one feed that are away.  The caller holds the lock of the sessions."""

    def __init__(self) -> None:
        self._away: set[str] = set()  # their addresses

    def judge(self, sessions: Collection[Session], now: float) -> None:
        """Lose sessions that were silent for too long; log a server that goes and comes back."""
        for session in sessions:
            silent, address = session.silence(now), session.address
            if silent and session.connected:
                session.greet()
            ended = session.stopped or session.finished or session.failure is not None
            if silent <= _AWAY_S or session.welcome is None or ended or address in self._away:
                continue
            self._away.add(address)
            text = "nothing was heard of the server at %s for %.0f s: trying again"
            logger.warning(text, session.where, silent)
        for address in [*self._away] if self._away else ():
            there = [session for session in sessions if session.address == address]
            if all(session.connected for session in there):
                self._away.remove(address)
                for session in there[:1]:
                    logger.warning("the server at %s is back", session.where)
