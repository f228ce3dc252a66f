"""The counters of one feed, as plain data.

    desk: commits, leases that ended … ─────┐
    each batch: its rows and bytes, added up ┼─► totals()
    sent to a trainer, answered to it: Tally ┘

Counting takes no clock and no lock: it happens where an event is handled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace_proto.messages import Renew

from ..leasing.protocol import Answer, Batch
from ..process.statuses import added


@dataclass(slots=True)
class Tally:
    """Counters of one trainer's session, named as in ``TrainerStatus``."""

    batches: int = 0  # sent to it, resent ones included
    rows: int = 0
    bytes: int = 0
    wire_batches: int = 0  # of those sent: to a trainer that does not see this host's memory
    wire_bytes: int = 0
    committed: int = 0
    stale: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # saves, by code
    blocked_s: float = 0.0  # as the trainer reports …
    busy_s: float = 0.0
    awaited_s: float = 0.0  # for batches of this owner

    def sent(self, rows: int, nbytes: int) -> None:
        """Count a batch that is sent to it."""
        self.batches += 1
        self.rows += rows
        self.bytes += nbytes

    @property
    def totals(self) -> dict[str, Any]:
        """Batches and bytes sent through shared memory and by wire, and refused saves."""
        batches = {"shm": self.batches - self.wire_batches, "wire": self.wire_batches}
        nbytes = {"shm": self.bytes - self.wire_bytes, "wire": self.wire_bytes}
        return {"sent": {"batches": batches, "bytes": nbytes}, "refused": self.refused}

    def on_renew(self, renew: Renew) -> None:
        """Take the times that the trainer reports."""
        self.blocked_s, self.busy_s = round(renew.blocked_s, 3), round(renew.busy_s, 3)
        self.awaited_s = round(renew.awaited_s, 3)

    def answered(self, answer: Answer) -> None:
        """Count the answers to its commits."""
        self.committed += len(answer.committed)
        self.stale += len(answer.stale)
        for _, code, _ in answer.faults:
            self.refused[code] = self.refused.get(code, 0) + 1


class Counters:
    """Counters of one feed."""

    def __init__(self) -> None:
        self.counts = {
            "batches": 0,
            "rows": 0,
            "redelivered": 0,
            "stale": 0,
            "expired": 0,
        }  # of the desk
        self._made = {"batches": 0, "rows": 0, "bytes": 0}
        self._left = Tally().totals  # of sessions that have left
        self.before = 0  # batches that earlier lives have stored

    def go_on(self, batches: int, rows: int) -> None:
        """Continue the counts of a partition's stored commits."""
        self.before += batches
        self.counts["batches"] += batches
        self.counts["rows"] += rows

    def on_made(self, batch: Batch) -> None:
        """Count a batch that was made."""
        counts = self._made
        counts["batches"] += 1
        counts["rows"] += batch.rows
        counts["bytes"] += batch.nbytes

    def on_left(self, tally: Tally) -> None:
        """Keep the counts of a session that has left."""
        self._left = added([self._left, tally.totals])

    def totals(self, present: Iterable[Tally]) -> dict[str, Any]:
        """Return all counters, with those of ``present`` sessions; keys as in ``Server.stats``."""
        sent = added([self._left, *(tally.totals for tally in present)])
        return {**self.counts, "made": dict(self._made), **sent}
