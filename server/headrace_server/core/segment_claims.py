"""Claims of segments: rows that an earlier server handed out, known by their segments.

    add() ─► [ of a partition, by token ] ─► Claim ─► judged() ─► its commit is stored ─► the next

A batch is made from the states of earlier ones, whose tokens are smaller.  So a partition judges
its claims in the order of tokens, each after the commit of the one before it is stored, once all
trainers of the earlier server have greeted.  It makes no new batch meanwhile.

Ranks claim members of rounds by name: these were stored with the commits on which they depend.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from typing import Any

from .batch_lifecycle import BatchLifecycle
from .claims import STANDS, ClaimedBatch, Claims, NamedClaims
from .dispatch_effects import Batch
from .segment_supply import SegmentSupply
from .supply import Supply

#: Bytes of a segment in a claim: insertion index (int64) and number (int32).
_BYTES_PER_ROW = 12


class SegmentClaims(Claims):
    """The claims of a feed of segments."""

    _supply: SegmentSupply

    def __init__(
        self, lifecycle: BatchLifecycle, supply: SegmentSupply, before: Claims | None = None
    ) -> None:
        super().__init__(lifecycle, supply, before)
        self._queued: dict[int, list[int]] = {}  # by held partition: tokens of claims, in order
        #: By partition: token of the claim that it judges, or whose commit is still to come.
        self._open: dict[int, int] = {}

    def add(self, session: int, held: Any, saved: bool) -> Iterable[ClaimedBatch]:
        if not held.rows or len(held.segments) != _BYTES_PER_ROW * held.rows:
            return ()
        token, partition = held.token, held.partition
        self.by_token[token] = ClaimedBatch(session, held, expected=saved)
        insort(self._queued.setdefault(partition, []), token)
        self._supply.hold(partition, True)
        self._judge_next(partition)
        return ()

    def _judge_next(self, partition: int) -> None:
        """Have a partition judge its first claim, or let it make batches again."""
        if self.others_come or partition in self._open:
            return
        if self._queued[partition]:
            token = self._open[partition] = self._queued[partition].pop(0)
            self._ask(self.by_token[token])
        else:
            del self._queued[partition]
            self._supply.hold(partition, False)

    def _judged(self, claim: ClaimedBatch, verdict: str, number: int) -> Iterable[ClaimedBatch]:
        claim.ends(verdict)
        if claim.end is STANDS:
            claim.batch = self._out_again(claim.held, number)
        del self.by_token[claim.held.token]
        return (claim,)

    def _out_again(self, held: Any, number: int) -> Batch:
        """Return the batch of a claim, which its partition counts as out under ``number``."""
        epochs, partition = self._lifecycle.epochs, held.partition
        epoch = 0 if epochs is None else epochs.of(partition)
        batch = Batch(partition, number, held.rows, None, {"claimed": held}, epoch)
        if epochs is not None:
            epochs.made(epoch)
        return self._supply.claimed(batch)

    def arrived(self, partition: int, token: int) -> None:
        if self._open.get(partition) == token:
            del self._open[partition]
            self._judge_next(partition)

    def wait_for_others(self, others_come: bool) -> None:
        super().wait_for_others(others_come)
        for partition in list(self._queued):
            self._judge_next(partition)


def claims_of(supply: Supply, lifecycle: BatchLifecycle, before: Claims | None = None) -> Claims:
    """Return the claims on batches of a supply; there are none yet."""
    if supply.world or not isinstance(supply, SegmentSupply):
        return NamedClaims(lifecycle, supply, before)
    return SegmentClaims(lifecycle, supply, before)
