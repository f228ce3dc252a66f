"""In which order a trainer takes a feed's batches: the feed's own (``merge.py``), or any.

order of the session   "feed"          Alone, ByNumber, InTurn, ByLanes
                       "any"           AsTheyCome   each batch that is there, of owners in turn
                       "local-first"   LocalFirst   those of this host before all others

this host's owners ══ shared memory ══► as many as come ahead
all other owners   ── the network ────► one of each, once this host's have let a trainer wait;
                                        there it yields to trainers of that host
"""

from __future__ import annotations

from collections.abc import Sequence

from .leases import Received
from .merge import (
    Alone,
    ByLanes,
    ByLanesWithinEpochs,
    ByNumber,
    InTurn,
    InTurnWithinEpochs,
    Merge,
    is_able,
)
from .session import Session

#: The arguments of ``connect`` that let batches come in any order.
ASKED_AS = {"any": "order='any'", "local-first": "placement='local-first'"}
#: Time for which a trainer waits for its own host before each batch of another: some round trips.
_PATIENCE_S = 0.005


class AsTheyCome(Merge):
    """Take any batch; wait for an owner whose server is away only once no other has batches."""

    def __init__(self, sessions: Sequence[Session], prefetch: int) -> None:
        self._turn = 0  # the owner that comes first
        super().__init__(sessions, prefetch)

    def _rotated(self) -> list[Session]:
        return [*self._sessions[self._turn :], *self._sessions[: self._turn]]

    def _next(self) -> Session | None:
        there = (session for session in self._rotated() if session.ready and session.connected)
        return next(there, None)

    def _wanted(self) -> list[Session]:
        able = [one for one in self._rotated() if is_able(one) and one.connected]
        if able:
            return able if self._prefetch else able[:1]
        return [session for session in self._sessions if not session.finished]

    def _took(self, session: Session, received: Received) -> None:
        owner = self.placement.owner_of(received.delivery.partition)
        self._turn = (owner + 1) % len(self._sessions)


class LocalFirst(AsTheyCome):
    """Take batches of this host's owners first, and those of others where these are too slow."""

    look_s = _PATIENCE_S
    _here_s = 0.0  # waited since a batch of another host was taken

    def waited(self, waited_s: float) -> None:
        self._here_s += max(0.0, waited_s - self._waited_s)
        super().waited(waited_s)

    def _here(self) -> list[Session]:
        """Return the owners on this host that can deliver."""
        return [
            one
            for one in self._rotated()
            if one.memory is not None and is_able(one) and one.connected
        ]

    def _next(self) -> Session | None:
        there = (one for one in self._rotated() if one.ready and one.connected)
        return min(there, key=lambda one: one.memory is None, default=None)

    def _wanted(self) -> list[Session]:
        here = self._here()
        if not here:
            return super()._wanted()
        wanted = here if self._prefetch else here[:1]
        if self._here_s < _PATIENCE_S:
            return wanted
        others = (one for one in self._rotated() if one.memory is None)
        return [*wanted, *(one for one in others if is_able(one) and one.connected)]

    def _took(self, session: Session, received: Received) -> None:
        if session.memory is None:
            self._here_s = 0.0
        super()._took(session, received)

    def _share(self) -> None:
        here = self._here()
        for session in self._sessions:
            yields = bool(here) and session.memory is None
            if session.yields != yields:
                session.yields = yields
                session.hurry()
            if here:
                session.prefetch = 0 if yields else -(-self._prefetch // len(here))
        if not here:
            super()._share()


def merge_of(sessions: Sequence[Session], first: Session) -> Merge:
    """Return the order in which a feed's batches are taken; ``first`` was opened first.

    ValueError where a trainer that takes any order would lose its lanes, or mix epochs.
    """
    prefetch, welcome = first.prefetch, first.welcome
    properties = {} if welcome is None else welcome.properties
    lanes, across = properties.get("order") == "lanes", properties.get("across_batches", True)
    if first.order != "feed" and welcome is not None:
        text = f"{ASKED_AS[first.order]}: %s of feed {welcome.feed!r} %s; leave it out"
        if lanes:
            raise ValueError(text % ("the rows", "stay in lanes, which one owner has"))
        if not across:
            what = "end with their epoch, and any order mixes the epochs of its servers"
            raise ValueError(text % ("batches", what))
    if len(sessions) == 1 or welcome is None:
        return Alone(sessions, prefetch)
    if first.order != "feed":
        return (AsTheyCome if first.order == "any" else LocalFirst)(sessions, prefetch)
    partitions = welcome.partitions
    if properties.get("shape") != "sequences" or first.rank >= 0:
        return ByNumber(sessions, prefetch)
    if lanes:
        by_lanes = ByLanes if across else ByLanesWithinEpochs
        return by_lanes(sessions, prefetch, partitions, first.partitions.start)
    return (InTurn if across else InTurnWithinEpochs)(sessions, prefetch, partitions)
