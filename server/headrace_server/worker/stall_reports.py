"""Reports on partitions that make no batch: what each lacks.

made() ─► nothing for a second ─► wait() ─► desk, once a second
full(), starve() ─► desk, once until a batch is made
end() ─► the log, where no batch could ever be made
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from ..core.partition import HOPELESS_EPOCHS
from ..core.partition_turns import PartitionName
from ..making.partition_run import Run
from .desk import Desk
from .events import EventSink

logger = logging.getLogger("headrace.worker")

#: Seconds without a batch after which a partition reports what it lacks, and between two reports.
_SILENT_S = 1.0


class StallReports:
    """The reports of one worker."""

    def __init__(self, send: EventSink) -> None:
        self._send = send
        self._reported: dict[PartitionName, float] = {}  # time of the last batch or report
        self._full: set[str] = set()  # feeds that were told that the slab is full
        self.starved: set[PartitionName] = set()  # partitions that wait for states

    def made(self, name: PartitionName, now: float) -> None:
        """Note that a partition has made a batch."""
        self._reported[name] = now
        self._full.discard(name[0])

    def wait(self, name: PartitionName, run: Run, text: str = "") -> None:
        """Report what a partition lacks, in its words or by ``text``, after a second of silence."""
        now = time.monotonic()
        if now - self._reported.setdefault(name, now) < _SILENT_S:
            return
        self._reported[name] = now
        batch = -1
        if not text:
            text, batch = run.commits.lacks()
        if text:
            self._send((name[0], Desk.on_waiting, name[1], text[:1000], batch))

    def full(self, running: Mapping[PartitionName, Run]) -> None:
        """Report once to each feed that the slab is full until trainers commit."""
        for name, run in running.items():
            if run.made_ahead and name[0] not in self._full:
                self._full.add(name[0])
                self._send((name[0], Desk.on_starved, name[1]))

    def end(self, name: PartitionName, run: Run) -> None:
        """Warn of a partition that ends since no batch can come any more."""
        if run.machine.hopeless and run.share != 0:
            logger.warning(
                "partition %d of feed %r ends: %d epochs in a row made no batch, since its stages "
                "drop each example, or none fills a batch",
                name[1],
                name[0],
                HOPELESS_EPOCHS,
            )

    def starve(self, name: PartitionName, starved: bool) -> None:
        """Note that a partition rests, and whether it waits for states."""
        if starved and name not in self.starved:
            self.starved.add(name)
            self._send((name[0], Desk.on_starved, name[1]))
