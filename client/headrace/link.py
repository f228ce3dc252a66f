"""A trainer's requests to its sessions, and all of its waits.

    trainer's thread ── take, commit, save, ask ──► Session ◄── messages ── driver ◄──► server
                                  │                 of each owner             ▲
                                  └── exchange, in a wait again and again ────┘

    server of share 0   session with owner 0, owner 1, …  ──┐
    server of share 1   session with owner 0, …           ──┴► one list, by (share, owner) ─► Merge

A feed has one owner or several, on one server or several, and a trainer a session with each.
A session is added when its server is found, and others take its place when its server starts again
with another number of owners.

A thread hands its request to a session and sends it itself, at once or with its next call; a
thread that needs an answer waits for it, with a deadline whose error names the missing answer.
Only its timeout ends a wait for a server that is away: before that the client greets the server
again and again, however long it takes to move or restart it.

Sessions are shared under the driver's lock.  Released memory is reported without it, since the
last reader of a batch may go while any lock is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from headrace_proto.errors import (
    ConnectionLost,
    FeedClosed,
    FeedRewound,
    ForkedProcess,
    HeadraceError,
)
from headrace_proto.messages import Answered, Delivery, Welcome
from headrace_proto.token import new_snapshot

from .discovery import Discovery
from .driver import Driver
from .merge import Merge, merge_of
from .places import places_of
from .prefetch import Prefetch
from .requests import Request, TakeSnapshot
from .session import Received, Session
from .transports import check_files
from .wait_errors import too_late

if TYPE_CHECKING:
    from .credentials import Keys
    from .ray import RayDirectory

#: A leaving trainer's maximum wait for a server that has stopped and will be back.
_LEAVE_S = 10.0
#: A wait checks the order of the batches this often, even without messages.
_LOOK_S = 0.2


class Link:
    """A trainer's side of its sessions with the owners of one feed, which are driven."""

    def __init__(
        self,
        address: str,
        session: Session,
        timeout_s: float,
        prefetch: Prefetch | None = None,
        keys: Keys | None = None,
        directory: RayDirectory | None = None,
    ) -> None:
        """``address``: of a server, or of several with commas between them.

        ``directory`` looks up the new addresses of servers that have moved.
        """
        self._directory = directory
        self.address = address
        self.addresses = address.split(",")
        self.session = session  # the one that was opened first
        session.address = self.addresses[0]
        asked, session.prefetch = session.prefetch, 0  # until the order of the owners is known
        others = [session.elsewhere(address) for address in self.addresses[1:]]
        self._driver = Driver(address, session, keys, others)
        self.sessions = self._driver.sessions  # by the number of the owner, see placement.py
        self.lock = self._driver.lock
        self.clock = self._driver.clock
        self._prefetch = prefetch or Prefetch(asked)
        self._merge: Merge = merge_of([session], session)
        self._owner_of = self._merge.placement.owner_of
        self._driver.regroup = self._regroup
        if directory is not None:
            self._driver.moved = directory.moved
        self.left = False  # the trainer closed the feed
        self.failure_raised = False  # by a wait, so the trainer knows of it
        self.looked_at = 0.0  # when a wait of this trainer last checked its condition
        # describes unfinished work of the trainer
        self.explain: Callable[[float], str] = lambda now: ""
        self._pid = os.getpid()
        self._timeout_s = timeout_s
        self._keys = keys

    def again(self, resume: str, restart: bool = False) -> Link:
        """Return another link with the same options, which goes on from a snapshot."""
        session = self.session.again(resume)
        session.restart = restart
        prefetch = Prefetch(self._prefetch.asked)
        session.prefetch = prefetch.batches
        directory = self._directory
        address = self.address if directory is None else directory.find(self._timeout_s)
        return Link(address, session, self._timeout_s, prefetch, self._keys, directory)

    def open(self) -> Welcome:
        """Wait for the Welcome of every owner of every server; return the first owner's."""
        Discovery(self, self._timeout_s).run()
        welcome = self.session.welcome
        assert welcome is not None
        self.order()
        self.say()  # how many batches to prefetch
        return welcome

    # The sessions

    @property
    def of_each_server(self) -> list[Session]:
        """One session with each server: the first that was opened where there is one server."""
        if self.session.shares == 1:
            return [self.session]
        return list({one.share: one for one in reversed(self.sessions)}.values())

    def place_of(self, session: Session) -> tuple[str, ...]:
        """Return the addresses of the owners of the server that a session has asked."""
        assert session.served is not None
        return places_of(session.served, self._driver.reached(session.address))

    def add(self, session: Session) -> None:
        """Add a session with another owner or server."""
        self._driver.add(session)
        with self.lock:
            self.sessions = self._driver.sessions

    def keep(self, sessions: list[Session], lead: Session) -> None:
        """Have these sessions alone, of which ``lead`` is the first to be opened."""
        check_files(len(sessions))
        self._driver.replace(lambda: sessions)
        with self.lock:
            self.sessions, self.session = sessions, lead

    def order(self) -> None:
        """Number the owners, and take their batches in the order of the feed."""
        with self.lock:
            self.sessions = sorted(self.sessions, key=lambda s: (s.share, s.owner))
            self.session.prefetch = self._prefetch.batches
            self._merge = merge_of(self.sessions, self.session, self._merge)
            self._owner_of = self._merge.placement.owner_of

    def _regroup(self) -> list[Session]:
        """Open sessions with all owners of a server that restarted with another number of them."""
        sessions: list[Session] = []
        for share in sorted({session.share for session in self.sessions}):
            before = [session for session in self.sessions if session.share == share]
            known = next((session for session in before if session.regroups), None)
            sessions += before if known is None else self._regrouped(before, known)
        if not any(one is self.session for one in sessions):
            self.session = next(one for one in sessions if one.share == self.session.share)
        self.sessions = sessions
        self.order()
        return sessions

    def _regrouped(self, before: list[Session], known: Session) -> list[Session]:
        """Return sessions with the new owners, which one of the earlier sessions knows."""
        owners = known.regrouped
        sessions = [known.beside(owner) for owner in range(owners)]
        for session in sessions:
            session.owners, session.prefetch = owners, self._prefetch.batches
        for session in before:
            session.hand_over(sessions)
        return sessions

    # All sessions together

    @property
    def failure(self) -> HeadraceError | None:
        """Why this feed is unusable; a copy, since a traceback keeps all objects that it names."""
        for session in self.sessions:
            if session.failure is not None:
                return session.failed()
        return None

    @property
    def properties(self) -> dict[str, Any]:
        """The description of the feed beside its schema; empty where it is not known yet."""
        return self.session.properties

    @property
    def announced(self) -> list[dict[str, Any]]:
        """The properties from each owner; some differ, such as the number of batches."""
        return [session.properties for session in self.sessions]

    @property
    def hint(self) -> str:
        """Why nobody may answer, in words."""
        return self._driver.hint

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

    def lost(self, known: Container[int]) -> list[tuple[int, int]]:
        """Return partition and token of each batch that was taken and is not ``known``."""
        with self.lock:
            return [one for session in self.sessions for one in session.lost(known)]

    def session_of(self, partition: int) -> Session:
        """Return the session with the owner of a partition."""
        sessions = self.sessions
        return sessions[self._owner_of(partition)] if len(sessions) > 1 else sessions[0]

    # Batches

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
        claim: Callable[[Session], Received | None] = Session.take,
        none_yet: Callable[[Sequence[Session]], object] | None = None,
    ) -> Received | None:
        """Return the next batch; None when the feed has ended.

        ``claim`` takes it from a session, or leaves it there until states are saved.
        ``none_yet`` is called while there is none, and may end the wait by an exception.
        """
        meter, looks = self.session.meter, 0
        now = self.clock()
        meter.asks(now)
        heard = False
        for session in self.sessions:
            heard = heard or session.may_have_come
        if heard:
            self._driver.hear()

        def taken() -> Received | None:
            nonlocal looks
            looks += 1
            received = self._merge.take(claim)
            if received is None:
                if none_yet is not None:
                    none_yet(self.sessions)
                if looks == 1 and self._prefetch.waits(self.session.welcome):
                    self._merge.come_ahead(self._prefetch.batches)
                self._merge.want(self.looked_at - now)  # may ask another owner
                if looks == 1 and self.session.explicit and self._holds:
                    for session in self.sessions:
                        session.ask_what_is_left()
            return received

        received: Received | None = None
        try:
            received = self.wait(
                taken, self._timeout_s, "a batch", lambda: self._merge.awaited, True, started=now
            )
        finally:
            meter.gets(self.looked_at, received is not None)
        if received is not None and self._prefetch.took(received.delivery.nbytes):
            with self.lock:
                self._merge.come_ahead(self._prefetch.batches)
        if looks > 1:
            self._merge.waited(self.looked_at - now)
        elif received is not None:  # no message was sent meanwhile
            enough = False
            for session in self.sessions:
                enough = enough or session.much_to_say
            try:
                self._driver.say_soon(enough, heard)
            except BaseException:  # such as Ctrl-C: put the batch back
                self.untake([received])
                raise
        return received

    def take_ready(self, most: int, claim: Callable[[Session], Received | None]) -> list[Received]:
        """Take at most ``most`` of the batches that are ready.  ``take`` raises their errors."""
        taken: list[Received] = []
        with self.lock:
            if self.failure is not None or self._driver.closing or self.session.refused:
                return taken
            while len(taken) < most and (received := self._merge.take(claim)) is not None:
                taken.append(received)
                if self._prefetch.took(received.delivery.nbytes):
                    self._merge.come_ahead(self._prefetch.batches)
            if len(taken) < most and self._prefetch.waits(self.session.welcome):
                self._merge.come_ahead(self._prefetch.batches)
        if taken:
            self._driver.say_soon(any(session.much_to_say for session in self.sessions))
        return taken

    def untake(self, batches: Sequence[Received]) -> None:
        """Put back the last batches taken, which were not used: they come next."""
        with self.lock:
            for received in reversed(batches):
                self.session_of(received.delivery.partition).untake(received)
            self._driver.tell()

    @property
    def _over(self) -> bool:
        """Whether the loop of this trainer ends here."""
        holds = self.session.explicit and self._holds
        return False not in [session.over(holds) for session in self.sessions]

    @property
    def _holds(self) -> bool:
        """Whether a batch is ready, or in the trainer's hands."""
        return any(session.held() for session in self.sessions)

    def commit(self, token: int) -> None:
        """Send the commit of a batch soon."""
        with self.lock:
            for session in self.sessions:  # only the session that delivered it knows the token
                session.commit(token)

    def place(self, delivery: Delivery, segments: bytes) -> bool:
        """Note which segments a taken batch has, to describe it to a restarted server.

        Return False where such a server was greeted meanwhile: it hands the rows out again.
        """
        partition, token = delivery.partition, delivery.token
        while True:
            with self.lock:
                session = self.session_of(partition)
                if token not in session.missed or session.connected:
                    return session.place(token, segments)
            # The answer shows whether the server was restarted.
            self.wait(
                lambda: self.session_of(partition).connected,
                self._timeout_s,
                "the answer to a greeting",
                raise_refused=False,
            )

    def give_back(self, token: int) -> None:
        with self.lock:
            for session in self.sessions:
                session.give_back(token)

    def save(
        self, token: int, columns: list[Any], block: Any, keys: Callable[[], Sequence[bytes]]
    ) -> bool:
        """Send the states of a batch soon; return False where the trainer holds it no more.

        Errors name the batch by the keys that ``keys`` makes.  In a loop of small steps the save is
        sent with the request for the next batch.
        """
        saved = False
        with self.lock:
            for session in self.sessions:
                saved = saved or session.save(token, columns, block, keys)
            self._driver.tell()
        self._driver.say_soon(False)
        return saved

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
                return request.at_end(session.welcome.session)
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
        if self.session.shares == 1:
            return self.ask(TakeSnapshot())
        name = new_snapshot()
        taken = self.ask(TakeSnapshot(name))
        return taken if taken.code else self.ask(TakeSnapshot(name, whole=True))

    def settle(self, at_most_s: float = inf) -> None:
        """Wait until every commit was answered."""

        def unsettled() -> Session | None:
            return next((session for session in self.sessions if not session.settled), None)

        with self.lock:
            for session in self.sessions:
                if session.connected and not session.settled:
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

    def say(self) -> None:
        """Send due messages."""
        self._driver.exchange()

    def close(self) -> None:
        """Leave the feed, and give batches back.  End the thread, and all waits by FeedClosed."""
        self._driver.close()

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
        driver, refused, over = self._driver, self.session.refused, False
        now = self.looked_at = started = self.clock() if started is None else started
        slept_s = self.clock.slept_s
        while True:
            with self.lock:
                news = driver.news
                for session in self.sessions:
                    if session.failure is not None:
                        self.failure_raised = True
                        raise session.failed()
                if driver.closing:
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
                    raise too_late(self, session, now, limit_s, what, slept_s)
                rest_s = min(_LOOK_S, started + limit_s - now)
                over = rest_s <= 0
            driver.await_news(news, rest_s)
            now = self.looked_at = self.clock()


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
            link = link.again(link.session.resume, link.session.restart)
        except BaseException:
            link.close()
            raise
