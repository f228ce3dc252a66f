"""Coordinated mode: batches are dealt in rounds, one of one kind of one partition to each rank.

    add() ─► a group for each kind ── one for each rank? ──► a round ─► pop(rank)
             of each partition                                  ▲          │ came back
                                                                └── push() ┘

Rounds are counted in each partition, and their order is by (round, partition).  Ranks go through
them in this order, whoever has the partitions: a round waits until none before it can come.  One
that was dealt is never changed: what of it comes back goes to the same rank again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .handover import Batch, Waiting

__all__ = ["Rounds"]


#: Number of a round in its partition, and the partition.
_Place = tuple[int, int]


class Rounds:
    """The rounds of one world size; 0 ranks stand for shared mode, where nothing is dealt."""

    def __init__(self, world: int) -> None:
        self.world = world
        #: By partition and kind: not yet one for each rank.
        self._groups: dict[tuple[int, Any], list[Batch]] = {}
        self._dealt = [Waiting() for _ in range(world)]
        self._next_round: dict[int, int] = {}  # by partition
        self._settled: dict[_Place, int] = {}  # ranks that are done with it, while not all are

    def add(self, batch: Batch) -> list[Batch]:
        """Deal a new batch: the members of its round if it makes one complete, else nothing."""
        partition, kind = batch.partition, batch.meta.get("bucket")
        group = self._groups.setdefault((partition, kind), [])
        batch.waits_in = group
        group.append(batch)
        if len(group) < self.world:
            return []
        del self._groups[partition, kind]
        number = self._next_round.get(partition, 0)
        for rank, member in enumerate(group):
            member.rank, member.round = rank, number
            self._dealt[rank].push(member)
        self._next_round[partition] = number + 1
        return group

    def go_on(self, next_round: Mapping[int, int], begun: Mapping[_Place, int]) -> None:
        """Go on after rounds of a life before; of those that were begun so many are done."""
        self._next_round = dict(next_round)
        self._settled = dict(begun)

    @property
    def next_round(self) -> Mapping[int, int]:
        """By partition the number of the round that is dealt next."""
        return self._next_round

    @property
    def begun(self) -> list[_Place]:
        """Rounds with which some ranks are done, and others not."""
        return list(self._settled)

    def peek(self, rank: int) -> Batch | None:
        """What ``pop`` would give, if none came first."""
        batch = self._dealt[rank].pop()
        if batch is not None:
            self._dealt[rank].push(batch)
        return batch

    def pop(self, rank: int, coming: Iterable[int]) -> Batch | None:
        """The batch of a rank's next round, if it was dealt.

        ``coming`` are the partitions of which more may be dealt: none of these may come first.
        """
        batch = self._dealt[rank].pop()
        if batch is None:
            return None
        first = min(((self._next_round.get(p, 0), p) for p in coming), default=None)
        if first is None or (batch.round, batch.partition) < first:
            return batch
        self._dealt[rank].push(batch)
        return None

    def has_dealt(self, rank: int) -> bool:
        """Whether a batch waits for a rank."""
        return len(self._dealt[rank]) > 0

    def push(self, batch: Batch) -> None:
        """A batch that was dealt came back."""
        self._dealt[batch.rank].push(batch)

    def settled(self, batch: Batch) -> None:
        """A rank is done with its batch of a round."""
        if batch.round >= 0:
            place = batch.round, batch.partition
            done = self._settled.get(place, 0) + 1
            self._settled[place] = done
            if done == self.world:
                del self._settled[place]

    def undeal(self) -> list[Batch]:
        """Everything that waits here, to be dealt for another world size."""
        return [*map(_undealt, self._of_dealt()), *self.drop()]

    def realign(self) -> list[Batch]:
        """Return the batches of rounds that only some ranks have done; they are dealt anew."""
        left = []
        for batch in self._of_dealt():
            if (batch.round, batch.partition) in self._settled:
                left.append(_undealt(batch))
            else:
                self.push(batch)
        self._settled.clear()
        return left

    def drop(self) -> list[Batch]:
        """The batches of rounds that are not complete; they are forgotten here."""
        batches = [batch for group in self._groups.values() for batch in group]
        self._groups.clear()
        for batch in batches:
            batch.waits_in = None
        return batches

    def _of_dealt(self) -> list[Batch]:
        return [batch for queue in self._dealt for batch in queue.drain()]


def _undealt(batch: Batch) -> Batch:
    batch.rank = batch.round = -1
    return batch
