"""What an owner knows of its feeds, for somebody who asks: plain data, gathered now.

    desk, its dispatcher, its counters ─┐
    sessions of its trainers ───────────┴► feed_told() ─┐
    who is let in, and who was not ─────────────────────┴► answer to the supervisor

Nothing of it is kept up to date while nobody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headrace_proto.clock import AwakeClock

from .child import ParentPipe
from .desk import Desk
from .reception import Reception
from .sessions import Session, SessionTable

__all__ = ["MOST_FOUND", "MOST_TRAINERS", "Teller", "feed_told"]

#: Trainers that are told of, the first that came; of the others only how many there are.
MOST_TRAINERS = 256
_LONGEST_TEXT = 1000
#: Examples of one key that are told of.
MOST_FOUND = 64
#: So long partitions that are in user code are waited for; then they are told as unheard.
_PATIENCE_S = 3.0


def feed_told(desk: Desk, sessions: Iterable[Session], now: float) -> dict[str, Any]:
    """One feed; keys as in ``Server.stats``."""
    mine = sorted((s for s in sessions if s.feed == desk.name), key=lambda s: s.number)
    return {
        **desk.counters.told(),
        "state": desk.state(),
        "failure": list(desk.failure) if desk.failure is not None else None,
        "waiting": desk.describe(now)[:_LONGEST_TEXT],
        "standing": desk.dispatcher.standing(),
        "partitions": desk.partitions_told(),
        "trainers": [_trainer(desk, session, now) for session in mine[:MOST_TRAINERS]],
        "trainers_more": len(mine[MOST_TRAINERS:]),
    }


def _trainer(desk: Desk, session: Session, now: float) -> dict[str, Any]:
    tally = session.tally
    return {
        "trainer": session.number,
        "nonce": session.nonce.hex(),  # the same at all owners
        "host": session.host,
        "name": session.name,
        "local": session.local,
        "silent_s": round(max(0.0, now - session.seen), 3),
        **desk.dispatcher.standing_of(session.number),
        "batches": tally.batches,
        "rows": tally.rows,
        "bytes": tally.nbytes,
        "committed": tally.committed,
        "stale": tally.stale,
        "refused": dict(tally.refused),
        "blocked_s": round(tally.blocked_s, 3),
        "busy_s": round(tally.busy_s, 3),
    }


class Teller:
    """Answers what the supervisor asks of one owner."""

    def __init__(
        self,
        desks: Mapping[str, Desk],
        sessions: SessionTable,
        reception: Reception,
        pipe: ParentPipe,
        clock: AwakeClock,
        seek: Callable[[str, bytes, Callable[[list[Any]], None]], None],
    ) -> None:
        """``seek(feed, key, tell)`` has examples of a key told, when the partitions have time."""
        self._clock = clock
        self._desks = desks
        self._sessions = sessions
        self._reception = reception
        self._pipe = pipe
        self._seek = seek
        self._sought: dict[int, tuple[str, float]] = {}  # by request: feed, and how long it waits

    def tell(self, request: int) -> None:
        """All of it."""
        now, present = self._clock(), self._sessions.present()
        feeds = {name: feed_told(desk, present, now) for name, desk in self._desks.items()}
        access = self._reception.access()
        here = dict(self._reception.refused_here())
        self._pipe.tell("answer", request=request, feeds=feeds, access=access, refused_here=here)

    def tell_users(self, request: int, feed: str) -> None:
        """Who uses a feed."""
        over = self._desks[feed].over
        users = [s.described for s in self._sessions.of_feed(feed) if s.uses and not over]
        self._pipe.tell("answer", request=request, users=users)

    def seek(self, request: int, feed: str, key: bytes) -> None:
        """Where the examples of a key are, and in whose hands."""
        if self._desks[feed].over:
            self._tell_found(request, feed, [])
            return
        self._sought[request] = feed, self._clock() + _PATIENCE_S
        self._seek(feed, key, lambda found: self._found(request, found))

    def _found(self, request: int, found: list[Any]) -> None:
        feed, _ = self._sought.pop(request, ("", 0.0))
        if feed:
            self._tell_found(request, feed, found[:MOST_FOUND])

    def tell_late(self) -> None:
        """Answer for partitions that have not answered in time."""
        if self._sought:
            now = self._clock()
            for request, (feed, until) in list(self._sought.items()):
                if until <= now:
                    del self._sought[request]
                    self._tell_found(request, feed, [], list(self._desks[feed].partitions))

    def _tell_found(
        self, request: int, feed: str, found: list[Any], unheard: Sequence[int] = ()
    ) -> None:
        now = self._clock()
        told = [self._desks[feed].example_told(example, now) for example in found]
        self._pipe.tell("answer", request=request, found=told, unheard=unheard)
