"""The sessions of one trainer with all owners of a feed, on all its servers, and their order.

    server of share 0   session with owner 0, owner 1, …  ──┐
    server of share 1   session with owner 0, …           ──┴► one list, by (share, owner) ─► Merge

A session is added when its server is found, and others take its place when its server starts again
with another number of owners.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from headrace_proto.errors import HeadraceError

from .any_order import merge_of
from .driver import Driver
from .merge import Merge
from .prefetch import Prefetch
from .session import Session

if TYPE_CHECKING:
    from .credentials import Keys
    from .ray import RayDirectory


class Owners:
    """The sessions with all owners, which are driven."""

    def __init__(
        self,
        address: str,
        session: Session,
        prefetch: Prefetch,
        keys: Keys | None,
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
        session.prefetch = 0  # until the order of the owners is known
        others = [session.elsewhere(address) for address in self.addresses[1:]]
        if others:
            session.shares = 0
        self._driver = Driver(address, session, keys, others)
        self.sessions = self._driver.sessions  # by the number of the owner, see placement.py
        self.lock = self._driver.lock
        self.clock = self._driver.clock
        self._prefetch = prefetch
        self._merge: Merge = merge_of([session], session)
        self._owner_of = self._merge.placement.owner_of
        self._driver.regroup = self._regroup
        if directory is not None:
            self._driver.moved = directory.moved

    @property
    def of_each_server(self) -> list[Session]:
        """One session with each server: the first that was opened where there is one server."""
        if self.session.shares == 1:
            return [self.session]
        return list({one.share: one for one in reversed(self.sessions)}.values())

    def add(self, session: Session) -> None:
        """Add a session with another owner or server."""
        self._driver.add(session)
        with self.lock:
            self.sessions = self._driver.sessions

    def keep(self, sessions: list[Session], lead: Session) -> None:
        """Have these sessions alone, of which ``lead`` is the first to be opened."""
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
            owners = max(session.regrouped for session in before)
            sessions += self._regrouped(before, owners) if owners else before
        if not any(one is self.session for one in sessions):
            self.session = next(one for one in sessions if one.share == self.session.share)
        self.sessions = sessions
        self.order()
        return sessions

    def _regrouped(self, before: list[Session], owners: int) -> list[Session]:
        """Return sessions with the new owners in place of those with the server's earlier ones."""
        sessions = [before[0].beside(owner) for owner in range(owners)]
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
