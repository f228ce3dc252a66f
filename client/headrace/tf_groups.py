"""Batches that TensorFlow takes in groups, and which of them a trainer really took.

    ready ──► group of a run ──► pulled, as the graph counts ──► taken, as a loop takes them
                 └── not pulled when its run ends, or another asks ──► ready again

A call of Python costs TensorFlow more than a small batch, so one call hands over all batches that
are ready, for some milliseconds of training.  TensorFlow's graph counts how many of a group it has
pulled.  Whenever it matters (a commit, a snapshot, the next group, the end) the pulled batches are
taken here one after the other, exactly as if each had been asked for by itself.  The graph lets
none through after the rest of a group went back.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .batch_memory import only_read
from .blocks import put_back
from .committing import DatasetRun, TakenBatches
from .link import Link
from .segments import SegmentBatch
from .trainer import Held

if TYPE_CHECKING:
    from .feed import Feed
    from .tf_dataset import PulledBatches

#: Batches of a group, and bytes and seconds of training that it may hold back from other trainers.
MOST = 16
_MOST_BYTES = 1 << 20
_MOST_S = 0.02
#: After this many groups of one batch, batches come one by one: a group costs more than that.
_SLOW = 16
#: A group of fewer further batches, ended by another shape, counts as one that does not pay.
_FEW = 3


class _Member(NamedTuple):
    """A batch of a group, to use again if it goes back."""

    batch: Any
    held: Held
    block: np.ndarray
    durable: bool


@dataclass(slots=True, eq=False)
class GroupRun(DatasetRun):
    """One iteration over a dataset whose batches come in groups."""

    counter: PulledBatches | None = None  # None: its batches come one by one
    stopped: bool = False  # the rest of its group went back, so the graph must count anew
    ended: bool = False  # the feed has no more batches for it
    # without the first batch, which is taken at once
    group: list[_Member] = field(default_factory=list)
    taken: int = 0  # of these
    handed: int = 0  # batches of the group, the first too
    before: int = 0  # what the counter had before the group
    handed_at: float | None = None
    nbytes: int = 0  # of the last batch
    fast: bool = False  # whether groups pay
    slow: int = 0  # groups of one batch, one after the other
    cut: int = 0  # small groups, one after the other, that another shape of the next batch ended


def group_size(nbytes: int, handed: int, used_s: float) -> int:
    """Return how many batches to hand over, when the last ``handed`` lasted for ``used_s``."""
    fitting = min(MOST, max(1, _MOST_BYTES // max(1, nbytes)))
    return max(1, min(fitting, int(_MOST_S * handed / max(used_s, 1e-9))))


class GroupedBatches(TakenBatches):
    """The batches in a trainer's hands, where TensorFlow pulls them in groups."""

    def __init__(self, taken: TakenBatches, link: Link) -> None:
        self.__dict__ = taken.__dict__  # the same batches: other threads may be taking some
        self._link = link
        self._groups = threading.RLock()
        self._group_runs: list[GroupRun] = []

    # As TakenBatches, with what was pulled

    def on_next(self) -> list[int]:
        self._count_pulled(stop=True)
        return [] if self.explicit else super().in_hand()

    def in_hand(self) -> list[int]:
        self._count_pulled(stop=self._link.left)
        return super().in_hand()

    def commit(self, tokens: Any) -> list[int]:
        if not self.explicit:
            self._count_pulled()
        return super().commit(tokens)

    def for_snapshot(self, upto: Any, feed: Any = None) -> list[int]:
        self._count_pulled()
        return super().for_snapshot(upto, feed)

    def give_back(self) -> list[int]:
        self._count_pulled(stop=self._link.left)
        return super().give_back()

    # Runs

    def knows(self, run: GroupRun) -> bool:
        """Return whether a run takes its batches from here; not after a rewind of the feed."""
        return any(one is run for one in self._group_runs)

    def begin_group_run(self, run: GroupRun) -> list[int]:
        """Begin an iteration where others stopped; return tokens to give back."""
        with self._groups:
            self._count_pulled(stop=True)
            self._group_runs.append(run)
            return self.begin_run(run)

    def end_group_run(self, run: GroupRun) -> None:
        """Note that TensorFlow has dropped an iterator, or that it has ended."""
        with self._groups:
            if not self._link.left:
                self._count_pulled_of(run, stop=True)
            run.closed = True
            self._group_runs = [one for one in self._group_runs if one is not run]

    def asks(self, run: GroupRun) -> None:
        """Note that a run asks for its next group, so it has pulled all of the last one."""
        with self._groups:
            self._take(run, len(run.group))
            for member in run.group:  # TensorFlow has copied it
                only_read(member.block)
            run.before += run.handed
            run.group, run.taken, run.handed = [], 0, 0

    def hand(self, run: GroupRun, group: list[_Member]) -> None:
        """Hand a run its next group; the batch before these is taken already."""
        with self._groups:
            run.group, run.taken, run.handed = group, 0, 1 + len(group)
            if self.explicit:  # the trainer may commit any of them by its token
                self._take(run, len(group))

    @property
    def alone(self) -> bool:
        """Whether at most one run iterates; several runs take their batches one by one."""
        return len(self._group_runs) < 2

    # Counting

    def _count_pulled(self, stop: bool = False) -> None:
        with self._groups:
            for run in self._group_runs:
                self._count_pulled_of(run, stop)

    def _count_pulled_of(self, run: GroupRun, stop: bool) -> None:
        """Take the batches that a run has pulled; with ``stop`` the rest is ready again."""
        count = len(run.group)
        if run.counter is None or not count or (run.taken == count and not stop):
            return
        pulled = run.counter.read() - run.before - 1
        if stop and pulled < count:
            pulled = run.counter.stop() - run.before - 1
        pulled = max(pulled, 0)
        self._take(run, pulled)
        rest = run.group[pulled:]
        if stop and rest:
            run.group, run.stopped = [], True
            if self.explicit:
                self._forget(run, {member.batch.token for member in rest})
            self._link.untake([put_back(member.held, member.block) for member in rest])

    def _take(self, run: GroupRun, upto: int) -> None:
        """Take the batches of a group up to number ``upto``, as if each had been asked for."""
        members = run.group[run.taken : upto]
        if members:
            memory = members[-1].block if members[-1].durable else None
            for token in self.take_in_turn([member.batch for member in members], memory):
                self._link.commit(token)
                self.due.pop(token, None)
            for member in members if self.explicit else members[-1:]:
                self.fetched(run, member.batch.token)
            run.taken = upto

    def _forget(self, run: GroupRun, tokens: set[int]) -> None:
        with self._lock:
            for token in tokens:
                self._open.pop(token, None)
            kept = [token for token in run.tokens if token not in tokens]
            run.tokens.clear()
            run.tokens.extend(kept)


