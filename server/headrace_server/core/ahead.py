"""Whose turn it is in a worker, and how far ahead of trainers its feeds may get.

    made(partition, bytes) ─► [ not taken yet, oldest first ] ─► taken(how many so far)
                                          │
                         turn(): the partition that makes the next batch, or none

Partitions take turns by (number of their next batch, partition), which is the order in which the
router hands batches out.  So what is made is always what is wanted next, and a slab that is full
holds nothing but what comes earlier.  A feed that nobody reads rests when it is a bounded way
ahead, so that it takes neither turns nor room from the others.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

__all__ = ["Ahead"]

_Name = tuple[str, int]


class _Partition(Protocol):
    @property
    def next_number(self) -> int: ...

    @property
    def capacity(self) -> int | None: ...


class Ahead:
    """Batches of one worker that are made and not taken."""

    def __init__(
        self, feeds: Iterable[str], max_ahead: int, max_ahead_bytes: int, slab_bytes: int
    ) -> None:
        # By feed: partition and bytes of batches made and not taken, oldest first; how many were.
        self._untaken: dict[str, list[tuple[int, int]]] = {name: [] for name in feeds}
        self._taken = dict.fromkeys(self._untaken, 0)
        several = len(self._untaken) > 1
        self._always = 1 if several else 2
        self._max_ahead = max_ahead
        self._max_ahead_bytes = max_ahead_bytes
        if several:
            share = slab_bytes // (2 * len(self._untaken))
            self._max_ahead_bytes = min(share, max_ahead_bytes)

    def made(self, name: _Name, nbytes: int) -> None:
        """A partition has made a batch."""
        feed, partition = name
        self._untaken[feed].append((partition, nbytes))

    def taken(self, feed: str, taken: int) -> None:
        """So many batches of a feed were taken, in the order in which they were made."""
        del self._untaken[feed][: taken - self._taken[feed]]
        self._taken[feed] = taken

    def turn(self, running: Mapping[_Name, _Partition], waiting: Container[_Name]) -> _Name | None:
        """The partition that makes the next batch, unless enough is made ahead."""
        resting = {feed for feed, ahead in self._untaken.items() if self._enough(ahead)}
        while True:
            name = min(
                (n for n in running if n[0] not in resting and n not in waiting),
                key=lambda name: (running[name].next_number, name),
                default=None,
            )
            if name is None or not self._at_capacity(name, running[name].capacity):
                return name
            resting.add(name[0])

    def _enough(self, ahead: list[tuple[int, int]]) -> bool:
        return len(ahead) >= self._always and (
            len(ahead) >= self._max_ahead
            or sum(nbytes for _, nbytes in ahead) >= self._max_ahead_bytes
        )

    def _at_capacity(self, name: _Name, capacity: int | None) -> bool:
        """Whether a partition has made as many batches ahead as its pipeline allows."""
        feed, partition = name
        return capacity is not None and capacity <= sum(
            made == partition for made, _ in self._untaken[feed]
        )
