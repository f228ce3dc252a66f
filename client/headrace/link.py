"""A trainer's requests to its servers, and all of its waits.

    trainer's thread ── take, commit, ask ─► Trainer ◄──► Session ◄── messages ─ driver ◄─► server
                                  │            one          of each owner            ▲
                                  └── exchange, in a wait again and again ───────────┘

    server of share 0   session with owner 0, owner 1, …  ──┐
    server of share 1   session with owner 0, …           ──┴► one list, by (share, owner)

A feed has one owner or several, on one server or several, and a trainer a session with each:

    each address         Hello ─► ServedShare   which share its server has, and where its owners are
                         is the feed complete?
    ranks without a run  Hello to the first owner of the first server ─► Welcome, with the run
    then                 Hello to the first owner of each server ─► Welcome
                         Hello to the others

The trainer opens no session before it knows that the servers together have the whole feed.  A name
that stands for several addresses is looked up again until every share is found.  Other sessions
take their places when a server starts again with another number of owners.

A thread tells the trainer what it wants and sends it itself, at once or with its next call; a
thread that needs an answer waits for it, with a deadline whose error names the missing answer.
Only its timeout ends a wait for a server that is away: before that the client greets the server
again and again, however long it takes to move or restart it.

All of it is shared under the driver's lock.  Released memory is reported without it, since the
last reader of a batch may go while any lock is held.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from headrace_proto.errors import (
    ConnectionLost,
    DeadlineExceeded,
    FeedClosed,
    FeedRewound,
    ForkedProcess,
    HeadraceError,
    StaleLease,
)
from headrace_proto.messages import Answered, Welcome
from headrace_proto.placement import Placement
from headrace_proto.token import new_snapshot

from .credentials import Keys
from .driver import Driver
from .places import arranged, looked_up, missing_shares, places_of, shares_there
from .prefetch import Prefetch
from .requests import Request, snapshot
from .session import STALE, Member, Session, States, named
from .trainer import Held, Trainer

if TYPE_CHECKING:
    from .ray import RayDirectory

#: A leaving trainer's maximum wait for a server that has stopped and will be back.
_LEAVE_S = 10.0
#: Time between two looks at what a name stands for, while a share is missing.
_LOOK_UP_S = 1.0
#: A wait looks at what has come this often, even without messages.
_LOOK_S = 0.2


logger = logging.getLogger("headrace")


class Link:
    """A trainer's side of its sessions with the owners of one feed, which are driven."""

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
        sessions = [Session(member, one, shares=0) for one in self.addresses]
        self.session = sessions[0]  # the one that was opened first
        self._driver = Driver(address, sessions, keys)
        self.sessions = self._driver.sessions  # by the number of the owner, see placement.py
        self.lock = self._driver.lock
        self.clock = self._driver.clock
        self._prefetch = prefetch or Prefetch(0)
        self._owner_of = [0]  # by partition
        self.trainer: Trainer  # what it asks, holds and has committed; once all owners let it in
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
        self._counted_at = 0.0  # until when waits are counted

    def again(self, resume: str, restart: bool = False) -> Link:
        """Return another link with the same options, which goes on from a snapshot."""
        prefetch = Prefetch(self._prefetch.asked)
        directory = self._directory
        address = self.address if directory is None else directory.find(self._timeout_s)
        member = replace(self.member, resume=resume, restart=restart)
        return Link(address, member, self._timeout_s, prefetch, self._keys, directory)

    def open(self) -> Welcome:
        """Wait for the Welcome of every owner of every server; return the first owner's."""
        started = self.clock()
        self._await(lambda session: session.served, started)
        firsts = [one.with_owner(0, self._places_of(one)) for one in self._servers(started)]
        nameless = self.member.rank >= 0 and not self.member.run  # the first owner names the run
        for greeted in (1, len(firsts)) if nameless else (len(firsts),):
            self._drive(firsts[:greeted], firsts[0])
            self._await(lambda session: session.welcome, started)
        others = [
            first.beside(owner, first.owners)
            for first in firsts
            for owner in range(first.owners)
            if owner != first.owner
        ]
        self._drive([*self.sessions, *others])
        self._await(lambda session: session.welcome, started)
        welcome = self.session.welcome
        assert welcome is not None
        self._begin(welcome)
        self.say()
        return welcome

    def _await(self, answered: Callable[[Session], object], started: float) -> None:
        """Wait for an answer to every session."""

        def lacking() -> Session | None:
            return next((session for session in self.sessions if not answered(session)), None)

        self._wait_to_open(lambda: lacking() is None, started, lambda: lacking() or self.session)

    def _wait_to_open(
        self,
        done: Callable[[], bool],
        started: float,
        about: Callable[[], Session] | None = None,
    ) -> None:
        self.wait(done, self._timeout_s, "a server to answer", about, started=started)

    def _places_of(self, session: Session) -> tuple[str, ...]:
        """Return the addresses of the owners of the server that a session has asked."""
        assert session.served is not None
        return places_of(session.served, self._driver.reached(session.address))

    def _servers(self, started: float) -> list[Session]:
        """Return the lookup at each server of the feed, by share, once there are all."""
        named = self.addresses[0]
        while True:
            with self.lock:
                by_share, missing = arranged(self.sessions), missing_shares(self.sessions)
            if not missing:
                return [by_share[share] for share in sorted(by_share)]
            there = shares_there(self.sessions)
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
            known = {session.address for session in self.sessions}
            if len(known) == 1:
                logger.warning("%s: %s; waiting for it", named, there)
            new = [Session(self.member, one, shares=0) for one in found if one not in known]
            self._drive([*self.sessions, *new])
            again_s = self.clock() + min(_LOOK_UP_S, left_s)
            self._wait_to_open(
                lambda at=again_s, before=missing: (  # type: ignore[misc]
                    self.clock() >= at or missing_shares(self.sessions) != before
                ),
                started,
            )

    def _begin(self, welcome: Welcome) -> None:
        """Make the trainer, once all owners have let it in."""
        member, known = self.member, self.session.properties
        lanes, across = known.get("order") == "lanes", known.get("across_batches", True)
        if member.order != "feed":
            text = f"order={member.order!r}: %s of feed {welcome.feed!r} %s; leave it out"
            if lanes:
                raise ValueError(text % ("the rows", "stay in lanes, which one owner has"))
            if not across:
                what = "end with their epoch, and any order mixes the epochs of its servers"
                raise ValueError(text % ("batches", what))
        with self.lock:
            self._number_owners(welcome.partitions)
            self.trainer = trainer = Trainer(
                welcome.partitions,
                self._owner_of,
                len(self.sessions),
                rank=member.rank,
                prefetch=self._prefetch.batches,
                lanes=lanes,
                chained=lanes and known.get("placement") == "server" and bool(known.get("states")),
                strict=known.get("shape") == "sequences" and not across,
                any_order=member.order == "any",
                explicit=member.explicit,
                lazy=known.get("shape") != "sequences",
            )
            member.trainer = trainer
            for session in self.sessions:
                if session.connected:
                    session.welcomed(trainer)

    def _number_owners(self, partitions: int) -> None:
        """Number the sessions by share and owner."""
        self.sessions = sorted(self.sessions, key=lambda one: (one.share, one.owner))
        owners = Counter(session.share for session in self.sessions)
        placement = Placement([owners[share] for share in sorted(owners)])
        self._owner_of = [*map(placement.owner_of, range(partitions))]
        for number, session in enumerate(self.sessions):
            session.number = number

    # The sessions

    @property
    def of_each_server(self) -> list[Session]:
        """One session with each server: the first that was opened where there is one server."""
        if self.session.shares == 1:
            return [self.session]
        return list({one.share: one for one in reversed(self.sessions)}.values())

    def _drive(self, sessions: list[Session], lead: Session | None = None) -> None:
        """Have these sessions alone, of which ``lead`` is the first to be opened."""
        with self.lock:
            self._driver.drive(sessions)
            self.sessions, self.session = sessions, lead or self.session

    def _regroup(self) -> list[Session]:
        """Open sessions with all owners of a server that restarted with another number of them."""
        sessions: list[Session] = []
        for share in sorted({session.share for session in self.sessions}):
            before = [session for session in self.sessions if session.share == share]
            known = next((session for session in before if session.regroups), None)
            if known is not None:
                owners = known.regrouped
                before = [known.beside(owner, owners) for owner in range(owners)]
                for session in before:
                    session.welcome = known.welcome
            sessions += before
        if not any(one is self.session for one in sessions):
            self.session = next(one for one in sessions if one.share == self.session.share)
        self.sessions = sessions
        self._number_owners(len(self._owner_of))
        if self.member.trainer is not None:
            self.trainer.regroup(self._owner_of, len(sessions))
            for session in sessions:
                session.greet()
        return self.sessions

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
        trainer = self.member.trainer
        # An owner that is there says of each partition, and of each epoch, that it is over.
        return (trainer is not None and trainer.ended) or all(
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

    def lost(self, known: Container[int]) -> list[tuple[int, int]]:
        """Return partition and token of each batch that was taken and is not ``known``."""
        with self.lock:
            return [
                (held.given.partition, token)
                for token, held in self.trainer.hands.items()
                if held.taken and token not in known
            ]

    def session_of(self, partition: int) -> Session:
        """Return the session with the owner of a partition."""
        return self.sessions[self._owner_of[partition]]

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
        accepts: Callable[[Held], bool] | None = None,
        none_yet: Callable[[], object] | None = None,
    ) -> Held | None:
        """Return the next batch; None when the feed has ended.

        ``accepts`` may leave it here, until states are saved.  ``none_yet`` is called while there
        is none.  Each may end the wait by an exception.
        """
        meter, trainer, looks = self.member.meter, self.trainer, 0
        if trainer.ready and (ready := self._take_ready(accepts)) is not None:
            return ready
        now = self.clock()
        meter.spends("blocked", now)
        if heard := trainer.asks and not trainer.ready:
            self._driver.hear()

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
        trainer = self.trainer
        held = trainer.take()
        if held is None:
            return None
        try:
            accepted = accepts is None or accepts(held)
        except BaseException:
            trainer.untake(held)
            raise
        if not accepted:
            trainer.untake(held)
            return None
        if self._prefetch.took(held.given.nbytes):
            trainer.set_prefetch(self._prefetch.batches)
        return held

    @property
    def _awaited(self) -> Session:
        """The session whose batch this trainer waits for."""
        return self.sessions[self.trainer.awaited or 0]

    def _take_ready(self, accepts: Callable[[Held], bool] | None) -> Held | None:
        """Take a batch that is here; None leaves it, or an error, to a wait."""
        with self.lock:
            if self.failure is not None or self._driver.closing or self.member.refused:
                return None
            held = self._next(accepts)
        if held is not None:
            self._say_soon(held)
        return held

    def _say_soon(self, held: Held, heard: bool = False) -> None:
        """Send what is due after a batch was taken; an exception, such as Ctrl-C, puts it back."""
        try:
            self._driver.say_soon(self.trainer.any_due, heard)
        except BaseException:
            self.untake(held)
            raise

    def untake(self, held: Held) -> None:
        """Put back the last batch taken, which was not used: it comes next."""
        with self.lock:
            self.trainer.untake(held)
            self._driver.tell()

    @property
    def _over(self) -> bool:
        """Whether the loop of this trainer ends here.

        A trainer that commits explicitly and holds all that it can get would wait for itself, or
        for another such trainer.  It may hold no more than ``max_credits`` of an owner, though.
        """
        trainer = self.trainer
        if self.ended:
            return True
        welcome = self.session.welcome
        most = 1 if welcome is None else welcome.max_credits
        return self.member.explicit and trainer.stuck and 0 < len(trainer.hands) < most

    def commit(self, token: int) -> None:
        """Send the commit of a batch soon."""
        with self.lock:
            held = self.trainer.hands.get(token)
            if held is not None and not self.trainer.commit(token):
                self.member.refused.append(StaleLease(f"{named(held.given)} {STALE}"))

    def give_back(self, token: int) -> None:
        with self.lock:
            if token in self.trainer.hands:
                self.trainer.give_back(token)

    def save(self, token: int, states: States | None) -> bool:
        """Commit a batch of segments, with its states if they do not stay here.

        Return False where another trainer got its rows.  In a loop of small steps the commit is
        sent with the request for the next batch.
        """
        with self.lock:
            counts = token in self.trainer.hands and self.trainer.commit(token, states)
            self._driver.tell()
        self._driver.say_soon(False)
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
        if self.session.shares == 1:
            return self.ask(snapshot())
        name = new_snapshot()
        taken = self.ask(snapshot(name))
        return taken if taken.code else self.ask(snapshot(name, whole=True))

    def settle(self, at_most_s: float = inf) -> None:
        """Wait until every commit was answered."""

        trainer = self.trainer

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
        driver, refused, over = self._driver, self.member.refused, False
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
                    raise _too_late(self, session, now, limit_s, what, slept_s)
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
            link = link.again(link.member.resume, link.member.restart)
        except BaseException:
            link.close()
            raise


