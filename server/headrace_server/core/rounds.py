"""Coordinated mode: a round deals one batch of one kind of one partition to each rank.

    add() ─► a group for each kind ── one for each rank? ──► a round ─► pop(rank)
             of each partition                                  ▲          │ came back
                                                                └── push() ┘

Each partition numbers its rounds, and their order is by (round, partition).  Ranks take them in
this order, for any division of partitions among owners: a round waits until no earlier one can
come.  A dealt round never changes: a returned batch goes to the same rank again.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from .handover import Batch, Line
from .partition import TURN_BITS

#: Number of a round in its partition, and the partition.
_Place = tuple[int, int]


class Rounds:
    """The rounds of one world size; with 0 ranks (shared mode) nothing is dealt."""

    def __init__(self, world: int) -> None:
        self.world = world
        #: Batches of incomplete rounds, by partition, kind and epoch.
        self._groups: dict[tuple[int, Any, int], list[Batch]] = {}
        self._dealt = [Line() for _ in range(world)]
        self.next_round: dict[int, int] = {}  # by partition

    def add(self, batch: Batch) -> list[Batch]:
        """Add a new batch; return all batches of its round if the round is complete now."""
        partition = batch.partition
        name = partition, batch.meta.get("bucket"), batch.turn >> TURN_BITS
        group = self._groups.setdefault(name, [])
        batch.waits_in = group
        group.append(batch)
        if len(group) < self.world:
            return []
        del self._groups[name]
        number = self.next_round.get(partition, 0)
        for rank, member in enumerate(group):
            member.rank, member.round = rank, number
            self._dealt[rank].push(member)
        self.next_round[partition] = number + 1
        return group

    def begin_epoch(self, batch: Batch) -> list[Batch]:
        """Return the batches of incomplete rounds, if a new batch belongs to a later epoch.

        The new epoch's rounds come after all rounds of the earlier epoch, in all partitions.
        """
        number = batch.turn >> TURN_BITS << TURN_BITS
        if number <= self.next_round.get(batch.partition, 0):
            return []
        self.begin_at(batch.partition, number)
        names = [name for name in self._groups if name[0] == batch.partition]
        left = [one for name in names for one in self._groups.pop(name)]
        for one in left:
            one.waits_in = None
        return left

    def place(self, member: Batch) -> bool:
        """Take a member of a round that its partition formed; return whether the round is whole."""
        self._dealt[member.rank].push(member)
        return self.pass_by(member.round, member.partition, member.rank)

    def pass_by(self, at: int, partition: int, rank: int) -> bool:
        """Note that a member of a round was made, in the order of ranks; return whether it is the
        last.

        No rank gets its member before the last one is made.
        """
        whole = rank == self.world - 1 and at >= self.next_round.get(partition, 0)
        if whole:
            self.next_round[partition] = at + 1
        return whole

    def begin_at(self, partition: int, number: int) -> None:
        """Continue a partition's rounds with round ``number``."""
        self.next_round[partition] = max(number, self.next_round.get(partition, 0))

    def next_place(self, partition: int) -> _Place:
        """Return the place of a partition's next round."""
        return self.next_round.get(partition, 0), partition

    def take(self, at: int, partition: int, rank: int) -> Batch | None:
        """Take a rank's batch of a round out of turn, if it waits."""
        found = None
        for batch in self.drain(rank):
            if (batch.round, batch.partition) == (at, partition):
                found = batch
            else:
                self.push(batch)
        return found

    def drain(self, rank: int) -> list[Batch]:
        """Take all batches waiting for a rank."""
        return self._dealt[rank].drain()

    def waiting(self, rank: int) -> int:
        """Return how many batches wait for a rank."""
        return len(self._dealt[rank])

    def rows(self, rank: int) -> int:
        """Return the number of rows that wait for a rank."""
        return self._dealt[rank].rows()

    def go_on(self, next_round: Mapping[int, int]) -> None:
        """Continue after rounds of an earlier life."""
        self.next_round = dict(next_round)

    def peek(self, rank: int) -> Batch | None:
        """Return the batch that ``pop`` would return if no earlier round could come."""
        batch = self._dealt[rank].pop()
        if batch is not None:
            self._dealt[rank].push(batch)
        return batch

    def pop(self, rank: int, coming: Iterable[int]) -> Batch | None:
        """Return the batch of a rank's next round, if it was dealt.

        ``coming``: partitions that may have more rounds; an earlier round of one of them comes
        first.
        """
        batch = self._dealt[rank].pop()
        if batch is None:
            return None
        first = min(((self.next_round.get(p, 0), p) for p in coming), default=None)
        if first is None or (batch.round, batch.partition) < first:
            return batch
        self._dealt[rank].push(batch)
        return None

    def push(self, batch: Batch) -> None:
        """Take a dealt batch that came back."""
        self._dealt[batch.rank].push(batch)

    def undeal(self) -> list[Batch]:
        """Return all waiting batches, to be dealt for another world size."""
        return [*map(_undealt, self._of_dealt()), *self.drop()]

    def realign(self, begun: Container[_Place]) -> list[Batch]:
        """Return the remaining batches of half-done rounds, to be dealt anew."""
        left = []
        for batch in self._of_dealt():
            if (batch.round, batch.partition) in begun:
                left.append(_undealt(batch))
            else:
                self.push(batch)
        return left

    def drop(self) -> list[Batch]:
        """Return and forget the batches of rounds that are not complete."""
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
