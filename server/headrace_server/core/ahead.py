"""Which partition of a worker works next, and how far ahead of trainers its feeds may get.

    made(partition, bytes) ─► [ not taken yet, oldest first ] ─► taken()
                                          │
                         turn(): the partition that makes the next batch, or none

Partitions take turns by (turn of their next batch, partition), which is the order in which the
owner hands batches out.  So the worker always makes the batch that is wanted next, and a full slab
holds earlier batches only.  A feed that nobody reads rests when it is a bounded number of batches
ahead, so that it takes neither turns nor room from the others.  It rests until a quarter of that
is taken, so that a worker that waits for trainers wakes for several batches and not for each.

A pipeline may set the bound: its *capacity* is the number of batches that each partition makes
ahead, fewer or more than the default (``bounds``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

_Name = tuple[str, int]


class _Partition(Protocol):
    @property
    def next_turn(self) -> int: ...

    @property
    def capacity(self) -> int | None: ...


@dataclass(slots=True)
class _Feed:
    """Partition and bytes of batches made and not taken, oldest first."""

    untaken: deque[tuple[int, int]] = field(default_factory=deque)
    of: dict[int, int] = field(default_factory=dict)  # number of them by partition
    nbytes: int = 0
    rests: bool = False


def bounds(
    capacity: int | None, partitions: int, max_ahead: int, max_ahead_bytes: int, slab_bytes: int
) -> tuple[int, int]:
    """Return how many batches a worker may make ahead of one feed, and their bytes.

    A capacity beyond ``max_ahead`` gets proportionally more bytes, within a quarter of the slab:
    where half of the slab is used, trainers must copy batches.
    """
    if capacity is None:
        return max_ahead, max_ahead_bytes
    grown = max_ahead_bytes * capacity // max_ahead
    return capacity * partitions, max(max_ahead_bytes, min(grown, slab_bytes // 4))


class Ahead:
    """Batches of one worker that are made and not taken."""

    def __init__(
        self, feeds: Iterable[str], max_ahead: int, max_ahead_bytes: int, slab_bytes: int
    ) -> None:
        self._feeds = {name: _Feed() for name in feeds}
        several = len(self._feeds) > 1
        self._always = 1 if several else 2
        self._max_ahead = max_ahead
        self._max_ahead_bytes = max_ahead_bytes
        self._slab_bytes = slab_bytes
        self._share = slab_bytes // (2 * len(self._feeds)) if several else None

    def made(self, name: _Name, nbytes: int) -> None:
        """Note that a partition has made a batch."""
        feed = self._feeds[name[0]]
        feed.untaken.append((name[1], nbytes))
        feed.of[name[1]] = feed.of.get(name[1], 0) + 1
        feed.nbytes += nbytes

    def taken(self, feed: str) -> None:
        """Note that a batch of a feed was taken: the oldest one."""
        here = self._feeds[feed]
        partition, nbytes = here.untaken.popleft()
        here.of[partition] -= 1
        here.nbytes -= nbytes

    def turn(self, running: Mapping[_Name, _Partition], waiting: Container[_Name]) -> _Name | None:
        """Return the partition that makes the next batch, unless enough is made ahead."""
        resting = {name for name in self._feeds if self._enough(name, running)}
        if len(resting) == len(self._feeds):
            return None
        able = [name for name in running if name[0] not in resting and name not in waiting]
        if len(able) > 1:
            able.sort(key=lambda name: (running[name].next_turn, name))
        for name in able:
            if name[0] not in resting:
                capacity = running[name].capacity
                if capacity is None or self._feeds[name[0]].of.get(name[1], 0) < capacity:
                    return name
                resting.add(name[0])
        return None

    def _enough(self, name: str, running: Mapping[_Name, _Partition]) -> bool:
        feed = self._feeds[name]
        if not feed.untaken:
            feed.rests = False
            return False
        batches, nbytes = len(feed.untaken), feed.nbytes
        capacity = next((running[here].capacity for here in running if here[0] == name), None)
        most, most_bytes = bounds(
            capacity,
            0 if capacity is None else sum(here[0] == name for here in running),
            self._max_ahead,
            self._max_ahead_bytes,
            self._slab_bytes,
        )
        if self._share is not None:
            most_bytes = min(most_bytes, self._share)
        if feed.rests:
            most, most_bytes = most - max(1, most // 4) + 1, most_bytes - most_bytes // 4
        feed.rests = batches >= self._always and (batches >= most or nbytes >= most_bytes)
        return feed.rests
