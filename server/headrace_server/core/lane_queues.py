"""The batches of lanes that no trainer has: each trainer has a stripe, and only it gets its
batches.

    a trainer asks ─► a stripe in the partition with the fewest ─► Want(partition, upto, stripe)
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

from headrace_proto import limits

from .handover import Batch, Effect, Leave, Line, Want
from .segment_rounds import SegmentRounds
from .segment_supply import Asking, SegmentSupply
from .sequences import AT_SERVER, NOWHERE
from .trainers import Trainer


@dataclass(slots=True)
class _Stripe:
    partition: int
    number: int
    leaves: int  # number of left stripes of its partition when it was opened
    made: int = 0
    wanted: int = 0
    ready: Line = field(default_factory=Line)


class LaneQueues(SegmentSupply):
    """The batches of ``order="lanes"``, each for the trainer that has the stripe."""

    ranked = SegmentRounds

    def _set_up(self) -> None:
        # by session: dry stripes whose batches may be out
        self._spent: dict[int, list[_Stripe]] = {}
        self._stripes: dict[int, _Stripe] = {}  # by session
        self._by_number: dict[int, int] = {}  # stripe → session
        self._dry: set[int] = set()  # partitions without work for a new stripe
        # By partition: number of stripes that trainers have left; their examples need others.
        self._leaves = dict.fromkeys(self.partitions, 0)
        #: By session: partitions without work for it, and the number of the Passed that told it.
        self._left: dict[int, dict[int, int]] = {}
        self.claims_wait = self.states == AT_SERVER

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        session = self._by_number.get(batch.meta["stripe"])
        if session is None:
            return False
        stripe = self._stripes[session]
        stripe.made += 1
        stripe.ready.push(batch)
        return True

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        for session, stripe in list(self._stripes.items()):
            if stripe.partition == partition and not len(stripe.ready):
                self._close(session)

    def dry(self, number: int) -> None:
        """Close a stripe without work; its trainer may get one in another partition.

        It may get one in the same partition if another trainer has left it since, which the
        partition may not have known.
        """
        session = self._by_number.get(number)
        if session is not None:
            stripe = self._close(session)
            if self.states == NOWHERE:
                self._spent.setdefault(session, []).append(stripe)
            if stripe.leaves == self._leaves[stripe.partition]:
                self._dry.add(stripe.partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        if not rests:
            self._dry.discard(partition)
            for left in self._left.values():
                left.pop(partition, None)
            return
        for session, stripe in list(self._stripes.items()):  # they are empty
            if stripe.partition == partition:
                self._close(session)
                self._hands.effects.append(Leave(partition, stripe.number))

    def _close(self, session: int) -> _Stripe:
        stripe = self._stripes.pop(session)
        del self._by_number[stripe.number]
        self._left.setdefault(session, {})[stripe.partition] = 0
        return stripe

    @property
    def _lines(self) -> list[Line]:
        return [stripe.ready for stripe in self._stripes.values()]

    def next(self, session: int) -> Batch | None:
        """Return the next batch of a trainer's own lanes."""
        for spent in self._spent.get(session, ()) if self._spent else ():
            if len(spent.ready):
                return spent.ready.pop()
        stripe = self._stripes.get(session)
        return None if stripe is None else stripe.ready.pop()

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of a requested batch, if any."""
        for stripe in self._stripes.values():
            if stripe.wanted > stripe.made:
                return self.partitions[stripe.partition].made, stripe.partition
        return None

    def tell_passed(self, trainer: Trainer) -> None:
        """Answer a trainer with the partitions that have no work for its lanes.

        They replace all batches that it has asked for; it asks again, here or elsewhere.
        A message lost with a connection is resent: its number is beyond the last delivery.
        """
        session = trainer.session
        if session in self._stripes:
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
        return not (session in self._stripes or self._goes_on(session))

    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a batch that was lost on its way; its trainer gets it again."""
        number = batch.meta["stripe"]
        for stripe in (self._stripes.get(session), *self._spent.get(session, ())):
            if stripe is not None and stripe.number == number:
                stripe.ready.push(batch)
                return True
        return False

    def is_exhausted(self, trainer: Trainer) -> bool:
        if self.states != NOWHERE or trainer.session in self._stripes:
            return False
        if any(len(spent.ready) for spent in self._spent.get(trainer.session, ())):
            return False
        return all(one.ended or number in self._dry for number, one in self.partitions.items())

    def claimed(self, batch: Batch) -> Batch:
        """Count a claimed batch as made.  Once it is saved, its examples continue in any lanes."""
        self.partitions[batch.partition].made += 1
        self._hands.open += 1
        return batch

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions; give trainers without lanes some where work is."""
        effects: list[Effect] = []
        for session, credits in asking:
            stripe = self._stripes.get(session) or self._open(session)
            if stripe is None or self.partitions[stripe.partition].held:
                continue
            upto = stripe.made + credits - len(stripe.ready)
            if upto > stripe.wanted:
                stripe.wanted = upto
                effects.append(Want(stripe.partition, upto, stripe.number))
        return effects

    def _open(self, session: int) -> _Stripe | None:
        load = {
            number: 0
            for number, here in self.partitions.items()
            if not (here.ended or here.rests or here.held or number in self._dry)
        }
        if not load or self._goes_on(session):
            return None
        for other in self._stripes.values():
            if other.partition in load:
                load[other.partition] += 1
        partition = min(load, key=lambda n: (load[n], n))
        stripe = _Stripe(partition, self.take_stripes(1), self._leaves[partition])
        self._stripes[session] = stripe
        self._by_number[stripe.number] = session
        return stripe

    def _goes_on(self, session: int) -> bool:
        """Return whether a trainer has still to save batches of an earlier life.

        It continues their examples, so it gets lanes only once these saves are stored.
        """
        leases, claims = self._hands.leases, self._hands.claims
        return (
            any(claim.session == session for claim in claims.values())
            or any("claimed" in lease.batch.meta for lease in leases.of_session(session))
            or (session in leases.unstored and any(p.held for p in self.partitions.values()))
        )

    def leave(self, session: int, rank: int) -> None:
        """Void the batches of a trainer that left its lanes; its examples continue in others."""
        passed = self._left.pop(session, {})
        left = self._spent.pop(session, [])
        if session in self._stripes:
            left.append(self._close(session))
        self._left.pop(session, None)
        if session in self._trainers.present:  # it gets other lanes, maybe in the same partition
            self._left[session] = passed
        for stripe in left:
            self._dry.discard(stripe.partition)
            self._leaves[stripe.partition] += 1
            for batch in stripe.ready.drain():
                self._hands.void(batch)
            self._hands.effects.append(Leave(stripe.partition, stripe.number))
