"""In which order a trainer takes a feed's batches: the feed's own (``merge.py``), or any.

order of the session   "feed"   Alone, ByNumber, InTurn, ByLanes
                       "any"    AsTheyCome   each batch that is there, of owners in turn
"""

from __future__ import annotations

from collections.abc import Sequence

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
from .session import Received, Session


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


def merge_of(sessions: Sequence[Session], first: Session, before: Merge | None = None) -> Merge:
    """Return the order in which a feed's batches are taken; ``first`` was opened first.

    ``before``: the order until now, where a server restarted with another number of owners.
    ValueError where a trainer that takes any order would lose its lanes, or mix epochs.
    """
    prefetch, welcome = first.prefetch, first.welcome
    properties = {} if welcome is None else welcome.properties
    lanes, across = properties.get("order") == "lanes", properties.get("across_batches", True)
    if first.order != "feed" and welcome is not None:
        text = f"order={first.order!r}: %s of feed {welcome.feed!r} %s; leave it out"
        if lanes:
            raise ValueError(text % ("the rows", "stay in lanes, which one owner has"))
        if not across:
            what = "end with their epoch, and any order mixes the epochs of its servers"
            raise ValueError(text % ("batches", what))
    if len(sessions) == 1 or welcome is None:
        return Alone(sessions, prefetch)
    if first.order != "feed":
        return AsTheyCome(sessions, prefetch)
    partitions = welcome.partitions
    if properties.get("shape") != "sequences" or first.rank >= 0:
        return ByNumber(sessions, prefetch)
    if lanes:
        by_lanes = ByLanes if across else ByLanesWithinEpochs
        return by_lanes(sessions, prefetch, partitions, before)
    return (InTurn if across else InTurnWithinEpochs)(sessions, prefetch, before)
