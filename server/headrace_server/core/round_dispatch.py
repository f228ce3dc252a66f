"""A hand-over whose rounds outlive it: what was dealt to ranks is told, and dealt again as it was.

    this life    a round is dealt ─► Dealt(partition) ─► rounds_told(), stored before it goes out
    the next     load_rounds() ─► first join: the same run?  ranks get what they had
                                              another one?   begun rounds are dealt anew
                               ─► made(batch): its rank and round, or the next round's

What was dealt is told of each partition by itself, since a round is of one partition: so owners may
share the partitions otherwise in the next life.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .dispatch import Dispatcher
from .handover import Batch, Dealt, Taken
from .redealing import Redealing

__all__ = ["RoundDispatcher"]


class RoundDispatcher(Dispatcher):
    """The hand-over of one feed, or of some of its partitions."""

    def __init__(
        self, partitions: Iterable[int], lease_ttl_s: float, max_window: int = 64, epoch: int = 0
    ) -> None:
        partitions = tuple(partitions)
        super().__init__(partitions, lease_ttl_s, max_window, epoch)
        self._partitions = partitions
        self._redealing = Redealing()

    def load_rounds(
        self,
        partition: int,
        world: int,
        run: int,
        next_round: int,
        members: Iterable[Sequence[int]],
    ) -> None:
        """An earlier life has dealt these and they are not done: number, round, rank of each."""
        self._redealing.load(partition, world, run, next_round, members)

    def rounds_told(self, partition: int) -> tuple[int, int, int, list[list[int]]]:
        """The same of this life, to be stored."""
        next_round = self._rounds.next_round.get(partition, 0)
        return self._rounds.world, self._run, next_round, self._redealing.told(partition)

    def _start_run(self, run: int, world_size: int) -> None:
        redealing, begun = self._redealing, self._rounds.begun
        had_ranks = bool(self._rounds.world) or redealing.loaded
        same = world_size == self._rounds.world
        super()._start_run(run, world_size)
        self._run = run
        if redealing.loaded:
            self._rounds.go_on(*redealing.begin(run, world_size))
            self._place()
        else:
            redealing.forget(begun if same else None)
        if world_size or had_ranks:
            self._effects.append(Dealt(self._partitions))

    def _place(self) -> None:
        """Put batches that were made before a rank was there where they were dealt to."""
        for order in self._redealing.orders:
            batch = self._picked(*order)
            if batch is not None and self._redealing.take(batch):
                self._deal_again(batch)
            elif batch is None and not self._stream.will_make(*order):
                self._redealing.forget_one(order)

    def made(self, batch: Batch) -> None:
        if not self._is_dealt(batch):
            super().made(batch)
            return
        self._stream.made(batch)
        self._open += 1
        picked = self._picked(*batch.order)
        assert picked is not None
        self._deal_again(picked)
        self._deal()

    def _is_dealt(self, batch: Batch) -> bool:
        """Whether a batch that is made again has a round and a rank; it is given them."""
        if not self._rounds.world or not self._redealing.orders:
            return False  # before ranks are there it only waits
        self._redealing.ended(batch.partition, batch.number)
        return self._redealing.take(batch)

    def _picked(self, number: int, partition: int) -> Batch | None:
        """A batch out of its turn, if it is here; its worker may make another."""
        placed = self._redealing.picked((number, partition))
        if placed is not None:
            return placed
        batch: Batch | None = self._stream.pick(number, partition)
        if batch is not None:
            self._effects.append(Taken(batch))
        return batch

    def _deal_again(self, batch: Batch) -> None:
        self._rounds.push(batch)
        self._trainers.due.append(batch.rank)

    def _dealt_to(self, rank: int) -> Batch | None:
        if self._redealing.orders:
            batch = self._rounds.peek(rank)
            if batch is None or self._redealing.waits_for(rank, (batch.round, batch.partition)):
                return None
        return super()._dealt_to(rank)

    def _dealt(self, members: list[Batch]) -> None:
        self._redealing.dealt(members)
        self._effects.append(Dealt((members[0].partition,)))

    def _settle(self, batch: Batch) -> None:
        self._redealing.settled(batch)
        super()._settle(batch)

    def partition_ended(self, number: int) -> None:
        if self._rounds.world:
            self._redealing.ended(number)
        super().partition_ended(number)
