"""Rounds that were dealt to ranks, so that a later life deals them again as they were.

    this life    dealt(members) ─► told() ─► stored, whole          settled(batch): told no more
    the next     load(…) ─► take(batch): its rank and round ─► waits_for(rank, round)

A trainer of a rank has as many batches as all others only if what is left of a round that was
dealt goes to the ranks that lack it, and before anything of a later round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from .handover import Batch

__all__ = ["Redealing"]

#: Number and partition of a batch.
_Order = tuple[int, int]
#: Number of a round in its partition, and the partition.
_Place = tuple[int, int]


class Redealing:
    """The dealt rounds of one feed."""

    def __init__(self) -> None:
        self._dealt: dict[_Order, Batch] = {}  # by this life, and not settled
        self._known: dict[_Order, tuple[int, int]] = {}  # round and rank, by the life before
        self._placed: dict[_Order, Batch] = {}  # of these, made again
        self.world = 0  # of the life before
        self.next_round: Mapping[int, int] = {}  # by partition

    # What this life deals

    def dealt(self, members: Iterable[Batch]) -> None:
        """These have their ranks."""
        self._dealt.update((member.order, member) for member in members)

    def settled(self, batch: Batch) -> None:
        """A batch is done."""
        self._dealt.pop(batch.order, None)

    def told(self) -> list[list[int]]:
        """Number, partition, round and rank of what is dealt and not done."""
        told = [[*o, b.round, b.rank] for o, b in self._dealt.items() if b.round >= 0]
        return sorted([*told, *([*order, *place] for order, place in self._known.items())])

    # What the life before has dealt

    def load(
        self, world: int, next_round: Mapping[int, int], members: Iterable[Sequence[int]]
    ) -> None:
        """What was dealt and is not done."""
        self.world, self.next_round = world, next_round
        self._known = {(number, of): (at, rank) for number, of, at, rank in members}

    @property
    def orders(self) -> list[_Order]:
        """What is not made again yet."""
        return list(self._known)

    def begun(self) -> dict[_Place, int]:
        """By round and partition how many members are done, where any is."""
        left = Counter((at, order[1]) for order, (at, _) in self._known.items())
        return {number: self.world - count for number, count in left.items() if count < self.world}

    def forget(self, rounds: Iterable[_Place] | None = None) -> None:
        """Deal what is left of these rounds anew; of all rounds, if none are named."""
        gone = set[_Place]() if rounds is None else set(rounds)
        kept = {} if rounds is None else self._known
        self._known = {
            order: place for order, place in kept.items() if (place[0], order[1]) not in gone
        }

    def ended(self, partition: int, number: int | None = None) -> None:
        """A partition makes nothing more, or nothing before this batch."""
        if self._known:
            self._known = {
                order: place
                for order, place in self._known.items()
                if order[1] != partition or (number is not None and order[0] >= number)
            }

    def take(self, batch: Batch) -> bool:
        """Give a batch the round and the rank that it had.  False where it had none."""
        place = self._known.pop(batch.order, None)
        if place is None:
            return False
        batch.round, batch.rank = place
        self._dealt[batch.order] = self._placed[batch.order] = batch
        return True

    def picked(self, order: _Order) -> Batch | None:
        """A batch that was made again and waits for its rank, out of its turn."""
        batch = self._placed.pop(order, None)
        if batch is None or batch.waits_in is None:
            return None
        batch.waits_in.remove(batch)
        batch.waits_in = None
        return batch

    def waits_for(self, rank: int, place: _Place) -> bool:
        """Whether this rank gets another batch before that of a round of a partition."""
        return any(
            of == rank and (before, order[1]) < place for order, (before, of) in self._known.items()
        )
