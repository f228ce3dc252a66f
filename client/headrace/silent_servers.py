"""Servers that fall silent: their sessions greet them again, and the log names the absent ones.

silent for 2.5 heartbeats ─► the session is lost, and says Hello
silent for 10 s           ─► a line in the log; another one when the server is back
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from .session import Session

logger = logging.getLogger("headrace")

#: Seconds of silence after which the log names a server.  A worker, or a server that restarts
#: quickly, is back sooner.
_AWAY_S = 10.0


class SilentServers:
    """The owners of one feed that are away.  The caller holds the lock of the sessions."""

    def __init__(self) -> None:
        self._away: set[tuple[str, int]] = set()  # by address and owner

    def judge(self, sessions: Collection[Session], now: float) -> None:
        """Lose sessions that were silent for too long; log a server that goes and comes back."""
        # A server may come back with fewer owners, or at another address.
        self._away &= {(session.address, session.owner) for session in sessions}
        for session in sessions:
            silent = session.silence(now)
            if silent and session.connected:
                session.lose()
            elif session.connected and self._away:
                self._back(session)
            ended = session.stopped or session.finished or session.failure is not None
            if silent > _AWAY_S and session.welcome is not None and not ended:
                self._gone(session, silent)

    def _gone(self, session: Session, silent: float) -> None:
        if all(address != session.address for address, _ in self._away):
            logger.warning(
                "nothing was heard of the server at %s for %.0f s: trying again",
                session.where,
                silent,
            )
        self._away.add((session.address, session.owner))

    def _back(self, session: Session) -> None:
        one = (session.address, session.owner)
        if one in self._away:
            self._away.remove(one)
            if all(address != session.address for address, _ in self._away):
                logger.warning("the server at %s is back", session.where)
