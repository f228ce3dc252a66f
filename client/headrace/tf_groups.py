"""Batches that TensorFlow takes in groups, and which of them a trainer really took.

    ready ──► group of a run ──► pulled, as the graph counts ──► taken, as a loop takes them
                 └── not pulled when its run ends, or another asks ──► ready again

A call of Python costs TensorFlow more than a small batch, so one call hands over all batches that
are ready, for some milliseconds of training.  TensorFlow's graph counts how many of a group it has
pulled, and ``committing`` takes these.  The graph lets none through after the rest of a group went
back.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from .batch_memory import put_back
from .committing import DatasetRun, Member
from .feed import Feed
from .segments import SegmentBatch

#: Batches of a group, and bytes and seconds of training that it may hold back from other trainers.
MOST = 16
_MOST_BYTES = 1 << 20
_MOST_S = 0.02
#: After this many groups of one batch, batches come one by one: a group costs more than that.
_SLOW = 16
#: A group of fewer further batches, ended by another shape, counts as one that does not pay.
_FEW = 3


def group_size(nbytes: int, handed: int, used_s: float) -> int:
    """Return how many batches to hand over, when the last ``handed`` lasted for ``used_s``."""
    fitting = min(MOST, max(1, _MOST_BYTES // max(1, nbytes)))
    return max(1, min(fitting, int(_MOST_S * handed / max(used_s, 1e-9))))


class Groups:
    """Answers the requests of one dataset to its feed, from threads of TensorFlow."""

    def __init__(self, feed: Feed, counter: Any, now: Callable[[], float]) -> None:
        self._feed = feed
        self._counter = counter
        self._now = now
        self._counting: DatasetRun | None = None  # whose batches the counter counts
        self._runs: dict[int, tuple[DatasetRun, Iterator[Any]]] = {}
        self._numbers = itertools.count(1)

    def begun(self) -> Iterator[int]:
        """Begin an iteration; yield a number for ``next_group``, negative where batches come alone.

        It yields the number again where the rest of a group went back, and the graph counts anew,
        and where groups begin to pay, or pay no more.
        """
        run, number = DatasetRun(), next(self._numbers)
        batches: Iterator[Any] | None = None
        try:
            while not run.ended:
                commits = self._feed._commits  # a rewind of the feed replaces them
                if not commits.knows(run):
                    commits.begin_run(run)
                    batches = None
                if batches is None or run.stopped:
                    batches = iter(self._feed)
                self._runs[number] = run, batches
                yield number if self._count_with(run) else -number
        finally:
            self._runs.pop(number, None)
            self._feed._commits.end_run(run)
            if self._counting is run:
                self._counting = None

    def next_group(self, number: int) -> list[Any]:
        """Return the next batches of an iteration.

        StopIteration where it begins anew, or has ended.
        """
        run, batches = self._runs[abs(number)]
        self._feed._link.check_usable()
        commits = self._feed._commits
        if run.stopped or not commits.knows(run):
            raise StopIteration
        used_s = None if run.handed_at is None else self._now() - run.handed_at
        handed = run.handed
        commits.asks(run)
        size = 1
        if used_s is not None and self._counter is not None and commits.alone:
            size = group_size(run.nbytes, handed, used_s) if run.cut < _SLOW else 1
            run.slow = run.slow + 1 if size == 1 else 0
            run.fast = run.slow < _SLOW if number > 0 else size > 1
            if run.fast != (number > 0):
                raise StopIteration
        try:
            first = next(batches)
        except StopIteration:
            run.ended = True
            raise
        commits.fetched(run, first.token)
        members = self._ready(run, first, size - 1) if size > 1 else []
        commits.hand(run, members)
        run.nbytes, run.handed_at = first.nbytes, self._now()
        return [first, *(member.batch for member in members)]

    def one_by_one(self) -> Iterator[Any]:
        """Yield the batches of an iteration one by one, uncounted."""
        for number in self.begun():
            while True:
                try:
                    (batch,) = self.next_group(number)
                except StopIteration:
                    break
                yield batch

    def _count_with(self, run: DatasetRun) -> bool:
        """Let the counter count for a run that begins anew; return whether it could."""
        run.stopped, run.before, run.handed, run.handed_at, run.slow = False, 0, 0, None, 0
        if self._counting is run:
            self._counting = None
        if self._counter is None or self._counting is not None or not run.fast:
            return False
        self._counting, run.counter = run, self._counter
        self._counter.restart()
        return True

    def _ready(self, run: DatasetRun, first: Any, most: int) -> list[Member]:
        """Return at most ``most`` further batches that are ready, of the same epoch and shapes."""
        feed = self._feed
        epochs = feed._epochs
        members: list[Member] = []
        taken = feed._link.take_ready(most, lambda held: not (epochs and epochs.is_later(held)))
        cut = False
        for at, held in enumerate(taken):
            try:
                block = feed._blocks.block(held)
                batch = feed._plain(held, block)
            except Exception:  # raised when that batch is asked for by itself
                feed._link.untake(taken[at:])
                break
            member = Member(batch, held, block)
            cut = not _alike(batch, first)
            if cut:
                feed._link.untake([put_back(held, block), *taken[at + 1 :]])
                break
            members.append(member)
        run.cut = run.cut + 1 if cut and len(members) < _FEW else 0
        return members


def _alike(one: Any, other: Any) -> bool:
    """Return whether columns of two batches have equal shapes: a group has one array of each."""
    if isinstance(one, SegmentBatch):
        mine, others = one._places, other._places
    else:
        mine, others = one._slots, other._slots
    return mine is others or [s.shape for s in mine.values()] == [s.shape for s in others.values()]
