"""What one feed has counted so far, as plain data.

    dispatcher: batches, rows, expired …  ─────────────────┐
    workers: rows dropped, classes, segments; a total of   ├─► told(), dropped(), bad()
             each partition, of which the last word stands ┤
    each batch: its padding, added up ─────────────────────┘

A worker's totals are its partition's and not its life's, so a death loses none and counts none
twice.  Counting takes no clock and no lock: it happens where the router hears of a thing.
"""

from __future__ import annotations

from typing import Any

from ..core.dispatch import Dispatcher
from .worker_messages import Finished, Made

__all__ = ["Counters"]


class Counters:
    """Of one feed."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._dropped: dict[int, dict[str, int]] = {}  # by partition
        self._stats: dict[int, dict[str, Any]] = {}  # of partitions that have classes or segments
        self._padding: dict[int, list[int]] = {}  # bucket → elements with padding, and without

    def on_made(self, message: Made) -> None:
        """A batch was made."""
        self._dropped[message.partition] = message.dropped
        if message.stats is not None:
            self._stats[message.partition] = message.stats
        if "padded" in message.meta:
            counts = self._padding.setdefault(message.meta["bucket"], [0, 0])
            counts[0] += message.meta["padded"]
            counts[1] += message.meta["real"]

    def on_finished(self, message: Finished) -> None:
        """A partition has said its last word."""
        self._dropped[message.partition] = message.dropped
        if message.stats is not None:
            self._stats[message.partition] = message.stats

    def dropped(self) -> dict[str, int]:
        """Rows dropped by reason, over all partitions."""
        total = dict(self._dispatcher.dropped)
        for counts in self._dropped.values():
            for reason, n in counts.items():
                total[reason] = total.get(reason, 0) + n
        return total

    def bad(self) -> dict[str, int]:
        """Bad examples by what was wrong with them."""
        return {r[4:]: n for r, n in self.dropped().items() if r.startswith("bad:")}

    def told(self) -> dict[str, Any]:
        """All of them."""
        classes = _added([self._stats[partition] for partition in sorted(self._stats)])
        segments = {"segments": classes.pop("segments")} if "segments" in classes else {}
        padding = {str(bucket): list(counts) for bucket, counts in sorted(self._padding.items())}
        return {
            **self._dispatcher.counts,
            "dropped": self.dropped(),
            "padding": padding,
            "classes": classes,
            **segments,
        }


def _added(stats: list[dict[str, Any]]) -> dict[str, Any]:
    """Counters by class, over partitions; where targets changed, each partition's own list."""
    total: dict[str, Any] = {}
    for of_partition in stats:
        for name, counts in of_partition.items():
            if name == "changes":
                total.setdefault(name, []).append(counts)
            elif name == "segments":
                before = total.get(name, {})
                total[name] = {what: n + before.get(what, 0) for what, n in counts.items()}
            else:
                before = total.get(name) or [0] * len(counts)
                total[name] = [a + b for a, b in zip(before, counts, strict=True)]
    return total
