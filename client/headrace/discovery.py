"""Finds the servers of a feed, and opens a session with each of their owners.

    each address         Hello ─► ServedShare   which share its server has, and where its owners are
                         is the feed complete?
    then                 Hello to the first owner of each server ─► Welcome
                         Hello to the others

The trainer opens no session before it knows that the servers together have the whole feed.  A name
that stands for several addresses is looked up again until every share is found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace_proto.errors import ConnectionLost

from .session import Session
from .shares import arranged, looked_up, missing_shares, shares_there

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
                link.add(Session(link.member, address, shares=0))
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
        link.keep(firsts, firsts[0])
        self._await(lambda session: session.welcome)

    def _add_owners(self, first: Session) -> None:
        """Greet the other owners of a server, of which this one has let the trainer in."""
        welcome = first.welcome
        assert welcome is not None
        for owner in range(welcome.owners):
            if owner != welcome.owner:
                self._link.add(first.beside(owner, welcome.owners))
