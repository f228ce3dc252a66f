"""The status of an owner's feeds as plain data, gathered when the supervisor asks.

    feed, its desk, its counters ───────┐
    sessions of its trainers ───────────┼► feed_status() ──► answer to the supervisor
    the last status of each partition ──┘

No state is kept between two questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from ..pipeline.declaration import Plain
from ..process.config import MOST_TRAINERS
from ..watch.statuses import FeedStatus, TrainerStatus, joined
from .served_feed import ServedFeed
from .sessions import Session

_LONGEST_TEXT = 1000
#: Batches of a feed that does not serve.
_NOTHING = {"ready": 0, "leased": 0, "saving": 0}
#: Bytes of the digest that names a trainer; with the nonce itself another could take its session.
_ID_BYTES = 6


def feed_status(feed: ServedFeed, now: float) -> FeedStatus:
    """Return the status of one feed, as far as an owner knows it."""
    mine = sorted(feed.present.values(), key=lambda session: session.number)
    status = {
        **feed.counters.totals(session.tally for session in mine),
        "state": state_of(feed),
        "failure": list(feed.failure) if feed.failure is not None else None,
        "waiting": feed.describe(now)[:_LONGEST_TEXT],
        "standing": feed.desk.standing() if feed.serves else dict(_NOTHING),
        "partitions": [
            {
                "partition": part.number,
                "worker": feed.owner,
                "open": part.open,
                "done": part.done,
                "waits": part.waits,
            }
            for part in feed.partitions.values()
        ],
        "trainers": [_trainer(feed, session, now) for session in mine[:MOST_TRAINERS]],
        "trainers_more": len(mine[MOST_TRAINERS:]),
    }
    none = {"dropped": {}, "padding": {}, "classes": {}, "read": 0}
    return joined(FeedStatus, [status, none, *(part.status for part in feed.partitions.values())])


def state_of(feed: ServedFeed) -> str:
    """Return the state of a feed in one word."""
    if feed.failure is not None:
        return "failed"
    if feed.over:
        return "ended"
    if not feed.opened:
        return "opening"
    return "closing" if feed.closing is not None else "open"


def _trainer(feed: ServedFeed, session: Session, now: float) -> TrainerStatus:
    tally = session.tally
    awaited_s = tally.awaited_s if feed.shared else tally.blocked_s
    status = {
        "trainer": session.number,
        "id": _id_of(session),
        "host": session.host,
        "name": session.name,
        "local": session.local,
        "silent_s": round(max(0.0, now - session.seen), 3),
        **(feed.desk.standing_of(session.nonce) if feed.serves else {}),
        **asdict(tally),
        "awaited_s": awaited_s,
    }
    return cast(TrainerStatus, status)


def _id_of(session: Session) -> str:
    """Return the id of its trainer, which is the same at all owners."""
    return hashlib.blake2b(session.nonce, digest_size=_ID_BYTES).hexdigest()


def users_of(feed: ServedFeed) -> dict[str, str]:
    """Return the trainers that use a feed, for people, by id."""
    users = (s for s in feed.present.values() if s.uses and not feed.over)
    return {_id_of(session): session.described for session in users}


def example_status(
    feed: ServedFeed, partition: int, found: Sequence[Any], now: float
) -> dict[str, Plain]:
    """Return where an example is, and which trainer has it."""
    epoch, segment, segments, where, number = found
    place = {"partition": partition, "epoch": epoch, "segment": segment, "segments": segments}
    if where != "out":
        return {**place, "where": where}
    holder = feed.desk.holder(partition, number)
    if holder is None:
        return {**place, "where": "in a batch that nobody has", "batch": number}
    nonce, since = holder
    session = feed.present.get(nonce)
    number_of, host = (0, "") if session is None else (session.number, session.host)
    held = {"batch": number, "trainer": number_of, "host": host, "since_s": round(now - since, 3)}
    return {**place, "where": "leased", **held}
