"""The threads that use the wire of a session, and when each does.

    trainer's thread ── exchange: what is due goes out, what has come is heard ──┐
    trainer's thread ── await_news: exchange, poll, sleep at the sockets ────────┼──► wire
    lazy thread ─────── a look now and then: exchange where nobody did ──────────┘

A thread that asks, saves or commits says so itself, at once, and one that waits hears what it waits
for itself: nobody is woken for it.  The wire is locked for microseconds and never during a wait.
One thread at a time sleeps at the sockets; others that wait are told by it, and one of them
follows when it leaves.

The lazy thread looks four times in a heartbeat, so heartbeats go out, released memory is reported
and silence is noticed whatever the trainer does.  While there is no session it listens itself.
Small things that a trainer says often may wait for its next call: the lazy thread says them when
that does not come in a moment.

A clock that stands still while this process is suspended measures all silence: some thread looks
at it at least twice a second.  After such a time a heartbeat goes out at once, since leases end by
the server's clock; and the server is heard before its silence is judged.
"""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.cores import cores
from headrace_proto.errors import ConnectionLost, HeadraceError
from headrace_proto.spin import Spin

from .session import Session
from .way import Waker, check_files
from .wire import Wire

if TYPE_CHECKING:
    from .keys import Keys

__all__ = ["Driver"]

logger = logging.getLogger("headrace")

_CLOSE_S = 5.0
#: The longest time between two looks of the lazy thread: half of what its clock takes for a sleep.
_LOOK_S = 0.5
#: Looks in a heartbeat.
_LOOKS = 4
#: Maximum delay of a notice that waits for the trainer's next call.
_MOMENT_S = 0.05
#: A trainer that used the wire so recently mostly calls again in a moment; in steps that take
#: longer a message of its own costs less than 1 %.
_RECENT_S = 0.01