def _too_late(
    link: Link, session: Session, now: float, timeout_s: float, what: str, slept_s: float
) -> HeadraceError:
    """Return the error of a wait that ran past ``timeout_s``, with the likely reason."""
    slept = f" (this process did not run for {slept_s:.0f} s more)" if slept_s >= 1 else ""
    waited = f"waited timeout={timeout_s:g} s{slept} for"
    silence, place, welcome = session.silence(now), session.where, session.welcome
    trainer = link.member.trainer
    if session.stopped:
        owed = 0 if trainer is None else sum(trainer.unanswered(o.number) for o in link.sessions)
        lost = f".  {owed} commits of this trainer have no answer: they may be lost" if owed else ""
        return ConnectionLost(
            f"the server at {place} was stopped and announced its return, and is not back; "
            f"{waited} {what}.  Start it again with the same address and state directory, or raise "
            f"timeout{lost}"
        )
    if welcome is None and session.waiting:
        return DeadlineExceeded(
            f"{waited} the feed at {place} to open; the server says: {session.waiting}"
        )
    if welcome is None:
        known = shares_there(link.sessions)
        return ConnectionLost(
            f"no server answered at {place} within timeout={timeout_s:g} s{slept}: "
            f"is it running, and is the address right?{known and f' ({known})'}{link.hint}"
        )
    if silence:
        return ConnectionLost(
            f"the server at {place} was lost: nothing was heard of it for {silence:.0f} s, and "
            f"this trainer {waited} {what}{link.hint}"
        )
    held, most = 0 if trainer is None else len(trainer.hands), welcome.max_credits
    each = "" if len(link.sessions) == 1 else " of each worker"
    full = f", as many as the server's max_credits={most} allows{each}" if held >= most else ""
    reason = f"the server says: {session.waiting}" if session.waiting else "no word of the server"
    return DeadlineExceeded(
        f"{waited} {what} of feed {welcome.feed!r} at {place}; {reason}; "
        f"this trainer holds {held} batches{full}{link.explain(now)}"
    )
