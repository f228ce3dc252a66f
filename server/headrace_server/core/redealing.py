"""Rounds that were dealt to ranks, so that a later life deals them again unchanged.

    this life    dealt(members) ─► dealt_of() ─► stored, whole      settled(batch): forgotten
    the next     load(…) ─► begin(run) ─► take(batch): its rank and round ─► waits_for(rank, round)

All ranks get equally many batches only if each remaining batch of a dealt round goes to the rank
that lacks it, before any batch of a later round.  The trainers of another run lack the same batches
of a round only where no rank has done its own: begun rounds are forgotten for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any

from headrace_proto.record import record

from .handover import Batch

#: Number and partition of a batch.
_Order = tuple[int, int]
#: Number of a round in its partition, and the partition.
_Place = tuple[int, int]


@record
class DealtRounds:
    """The unfinished dealt rounds of one partition."""

    world: int
    run: int
    next_round: int
    members: Sequence[Sequence[int]]  # number, round and rank of each member

    def to_plain(self) -> list[Any]:
        return [self.world, self.run, self.next_round, self.members]

    def left(self, first: int, done: Container[int]) -> DealtRounds:
        """Return the rounds without done batches: those before ``first``, and those in ``done``."""
        members = [one for one in self.members if one[0] >= first and one[0] not in done]
        return DealtRounds(self.world, self.run, self.next_round, members)


class Redealing:
    """The dealt rounds of one feed."""

    def __init__(self) -> None:
        self._dealt: dict[_Order, Batch] = {}  # dealt by this life and not settled
        self._before: dict[int, DealtRounds] = {}  # by partition, until the first trainer joins
        # round and rank, as dealt by the earlier life
        self._known: dict[_Order, tuple[int, int]] = {}
        self._placed: dict[_Order, Batch] = {}  # those of these batches that were made again

    # Rounds of this life

    def dealt(self, members: Iterable[Batch]) -> None:
        """Note batches that were dealt to ranks."""
        self._dealt.update((member.order, member) for member in members)

    def settled(self, batch: Batch) -> None:
        """Forget a done batch."""
        self._dealt.pop(batch.order, None)
        self._placed.pop(batch.order, None)

    def dealt_of(self, partition: int) -> list[list[int]]:
        """Return number, round and rank of a partition's dealt, unfinished batches."""
        dealt = [
            [o[0], b.round, b.rank]
            for o, b in self._dealt.items()
            if o[1] == partition and b.round >= 0
        ]
        known = [[o[0], *place] for o, place in self._known.items() if o[1] == partition]
        return sorted([*dealt, *known])

    def begun(self, world: int) -> set[_Place]:
        """Return the rounds that some of ``world`` ranks have done and others have not."""
        left = Counter((b.round, b.partition) for b in self._dealt.values() if b.round >= 0)
        left.update(self._left_before())
        return {place for place, count in left.items() if count < world}

    # Rounds of the life before

    def _left_before(self) -> Counter[_Place]:
        """Return, by round, how many batches are not made again yet."""
        return Counter((at, order[1]) for order, (at, _) in self._known.items())

    def load(self, partition: int, dealt: DealtRounds) -> None:
        """Load the batches of a partition that an earlier life dealt and no rank has done."""
        self._before[partition] = dealt
        self._known.update({(number, partition): (at, rank) for number, at, rank in dealt.members})

    @property
    def loaded(self) -> bool:
        """Whether rounds of an earlier life are known and no trainer has joined yet."""
        return bool(self._before)

    def begin(self, run: int, world_size: int) -> dict[int, int]:
        """Keep the rounds that the run of the first trainer continues.

        Returns the next round of each partition.
        """
        next_round, left = dict[int, int](), self._left_before()
        for partition, before in self._before.items():
            here = {place: count for place, count in left.items() if place[1] == partition}
            if before.world != world_size:
                self.forget(here)
                continue
            next_round[partition] = before.next_round
            if before.run != run:
                self.forget(place for place, count in here.items() if count < world_size)
        self._before.clear()
        return next_round

    @property
    def orders(self) -> list[_Order]:
        """Numbers and partitions of batches that are still to be made again."""
        return list(self._known)

    def forget(self, rounds: Iterable[_Place] | None = None) -> None:
        """Forget these rounds, or all if none are named; their batches are dealt anew."""
        gone = set[_Place]() if rounds is None else set(rounds)
        kept = {} if rounds is None else self._known
        self._known = {
            order: place for order, place in kept.items() if (place[0], order[1]) not in gone
        }

    def forget_one(self, order: _Order) -> None:
        """Forget a batch that will not be made again."""
        self._known.pop(order, None)

    def ended(self, partition: int, number: int | None = None) -> None:
        """Forget batches of a partition that will not come: all, or those before ``number``."""
        if self._known:
            self._known = {
                order: place
                for order, place in self._known.items()
                if order[1] != partition or (number is not None and order[0] >= number)
            }

    def made(self, batch: Batch) -> bool:
        """Give a new batch its earlier round and rank.  Return False where it had none."""
        if not self._known:
            return False
        self.ended(batch.partition, batch.number)
        return self.take(batch)

    def take(self, batch: Batch) -> bool:
        """Give a batch its earlier round and rank.  Return False where it had none."""
        place = self._known.pop(batch.order, None)
        if place is None:
            return False
        batch.round, batch.rank = place
        self._dealt[batch.order] = self._placed[batch.order] = batch
        return True

    def picked(self, order: _Order) -> Batch | None:
        """Take out of turn a batch that was made again and waits for its rank."""
        batch = self._placed.get(order)
        if batch is None or batch.waits_in is None:  # it is in the stream, or leased
            return None
        batch.wait_no_more()
        return batch

    def waits_for(self, rank: int, place: _Place) -> bool:
        """Return whether a rank must get another batch before that of this round."""
        return any(
            of == rank and (before, order[1]) < place for order, (before, of) in self._known.items()
        )
