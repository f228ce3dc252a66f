"""A trainer's requests to its sessions, and every wait of it.

    trainer's thread ── take, commit, save, ask ──► Session ◄── messages ── driver ◄──► server
                                  │                 of each owner             ▲
                                  └── exchange, in a wait again and again ────┘

A feed has one owner or several, and a trainer a session with each.  Whatever is asked is told to a
session at once and said by the same thread, at once or with its next call; a thread that needs an
answer waits for it, with a deadline that says what it waits for.
Only its timeout ends a wait for a server that is away, in time that counts: before that the server
is greeted again and again, however long it takes to move it or to start it again.

Sessions are shared under the driver's lock.  Released memory is reported without it, since the
last reader of a batch may go while any lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FeedClosed,
    ForkedProcess,
    HeadraceError,
)
from headrace_proto.messages import Delivery, Handed, Welcome

from .driver import Driver
from .merge import Merge, merge_of
from .requests import Request
from .session import Received, Session

if TYPE_CHECKING:
    from .keys import Keys

__all__ = ["Link", "opened"]

A = TypeVar("A")

#: A wait looks up this often, whatever it hears.
_LOOK_S = 0.2
#: A trainer that leaves waits so long for a server that has stopped and will be back.
_LEAVE_S = 10.0


class Link:
    """A trainer's side of its sessions with the owners of one feed, which are driven."""

    def __init__(
        self, address: str, session: Session, timeout_s: float, keys: Keys | None = None
    ) -> None:
        self.address = address
        self.session = session  # the one that was opened first
        self.sessions = [session]  # by owner
        self.left = False  # the trainer closed the feed
        self.explain: Callable[[float], str] = lambda now: ""  # what a trainer owes, in words
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        self._keys = keys
        self._driver = Driver(address, session, keys)
        self._lock = self._driver.lock
        self.clock = self._driver.clock
        self._prefetch = session.prefetch
        self._merge: Merge = merge_of([session], session)
        self._driver.regroup = self._regroup

    def again(self, resume: str) -> Link:
        """Another link to the same feed, in the same way, which goes on from a snapshot."""
        session = self.session.again(resume)
        session.prefetch = self._prefetch
        return Link(self.address, session, self._timeout_s, self._keys)

    def open(self) -> Welcome:
        """Wait for the Welcome of every owner; that of the first."""
        first, deadline_s = self.session, self.clock() + self._timeout_s
        self._await_welcomes(self._timeout_s)
        welcome = first.welcome
        assert welcome is not None
        if welcome.owners > 1:
            first.owner = welcome.owner
            for owner in range(welcome.owners):
                if owner != welcome.owner:
                    self._driver.add(first.beside(owner))
            with self._lock:
                self.sessions = sorted(self._driver.sessions, key=lambda session: session.owner)
            self._await_welcomes(max(0.0, deadline_s - self.clock()))
            self._merge = merge_of(self.sessions, first)
        return welcome

    def _regroup(self) -> list[Session]:
        """The server was started again with another number of owners: a session with each."""
        before, first = self.sessions, self.session
        owners = max(session.regrouped for session in before)
        sessions = [first.beside(owner) for owner in range(owners)]
        for session in sessions:
            session.owners, session.prefetch = owners, self._prefetch
        for session in before:
            session.hand_over(sessions)
        self.sessions, self.session = sessions, sessions[0]
        self._merge = merge_of(sessions, sessions[0])
        return sessions

    def _await_welcomes(self, timeout_s: float) -> None:
        def missing() -> Session | None:
            return next((session for session in self.sessions if session.welcome is None), None)

        self._wait(
            lambda: missing() is None,
            timeout_s,
            "a server to answer",
            lambda: missing() or self.session,
        )

    # All sessions together

    @property
    def failure(self) -> HeadraceError | None:
        """Why this feed can not be used any more; a copy, for a traceback keeps all it names."""
        failed = (session.failed() for session in self.sessions if session.failure is not None)
        return next(failed, None)

    @property
    def connected(self) -> bool:
        return all(session.connected for session in self.sessions)

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        return all(session.ended for session in self.sessions)

    @property
    def local(self) -> bool:
        """Whether batches come through shared memory."""
        return all(session.memory is not None for session in self.sessions)

    def session_of(self, partition: int) -> Session:
        """The session with the owner of a partition."""
        return self.sessions[partition % len(self.sessions)]

    def _holder_of(self, token: int) -> Session:
        """The session in which a batch was delivered; any where it is not held any more."""
        holders = (session for session in self.sessions if session.holds(token))
        return next(holders, self.session)

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

        ``claim`` takes it from a session, and may leave it there until something was saved.
        """
        meter = self.session.meter
        meter.asks(now := self.clock())
        heard = any(session.may_have_come for session in self.sessions)
        if heard:
            self._driver.hear()
        with self._lock:
            usable = self.failure is None and not self.session.refused
            received = self._merge.take(claim) if usable else None
            if received is None:
                self._merge.want()
                if self.session.explicit and self._holds:
                    for session in self.sessions:
                        session.ask_what_is_left()
            enough = any(session.much_to_say for session in self.sessions)
        if received is not None:
            meter.gets(now)
            self._driver.say_soon(enough, heard)
            return received

        def taken() -> Received | None:
            received = self._merge.take(claim)
            if received is None:
                self._merge.want()  # of another owner, perhaps
            return received

        try:
            received = self._wait(
                taken, self._timeout_s, "a batch", lambda: self._merge.awaited, or_end=True
            )
        finally:
            meter.gets(self.clock(), received is not None)
        return received  # type: ignore[no-any-return]

    @property
    def _over(self) -> bool:
        """Whether the loop of this trainer ends here."""
        holds = self._holds
        return all(session.over(holds) for session in self.sessions)

    @property
    def _holds(self) -> bool:
        """Whether a batch is ready, or in the trainer's hands."""
        return any(session.held() for session in self.sessions)

    def commit(self, token: int) -> None:
        """Say, soon, that a batch is done."""
        with self._lock:
            self._holder_of(token).commit(token)

    def place(self, delivery: Delivery, segments: bytes) -> None:
        """A batch goes to the trainer: what a server that is started anew would know it by."""
        d = delivery
        with self._lock:
            self.session_of(d.partition).place(
                Handed(d.token, d.partition, d.number, d.rows, segments)
            )

    def give_back(self, token: int) -> None:
        with self._lock:
            self._holder_of(token).give_back(token)

    def save(
        self, token: int, columns: list[Any], block: Any, keys: Callable[[], Sequence[bytes]]
    ) -> bool:
        """Say, soon, that the states of a batch are saved.  False when it is not held any more.

        Errors name the batch by what ``keys`` makes.  In a loop of small steps it goes along with
        the wish for the next batch.
        """
        with self._lock:
            saved = self._holder_of(token).save(token, columns, block, keys)
            self._driver.tell()
        self._driver.say_soon(False)
        return saved

    def ask(
        self, request: Request[A], at_most_s: float = inf, of: Iterable[Session] | None = None
    ) -> A:
        """Ask the server for something, and wait for the answer.

        ``of``: these owners; else each one or any, as it needs.
        """
        every = self.sessions if request.of_each_owner else [self.session]
        asked = every if of is None else list(of)
        with self._lock:
            for session in asked:
                session.requests.ask(request)

        def answer_of(session: Session) -> A | None:
            answer = session.requests.answer_to(request)
            if answer is None and session.ended and session.welcome is not None:
                return request.at_end(session.welcome.session)
            return answer

        def answers() -> list[A] | None:
            if any(session not in self.sessions for session in asked):
                raise ConnectionLost(
                    f"the server at {self.address} was started again with {len(self.sessions)} "
                    f"owners while this trainer waited for the answer to {request.call}: ask again"
                )
            found = [answer_of(session) for session in asked]
            return None if any(one is None for one in found) else found  # type: ignore[return-value]

        def lacking() -> Session:
            return next(session for session in asked if answer_of(session) is None)

        answered: list[A] = self._wait(
            answers,
            min(self._timeout_s, at_most_s),
            f"the answer to {request.call}",
            lacking,
            raise_refused=request.tells_refusals,
        )
        return request.joined(answered)

    def settle(self, at_most_s: float = inf) -> None:
        """Wait until every commit was answered."""

        def unsettled() -> Session | None:
            return next((session for session in self.sessions if not session.settled), None)

        try:
            self._wait(
                lambda: unsettled() is None,
                min(self._timeout_s, at_most_s),
                "answers to commits",
                lambda: unsettled() or self.session,
                raise_refused=False,
            )
        except HeadraceError:  # a server may answer, and stop in the same breath
            with self._lock:
                if unsettled() is not None:
                    raise

    def say(self) -> None:
        """Say what there is to say."""
        self._driver.exchange()

    def close(self) -> None:
        """Leave: what is held goes back.  Ends the thread, and every wait with FeedClosed."""
        self._driver.close()

    def _wait(
        self,
        done: Callable[[], Any],
        timeout_s: float,
        what: str,
        about: Callable[[], Session] | None = None,
        or_end: bool = False,
        raise_refused: bool = True,
    ) -> Any:
        """Wait until ``done`` yields something; every wait of a trainer is this one.

        ``about`` is the session that is waited for, where that is not the first.
        """
        driver, refused = self._driver, self.session.refused
        started, slept_s = self.clock(), self.clock.slept_s
        over = False
        while True:
            with self._lock:
                news = driver.news
                failure = self.failure
                if failure is not None:
                    raise failure
                if driver.closing:
                    raise FeedClosed(f"the feed was closed while this thread waited for {what}")
                if raise_refused and refused:
                    raise refused.popleft()
                result = done()
                if result:
                    return result
                if or_end and self._over:
                    return None
                now = self.clock()
                leaves = self.left and any(session.stopped for session in self.sessions)
                limit_s = min(timeout_s, _LEAVE_S) if leaves else timeout_s
                if over and now - started >= limit_s:  # and the server was heard since
                    session = self.session if about is None else about()
                    slept_s = self.clock.slept_s - slept_s
                    raise self._too_late(session, now, limit_s, what, slept_s)
                rest_s = min(_LOOK_S, started + limit_s - now)
                over = rest_s <= 0
            driver.await_news(news, rest_s)

    def _too_late(
        self, session: Session, now: float, timeout_s: float, what: str, slept_s: float
    ) -> HeadraceError:
        """The error that says why a wait of ``timeout_s`` was in vain."""
        silence = session.silence(now)
        slept = f" (this process did not run for {slept_s:.0f} s more)" if slept_s >= 1 else ""
        if session.stopped:
            return ConnectionLost(self._not_back(timeout_s, slept, what))
        if session.welcome is not None and silence:
            hint = f".{self._driver.hint}" if self._driver.hint else ""
            return ConnectionLost(
                f"the server at {self.address} was lost: nothing was heard of it for "
                f"{silence:.0f} s, while this trainer waited timeout={timeout_s:g} s{slept} for "
                f"{what}{hint}"
            )
        if session.welcome is None and session.waiting:
            return DeadlineExceeded(
                f"waited timeout={timeout_s:g} s{slept} for the feed at {self.address} to open; "
                f"the server says: {session.waiting}"
            )
        if session.welcome is None:
            return ConnectionLost(
                f"no server answered at {self.address} within timeout={timeout_s:g} s{slept}: "
                f"is it running, and is the address right?{self._driver.hint}"
            )
        held, most = sum(each.held() for each in self.sessions), session.welcome.max_credits
        each = "" if len(self.sessions) == 1 else " of each worker"
        full = f", as many as the server's max_credits={most} allows{each}"
        full = full if session.held() >= most else ""
        reason = (
            f"the server says: {session.waiting}" if session.waiting else "no word of the server"
        )
        return DeadlineExceeded(
            f"waited timeout={timeout_s:g} s{slept} for {what} of feed {session.welcome.feed!r} "
            f"at {self.address}; {reason}; this trainer holds {held} batches{full}"
            f"{self.explain(now)}"
        )

    def _not_back(self, waited_s: float, slept: str, what: str) -> str:
        """Why a wait ends while the server is stopped, and what that means for commits."""
        n = sum(session.unanswered for session in self.sessions)
        owed = (
            f"  It has not answered {n} commits of this trainer: those that it did not store "
            "before it stopped do not count, and their rows go out again"
        )
        return (
            f"the server at {self.address} was stopped and announced its return, and was not back "
            f"after {waited_s:g} s{slept}, while this trainer waited for {what}.  Start it again "
            f"with the same address and state directory, or raise timeout{owed if n else ''}"
        )


def opened(link: Link) -> Link:
    """The link, once the server has let it in; closed where it does not."""
    try:
        link.open()
    except BaseException:
        link.close()
        raise
    return link
