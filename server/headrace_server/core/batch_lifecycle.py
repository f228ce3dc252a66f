"""Batches in the hands of trainers: which trainer holds each, and when its bytes are free.

    made ─► grant ─► a trainer's ─► let_go ─► settle     Freed: once, when nobody has it pinned,
              ▲          │                               since it was let go of or void
              └─ take_back ─────► void

A batch is let go when its commit is judged, and settled when the commit is stored.  It is pinned by
a trainer that maps it, or by a frame that is still being sent.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from .dispatch_effects import Batch, Effect, Freed, Send
from .lease import ANSWERED, SAVING, Lease, LeaseTable
from .open_epochs import OpenEpochs
from .trainers import Trainer, Trainers


class BatchLifecycle:
    """The batches that one feed has made, its trainers, and pending effects."""

    def __init__(self, lease_ttl_s: float, term: int, trainers: Trainers) -> None:
        self.trainers = trainers
        self.leases = LeaseTable(lease_ttl_s, term)
        self.claims: Mapping[int, Any] = {}  # by token: batches of an earlier life, see claims.py
        self.effects: list[Effect] = []
        self.open = 0  # number of batches made that are neither settled nor void
        self.epochs: OpenEpochs | None = None  # where batches end with their epoch
        self.counts = {"batches": 0, "rows": 0, "redelivered": 0, "stale": 0, "expired": 0}
        self.dropped: dict[str, int] = {}

    def grant(self, trainer: Trainer, batch: Batch) -> None:
        """Lease a batch to a trainer, and send it."""
        session = trainer.session
        trainer.seq = seq = trainer.seq + 1
        trainer.idle = False
        lease = self.leases.grant(batch, session, seq, trainer.seen)
        self.effects.append(Send(session, seq, lease.token, batch))

    def resend(self, trainer: Trainer, last_seq: int, leases: Iterable[Lease]) -> None:
        """Resend leases after a delivery, and number the next ones after them.

        A batch that went to others meanwhile leaves no gap in the numbers, for a trainer computes
        its window from the number of its last delivery.  A batch that it has saved meanwhile has
        arrived.
        """
        trainer.seq = last_seq
        for lease in leases:
            held = self.leases.holds(trainer.session, lease.token)
            if held:
                self.effects.append(Send(trainer.session, lease.seq, lease.token, lease.batch))
            if held or lease.state in (SAVING, ANSWERED):
                trainer.seq = max(trainer.seq, lease.seq)

    def take_back(self, lease: Lease, why: str) -> Batch:
        """End a lease without commit."""
        self.counts["redelivered"] += 1
        return self.leases.take_back(lease, why)

    def settle(self, batch: Batch) -> None:
        """Count a batch whose commit is stored, and close it."""
        self.counts["batches"] += 1
        self.counts["rows"] += batch.filled
        self.close(batch)

    def void(self, batch: Batch) -> None:
        """Drop a batch that no trainer holds, without a commit."""
        self.leases.void(batch)
        self.close(batch)

    def drop(self, batch: Batch, reason: str) -> None:
        """Void a batch, and count its rows."""
        self.dropped[reason] = self.dropped.get(reason, 0) + batch.rows
        self.void(batch)

    def close(self, batch: Batch) -> None:
        """Count a batch as settled or void, and let it go."""
        self.open -= 1
        if self.epochs is not None:
            self.epochs.closed(batch.epoch)
        if not batch.let_go:
            self.let_go(batch)

    def let_go(self, batch: Batch) -> None:
        """Free the bytes of a batch that no trainer gets again, once its last pin is gone."""
        batch.let_go = True
        if not batch.pins:
            self._free(batch)

    def pin(self, batch: Batch, holder: Hashable) -> None:
        """Keep the bytes of a batch for a reader."""
        if batch.freed:
            raise ValueError(f"batch {batch.order} is free: its bytes may be another's by now")
        batch.pins.add(holder)

    def unpin(self, batch: Batch, holder: Hashable) -> None:
        """End the use by a reader."""
        if holder in batch.pins:
            batch.pins.discard(holder)
            if batch.let_go and not batch.pins:
                self._free(batch)

    def _free(self, batch: Batch) -> None:
        batch.freed = True
        self.effects.append(Freed(batch))
