"""The status of an owner's feeds as plain data, gathered when the supervisor asks.

    desk, its dispatcher, its counters ─┐
    sessions of its trainers ───────────┴► feeds_status() ─► answer to the supervisor

Nothing here is kept up to date between two questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..process.config import MOST_TRAINERS
from .desk import Desk
from .sessions import Session, SessionTable

__all__ = ["example_status", "feed_status", "feeds_status", "users_of"]

_LONGEST_TEXT = 1000


def feed_status(desk: Desk, sessions: Iterable[Session], now: float) -> dict[str, Any]:
    """Return the status of one feed; keys as in ``Server.stats``."""
    mine = sorted((s for s in sessions if s.feed == desk.name), key=lambda s: s.number)
    return {
        **desk.counters.totals(),
        "sent": desk.counters.sent(session.tally for session in mine),
        "state": desk.state(),
        "failure": list(desk.failure) if desk.failure is not None else None,
        "waiting": desk.describe(now)[:_LONGEST_TEXT],
        "standing": desk.dispatcher.standing(),
        "partitions": desk.partitions_status(),
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
        "wire_batches": tally.wire_batches,
        "wire_bytes": tally.wire_bytes,
        "committed": tally.committed,
        "stale": tally.stale,
        "refused": dict(tally.refused),
        "blocked_s": round(tally.blocked_s, 3),
        "busy_s": round(tally.busy_s, 3),
    }


def feeds_status(
    desks: Mapping[str, Desk], sessions: SessionTable, now: float
) -> dict[str, dict[str, Any]]:
    """Return the status of all feeds by name."""
    present = sessions.present()
    return {name: feed_status(desk, present, now) for name, desk in desks.items()}


def users_of(desk: Desk, sessions: SessionTable) -> list[str]:
    """Return the trainers that use a feed, for people."""
    return [s.described for s in sessions.of_feed(desk.name) if s.uses and not desk.over]


def example_status(desk: Desk, found: list[Any], now: float) -> dict[str, Any]:
    """Return where an example is, and which trainer has it."""
    partition, epoch, segment, segments, where, number = found
    place = {"partition": partition, "epoch": epoch, "segment": segment, "segments": segments}
    if where != "out":
        return {**place, "where": where}
    holder = desk.dispatcher.holder(partition, number)
    if holder is None:
        return {**place, "where": "in a batch that nobody has", "batch": number}
    session, since = holder
    held = {"batch": number, "trainer": session, "since_s": round(now - since, 3)}
    return {**place, "where": "leased", **held}
