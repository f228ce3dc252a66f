"""A trainer's link to the owners of one feed: its operations, over all sessions together.

    trainer's thread ── take, commit, ask ─► Trainer ◄──► Session ◄── messages ──► connection
                             │                 one          of each owner            of each
                             └─► Waits ─► Wire, which has the threads and the connections

    open: Finding asks which servers there are, and where their owners are
          ranks without a run  Hello to the first owner of the first server ─► Welcome, with the run
          then                 Hello to the first owner of each server ─► Welcome
                               Hello to the others

A feed has one owner or several, on one server or several, and a trainer a session with each.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from headrace_proto.credentials import Keys
from headrace_proto.errors import (
    ConnectionLost,
    FeedClosed,
    FeedRewound,
    ForkedProcess,
    HeadraceError,
)
from headrace_proto.messages import Answered, Stats
from headrace_proto.token import new_snapshot

from ..machine.prefetch import Prefetch
from ..machine.requests import Request, snapshot
from ..machine.trainer import Held, Trainer
from .connection import check_files
from .exchanging import Wire
from .finding import OPENS, Finding
from .places import Server
from .session import Member, Session, States
from .waiting import Waits

if TYPE_CHECKING:
    from ..ray import RayDirectory

#: Raised to a rank that goes on after the refusal of a commit: it might wait for ever.
_TORN = (
    "this rank is out of step with the others: a batch that it had trained did not count, and goes "
    "out again.  Stop all ranks, and start them again together from one checkpoint"
)


_links: weakref.WeakSet[Link] = weakref.WeakSet()


def _forked() -> None:
    """Stop a fork of this process from using its parent's links."""
    for link in _links:
        link.usable = False


