"""The batches of lanes that no trainer has: each trainer gets only those of its own stripe.

    a trainer asks ─► a stripe in the partition with the fewest ─► Want(partition, more, stripe)
                                                                  ─► made() ─► next(): its trainer's

The batches of a stripe are void when its trainer leaves.  Without states a stripe is dry before its
last batches are done, and its trainer goes on in another partition.

Where the feed has other owners, a trainer gets a stripe in another partition only once it knows
that the earlier one has no work for it, for it may be another owner's turn.  So a window that
crosses that message (``Passed``) has no effect: the number of the message lies beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace_proto import limits

from .admitted_examples import NOWHERE
from .dispatch_effects import Batch, Effect, Leave, TurnQueue, Want
from .segment_rounds import SegmentRounds
from .segment_supply import Asking, SegmentSupply
from .trainers import Trainer


@dataclass(slots=True)
class _Stripe:
    session: int
    partition: int
    number: int
    leaves: int  # number of left stripes of its partition when it was opened
    due: int = 0  # batches that were asked for and have not come
    ready: TurnQueue = field(default_factory=TurnQueue)


class LaneSupply(SegmentSupply):
    """The batches of ``order="lanes"``, each for the trainer that has the stripe."""

    ranked = SegmentRounds

    def _set_up(self) -> None:
        self._open: dict[int, _Stripe] = {}  # by number: those that get further batches
        #: By session, in the order in which they were opened: its open stripe, and dry ones whose
        #: batches may be out.
        self._of: dict[int, list[_Stripe]] = {}
        self._dry: set[int] = set()  # partitions without work for a new stripe
        # By partition: number of stripes that trainers have left; their examples need others.
        self._leaves = dict.fromkeys(self.partitions, 0)
        #: By session: partitions without work for it, and the number of the Passed that told it.
        self._left: dict[int, dict[int, int]] = {}

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        stripe = self._open.get(batch.meta["stripe"])
        if stripe is None:
            return False
        stripe.due -= 1
        stripe.ready.push(batch)
        return True

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        for stripe in list(self._open.values()):
            if stripe.partition == partition and not len(stripe.ready):
                self._close(stripe)

    def dry(self, number: int) -> None:
        """Close a stripe without work; its trainer may get one in another partition.

        It may get one in the same partition if another trainer has left it since, which the
        partition may not have known.
        """
        stripe = self._open.get(number)
        if stripe is not None:
            self._close(stripe, spent=self.states == NOWHERE)
            if stripe.leaves == self._leaves[stripe.partition]:
                self._dry.add(stripe.partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        if not rests:
            self._dry.discard(partition)
            for left in self._left.values():
                left.pop(partition, None)
            return
        for stripe in list(self._open.values()):  # they are empty
            if stripe.partition == partition:
                self._close(stripe)
                self._lifecycle.effects.append(Leave(partition, stripe.number))

    def _close(self, stripe: _Stripe, spent: bool = False) -> None:
        """Close a stripe; ``spent``: its batches may be out."""
        del self._open[stripe.number]
        if not spent:
            self._of[stripe.session].remove(stripe)
        self._left.setdefault(stripe.session, {})[stripe.partition] = 0

    def announced(self) -> dict[str, Any]:
        """Return the number of stripes in each partition, and of trainers with the new one."""
        stripes = dict.fromkeys(self.partitions, 0)
        for stripe in self._open.values():
            stripes[stripe.partition] += 1
        return {"stripes": [*stripes.values()], "trainers": len(self._trainers.present)}

    def _stripe_of(self, session: int) -> _Stripe | None:
        """Return a trainer's open stripe."""
        last = self._of.get(session, ())[-1:]
        return last[0] if last and last[0].number in self._open else None

    @property
    def _queues(self) -> list[TurnQueue]:
        return [stripe.ready for stripe in self._open.values()]

    def next(self, session: int) -> Batch | None:
        """Return the next batch of a trainer's own lanes."""
        for stripe in self._of.get(session, ()):
            if stripe.ready.count:
                return stripe.ready.pop()
        return None

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of a requested batch, if any."""
        for stripe in self._open.values():
            if stripe.due:
                return self.partitions[stripe.partition].made, stripe.partition
        return None

    def tell_passed(self, trainer: Trainer) -> None:
        """Answer a trainer with the partitions that have no work for its lanes.

        They replace all batches that it has asked for; it asks again, here or elsewhere.
        A message lost with a connection is resent: its number is beyond the last delivery.
        """
        session = trainer.session
        if self._stripe_of(session) is not None:
            return
        left = self._left.setdefault(session, {})
        for number, here in self.partitions.items():
            if here.ended or here.rests:
                left.setdefault(number, 0)
        for partition in sorted(n for n, seq in left.items() if not 0 < seq <= trainer.seq):
            trainer.seq += limits.MAX_PREFETCH
            self._pass(partition, trainer)
            trainer.window = left[partition] = trainer.seq

    def is_idle(self, session: int) -> bool:
        """Return whether a trainer has no lanes and can get none."""
        return self._stripe_of(session) is None and not self._goes_on(session)

    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a batch that was lost on its way; its trainer gets it again."""
        number = batch.meta["stripe"]
        for stripe in self._of.get(session, ()):
            if stripe.number == number:
                stripe.ready.push(batch)
                return True
        return False

    def is_exhausted(self, trainer: Trainer) -> bool:
        session = trainer.session
        if self.states != NOWHERE or self._stripe_of(session) is not None:
            return False
        if any(spent.ready.count for spent in self._of.get(session, ())):
            return False
        return all(one.ended or number in self._dry for number, one in self.partitions.items())

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions; give trainers without lanes some where work is."""
        effects: list[Effect] = []
        for session, credits in asking:
            stripe = self._stripe_of(session) or self._give(session)
            if stripe is None or self.partitions[stripe.partition].held:
                continue
            more = credits - len(stripe.ready) - stripe.due
            if more > 0:
                stripe.due += more
                effects.append(Want(stripe.partition, more, stripe.number))
        return effects

    def _give(self, session: int) -> _Stripe | None:
        """Open a stripe for a trainer, where there is work for it."""
        load = {
            number: 0
            for number, here in self.partitions.items()
            if not (here.ended or here.rests or here.held or number in self._dry)
        }
        if not load or self._goes_on(session):
            return None
        for other in self._open.values():
            if other.partition in load:
                load[other.partition] += 1
        partition = min(load, key=lambda n: (load[n], n))
        stripe = _Stripe(session, partition, self.take_stripes(1), self._leaves[partition])
        self._open[stripe.number] = stripe
        self._of.setdefault(session, []).append(stripe)
        return stripe

    def _goes_on(self, session: int) -> bool:
        """Return whether a trainer has still to save batches of an earlier life.

        It continues their examples, so it gets lanes only once these saves are stored.
        """
        leases, claims = self._lifecycle.leases, self._lifecycle.claims
        return (
            any(claim.session == session for claim in claims.values())
            or any("claimed" in lease.batch.meta for lease in leases.of_session(session))
            or (session in leases.unstored and any(p.held for p in self.partitions.values()))
        )

    def leave(self, session: int, rank: int) -> None:
        """Void the batches of a trainer that left its lanes; its examples continue in others."""
        if session not in self._trainers.present:  # else it gets other lanes
            self._left.pop(session, None)
        for stripe in self._of.pop(session, ()):
            self._open.pop(stripe.number, None)
            self._dry.discard(stripe.partition)
            self._leaves[stripe.partition] += 1
            for batch in stripe.ready.drain():
                self._lifecycle.void(batch)
            self._lifecycle.effects.append(Leave(stripe.partition, stripe.number))
