"""Which partition of a worker works next, and how far ahead of trainers its feeds may get.

    made(partition, bytes) ─► [ not taken yet, oldest first ] ─► taken()
                                          │
                         turn(): the partition that makes the next batch, or none

Feeds share the worker's time evenly: the feed that has worked least comes first.  Partitions whose
batches are made ahead take turns by (turn of their next batch, partition), the order in which the
owner hands batches out, so a full slab holds earlier batches only.  Partitions of segments, whose
trainers ask for each batch, share the time of their feed evenly.

A feed that nobody reads rests when it is a bounded number of batches ahead, so that it takes
neither turns nor room from the others.  It rests until a quarter of that is taken, so that a worker
that waits for trainers wakes for several batches and not for each.

A pipeline may set the bound: its *capacity* is the number of batches that each partition makes
ahead, fewer or more than the default (``bounds``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

_Name = tuple[str, int]


class _Partition(Protocol):
    @property
    def next_turn(self) -> int: ...

    @property
    def capacity(self) -> int | None: ...

    @property
    def made_ahead(self) -> bool: ...


class _Shares:
    """Time that each of some parties, feeds or partitions, has worked.

    One that had nothing to do is as far as the others when it comes back: it has no claim to the
    time that it left to them.
    """

    def __init__(self) -> None:
        self._spent: dict[Hashable, float] = {}
        self._now = 0.0  # where the last one began

    def start(self, one: Hashable) -> float:
        """Return when a party begins its next work, in time worked; the least comes first."""
        return max(self._now, self._spent.get(one, 0.0))

    def worked(self, one: Hashable, seconds: float) -> None:
        """Note that the party that came first has worked."""
        self._now = self.start(one)
        self._spent[one] = self._now + seconds


@dataclass(slots=True)
class _Feed:
    """Partition and bytes of batches made and not taken, oldest first."""

    untaken: deque[tuple[int, int]] = field(default_factory=deque)
    of: dict[int, int] = field(default_factory=dict)  # number of them by partition
    nbytes: int = 0
    rests: bool = False
    shares: _Shares = field(default_factory=_Shares)
    bounds: tuple[int, int] = (0, 0)  # batches and bytes, where so many partitions are at work:
    partitions: int = -1


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
        self._shares = _Shares()
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
        resting = set()
        for feed, here in self._feeds.items():
            here.rests = bool(here.untaken) and self._enough(feed, here, running)
            if here.rests:
                resting.add(feed)
        if len(resting) == len(self._feeds):
            return None
        able = [name for name in running if name not in waiting and name[0] not in resting]
        for name in able if len(able) < 2 else self._first_of_feeds(able, running):
            capacity = running[name].capacity
            if capacity is None or self._feeds[name[0]].of.get(name[1], 0) < capacity:
                return name
        return None

    def _first_of_feeds(
        self, able: list[_Name], running: Mapping[_Name, _Partition]
    ) -> list[_Name]:
        """Return the partition of each feed that comes first, in the order of the feeds' turns."""
        first: dict[str, tuple[float, int]] = {}
        for name, partition in able:
            run, shares = running[name, partition], self._feeds[name].shares
            start = run.next_turn if run.made_ahead else shares.start(partition)
            first[name] = min(first.get(name, (start, partition)), (start, partition))
        names = sorted(first, key=lambda name: (self._shares.start(name), name))
        return [(name, first[name][1]) for name in names]

    def worked(self, name: _Name, seconds: float) -> None:
        """Note that a partition, which had the turn, has worked."""
        self._shares.worked(name[0], seconds)
        self._feeds[name[0]].shares.worked(name[1], seconds)

    def _enough(self, name: str, feed: _Feed, running: Mapping[_Name, _Partition]) -> bool:
        if feed.partitions != len(running):
            feed.partitions, feed.bounds = len(running), self._bounds_of(name, running)
        most, most_bytes = feed.bounds
        if feed.rests:
            most, most_bytes = most - max(1, most // 4) + 1, most_bytes - most_bytes // 4
        batches = len(feed.untaken)
        return batches >= self._always and (batches >= most or feed.nbytes >= most_bytes)

    def _bounds_of(self, name: str, running: Mapping[_Name, _Partition]) -> tuple[int, int]:
        capacity = next((running[here].capacity for here in running if here[0] == name), None)
        most, most_bytes = bounds(
            capacity,
            0 if capacity is None else sum(here[0] == name for here in running),
            self._max_ahead,
            self._max_ahead_bytes,
            self._slab_bytes,
        )
        return most, most_bytes if self._share is None else min(most_bytes, self._share)
