"""The status of an owner's feeds as plain data, gathered when the supervisor asks.

    desk, its dispatcher, its counters ─┐
    sessions of its trainers ───────────┼► feeds_status() ─► answer to the supervisor
    the last report of the partitions ──┘

No state is kept between two questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, cast

from ..process.config import MOST_TRAINERS
from ..process.statuses import FeedStatus, TrainerStatus
from .desk import Desk
from .reporter import FeedReport
from .sessions import Session, SessionTable

_LONGEST_TEXT = 1000
#: Bytes of the digest that names a trainer; with the nonce itself another could take its session.
_ID_BYTES = 6


def feed_status(
    desk: Desk, sessions: Iterable[Session], now: float, report: FeedReport
) -> FeedStatus:
    """Return the status of one feed, as far as an owner knows it."""
    mine = sorted((s for s in sessions if s.feed == desk.name), key=lambda s: s.number)
    status = {
        **desk.counters.totals(session.tally for session in mine),
        **report.status,
        "state": state_of(desk),
        "failure": list(desk.failure) if desk.failure is not None else None,
        "waiting": desk.describe(now)[:_LONGEST_TEXT],
        "standing": desk.dispatcher.standing(),
        "partitions": [
            {
                "partition": partition,
                "worker": desk.owner,
                "open": one.open,
                "done": one.done,
                "waits": one.waits,
                **report.partitions.get(partition, {}),
            }
            for partition, one in desk.partitions.items()
        ],
        "trainers": [_trainer(desk, session, now) for session in mine[:MOST_TRAINERS]],
        "trainers_more": len(mine[MOST_TRAINERS:]),
    }
    return cast(FeedStatus, status)


def state_of(desk: Desk) -> str:
    """Return the state of a feed in one word."""
    if desk.failure is not None:
        return "failed"
    if desk.over:
        return "ended"
    if not desk.opened:
        return "opening"
    return "closing" if desk.closing is not None else "open"


def _trainer(desk: Desk, session: Session, now: float) -> TrainerStatus:
    tally = session.tally
    awaited_s = tally.awaited_s if desk.shared else tally.blocked_s
    status = {
        "trainer": session.number,
        "id": hashlib.blake2b(session.nonce, digest_size=_ID_BYTES).hexdigest(),
        "host": session.host,
        "name": session.name,
        "local": session.local,
        "silent_s": round(max(0.0, now - session.seen), 3),
        **desk.dispatcher.standing_of(session.number),
        **asdict(tally),
        "awaited_s": {desk.of_share: awaited_s},
    }
    return cast(TrainerStatus, status)


def feeds_status(
    desks: Mapping[str, Desk],
    sessions: SessionTable,
    now: float,
    reports: Mapping[str, FeedReport],
) -> dict[str, FeedStatus]:
    """Return the status of all feeds by name."""
    present = sessions.present()
    return {name: feed_status(desk, present, now, reports[name]) for name, desk in desks.items()}


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
