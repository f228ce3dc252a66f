"""A trainer's link to the owners of one feed: connections, the threads that use them, and waits.

    trainer's thread ── take, commit, ask ─► Trainer ◄──► Session ◄── messages ──► connection
                                  │            one          of each owner             ▲
                                  ├── exchange: what is due goes out, what has come is heard
                                  └── await_news: exchange, poll, sleep at the sockets
    lazy thread ─────────────────────── a look now and then: exchange where nobody did

A thread that asks, saves or commits sends its message itself, at once or with its next call, and
one that waits receives its answer itself: no other thread is woken for it.  Each wait has a
deadline, whose error names the missing answer.  One lock guards all; it is held for microseconds
and never during a wait.  One thread at a time sleeps at the sockets; it notifies others that wait,
and one of them follows when it leaves.  Released memory is reported without the lock, since the
last reader of a batch may go while any lock is held.

The lazy thread looks every moment, so heartbeats go out, released memory is reported and silence is
noticed whatever the trainer does.  Small notices wait a moment or two for the trainer's next call.

A feed has one owner or several, on one server or several, and a trainer a session with each:

    each locator         Hello ─► ServedShare   which share its server has, and where its owners are
                         is the feed complete?
    ranks without a run  Hello to the first owner of the first server ─► Welcome, with the run
    then                 Hello to the first owner of each server ─► Welcome
                         Hello to the others

The trainer greets no owner before it knows that the servers together have the whole feed.  A name
that stands for several addresses is looked up again until every share is found.

A thread of its own asks the locators, since looking a name up may take long: of all servers while
the feed is joined, later of those of which an owner is away.  If an owner has another address now,
its session gets another connection.  If a server started again with another number of owners, other
sessions take the places of those with it.

The client measures silence by a clock that stands still while this process is suspended; some
thread reads it twice a second or more.  After a suspension a heartbeat goes out at once, since
leases end by the server's clock, and messages of the server are handled before it counts as silent.

    silent for 2.5 heartbeats ─► the session is lost, and says Hello
    silent for 10 s           ─► a line in the log; another one when the server is back
    away, once a second       ─► ray://      the directory ─► its new address
                              ─► the locator ─► the addresses of the owners, or why one is away
                              ─► a DNS name  looked up     ─► its next address

Only its timeout ends a wait for a server that is away: before that the client greets the server
again and again, however long it takes to move or restart it.  ZeroMQ tries the first address of a
name only.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import zmq

from headrace_proto.clock import AwakeClock, Deadline
from headrace_proto.credentials import Keys
from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FeedClosed,
    FeedRewound,
    ForkedProcess,
    HeadraceError,
    LimitExceeded,
)
from headrace_proto.interrupts import start
from headrace_proto.messages import Answered, Refused
from headrace_proto.spin import cores
from headrace_proto.token import new_snapshot

from ..machine.prefetch import Prefetch
from ..machine.requests import Request, snapshot
from ..machine.trainer import Held, Trainer
from .connection import Connection, Lookup, Sleep, check_files
from .places import Server, arranged, looked_up, missing_shares, shares_there
from .session import Member, Session, States

if TYPE_CHECKING:
    from ..ray import RayDirectory

logger = logging.getLogger("headrace")

#: A leaving trainer's maximum wait for a server that has stopped and will be back.
_LEAVE_S = 10.0
#: Time between two looks at what a name stands for, while a share is missing.
_LOOK_UP_S = 1.0
#: A wait looks at what has come this often, even without messages.
_STEP_S = 0.2
#: The first answers, in the error of a wait for them.
_OPENS = "a server to answer"
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
#: Raised to a rank that goes on after the refusal of a commit: it might wait for ever.
_TORN = (
    "this rank is out of step with the others: a batch that it had trained did not count, and goes "
    "out again.  Stop all ranks, and start them again together from one checkpoint"
)


class Link:
    """A trainer's side of its sessions with the owners of one feed."""

    def __init__(
        self,
        address: str,
        member: Member,
        timeout_s: float,
        prefetch: Prefetch | None = None,
        keys: Keys | None = None,
        directory: RayDirectory | None = None,
    ) -> None:
        """``address``: of a server, or of several with commas between them.

        ``directory`` looks up the new addresses of servers that have moved.
        """
        self._directory = directory
        self.address, self.member = address, member
        self.addresses = address.split(",")
        check_files(len(self.addresses))
        self.servers = [Server(one) for one in self.addresses]  # by share, once all are found
        #: With each owner, by its number, see placement.py; only replaced.  Until the servers are
        #: found there is one for each.
        self.sessions = [Session(member, server) for server in self.servers]
        self.lock = threading.RLock()  # of the sessions, the trainer and the connections
        self.changed = threading.Condition(self.lock)  # costs twice as much to enter as the lock
        self.clock = AwakeClock()
        self._prefetch = prefetch or Prefetch(0)
        self._owner_of = [0]  # by partition
        self.left = False  # the trainer closed the feed
        self.failure_raised = False  # by a wait, so the trainer knows of it
        self.looked_at = 0.0  # when a wait of this trainer last checked its condition
        # describes unfinished work of the trainer
        self.explain: Callable[[float], str] = lambda now: ""
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        self._keys = keys
        self._counted_at = 0.0  # until when waits are counted

        self._slept_s = 0.0  # by the clock, at the last look
        self.closing = False
        self.news = 0  # counts changes of sessions, for threads that wait
        self._following = 0  # threads that wait for news that another thread receives
        self._listener: object = None  # identifies the wait of the thread that listens for all
        self._asleep = False  # the listener sleeps at the sockets, or is about to
        self._away: set[str] = set()  # addresses of servers that the log has named as silent
        self._in_use = False  # whether the thread that holds the lock uses the connections
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None  # of all connections
        self._connections: list[Connection] = []  # replaced, never changed; empty once closed
        self._sleep = Sleep(cores())
        self._said_at = -inf  # when a thread last sent what was due
        self._closed = threading.Event()  # ends the lazy thread
        self._searches = False  # whether a thread asks locators
        self._thread = threading.Thread(target=self._run, name="headrace", daemon=True)
        start(self._thread, self.close)

    def again(self, resume: str, restart: bool = False) -> Link:
        """Return another link with the same options, which goes on from a snapshot."""
        prefetch = Prefetch(self._prefetch.asked)
        directory = self._directory
        address = self.address if directory is None else directory.find(self._timeout_s)
        hello = replace(self.member.hello, resume=resume, restart=restart)
        member = replace(self.member, hello=hello)
        return Link(address, member, self._timeout_s, prefetch, self._keys, directory)

    def open(self) -> None:
        """Wait for the Welcome of every owner of every server."""
        started = self.clock()
        self.wait(
            lambda: all(one.server.served for one in self.sessions),
            self._timeout_s,
            _OPENS,
            lambda: next(one for one in self.sessions if not one.server.served),
            started=started,
        )
        self._find_all(started)
        if self.member.hello.rank >= 0 and not self.member.hello.run:
            self._greet(lambda: self.sessions[:1], started)  # the first owner names the run
        self._greet(lambda: self.of_each_server, started)
        self._check_order()
        self._greet(lambda: self.sessions, started)
        self.exchange()

    def _greet(self, sessions: Callable[[], list[Session]], started: float) -> None:
        """Greet these owners, and wait until all have let this trainer in."""
        self._connect(sessions())
        self.wait(
            lambda: all(session.welcome for session in sessions()),
            self._timeout_s,
            _OPENS,
            lambda: next(session for session in sessions() if not session.welcome),
            started=started,
        )

    def _find_all(self, started: float) -> None:
        """Find the servers of all shares of the feed; make the trainer, and its sessions."""
        named = self.addresses[0]
        while missing := missing_shares(self.servers):
            arranged(self.servers)  # ValueError where two of them contradict each other
            there = shares_there(self.servers)
            found = looked_up(named) if len(self.addresses) == 1 else []
            if not found:
                raise ValueError(
                    f"address={self.address!r}: {there}.  Give the addresses of all servers, in a "
                    "list or with commas between them"
                )
            left_s = started + self._timeout_s - self.clock()
            if left_s <= 0:
                raise ConnectionLost(
                    f"waited timeout={self._timeout_s:g} s for all servers at {named}, which "
                    f"stands for {', '.join(found)}: {there}"
                )
            known = {server.place for server in self.servers}
            if len(known) == 1:
                logger.warning("%s: %s; waiting for it", named, there)
            with self.lock:
                self.servers = [*self.servers, *(Server(one) for one in found if one not in known)]
            again_s = self.clock() + min(_LOOK_UP_S, left_s)
            self.wait(
                lambda at=again_s, before=missing: (  # type: ignore[misc]
                    self.clock() >= at or missing_shares(self.servers) != before
                ),
                self._timeout_s,
                _OPENS,
                started=started,
            )
        by_share = arranged(self.servers)
        with self.lock:
            self.servers = [by_share[share] for share in sorted(by_share)]
            self._arrange()
            self.member.trainer = Trainer(
                len(self._owner_of),
                self._owner_of,
                len(self.sessions),
                rank=self.member.hello.rank,
                prefetch=self._prefetch.batches,
                any_order=self.member.order == "any",
                explicit=self.member.explicit,
            )

    def _arrange(self) -> None:
        """Number a session with each owner.  Those with a server of as many owners stay."""
        sessions: list[Session] = []
        for server in self.servers:
            known, owners = self._sessions_with(server), len(server.owners)
            if len(known) != owners:
                welcome = known[0].welcome if known else None
                known = [
                    Session(self.member, server, owner, owners, welcome=welcome)
                    for owner in range(owners)
                ]
            sessions += known
        self.sessions = sessions
        served = self.servers[0].served
        assert served is not None
        self._owner_of = [0] * served.partitions
        for number, one in enumerate(sessions):
            one.number = number
            for p in one.partitions:
                self._owner_of[p] = number

    def _check_order(self) -> None:
        """Raise ValueError where the feed can not have its batches in any order."""
        known, order = self.session.properties, self.member.order
        if order == "feed":
            return
        text = f"order={order!r}: %s of feed {self.member.hello.feed!r} %s; leave it out"
        if known.get("order") == "lanes":
            raise ValueError(text % ("the rows", "stay in lanes, which one owner has"))
        if not known.get("across_batches", True):
            what = "end with their epoch, and any order mixes the epochs of its servers"
            raise ValueError(text % ("batches", what))

    # The sessions

    @property
    def session(self) -> Session:
        """The session that was opened first: with the first owner of the first server."""
        return self.sessions[0]

    @property
    def of_each_server(self) -> list[Session]:
        """The session with the first owner of each server."""
        return [session for session in self.sessions if not session.owner]

    def _sessions_with(self, server: Server) -> list[Session]:
        return [session for session in self.sessions if session.server is server]

    def _connect(self, sessions: list[Session]) -> None:
        """Have a connection of each of these sessions, at the address of its owner.

        Others end without a message.
        """
        with self.lock:
            if self.closing:
                return
            before = self._connections
            known = {
                one.session: one
                for one in before
                if one.session in sessions
                and not one.dead
                and (one.session.connected or one.place == one.session.address)
            }
            if new := [session for session in sessions if session not in known]:
                check_files(len(new))
            for session in new:
                session.heard_at = session.heard_at or self.clock()
                session.greet()
            self._connections = [known.get(one) or self._connection_of(one) for one in sessions]
            for one in before:
                if one not in self._connections:
                    one.close()
            self.tell()

    # All sessions together

    @property
    def failure(self) -> HeadraceError | None:
        """Why this feed is unusable; a copy, since a traceback keeps all objects that it names."""
        for session in self.sessions:
            if (failure := session.failure) is not None:
                return type(failure)(*failure.args)
        return None

    @property
    def announced(self) -> list[dict[str, Any]]:
        """The properties from each owner; some differ, such as the number of batches."""
        return [session.properties for session in self.sessions]

    @property
    def connected(self) -> bool:
        return all(session.connected for session in self.sessions)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        # An owner that is there says of each partition, and of each epoch, that it is over.
        return self.member.trainer.ended or all(
            one.ended and not one.connected for one in self.sessions
        )

    @property
    def finished_before(self) -> bool:
        """Whether all of the feed was committed when this trainer joined it."""
        return all(one.welcome is not None and one.welcome.finished for one in self.sessions)

    @property
    def local(self) -> bool:
        """Whether batches come through shared memory."""
        return all(session.memory is not None for session in self.sessions)

    def lost(self) -> list[Held]:
        """Return the batches that were taken and that the loop does not have."""
        with self.lock:
            return [
                one for one in self.member.trainer.hands.values() if one.taken and not one.shown
            ]

    def session_of(self, partition: int) -> Session:
        """Return the session with the owner of a partition."""
        return self.sessions[self._owner_of[partition]]

    # Batches

    def abandon(self) -> None:
        """Leave a feed whose object was dropped without close, in the process that connected."""
        if os.getpid() == self._pid:
            self.close()

    def check_usable(self) -> None:
        """Raise ForkedProcess or FeedClosed where this link is not usable any more."""
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"this feed was connected in process {self._pid} and is used in its fork "
                f"{os.getpid()}: connect in the process that uses it (in a torch DataLoader: in "
                "the dataset's __iter__, or use num_workers=0 and let headrace do the reading)"
            )
        if self.left:
            raise FeedClosed("this feed was closed; connect again")

    def take(
        self,
        accepts: Callable[[Held], bool] | None = None,
        none_yet: Callable[[], object] | None = None,
    ) -> Held | None:
        """Return the next batch; None when the feed has ended.

        ``accepts`` may leave it here, until states are saved.  ``none_yet`` is called while there
        is none.  Each may end the wait by an exception.
        """
        meter, trainer, looks = self.member.meter, self.member.trainer, 0
        if trainer.ready and (ready := self._take_ready(accepts)) is not None:
            return ready
        now = self.clock()
        meter.spends("blocked", now)
        if heard := trainer.asks and not trainer.ready:
            self.hear()

        def taken() -> Held | None:
            nonlocal looks
            looks += 1
            held = self._next(accepts)
            if held is None:
                if none_yet is not None:
                    none_yet()
                if looks == 1 and self._prefetch.waits(self.session.welcome):
                    trainer.set_prefetch(self._prefetch.batches)
                if looks > 1:
                    self._awaited.awaited_s += self.looked_at - self._counted_at
                self._counted_at = self.looked_at
            return held

        held: Held | None = None
        try:
            held = self.wait(
                taken, self._timeout_s, "a batch", lambda: self._awaited, True, started=now
            )
        finally:
            meter.spends("busy" if held is not None else "", self.looked_at)
        if held is not None and looks == 1:  # no message was sent meanwhile
            self._say_soon(held, heard)
        return held

    def _next(self, accepts: Callable[[Held], bool] | None) -> Held | None:
        """Take the next batch, if it is there and accepted.  The caller holds the lock."""
        if self.member.trainer.torn:
            raise FeedRewound(_TORN)
        held = self.member.trainer.take(accepts)
        if held is not None and self._prefetch.took(held.given.nbytes):
            self.member.trainer.set_prefetch(self._prefetch.batches)
        return held

    @property
    def _awaited(self) -> Session:
        """The session whose batch this trainer waits for."""
        return self.sessions[self.member.trainer.awaited or 0]

    def _take_ready(self, accepts: Callable[[Held], bool] | None) -> Held | None:
        """Take a batch that is here; None leaves it, or an error, to a wait."""
        with self.lock:
            if self.failure is not None or self.closing or self.member.refused:
                return None
            held = self._next(accepts)
        if held is not None:
            self._say_soon(held)
        return held

    def _say_soon(self, held: Held, heard: bool = False) -> None:
        """Send what is due after a batch was taken; an exception, such as Ctrl-C, puts it back."""
        try:
            with self.lock:  # it may ask for more, and the lazy thread does so, too
                due = self.member.trainer.any_due
            self.say_soon(due, heard)
        except BaseException:
            self.untake(held)
            raise

    def untake(self, held: Held) -> None:
        """Put back the last batch taken, which was not used: it comes next."""
        with self.lock:
            self.member.trainer.untake(held)
            self.tell()

    @property
    def _over(self) -> bool:
        """Whether the loop of this trainer ends here.

        A trainer that commits explicitly and holds all that it can get would wait for itself, or
        for another such trainer.  One that may hold no more waits, though.
        """
        return self.ended or (self.member.explicit and self.member.trainer.stuck)

    def commit(self, token: int, states: States | None = None) -> bool:
        """Send the commit of a batch soon, with its states if they do not stay here.

        Return False where another trainer got its rows.
        """
        with self.lock:
            trainer = self.member.trainer
            return token in trainer.hands and trainer.commit(token, states)

    def give_back(self, token: int) -> None:
        with self.lock:
            if token in self.member.trainer.hands:
                self.member.trainer.give_back(token)

    def save(self, token: int, states: States | None) -> bool:
        """Commit a batch of segments.

        In a loop of small steps the commit is sent with the request for the next batch.
        """
        with self.lock:
            counts = self.commit(token, states)
            self.tell()
        self.say_soon(False)
        return counts

    def ask(
        self, request: Request, at_most_s: float = inf, of: Iterable[Session] | None = None
    ) -> Answered:
        """Send a request to the server, and wait for the answer.

        ``of``: sessions with the owners to ask; by default those that the request's kind needs.
        """
        every = self.sessions if request.of_each_owner else self.of_each_server
        asked = every if of is None else list(of)
        with self.lock:
            for session in asked:
                session.requests.ask(request)

        def answer_of(session: Session) -> Answered | None:
            answer = session.requests.answer_to(request)
            if answer is None and session.ended and session.welcome is not None:
                return request.at_end
            return answer

        def answers() -> list[Answered] | None:
            if any(session not in self.sessions for session in asked):
                raise ConnectionLost(
                    f"the server at {self.address} was started again with {len(self.sessions)} "
                    f"owners while this trainer waited for the answer to {request.call}: ask again"
                )
            found = [answer for session in asked if (answer := answer_of(session)) is not None]
            return found if len(found) == len(asked) else None

        def lacking() -> Session:
            return next(session for session in asked if answer_of(session) is None)

        answered: list[Answered] = self.wait(
            answers,
            min(self._timeout_s, at_most_s),
            f"the answer to {request.call}",
            lacking,
            raise_refused=request.tells_refusals,
        )
        return request.joined(answered)

    def snapshot(self) -> Answered:
        """Have every server store its share of the feed's state; the answer has the token."""
        if len(self.servers) == 1:
            return self.ask(snapshot())
        name = new_snapshot()
        taken = self.ask(snapshot(name))
        return taken if taken.code else self.ask(snapshot(name, whole=True))

    def settle(self, at_most_s: float = inf) -> None:
        """Wait until every commit was answered."""

        trainer = self.member.trainer

        def unsettled() -> Session | None:
            return next((one for one in self.sessions if trainer.unanswered(one.number)), None)

        with self.lock:
            for session in self.sessions:
                if session.connected and trainer.unanswered(session.number):
                    session.hurry()  # the heartbeat shows that this trainer waits for answers
        try:
            self.wait(
                lambda: unsettled() is None,
                min(self._timeout_s, at_most_s),
                "answers to commits",
                lambda: unsettled() or self.session,
                raise_refused=False,
            )
        except HeadraceError:  # a server may answer and stop right after
            with self.lock:
                if unsettled() is not None:
                    raise

    def wait(
        self,
        done: Callable[[], Any],
        timeout_s: float,
        what: str,
        about: Callable[[], Session] | None = None,
        or_end: bool = False,
        raise_refused: bool = True,
        started: float | None = None,
    ) -> Any:
        """Wait until ``done`` returns a value; every wait of a trainer is this one.

        ``about``: the session whose answer is missing, where that is not the first.
        """
        refused, over = self.member.refused, False
        now = self.looked_at = started = self.clock() if started is None else started
        slept_s = self.clock.slept_s
        while True:
            with self.lock:
                news = self.news
                if (failure := self.failure) is not None:
                    self.failure_raised = True
                    raise failure
                if self.closing:
                    raise FeedClosed(f"the feed was closed while this thread waited for {what}")
                if raise_refused and refused:
                    raise refused.popleft()
                result = done()
                if result:
                    return result
                if or_end and self._over:
                    return None
                leaves = self.left and any(session.stopped for session in self.sessions)
                limit_s = min(timeout_s, _LEAVE_S) if leaves else timeout_s
                if over and now - started >= limit_s:  # and a message of the server came since
                    session = self.session if about is None else about()
                    slept_s = self.clock.slept_s - slept_s
                    raise self._too_late(session, now, limit_s, what, slept_s)
                rest_s = min(_STEP_S, started + limit_s - now)
                over = rest_s <= 0
            self.await_news(news, rest_s)
            now = self.looked_at = self.clock()

    def _too_late(
        self, session: Session, now: float, timeout_s: float, what: str, slept_s: float
    ) -> HeadraceError:
        """Return the error of a wait that ran past ``timeout_s``, with the likely reason."""
        slept = f" (this process did not run for {slept_s:.0f} s more)" if slept_s >= 1 else ""
        waited = f"waited timeout={timeout_s:g} s{slept} for"
        silence, place, welcome = session.silence(now), session.server.where, session.welcome
        hint = "".join(server.hint for server in self.servers)
        says = (not session.connected and session.server.waiting) or session.waiting
        if welcome is None and says:
            return DeadlineExceeded(
                f"{waited} the feed at {place} to open; the server says: {says}"
            )
        if welcome is None:
            if broken := next((server.broken for server in self.servers if server.broken), ""):
                return ConnectionLost(f"{waited} the feed at {place} to open: {broken}")
            known = shares_there(self.servers)
            return ConnectionLost(
                f"no server answered at {place} within timeout={timeout_s:g} s{slept}: "
                f"is it running, and is the address right?{known and f' ({known})'}{hint}"
            )
        if session.stopped:
            owed = sum(self.member.trainer.unanswered(one.number) for one in self.sessions)
            lost = f".  {owed} commits of this trainer have no answer: they may be lost"
            return ConnectionLost(
                f"the server at {place} was stopped and announced its return, and is not back; "
                f"{waited} {what}.  Start it again with the same address and state directory, or "
                f"raise timeout{lost if owed else ''}"
            )
        if silence:
            return ConnectionLost(
                f"the server at {place} was lost: nothing was heard of it for {silence:.0f} s, and "
                f"this trainer {waited} {what}{hint}"
            )
        hands = self.member.trainer.in_hand
        most = welcome.max_credits
        full = f", as many as the server's max_credits={most} allows" if hands >= most else ""
        reason = f"the server says: {says}" if says else "no word of the server"
        return DeadlineExceeded(
            f"{waited} {what} of feed {welcome.feed!r} at {place}; {reason}; "
            f"this trainer holds {hands} batches{full}{self.explain(now)}"
        )

    # The threads that use the connections

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
                if self._listener is None and self._connections:
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
                    self._away = lose_silent(self.sessions, self._away, self.clock())
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
            if self.news == news and (self._listener is not None or not self._connections):
                self.changed.wait(at_most_s)
        finally:
            self._following -= 1

    def _due_in(self, now: float) -> float:
        """Return the seconds until a session has a message to send without a new event."""
        return min([one.session.due_in(now) for one in self._connections], default=inf)

    # The connections, under the lock

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step that uses the connections; sessions fail with the error of a step."""
        with self.lock:
            # Closed, or in a signal handler amid such a step.
            if not self._connections or self._in_use:
                return
            self._in_use = True
            try:
                step()
            except Exception as error:
                self.fail(error)
            except BaseException:  # Ctrl-C, say
                if any(one.amid_message for one in self._connections):  # half of it may be sent
                    self.fail(ConnectionLost("the connection was interrupted amid a message"))
                for one in self._connections:  # messages that were just received may be lost
                    one.skip_rest()
                    one.session.greet()
                raise
            finally:
                self._in_use = False

    def _exchange(self) -> None:
        self._say()
        self._hear()

    def _say_and_poll(self) -> None:
        """Send due messages, and receive only those that no poll would report."""
        self._say()
        for one in self._connections:
            if not one.quiet:  # else a poll reports all that has arrived
                one.hear()

    def _say(self) -> None:
        self._said_at = now = self.clock()
        if self.clock.slept_s > self._slept_s:
            self._slept_s = self.clock.slept_s
            for session in self.sessions:
                session.hurry()
        for one in self._connections:
            one.say(now)

    def _hear(self) -> None:
        if len(self._connections) == 1:
            self._connections[0].hear()
            return
        ready = self._sleep.look()
        for one in self._connections:
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
        return Connection(self._context, self._keys, session, self._sleep, self.clock, self.tell)

    def _run(self) -> None:
        connections: list[Connection] = []
        try:
            self._context = zmq.Context()
            self._context.max_sockets = _SOCKETS
            self._look_for_servers()
            while not self._closed.wait(_MOMENT_S):
                self._look()
                self._look_for_servers()
            with self.lock:
                connections, self._connections = self._connections, []
                for one in connections:
                    one.say_goodbye(self.clock())
            self._await_end(connections)
            for one in connections:  # no other thread uses them any more
                one.linger()
        except BaseException as error:
            self.fail(error)
        finally:
            with self.lock:
                connections, self._connections = [*connections, *self._connections], []
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
            for one in self._connections:
                one.quiet = False
            self._guarded(self._exchange)
            self._away = lose_silent(self.sessions, self._away, self.clock())

    # Servers that are away

    def _away_servers(self) -> list[Server]:
        """Return the servers of which an owner is away, or that were never found."""
        with self.lock:
            now = self.clock()
            away = [one.session.server for one in self._connections if one.away(now)]
            return [one for one in self.servers if one.served is None or one in away]

    def _look_for_servers(self) -> None:
        """Have a thread look for servers that are away."""
        if self._searches or self.connected or self.failure is not None:
            return
        if self._away_servers():
            self._searches = True
            threading.Thread(target=self._search, name="headrace-search", daemon=True).start()

    def _search(self) -> None:
        """Ask the locators of servers that are away, once a second, until none is."""
        lookups: dict[Server, Lookup] = {}
        try:
            while (away := self._away_servers()) and not self.closing:
                deadline, new = Deadline(_ASK_S), [one for one in away if one.served is None]
                if self._directory is not None:
                    moved = self._directory.moved()
                    for server in self.servers:
                        if server.address in moved:
                            server.address = server.place = moved[server.address]
                try:
                    unanswered = self._ask(away, lookups, deadline)
                except LimitExceeded:  # libzmq needs files to ask
                    if new:
                        raise
                    unanswered = []
                for server in unanswered:
                    if server.served is not None or lookups[server].unreached:
                        server.try_next()
                if unanswered or len(new) < len(away):
                    self._closed.wait(deadline.left_s)
        except zmq.ContextTerminated:  # this trainer leaves
            pass
        except Exception as error:
            self.fail(error)
        finally:
            for lookup in lookups.values():
                lookup.close()
            self._searches = False

    def _ask(
        self, servers: list[Server], lookups: dict[Server, Lookup], deadline: Deadline
    ) -> list[Server]:
        """Ask the locators of these servers, and take their answers; return those without one."""
        assert self._context is not None
        for server in servers:
            known = lookups.get(server)
            dead = known is not None and known.dead and server.served is not None
            if known is None or known.place != server.place or dead:
                check_files()
                lookups[server] = Lookup(self._context, self._keys, server)
                if known is not None:
                    known.close()
            lookups[server].ask(self.member.hello)
        while servers and (left_s := deadline.left_s):
            readable = [socket for server in servers for socket in lookups[server].sockets]
            zmq.select(readable, [], [], left_s)
            for server in [*servers]:
                if (answer := lookups[server].answer(self.clock())) is not None:
                    self._hear_locator(server, answer)
                    servers = [one for one in servers if one is not server]
        return servers

    def _hear_locator(self, server: Server, answer: Any) -> None:
        """Take what a server's locator tells, and reach its owners where they are now."""
        with self.lock:
            server.hear(answer)
            if isinstance(answer, Refused):
                for session in self._sessions_with(server):
                    if not session.connected:
                        session.refused(answer)
            elif self._connections:
                greeted = [one.session for one in self._connections]
                if len(self._sessions_with(server)) != len(server.owners):
                    self._arrange()
                    self.member.trainer.regroup(self._owner_of, len(self.sessions))
                    for session in self.sessions:
                        session.greet()
                    greeted = self.sessions
                self._connect(greeted)
            self.tell()


def opened(link: Link) -> Link:
    """Return the link once the servers have let it in; close it where they do not.

    Where a rewind of the feed happens meanwhile, return another link, which joins the rewound feed.
    """
    while True:
        try:
            link.open()
            return link
        except FeedRewound:
            link.close()
            link = link.again(link.member.hello.resume, link.member.hello.restart)
        except BaseException:
            link.close()
            raise


def lose_silent(sessions: Collection[Session], away: set[str], now: float) -> set[str]:
    """Lose sessions that were silent for too long; log a server that goes and comes back.

    ``away``: the addresses of the servers that the log has named.  Return those of now.
    """
    for session in sessions:
        silent, address = session.silence(now), session.server.address
        if silent and session.connected:
            session.greet()
        ended = session.stopped or session.finished or session.failure is not None
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