class Groups:
    """Answers the requests of one dataset to its feed, from threads of TensorFlow."""

    def __init__(self, feed: Feed, counter: PulledBatches | None, now: Callable[[], float]) -> None:
        self._feed = feed
        self._counter = counter
        self._now = now
        self._counting: GroupRun | None = None  # whose batches the counter counts
        self._runs: dict[int, tuple[GroupRun, Iterator[Any]]] = {}
        self._numbers = itertools.count(1)

    def begun(self) -> Iterator[int]:
        """Begin an iteration; yield a number for ``next_group``, negative where batches come alone.

        It yields the number again where the rest of a group went back, and the graph counts anew,
        and where groups begin to pay, or pay no more.
        """
        run, number = GroupRun(), next(self._numbers)
        batches: Iterator[Any] | None = None
        try:
            while not run.ended:
                commits = self._grouped()
                if not commits.knows(run):
                    self._feed._say_given_back(commits.begin_group_run(run))
                    batches = None
                if batches is None or run.stopped:
                    batches = iter(self._feed)
                self._runs[number] = run, batches
                yield number if self._count_with(run) else -number
        finally:
            self._runs.pop(number, None)
            self._grouped().end_group_run(run)
            if self._counting is run:
                self._counting = None

    def next_group(self, number: int) -> list[Any]:
        """Return the next batches of an iteration.

        StopIteration where it begins anew, or has ended.
        """
        run, batches = self._runs[abs(number)]
        self._feed._link.check_usable()
        commits = self._grouped()
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

    def _grouped(self) -> GroupedBatches:
        """Return the batches in the trainer's hands; a rewind of the feed replaces them."""
        feed = self._feed
        if not isinstance(feed._commits, GroupedBatches):
            feed._commits = GroupedBatches(feed._commits, feed._link)
        return feed._commits

    def _count_with(self, run: GroupRun) -> bool:
        """Let the counter count for a run that begins anew; return whether it could."""
        run.stopped, run.before, run.handed, run.handed_at, run.slow = False, 0, 0, None, 0
        if self._counting is run:
            self._counting = None
        if self._counter is None or self._counting is not None or not run.fast:
            return False
        self._counting, run.counter = run, self._counter
        self._counter.restart()
        return True

    def _ready(self, run: GroupRun, first: Any, most: int) -> list[_Member]:
        """Return at most ``most`` further batches that are ready, of the same epoch and shapes."""
        feed = self._feed
        epochs = feed._epochs
        members: list[_Member] = []
        taken = feed._link.take_ready(most, lambda held: not (epochs and epochs.is_later(held)))
        cut = False
        for at, held in enumerate(taken):
            try:
                block = feed._blocks.block(held)
                batch = feed._plain(held, block)
            except Exception:  # raised when that batch is asked for by itself
                feed._link.untake(taken[at:])
                break
            member = _Member(batch, held, block, feed._durable)
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
