"""Finds the servers of a feed, and opens a session with each of their owners.

    each address         Hello ─► ServedShare   which share its server has, and where its owners are
                         is the feed complete?
    ranks without a run  Hello to the first owner of the first server ─► Welcome, with the run
    then                 Hello to the first owner of each server ─► Welcome
                         Hello to the others

The trainer opens no session before it knows that the servers together have the whole feed, by what
each answers of its share.  A server may have several addresses; it is known by the name that it
gives itself.  A name that stands for several addresses is looked up again until every share is
found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from headrace_proto.errors import ConnectionLost
from headrace_proto.messages import ServedShare

from .places import looked_up
from .session import Session

if TYPE_CHECKING:
    from .link import Link

logger = logging.getLogger("headrace")

#: Time between two looks at what a name stands for, while a share is missing.
_LOOK_UP_S = 1.0


class Discovery:
    """Opens the sessions of a link, all within one timeout."""

    def __init__(self, link: Link, timeout_s: float) -> None:
        self._link = link
        self._timeout_s = timeout_s
        self._started = link.clock()

    def run(self) -> None:
        """Open a session with each owner of the feed."""
        self._await(lambda session: session.served or session.welcome)
        if self._link.session.welcome is None:
            self._greet(self._servers())
        for first in self._link.sessions:
            self._add_owners(first)
        self._await(lambda session: session.welcome)

    def _await(self, answered: Callable[[Session], object]) -> None:
        """Wait for an answer to every session."""
        link = self._link

        def lacking() -> Session | None:
            return next((session for session in link.sessions if not answered(session)), None)

        self._wait(lambda: lacking() is None, lambda: lacking() or link.session)

    def _wait(self, done: Callable[[], object], lacking: Callable[[], Session]) -> None:
        self._link.wait(done, self._timeout_s, "a server to answer", lacking, started=self._started)

    @property
    def _left_s(self) -> float:
        return max(0.0, self._started + self._timeout_s - self._link.clock())

    def _servers(self) -> list[Session]:
        """Return the lookup at each server of the feed, by share, once there are all."""
        link = self._link
        while True:
            with link.lock:
                by_share, missing = arranged(link.sessions), missing_shares(link.sessions)
            if not missing:
                return [by_share[share] for share in sorted(by_share)]
            self._look_up(missing)

    def _look_up(self, missing: list[int]) -> None:
        """Ask the addresses that the name stands for by now; raise where there is no name."""
        link = self._link
        named = link.addresses[0]
        found = looked_up(named) if len(link.addresses) == 1 else []
        if not found:
            raise ValueError(
                f"address={link.address!r}: {shares_there(link.sessions)}.  Give the addresses of "
                "all servers, in a list or with commas between them"
            )
        if not self._left_s:
            raise ConnectionLost(
                f"waited timeout={self._timeout_s:g} s for all servers at {named}, which stands "
                f"for {', '.join(found)}: {shares_there(link.sessions)}"
            )
        known = {session.address for session in link.sessions}
        if len(known) == 1:
            logger.warning("%s: %s; waiting for it", named, shares_there(link.sessions))
        for address in found:
            if address not in known:
                link.keep([*link.sessions, Session(link.member, address, shares=0)])
        again_s = link.clock() + min(_LOOK_UP_S, self._left_s)
        self._wait(
            lambda: link.clock() >= again_s or missing_shares(link.sessions) != missing,
            lambda: link.session,
        )

    def _greet(self, servers: list[Session]) -> None:
        """Open a session with an owner of each server."""
        link = self._link
        with link.lock:
            firsts = [server.with_owner(0, link.place_of(server)) for server in servers]
        nameless = link.member.rank >= 0 and not link.member.run  # the first owner names the run
        for greeted in (1, len(firsts)) if nameless else (len(firsts),):
            link.keep(firsts[:greeted], firsts[0])
            self._await(lambda session: session.welcome)

    def _add_owners(self, first: Session) -> None:
        """Greet the other owners of a server, of which this one has let the trainer in."""
        welcome = first.welcome
        assert welcome is not None
        others = (owner for owner in range(welcome.owners) if owner != welcome.owner)
        more = [first.beside(owner, welcome.owners) for owner in others]
        self._link.keep([*self._link.sessions, *more])


def arranged(sessions: Iterable[Session]) -> dict[int, Session]:
    """Return one session for each share for which a server has answered.

    Where a server has two addresses, the later one counts.  ValueError names the differences, and
    where.
    """
    by_share: dict[int, Session] = {}
    first: Session | None = None
    for session in sessions:
        served = session.served
        if served is None:
            continue
        first = first or session
        _check_alike(first, session)
        other = by_share.get(served.share)
        if other is not None and other.served is not None and other.served.server != served.server:
            raise ValueError(
                f"share {served.share}/{served.shares} of feed {served.feed!r} is at "
                f"{other.address} and at {session.address}, which are two servers: give the "
                "address of one of them"
            )
        by_share[served.share] = session
    return by_share


def _check_alike(first: Session, other: Session) -> None:
    """Raise ValueError where two servers do not serve shares of one feed."""
    a, b = first.served, other.served
    assert a is not None and b is not None
    here, there = f"{first.address} serves feed {a.feed!r}", f"{other.address} serves"
    if a.feed != b.feed:
        raise ValueError(f"{here} and {there} feed {b.feed!r}: they are no servers of one feed")
    if a.shares != b.shares:
        raise ValueError(
            f"{here} as one of {a.shares} servers and {there} it as one of {b.shares}: start all "
            "servers with share=i/n of the same n"
        )
    if a.partitions != b.partitions:
        raise ValueError(
            f"{here} with {a.partitions} partitions and {there} it with {b.partitions}: start all "
            "servers with the same partitions="
        )
    parts = _unlike(a, b)
    if parts:
        raise ValueError(
            f"{first.address} and {other.address} serve different pipelines as feed {a.feed!r}: "
            f"they differ in {', '.join(parts)}"
        )


def _unlike(a: ServedShare, b: ServedShare) -> list[str]:
    """Return the names of the parts in which two declarations differ."""
    here, there = (one.declaration if isinstance(one.declaration, dict) else {} for one in (a, b))
    return [part for part in sorted({*here, *there}) if here.get(part) != there.get(part)]


def missing_shares(sessions: Iterable[Session]) -> list[int]:
    """Return the shares for which no server has answered; empty where none has answered at all."""
    served = [one.served for one in sessions if one.served is not None]
    there = {one.share for one in served}
    shares = max((one.shares for one in served), default=0)
    return [share for share in range(shares) if share not in there]


def shares_there(sessions: Sequence[Session]) -> str:
    """Return which shares are where and which are missing, in words; empty where none is known."""
    served = [(one.address, one.served) for one in sessions if one.served is not None]
    if not served:
        return ""
    _, one = served[0]
    there = ", ".join(f"share {s.share}/{s.shares} is at {address}" for address, s in served)
    missing = ", ".join(map(str, missing_shares(sessions)))
    there = f"of feed {one.feed!r} {there}"
    return f"{there}; missing: share {missing} of {one.shares}" if missing else there
