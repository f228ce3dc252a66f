"""New batches of all partitions in the feed's order: by (turn, partition).

    made(0/0) made(1/0) … ─► a queue for each partition ─► next(): 0/0 1/0 2/0  0/1 1/1 …

The turn of a batch is its number.  Where batches end with their epoch it is its epoch and its
number in the epoch, and a partition that begins the next epoch (``begin_epoch``) does not block
others.  Each turn belongs to the partition whose next batch is the first by (turn, partition), and
waits for that batch.  So the order depends neither on the speed of partitions, nor on the
batches that an earlier server has handed out.  The partitions are those of one owner, which need
not be all.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .dispatch_effects import Batch, of_numbers
from .partition_turns import Untaken


@dataclass(slots=True)
class _Partition:
    ready: deque[Batch] = field(default_factory=deque)
    next_number: int = 0
    next_turn: int = 0
    ended: bool = False
    gaps: bool = False  # an earlier server may have seen some of its batches done


class FeedOrder(Untaken):
    """The batches that are made and not yet taken: ``count`` of them, of ``nbytes``."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self.count = self.nbytes = 0
        self._partitions = of_numbers(partitions, _Partition)
        # number of partitions that have batches or will make some
        self._live = len(self._partitions)
        # Heap of the least next turn of each partition, and the partition.
        self._turns = [(0, partition) for partition in self._partitions]

    @property
    def open(self) -> bool:
        """Whether batches are here, or will come."""
        return self._live > 0

    def made(self, batch: Batch) -> None:
        """Take the next batch of a partition."""
        here = self._partitions[batch.partition]
        passes = here.gaps and batch.number > here.next_number
        if here.ended or (batch.number != here.next_number and not passes):
            raise ValueError(
                f"partition {batch.partition} made batch {batch.number}; "
                f"next is {'nothing' if here.ended else here.next_number}"
            )
        if batch.turn < 0:
            batch.turn = batch.number
        here.next_number = batch.number + 1
        here.next_turn = batch.turn + 1
        here.ready.append(batch)
        self.count += 1
        self.nbytes += batch.nbytes

    def start(self, partition: int, number: int, turn: int = -1) -> None:
        """Let a partition continue where an earlier server was: with this batch or a later one."""
        here = self._partitions[partition]
        here.next_number = max(here.next_number, number)
        here.next_turn = max(here.next_turn, number if turn < 0 else turn)
        here.gaps = True

    def begin_epoch(self, partition: int, turn: int) -> None:
        """Note that the next batch of a partition has this turn, or a later one."""
        here = self._partitions[partition]
        here.next_turn = max(here.next_turn, turn)

    def pick(self, number: int, partition: int) -> Batch | None:
        """Take one batch out of turn, if it is here."""
        here = self._partitions[partition]
        for batch in here.ready:
            if batch.number == number:
                here.ready.remove(batch)
                return self._taken(batch, here)
        return None

    def _taken(self, batch: Batch, here: _Partition) -> Batch:
        self._live -= here.ended and not here.ready
        self.count -= 1
        self.nbytes -= batch.nbytes
        return batch

    def of(self, partition: int) -> int:
        return len(self._partitions[partition].ready)

    def will_make(self, number: int, partition: int) -> bool:
        """Return whether a batch may still come."""
        here = self._partitions[partition]
        return not here.ended and number >= here.next_number

    def end(self, partition: int) -> None:
        """Note that a partition makes no more batches."""
        here = self._partitions[partition]
        if not here.ended:
            here.ended = True
            self._live -= not here.ready

    def next(self) -> Batch | None:
        """Take the batch whose turn it is, if it is here."""
        turn = self._turn()
        if turn is None:
            return None
        here = self._partitions[turn[1]]
        if not here.ready:
            return None
        heapq.heapreplace(self._turns, (turn[0] + 1, turn[1]))
        return self._taken(here.ready.popleft(), here)

    @property
    def live(self) -> Sequence[int]:
        """Partitions that have batches or may make some."""
        return [p for p, here in self._partitions.items() if here.ready or not here.ended]

    def following(self) -> tuple[int, int] | None:
        """Return turn and partition of the batch for which trainers wait, if any."""
        turn = self._turn()
        return None if turn is None or self._partitions[turn[1]].ready else turn

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of the batch for which trainers wait, if any."""
        following = self.following()
        if following is None:
            return None
        return self._partitions[following[1]].next_number, following[1]

    def _turn(self) -> tuple[int, int] | None:
        """Return the least next turn and its partition."""
        turns = self._turns
        while turns:
            turn, partition = turns[0]
            here = self._partitions[partition]
            first = here.ready[0].turn if here.ready else here.next_turn
            if not here.ready and here.ended:
                heapq.heappop(turns)
            elif first > turn:
                heapq.heapreplace(turns, (first, partition))
            else:
                return turn, partition
        return None
