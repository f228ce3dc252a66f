"""Coordinated mode: batches are dealt in rounds, one of one kind to each rank.

    add() ─► a group for each kind ── one for each rank? ──► a round ─► pop(rank)
                                                                ▲          │ came back
                                                                └── push() ┘

Ranks go through the rounds in the same order.  A round that was dealt is never changed: what of it
comes back goes to the same rank again.
"""

from __future__ import annotations

from typing import Any

from .handover import Batch, Waiting

__all__ = ["Rounds"]


class Rounds:
    """The rounds of one world size; 0 ranks stand for shared mode, where nothing is dealt."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._groups: dict[Any, list[Batch]] = {}  # by kind: not yet one for each rank
        self._dealt = [Waiting() for _ in range(world)]
        self._next_round = 0
        self._settled: dict[int, int] = {}  # round → ranks that are done with it, while not all are

    def add(self, batch: Batch) -> list[Batch]:
        """Deal a new batch: the members of its round if it makes one complete, else nothing."""
        kind = batch.meta.get("bucket")
        group = self._groups.setdefault(kind, [])
        batch.waits_in = group
        group.append(batch)
        if len(group) < self.world:
            return []
        del self._groups[kind]
        for rank, member in enumerate(group):
            member.rank, member.round = rank, self._next_round
            self._dealt[rank].push(member)
        self._next_round += 1
        return group

    def go_on(self, next_round: int, begun: dict[int, int]) -> None:
        """Go on after rounds of a life before; of those that were begun so many are done."""
        self._next_round = next_round
        self._settled = dict(begun)

    @property
    def next_round(self) -> int:
        """The number of the round that is dealt next."""
        return self._next_round

    @property
    def begun(self) -> list[int]:
        """Rounds with which some ranks are done, and others not."""
        return list(self._settled)

    def peek(self, rank: int) -> Batch | None:
        """What ``pop`` would give."""
        batch = self._dealt[rank].pop()
        if batch is not None:
            self._dealt[rank].push(batch)
        return batch

    def pop(self, rank: int) -> Batch | None:
        """The batch of a rank's next round, if it was dealt."""
        return self._dealt[rank].pop()

    def has_dealt(self, rank: int) -> bool:
        """Whether a batch waits for a rank."""
        return len(self._dealt[rank]) > 0

    def push(self, batch: Batch) -> None:
        """A batch that was dealt came back."""
        self._dealt[batch.rank].push(batch)

    def settled(self, batch: Batch) -> None:
        """A rank is done with its batch of a round."""
        if batch.round >= 0:
            done = self._settled.get(batch.round, 0) + 1
            self._settled[batch.round] = done
            if done == self.world:
                del self._settled[batch.round]

    def undeal(self) -> list[Batch]:
        """Everything that waits here, to be dealt for another world size."""
        return [*map(_undealt, self._of_dealt()), *self.drop()]

    def realign(self) -> list[Batch]:
        """What is left of rounds that some ranks are done with, to be dealt anew.

        For when all ranks start again: each of them goes on with the same round.
        """
        left = []
        for batch in self._of_dealt():
            if batch.round in self._settled:
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
