"""The current epoch of one owner's partitions of a feed, where batches end with their epoch.

    made ─► open batches of an epoch ─► closed ──┐
    partition: begins ─► makes … ─► rests ───────┴─► current: no batch of an earlier epoch comes
                  ▲                    │
                  └── all rest, or have ended

Partitions of a plain feed go on by themselves, since their batches come in the order of epochs.
Those of segments have no such order.  Each *rests* when the examples of its epoch have ended, and
all begin the next one together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class OpenEpochs:
    """The epochs of the partitions, and those of batches that are made and not settled."""

    def __init__(self, partitions: Iterable[int]) -> None:
        self._of = dict.fromkeys(partitions, 0)  # epoch by partition, without ended ones
        self._resting: set[int] = set()
        self._open: Counter[int] = Counter()
        self.last = 0  # the latest epoch that a partition has begun

    @property
    def current(self) -> int:
        """The least epoch of coming batches; the last one once all partitions have ended."""
        least = [*self._of.values(), *self._open]
        return min(least, default=self.last)

    @property
    def first_open(self) -> int | None:
        """The least epoch of a batch that is made and not settled."""
        return min(self._open, default=None)

    def of(self, partition: int) -> int:
        """Return the epoch of a partition: the last one, where the partition has ended."""
        return self._of.get(partition, self.last)

    def is_ahead(self, partition: int) -> bool:
        """Return whether a partition should wait: it rests, or others are in an earlier epoch."""
        here = self._of.get(partition)
        return here is not None and (partition in self._resting or here > min(self._of.values()))

    def begin(self, partition: int, epoch: int) -> None:
        """Note that a partition makes batches of an epoch."""
        if partition in self._of:
            self._of[partition] = max(epoch, self._of[partition])
        self._resting.discard(partition)
        self.last = max(epoch, self.last)

    def rest(self, partition: int, epoch: int) -> list[int]:
        """Note that a partition has finished its epoch; return the partitions that begin the next.

        A partition may report it again, even when its next epoch was begun.
        """
        if self._of.get(partition) == epoch:
            self._resting.add(partition)
        return self._due()

    def end(self, partition: int) -> list[int]:
        """Note that a partition makes no more batches; return those that begin another epoch."""
        self._of.pop(partition, None)
        self._resting.discard(partition)
        return self._due()

    def _due(self) -> list[int]:
        """Return the partitions of the least epoch, if all of them rest; they begin the next."""
        least = min(self._of.values(), default=0)
        here = [partition for partition, epoch in self._of.items() if epoch == least]
        if not self._resting.issuperset(here):
            return []
        for partition in here:
            self.begin(partition, least + 1)
        return here

    def made(self, epoch: int) -> None:
        """Note a batch that was made."""
        self._open[epoch] += 1

    def closed(self, epoch: int) -> None:
        """Note that a batch is settled or void."""
        self._open[epoch] -= 1
        if not self._open[epoch]:
            del self._open[epoch]
