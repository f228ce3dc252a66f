"""Which partition of a worker works next, and how far ahead of trainers its feeds may get.

    batches that are made, and that no trainer has taken (``Untaken``)
                        │
                        ▼
    turn(): the partition that makes the next batch, or none

Feeds share the worker's time evenly: the feed that has worked least comes first.  One with batches
that nobody has taken comes after those whose trainers may wait.  Partitions whose batches are made
ahead take turns by (turn of their next batch, partition), the order in which the owner hands
batches out, so a full slab holds earlier batches only.  Partitions of segments, whose trainers ask
for each batch, make one after another.  A partition that waits for trainers takes no turn.

A feed that nobody reads rests when it is a bounded number of batches ahead, so that it takes
neither turns nor room from the others.  It rests until a quarter of that is taken, so that a worker
that waits for trainers wakes for several batches and not for each.

A pipeline may set the bound: its *capacity* is the number of batches that each partition makes
ahead, fewer or more than the default (``bounds``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

#: Feed and number of a partition.
PartitionName = tuple[str, int]


class _Partition(Protocol):
    @property
    def next_turn(self) -> int: ...

    @property
    def capacity(self) -> int | None: ...

    @property
    def made_ahead(self) -> bool: ...


class Untaken:
    """The batches of a feed that are made and that no trainer has taken: none."""

    count = 0
    nbytes = 0  # of all of them

    def of(self, partition: int) -> int:
        """Return how many are of one partition."""
        return 0


class _WorkDone:
    """The work that each of several parties (feeds, partitions) has done: seconds, or batches.

    One that had nothing to do counts as far as the others when it comes back: it has no claim to
    the time that it left to them.
    """

    def __init__(self) -> None:
        self._spent: dict[Hashable, float] = {}
        self._now = 0.0  # where the last one began

    def start(self, one: Hashable) -> float:
        """Return where a party begins its next work; the least comes first."""
        return max(self._now, self._spent.get(one, 0.0))

    def worked(self, one: Hashable, amount: float) -> None:
        """Note that the party that came first has worked."""
        self._now = self.start(one)
        self._spent[one] = self._now + amount


@dataclass(slots=True)
class _Feed:
    """The partitions of a feed that are at work, and its batches that are not taken."""

    running: int = 0  # number of partitions …
    ready: dict[int, _Partition] = field(default_factory=dict)  # … and those that wait for nobody
    capacity: int | None = None  # of each partition
    work: _WorkDone = field(default_factory=_WorkDone)
    untaken: Untaken = field(default_factory=Untaken)
    bounds: tuple[int, int] = 0, 0  # of batches and of bytes
    rests: bool = False

    def first(self) -> int | None:
        """Return the partition that comes first; None where that one is far enough ahead."""
        partition, run = next(iter(self.ready.items()))
        if len(self.ready) > 1:
            _, partition, run = min(
                (run.next_turn if run.made_ahead else self.work.start(partition), partition, run)
                for partition, run in self.ready.items()
            )
        if run.capacity is None or self.untaken.of(partition) < run.capacity:
            return partition
        return None


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


class PartitionTurns:
    """The turns of one worker's partitions."""

    def __init__(
        self, feeds: Iterable[str], max_ahead: int, max_ahead_bytes: int, slab_bytes: int
    ) -> None:
        self._feeds = {name: _Feed() for name in feeds}
        self._work = _WorkDone()
        self.waiting: dict[PartitionName, _Partition] = {}  # those that wait for trainers
        several = len(self._feeds) > 1
        self._always = 1 if several else 2
        self._max_ahead = max_ahead
        self._max_ahead_bytes = max_ahead_bytes
        self._slab_bytes = slab_bytes
        self._most_bytes = slab_bytes // (2 * len(self._feeds)) if several else None

    def follow(self, feed: str, untaken: Untaken) -> None:
        """Bound a feed by its batches that are not taken."""
        self._feeds[feed].untaken = untaken

    def open(self, name: PartitionName, run: _Partition) -> None:
        """Let a partition take turns."""
        feed = self._feeds[name[0]]
        feed.ready[name[1]], feed.capacity = run, run.capacity
        feed.running += 1
        self._bound(feed)

    def end(self, name: PartitionName) -> None:
        """Let a partition take no more turns."""
        feed = self._feeds[name[0]]
        self.wake(name)
        del feed.ready[name[1]]
        feed.running -= 1
        self._bound(feed)

    def wait(self, name: PartitionName) -> None:
        """Let a partition wait for trainers."""
        if name not in self.waiting:
            self.waiting[name] = self._feeds[name[0]].ready.pop(name[1])

    def wake(self, name: PartitionName) -> None:
        """Let a partition take turns again if it waits."""
        if name in self.waiting:
            self._feeds[name[0]].ready[name[1]] = self.waiting.pop(name)

    @property
    def at_rest(self) -> bool:
        """Whether all partitions wait for trainers."""
        return not any(feed.ready for feed in self._feeds.values())

    def turn(self) -> PartitionName | None:
        """Return the partition that makes the next batch, unless enough is made ahead."""
        able = [name for name, feed in self._feeds.items() if feed.ready and not self._rests(feed)]
        while able:
            name = able[0] if len(able) == 1 else min(able, key=self._order)
            if (partition := self._feeds[name].first()) is not None:
                return name, partition
            able.remove(name)
        return None

    def _order(self, name: str) -> tuple[bool, float, str]:
        return self._feeds[name].untaken.count > 0, self._work.start(name), name

    def worked(self, name: PartitionName, seconds: float, batches: int) -> None:
        """Note that a partition, which had the turn, has worked and made so many batches."""
        self._work.worked(name[0], seconds)
        self._feeds[name[0]].work.worked(name[1], batches)

    def _bound(self, feed: _Feed) -> None:
        """Set how far ahead a feed may get, for the partitions that are at work."""
        most, most_bytes = bounds(
            feed.capacity,
            feed.running,
            self._max_ahead,
            self._max_ahead_bytes,
            self._slab_bytes,
        )
        if self._most_bytes is not None:
            most_bytes = min(most_bytes, self._most_bytes)
        feed.bounds = most, most_bytes

    def _rests(self, feed: _Feed) -> bool:
        """Return whether a feed rests, since it is far enough ahead."""
        (most, most_bytes), untaken = feed.bounds, feed.untaken
        if feed.rests:
            most, most_bytes = most - max(1, most // 4) + 1, most_bytes - most_bytes // 4
        enough = untaken.count >= most or untaken.nbytes >= most_bytes
        feed.rests = enough and untaken.count >= self._always
        return feed.rests
