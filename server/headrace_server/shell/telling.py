"""What a router or an owner knows of its feeds, for somebody who asks: plain data, gathered now.

    desk, its dispatcher, its counters ─┐
    sessions of its trainers ───────────┴► feed_told() ─┐
    who is let in, and who was not ─────────────────────┴► answer to the supervisor

Nothing of it is kept up to date while nobody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace_proto.clock import AwakeClock

from .child import ParentPipe
from .config import RunConfig
from .desk import Desk
from .inspections import Inspections
from .reception import Reception
from .sessions import Session, SessionTable
from .worker_messages import Seek, Sought

__all__ = ["MOST_TRAINERS", "Teller", "feed_told"]

#: Trainers that are told of, the first that came; of the others only how many there are.
MOST_TRAINERS = 256
_LONGEST_TEXT = 1000


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
    """Answers what the supervisor asks of one router."""

    def __init__(
        self,
        config: RunConfig,
        desks: Mapping[str, Desk],
        sessions: SessionTable,
        reception: Reception,
        pipe: ParentPipe,
        clock: AwakeClock,
    ) -> None:
        self._clock = clock
        self._config = config
        self._desks = desks
        self._sessions = sessions
        self._reception = reception
        self._pipe = pipe
        self._inspections = Inspections()

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

    def seek(self, order: Mapping[str, Any], workers: list[int]) -> Seek:
        """What these workers are to be asked, for somebody who asks where an example is."""
        feed, request = order["feed"], order["request"]
        asked = [] if self._desks[feed].over else workers
        self._inspections.begin(request, feed, asked, self._clock())
        return Seek(feed, request, bytes.fromhex(order["key"]))

    def found(self, message: Sought) -> None:
        """A worker has answered."""
        self._inspections.answer(message)

    def tell_found(self) -> None:
        """What has come to an end of it."""
        if not self._inspections:
            return
        now = self._clock()
        for asked in self._inspections.take_done(now):
            desk, worker_of = self._desks[asked.feed], self._config.worker_of
            late = [p for p in desk.partitions if worker_of(p) in asked.unheard]
            found = [desk.example_told(example, now) for example in asked.found]
            self._pipe.tell("answer", request=asked.request, found=found, unheard=late)
