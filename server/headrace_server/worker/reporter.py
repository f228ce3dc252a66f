"""The report in a worker's diary, and when it is due: progress of partitions, and waits.

    rest("trainers" | "states" | "slab") ── a wait of the worker ──► seconds, by what was waited for
    look() ── a moment later ──► [ the report in the diary ]

``look()`` only reads the clock until the next report is due.  Reports take at most a hundredth of
the worker's time, for any number of partitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ..making.run import Run
from ..process.diary import Diary

_EVERY_S = 0.25
#: Inverse of the fraction of a worker's time that reports may take.
_PART = 100

_Name = tuple[str, int]


class Reporter:
    """The reports of one life of one worker."""

    def __init__(
        self,
        diary: Diary,
        slab: Any,
        store_of: Callable[[_Name], list[Any] | None],
    ) -> None:
        self._diary = diary
        self._slab = slab
        self._store_of = store_of
        self._begun = time.monotonic()
        self.due = 0.0  # when ``write`` is due
        self._rests = {"trainers": 0.0, "states": 0.0, "slab": 0.0}

    def look(self, *runs: Mapping[_Name, Run]) -> None:
        """Write a report if one is due."""
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

    def _write(self, runs: tuple[Mapping[_Name, Run], ...], now: float) -> None:
        partitions = []
        totals: dict[str, dict[str, float]] = {"rests": dict(self._rests)}
        totals["rests"]["life"] = now - self._begun
        for running in runs:
            for name, run in running.items():
                feed, partition = name
                progress = run.progress()
                store = self._store_of(name)
                of_feed = totals.setdefault(f"feed:{feed}", {"read": 0, "commits": 0})
                of_feed["read"] += progress["read"]
                of_feed["commits"] += store[0] if store else 0
                entry = {"feed": feed, "partition": partition, "number": run.next_number}
                if store is not None:
                    entry |= {"committed_at": store[1], "fault": store[2]}
                partitions.append(entry | progress)
        report = {"slab": self._slab.used_bytes, "totals": totals, "partitions": partitions}
        if not self._diary.report(report):
            self._diary.report({**report, "partitions": []})