class Driver:
    """A session's wire and the threads that use it."""

    def __init__(self, address: str, session: Session, keys: Keys | None = None) -> None:
        check_files()
        self.address = address
        self.clock = AwakeClock()
        self._slept_s = 0.0  # by that clock, at the last look
        self._keys = keys
        self.session = session
        self.lock = threading.RLock()  # of the session
        self.changed = threading.Condition(self.lock)  # entering it costs twice what the lock does
        self.closing = False
        self.news = 0  # counts changes of the session, for those who wait
        self._following = 0  # threads that wait for news that another one hears
        self._listener: object = None  # the wait in which a thread hears for all, under the lock
        self._asleep = False  # it sleeps at the sockets, or is about to
        self._spin = Spin(cores())
        self._io = threading.RLock()  # of whoever uses the wire; taken before the session's lock
        self._in_use = False  # by this very thread, where that has the lock
        self._wire: Wire | None = None
        self._used = False  # by any thread since the lazy one last looked
        self._used_at = -inf
        self._unsaid = 0  # counts what was left for the trainer's next call
        self._said = 0  # of these
        self._waker: Waker | None = Waker()  # of the lazy thread
        self._drowsy = False  # that thread looks only a few times in a heartbeat
        session.heard_at = self.clock()
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        self._thread.start()

    # For trainers' threads

    @property
    def hint(self) -> str:
        """Why nobody may answer, in words."""
        return "" if self._wire is None else self._wire.hint

    def exchange(self) -> None:
        """Send what is due and hear what has come.  Not under the session's lock."""
        self._guarded(self._exchange)

    def hear(self) -> None:
        """Hear what has come.  Not under the session's lock."""
        self._guarded(self._hear)

    def say_soon(self, now: bool, heard: bool = False) -> None:
        """There is something to say: ``now``, or with the next of it that comes in a moment.

        With ``heard`` this thread has just heard what has come.
        """
        used_at = max(self._used_at, self.session.heard_at)
        if now or self.clock() - used_at > _RECENT_S:
            self._guarded(self._say_and_poll if heard else self._exchange)
            return
        self._unsaid += 1
        if self._drowsy:
            self._drowsy = False
            self._wake()

    def tell(self) -> None:
        """There is news of the session for those who wait.  Under the lock."""
        self.news += 1
        if self._following:
            self.changed.notify_all()
        if self._asleep:
            self._rouse()

    def await_news(self, news: int, at_most_s: float) -> None:
        """Say what is due, and wait until there are news after number ``news``."""
        me = object()  # not this thread: a handler of a signal may wait while it waits
        try:
            with self.lock:
                if self._listener is None and self._wire is not None:
                    self._listener = me
            self._guarded(self._say_and_poll if self._listener is me else self._exchange)
            if self.news != news:
                return
            if self._listener is me:
                self._listen(news, at_most_s)
            else:
                self._follow(news, at_most_s)
        finally:
            if self._listener is me:
                self._listener = None
                if self._following:
                    with self.lock:
                        self.changed.notify_all()  # one of them listens from here on

    def close(self) -> None:
        """Leave: what is held goes back.  Ends the thread; nothing is said from now on."""
        with self.lock:
            if self.closing:
                return
            self.closing = True
            self.tell()
        self._wake()
        if threading.current_thread() is not self._thread:
            Deadline(_CLOSE_S).join(self._thread)
        self._waker = None

    # Waiting

    def _listen(self, news: int, at_most_s: float) -> None:
        """Sleep at the sockets, and hear what comes."""
        wire = self._wire
        if wire is None:
            return
        began = monotonic()
        with self.lock:
            at_most_s = min(at_most_s, self.session.due_in(self._used_at))
        spin = self._spin if wire.way.channel is not None else None
        spin_s = 0.0 if spin is None else min(at_most_s, spin.budget_s(began))
        self._asleep = True  # from here on news of other threads wake this one
        try:
            if self.news == news and not self.closing:
                wire.way.wait(at_most_s, spin_s)
        finally:
            self._asleep = False
        self.hear()
        if spin is not None:
            now = monotonic()
            spin.waited(now - began, now)
        if self.news == news:
            self._judge_silence()

    def _follow(self, news: int, at_most_s: float) -> None:
        """Wait for what another thread hears."""
        with self.lock:
            self._following += 1
            try:
                if self.news == news and (self._listener is not None or self._wire is None):
                    self.changed.wait(at_most_s)
            finally:
                self._following -= 1

    def _judge_silence(self) -> None:
        with self.lock:
            if self.session.connected and self.session.silence(self.clock()):
                self.session.lose()

    def _rouse(self) -> None:
        """Wake the thread that sleeps at the sockets."""
        wire = self._wire
        if wire is not None:
            wire.way.waker.wake()

    def _wake(self) -> None:
        """Wake the lazy thread."""
        waker = self._waker
        if waker is not None:
            waker.wake()

    # The wire, in the hands of whichever thread has its lock

    def _guarded(self, step: Callable[[Wire], None]) -> None:
        """A step with the wire; what goes wrong is the session's failure."""
        with self._io:
            wire = self._wire
            if wire is None or self._in_use:  # closed; or a signal came amid such a step
                return
            changes = wire.way.changes
            self._in_use = self._used = True
            try:
                step(wire)
            except Exception as error:
                self._fail(error)
            except BaseException:  # Ctrl-C, say
                if wire.amid_message:  # half a message may have been said
                    self._fail(ConnectionLost("the connection was interrupted amid a message"))
                raise
            finally:
                self._in_use = False
            if self._asleep and changes != wire.way.changes:
                self._rouse()  # it sleeps at other sockets than there are now

    def _exchange(self, wire: Wire) -> None:
        self._say(wire)
        wire.hear()

    def _say_and_poll(self, wire: Wire) -> None:
        """Say what is due, and hear only what no poll would tell of."""
        self._say(wire)
        if not wire.told_by_poll:
            wire.hear()

    def _say(self, wire: Wire) -> None:
        self._said = self._unsaid
        self._used_at = now = self.clock()
        if self.clock.slept_s > self._slept_s:
            self._slept_s = self.clock.slept_s
            with self.lock:
                self.session.hurry()
        wire.say(now)

    def _hear(self, wire: Wire) -> None:
        wire.hear()

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            if self.session.failure is None:
                if isinstance(error, (HeadraceError, ValueError)):
                    self.session.failure = error  # type: ignore[assignment]
                else:
                    logger.exception("the connection to %s failed", self.address)
                    self.session.failure = ConnectionLost(f"{type(error).__name__}: {error}")
            self.tell()

    # The lazy thread

    def _run(self) -> None:
        wire = None
        try:
            wire = self._wire = Wire(
                self.address,
                self._keys,
                session=self.session,
                lock=self.lock,
                tell=self.tell,
                clock=self.clock,
            )
            self._look_after()
            with self._io:
                self._wire = None
                wire.say_goodbye(self.clock())
        except BaseException as error:
            self._fail(error)
        finally:
            with self._io:
                self._wire = None
                if wire is not None:
                    wire.close()

    def _look_after(self) -> None:
        """Do what no thread of the trainer does, until the end."""
        waker, session = self._waker, self.session
        if waker is None:  # closed before it began
            return
        rest = select.poll()
        rest.register(waker.fd, select.POLLIN)
        left = 0  # how much had been left for the trainer's next call at the last look
        while not self.closing:
            if not session.connected and session.failure is None and self._listener is None:
                self.await_news(self.news, _LOOK_S)
                continue
            hasty = not left == self._unsaid == self._said  # some was left lately, or still is
            left = self._unsaid
            self._drowsy = not hasty
            if hasty or left == self._unsaid:  # or some was left before this thread was drowsy
                rest_s = _MOMENT_S if hasty else self._rest_s()
                if rest.poll(rest_s * 1000):
                    waker.hear()
            self._drowsy = False
            self._look(left)

    def _rest_s(self) -> float:
        """How long this thread may rest where nobody wakes it."""
        with self.lock:
            welcome, due_s = self.session.welcome, self.session.due_in(self.clock())
        often_s = _LOOK_S if welcome is None else min(_LOOK_S, welcome.heartbeat_s / _LOOKS)
        return max(min(often_s, due_s), _MOMENT_S)

    def _look(self, left: int) -> None:
        """Use the wire where no other thread did, or where something waits for too long."""
        used, self._used = self._used, False
        with self.lock:
            due = self.session.due_in(self.clock()) <= 0
        waits = self._said != self._unsaid and self._unsaid == left
        wire = self._wire
        if wire is not None and (due or waits or not used):
            wire.way.quiet = False
            self.exchange()
            self._used = False
            self._judge_silence()
