"""The counters of one feed, as plain data.

    dispatcher: batches, rows, expired …  ─────────────────┐
    workers: rows dropped, padding, classes …; a total of  ├─► totals(), dropped(), bad()
             each partition, of which the last one counts  ┤
    each batch: its rows and bytes, added up ──────────────┘
    sent to a trainer, answered to it: its Tally

A worker reports totals of its partition, not of its life, so a death loses none and counts none
twice.  Counting takes no clock and no lock: it happens where an event is handled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from headrace_proto.messages import Renew

from ..core.dispatch import Dispatcher
from ..core.handover import Answer
from ..process.counts import added
from .events import Counted, Made


@dataclass(slots=True)
class Tally:
    """Counters of one trainer's session."""

    batches: int = 0  # sent to it, resent ones included
    rows: int = 0
    nbytes: int = 0
    committed: int = 0
    stale: int = 0
    refused: dict[str, int] = field(default_factory=dict)  # saves, by code
    blocked_s: float = 0.0  # as the trainer reports …
    busy_s: float = 0.0
    awaited_s: float = 0.0  # for batches of this owner
    wire_batches: int = 0  # of those sent: to a trainer that does not see this host's memory
    wire_bytes: int = 0

    def sent(self, rows: int, nbytes: int) -> None:
        """Count a batch that is sent to it."""
        self.batches += 1
        self.rows += rows
        self.nbytes += nbytes

    @property
    def ways(self) -> list[int]:
        """Batches through shared memory, batches by wire, and the bytes of both."""
        here, here_bytes = self.batches - self.wire_batches, self.nbytes - self.wire_bytes
        return [here, self.wire_batches, here_bytes, self.wire_bytes]

    def on_renew(self, renew: Renew) -> None:
        """Take the times that the trainer reports."""
        self.blocked_s, self.busy_s = renew.blocked_s, renew.busy_s
        self.awaited_s = renew.awaited_s

    def answered(self, answer: Answer) -> None:
        """Count the answers to its commits."""
        self.committed += len(answer.committed)
        self.stale += len(answer.stale)
        for _, code, _ in answer.faults:
            self.refused[code] = self.refused.get(code, 0) + 1


class Counters:
    """Counters of one feed."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._dropped: dict[int, dict[str, int]] = {}  # by partition
        self._stats: dict[int, dict[str, Any]] = {}  # of partitions that have classes or segments
        self._made = [0, 0, 0]  # batches, rows, bytes
        self._refused: dict[str, int] = {}  # saves that were not stale, by code
        self._left = [0, 0, 0, 0]  # sent to sessions that have left, as in Tally.ways
        #: Batches and rows that were committed before this server started, by partition.
        self.before: dict[int, list[int]] = {}

    def go_on(self, partition: int, batches: int, rows: int, earlier_server: bool) -> int:
        """Continue the counts of a partition's stored commits.

        Return how many batches were committed before this server started: all of them where
        an ``earlier_server`` may have stored them and this life is the first of this one.
        """
        first = [batches, rows] if earlier_server else [0, 0]
        before = self.before.setdefault(partition, first)
        self._dispatcher.counts["batches"] += batches - before[0]
        self._dispatcher.counts["rows"] += rows - before[1]
        return before[0]

    def on_made(self, message: Made) -> None:
        """Count batches that were made."""
        counts = self._made
        for made in message.batches:
            counts[0] += 1
            counts[1] += made.rows
            counts[2] += made.body.nbytes

    def on_stats(self, partition: int, stats: dict[str, Any] | None) -> None:
        """Take the totals of a partition that has classes, segments or buckets."""
        if stats is not None:
            self._stats[partition] = stats

    def on_counted(self, message: Counted) -> None:
        """Take the totals of a partition."""
        self._dropped[message.partition] = message.dropped
        self.on_stats(message.partition, message.stats)

    def on_answer(self, answer: Answer) -> None:
        """Count refused commits."""
        for _, code, _ in answer.faults:
            self._refused[code] = self._refused.get(code, 0) + 1

    def on_left(self, tally: Tally) -> None:
        """Keep the counts of a session that has left."""
        self._left = [a + b for a, b in zip(self._left, tally.ways, strict=True)]

    def sent(self, present: Iterable[Tally]) -> dict[str, dict[str, int]]:
        """Return batches and bytes sent to all sessions, through shared memory and by wire."""
        shm, wire, shm_bytes, wire_bytes = map(
            sum, zip(self._left, *(tally.ways for tally in present), strict=True)
        )
        return {
            "batches": {"shm": shm, "wire": wire},
            "bytes": {"shm": shm_bytes, "wire": wire_bytes},
        }

    def committed(self) -> dict[str, int]:
        """Return the batches and rows that are committed, before this server started, too."""
        totals = zip(*self.before.values(), strict=True) if self.before else ((), ())
        names = ("batches", "rows")
        earlier = dict(zip(names, map(sum, totals), strict=True))
        return {name: self._dispatcher.counts[name] + earlier[name] for name in names}

    def dropped(self) -> dict[str, int]:
        """Return rows dropped by reason, over all partitions."""
        return added([self._dispatcher.dropped, *self._dropped.values()])

    def bad(self) -> dict[str, int]:
        """Return bad examples by fault."""
        return {r[4:]: n for r, n in self.dropped().items() if r.startswith("bad:")}

    def totals(self) -> dict[str, Any]:
        """Return all counters; keys as in ``Server.stats``."""
        stats = [self._stats[partition] for partition in sorted(self._stats)]
        classes = added({n: of[n] for n in of if n not in ("changes", "padding")} for of in stats)
        segments = {"segments": classes.pop("segments")} if "segments" in classes else {}
        changes = [of["changes"] for of in stats if "changes" in of]
        padding = added(  # by bucket: elements with padding, and without
            {str(bucket): [padded, real]}
            for bucket, padded, real in sorted(
                chain.from_iterable(of.get("padding", ()) for of in stats)
            )
        )
        return {
            **self._dispatcher.counts,
            "made": dict(zip(("batches", "rows", "bytes"), self._made, strict=True)),
            "refused": dict(self._refused),
            "dropped": self.dropped(),
            "padding": padding,
            "classes": {**classes, "changes": changes} if changes else classes,
            **segments,
        }