os.register_at_fork(after_in_child=_forked)


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
        self.address, self.member = address, member
        self._timeout_s, self._keys, self._directory = timeout_s, keys, directory
        self._prefetch = prefetch or Prefetch(0)
        self._pid = os.getpid()
        self.usable = True  # until the trainer leaves; not in a fork of this process
        _links.add(self)
        self._counted_at = 0.0  # until when waits are counted
        addresses = address.split(",")
        check_files(len(addresses))
        servers = [Server(one) for one in addresses]
        self.wire = Wire(address, [Session(member, server) for server in servers], keys)
        self.lock, self.clock = self.wire.lock, self.wire.clock
        self._finding = Finding(servers, member, self.wire, keys, directory)
        self.waits = Waits(self.wire, member, lambda: self._finding.servers)
        self.wire.start(self._finding.look)

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
        finding, hello = self._finding, self.member.hello
        finding.find(self.address, self.waits, self._timeout_s, started)
        with self.lock:
            finding.number()
            self.member.trainer = Trainer(
                len(finding.owner_of),
                finding.owner_of,
                len(self.sessions),
                rank=hello.rank,
                prefetch=self._prefetch.batches,
                any_order=self.member.order == "any",
                explicit=self.member.explicit,
            )
        if hello.rank >= 0 and not hello.run:
            self._greet(lambda: self.sessions[:1], started)  # the first owner names the run
        self._greet(lambda: self.of_each_server, started)
        self._check_order()
        self._greet(lambda: self.sessions, started)
        self.wire.exchange()

    def _greet(self, sessions: Callable[[], list[Session]], started: float) -> None:
        """Greet these owners, and wait until all have let this trainer in."""
        self.wire.connect(sessions())
        self.waits.wait(
            lambda: all(session.welcome for session in sessions()),
            self._timeout_s,
            OPENS,
            lambda: next(session for session in sessions() if not session.welcome),
            started=started,
        )

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
    def sessions(self) -> list[Session]:
        """With each owner, by its number."""
        return self.wire.sessions

    @property
    def session(self) -> Session:
        """The session that was opened first: with the first owner of the first server."""
        return self.sessions[0]

    @property
    def of_each_server(self) -> list[Session]:
        """The session with the first owner of each server."""
        return [session for session in self.sessions if not session.owner]

    def session_of(self, partition: int) -> Session:
        """Return the session with the owner of a partition."""
        return self.wire.sessions[self._finding.owner_of[partition]]

    # All sessions together

    @property
    def ended(self) -> bool:
        """Whether the feed has ended for this trainer: its own commits were answered too."""
        sessions = self.wire.sessions
        # An owner that is there says of each partition, and of each epoch, that it is over.
        return self.member.trainer.ended or (
            not sessions[0].connected and all(one.ended and not one.connected for one in sessions)
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
        """Return the batches that were taken and that the loop does not have, after Ctrl-C."""
        with self.lock:
            trainer = self.member.trainer
            trainer.recount()
            return [one for one in trainer.hands.values() if one.taken and not one.shown]

    # Batches

    def abandon(self) -> None:
        """Leave a feed whose object was dropped without close, in the process that connected."""
        if os.getpid() == self._pid:
            self.close()

    def leave(self) -> None:
        """Refuse further calls of the trainer, which leaves the feed."""
        self.usable, self.waits.left = False, True

    def check_usable(self) -> None:
        """Raise ForkedProcess or FeedClosed where this link is not usable any more."""
        if self.usable:
            return
        if os.getpid() != self._pid:
            raise ForkedProcess(
                f"this feed was connected in process {self._pid} and is used in its fork "
                f"{os.getpid()}: connect in the process that uses it (in a torch DataLoader: in "
                "the dataset's __iter__, or use num_workers=0 and let headrace do the reading)"
            )
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
        member = self.member
        if member.trainer.ready:
            with self.lock:  # a wait raises errors
                fault = member.failure is not None or self.wire.closing or member.refused
                held = None if fault else self._next(accepts)
                due = held is not None and member.trainer.any_due
            if held is not None:
                if due:
                    self._send(held)
                return held
        return self._await(accepts, none_yet)

    def _await(
        self, accepts: Callable[[Held], bool] | None, none_yet: Callable[[], object] | None
    ) -> Held | None:
        """Wait for the next batch, which may be at the connection already."""
        meter, slept, looks, now = self.member.meter, self.wire.slept, 0, self.clock()
        meter.spends("blocked", now)
        trainer = self.member.trainer
        trainer.waits = True

        def taken() -> Held | None:
            nonlocal looks
            looks += 1
            held = self._next(accepts) if trainer.ready or trainer.torn else None
            if held is None:
                if none_yet is not None:
                    none_yet()
                if looks > 1:
                    self._awaited.awaited_s += self.waits.looked_at - self._counted_at
                self._counted_at = self.waits.looked_at
            return held

        held: Held | None = None
        try:
            held = self.waits.wait(
                taken, self._timeout_s, "a batch", lambda: self._awaited, self._over, started=now
            )
        finally:
            meter.spends("busy" if held is not None else "", self.waits.looked_at)
        prefetch = self._prefetch
        if prefetch.auto and self.wire.slept != slept and prefetch.waits(self.session.welcome):
            with self.lock:
                trainer.set_prefetch(prefetch.batches)
        if held is not None and looks == 1:  # no message was sent meanwhile
            with self.lock:
                due = trainer.any_due
            if due:
                self._send(held)
        return held

    def _next(self, accepts: Callable[[Held], bool] | None) -> Held | None:
        """Take the next batch, if it is there and accepted.  The caller holds the lock."""
        if self.member.trainer.torn:
            raise FeedRewound(_TORN)
        held, prefetch = self.member.trainer.take(accepts), self._prefetch
        if held is not None and prefetch.auto and prefetch.took(held.given.nbytes):
            self.member.trainer.set_prefetch(prefetch.batches)
        return held

    @property
    def _awaited(self) -> Session:
        """The session whose batch this trainer waits for."""
        return self.sessions[self.member.trainer.awaited or 0]

    def _send(self, held: Held) -> None:
        """Send what is due after a batch was taken; an exception, such as Ctrl-C, puts it back."""
        try:
            self.wire.exchange()
        except BaseException:
            self.untake(held)
            raise

    def untake(self, held: Held) -> None:
        """Put back the last batch taken, which was not used: it comes next."""
        with self.lock:
            self.member.trainer.untake(held)
            self.wire.notify()

    def _over(self) -> bool:
        """Whether the loop of this trainer ends here.

        A trainer that commits explicitly and holds all that it can get would wait for itself, or
        for another such trainer.  One that may hold no more waits, though.
        """
        return self.ended or (self.member.explicit and self.member.trainer.stuck)

    def commit(self, token: int, states: States | None = None) -> bool:
        """Commit a batch, with its states if they do not stay here, with the next request.

        Return False where another trainer got its rows.
        """
        with self.lock:
            self.wire.notify()
            return self.member.trainer.commit(token, states)

    def send_due(self) -> None:
        """Send messages that are due; commits may wait for the next request, or for a moment."""
        with self.lock:
            if self.member.trainer.any_due:
                self.wire.exchange()

    def give_back(self, token: int) -> None:
        with self.lock:
            if token in self.member.trainer.hands:
                self.member.trainer.give_back(token)

    def ask(
        self, request: Request, at_most_s: float = inf, of: Iterable[Session] | None = None
    ) -> Answered:
        """Send a request to the server, and wait for the answer.

        ``of``: sessions with the owners to ask; by default those that the request's kind needs.
        """

        def sent() -> list[Session]:
            every = self.sessions if request.of_each_owner else self.of_each_server
            asked = every if of is None else list(of)
            with self.lock:
                for session in asked:
                    session.requests.ask(request)
            return asked

        asked = sent()

        def answer_of(session: Session) -> Answered | None:
            answer = session.requests.answer_to(request)
            if answer is None and session.ended and session.welcome is not None:
                return request.at_end
            return answer

        def answers() -> list[Answered] | None:
            nonlocal asked
            if any(session not in self.sessions for session in asked):
                if request.kind is Stats:  # which changes nothing
                    asked = sent()
                    return None
                raise ConnectionLost(
                    f"the server at {self.address} was started again with {len(self.sessions)} "
                    f"owners while this trainer waited for the answer to {request.call}: ask again"
                )
            found = [answer for session in asked if (answer := answer_of(session)) is not None]
            return found if len(found) == len(asked) else None

        def lacking() -> Session:
            return next(session for session in asked if answer_of(session) is None)

        answered: list[Answered] = self.waits.wait(
            answers,
            min(self._timeout_s, at_most_s),
            f"the answer to {request.call}",
            lacking,
            raise_refused=request.tells_refusals,
        )
        return request.joined(answered)

    def snapshot(self) -> Answered:
        """Have every server store its share of the feed's state; the answer has the token."""
        if len(self._finding.servers) == 1:
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
            self.waits.wait(
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

    def close(self) -> None:
        """Leave the feed, give batches back, and end the thread.  Nothing is sent from now on."""
        self.wire.close()


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
