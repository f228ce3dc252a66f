"""The progress and the waits of one worker, for its status.

    rest("trainers" | "states" | "slab") ── a wait of the worker ──► seconds, by what was waited for
    look() ── a moment later ──► a report of each feed, and of the worker

``look()`` only reads the clock until the next report is due.  Reports take at most a hundredth of
the worker's time, for any number of partitions.  Each replaces the last one at once, so any thread
can read it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..leasing.protocol import ANYONE
from ..making.partition_run import Run
from ..process.statuses import added
from .commits import PartitionName

#: The things that a worker waits for.
RESTS = ("trainers", "states", "slab")
_EVERY_S = 0.25
#: Inverse of the fraction of a worker's time that reports may take.
_PART = 100
_PROGRESS = ("epoch", "position", "share")


@dataclass(slots=True)
class FeedReport:
    """The progress of one feed's partitions in this life."""

    read: int = 0  # examples
    commits: int = 0  # records of the stores
    partitions: dict[int, dict[str, Any]] = field(default_factory=dict)  # progress of each
    _segments: list[dict[str, int]] = field(default_factory=list)
    _seconds: list[dict[str, float]] = field(default_factory=list)  # by stage
    _stores: list[list[Any]] = field(default_factory=list)

    def take(self, partition: int, run: Run, store: list[Any] | None) -> None:
        """Add a partition, with the progress of its store, see ``Stores.progress``."""
        progress = run.progress()
        self.read += progress["read"]
        known = {name: progress[name] for name in _PROGRESS}
        self.partitions[partition] = {"number": run.next_turn(ANYONE)[1], **known}
        self._seconds.append(progress["seconds"])
        if "segments" in progress:
            self._segments.append(progress["segments"])
        if store is not None:
            self.commits += store[0]
            self._stores.append(store)

    @property
    def status(self) -> dict[str, Any]:
        """Fields of ``FeedStatus``."""
        known: dict[str, Any] = {"read": self.read}
        if self._seconds:
            known["seconds"] = added(self._seconds)
        if self._segments:
            known["segment_standing"] = added(self._segments)
        if self._stores:
            last = max(at for _, at, _ in self._stores)
            known["store"] = {
                "commits": self.commits,
                "since_commit_s": round(max(0.0, time.monotonic() - last), 3) if last else None,
                "faults": sorted({fault for _, _, fault in self._stores if fault}),
            }
        return known


class Reporter:
    """The reports of one life of one worker."""

    def __init__(
        self,
        feeds: Iterable[str],
        slab: Any,
        store_of: Callable[[PartitionName], list[Any] | None],
    ) -> None:
        self._names = tuple(feeds)
        self._slab = slab
        self._store_of = store_of
        self._begun = time.monotonic()
        self.due = 0.0  # when a report is due
        self._rests = dict.fromkeys(RESTS, 0.0)
        self._write({}, self._begun)

    def look(self, runs: Mapping[PartitionName, Run]) -> None:
        """Make a report if one is due."""
        now = time.monotonic()
        if now >= self.due:
            self._write(runs, now)
            spent = time.monotonic() - now
            self.due = now + max(_EVERY_S, _PART * spent)

    def rest(self, what_for: str, poll: Callable[[float], Any], at_most_s: float) -> Any:
        """Wait by ``poll`` and add the seconds to this reason; return the result of ``poll``."""
        begun = time.monotonic()
        heard = poll(at_most_s)
        self._rests[what_for] += time.monotonic() - begun
        return heard

    def _write(self, runs: Mapping[PartitionName, Run], now: float) -> None:
        feeds = {name: FeedReport() for name in self._names}
        for (feed, partition), run in runs.items():
            feeds[feed].take(partition, run, self._store_of((feed, partition)))
        #: Fields of ``WorkerStatus``.
        self.worker = {
            "slab_bytes": self._slab.used_bytes,
            "work_s": max(0.0, now - self._begun - sum(self._rests.values())),
            "rests_s": dict(self._rests),
        }
        self.feeds = feeds
