"""New batches of all partitions in the feed's order: by (number, partition).

    made(0/0) made(1/0) … ─► one line for each partition ─► next(): 0/0 1/0 2/0  0/1 1/1 …

Every partition that has not run dry gives one batch in each turn.  A batch that is not there yet
is waited for, so the order does not depend on who made what first.  The partitions are those whose
leases are held here, which need not be all of the feed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from .handover import Batch

__all__ = ["Stream"]


@dataclass(slots=True)
class _Partition:
    ready: deque[Batch] = field(default_factory=deque)
    next_number: int = 0
    ended: bool = False
    gaps: bool = False  # some of its batches may have been done under an earlier server


class Stream:
    """The batches that were made and not yet taken."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._live = sorted(partitions)  # not dry: ready, or still making
        self._partitions = {number: _Partition() for number in self._live}
        self._at = 0  # index in _live of the partition that is next

    @property
    def open(self) -> bool:
        """Whether more will come, or is there."""
        return bool(self._live)

    def made(self, batch: Batch) -> None:
        """The next batch of a partition is there."""
        here = self._partition(batch.partition)
        passes = here.gaps and batch.number > here.next_number
        if here.ended or (batch.number != here.next_number and not passes):
            raise ValueError(
                f"partition {batch.partition} made batch {batch.number}; "
                f"next is {'nothing' if here.ended else here.next_number}"
            )
        here.next_number = batch.number + 1
        here.ready.append(batch)

    def start(self, partition: int, number: int) -> None:
        """A partition goes on where an earlier server was: with this batch, or one after it."""
        here = self._partition(partition)
        here.next_number = max(here.next_number, number)
        here.gaps = True

    def pick(self, number: int, partition: int) -> Batch | None:
        """Take one batch out of turn, if it is there."""
        here = self._partition(partition)
        for batch in here.ready:
            if batch.number == number:
                here.ready.remove(batch)
                if here.ended and not here.ready:
                    self._dry(partition)
                return batch
        return None

    def made_by(self, partition: int) -> int:
        """How many batches a partition has made."""
        return self._partition(partition).next_number

    def waiting(self) -> int:
        """How many batches are there, and not taken."""
        return sum(len(here.ready) for here in self._partitions.values())

    def will_make(self, number: int, partition: int) -> bool:
        """Whether a batch may still come."""
        here = self._partition(partition)
        return not here.ended and number >= here.next_number

    def end(self, partition: int) -> None:
        """No more batches of a partition will come."""
        here = self._partition(partition)
        if not here.ended:
            here.ended = True
            if not here.ready:
                self._dry(partition)

    def next(self) -> Batch | None:
        """The batch whose turn it is, if it is there."""
        if not self._live:
            return None
        partition = self._live[self._at]
        here = self._partitions[partition]
        if not here.ready:
            return None
        batch = here.ready.popleft()
        self._at += 1
        self._wrap()
        if here.ended and not here.ready:
            self._dry(partition)
        return batch

    def missing(self) -> tuple[int, int] | None:
        """Number and partition of the batch that is waited for, if one is."""
        if not self._live or self._partitions[self._live[self._at]].ready:
            return None
        partition = self._live[self._at]
        return self._partitions[partition].next_number, partition

    def _partition(self, number: int) -> _Partition:
        here = self._partitions.get(number)
        if here is None:
            raise ValueError(f"partition {number} is none of those here: {[*self._partitions]}")
        return here

    def _dry(self, partition: int) -> None:
        index = self._live.index(partition)
        del self._live[index]
        if index < self._at:
            self._at -= 1
        self._wrap()

    def _wrap(self) -> None:
        if self._at == len(self._live):
            self._at = 0
