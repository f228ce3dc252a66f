"""Announcements of the batches that a worker makes.

announce(partition, batch) ─► desk        note() ─► partitions

A partition notes its cursor, which is long where many rows wait, after some batches and before the
worker rests.  A later process makes the batches since then again, and skips the done ones.
"""

from __future__ import annotations

from typing import Any

from headrace_proto.layout import Slot
from headrace_proto.messages import FROM_SERVER, Deliver, Delivery

from ..core.dispatch_effects import Batch
from ..making.partition_run import Run
from ..making.slab import Slab
from ..process.relay_messages import BlockPlace
from .desk import Desk
from .events import EventSink

#: Number of columns above which a description is checked against the limit of a header.
_MANY_COLUMNS = 64
#: Number of batches after which partitions note how to go on.
MOST_UNNOTED = 32
#: Maximum number of cached lists of columns: most batches of a feed share a few.
_MOST_KNOWN = 64


class Announcer:
    """The announcements of one worker."""

    def __init__(self, slab: Slab, send: EventSink) -> None:
        self._slab = slab
        self._send = send
        self._unnoted: set[Run] = set()  # that have made batches ahead …
        self._count = 0  # … and the number of these
        self._known: dict[int, tuple[list[Slot], list[Any]]] = {}  # columns by identity of slots

    def announce(self, feed: str, run: Run, batch: Batch) -> None:
        """Announce a batch.  ProtocolError where it fits no message: it has too many columns."""
        slab, block = self._slab, batch.body.block
        columns, crowded = self._columns_of(batch.body.written.slots), slab.crowded
        segment = slab.name_of(block)
        batch.body = BlockPlace(segment, block.offset, columns, crowded, block)
        self._send((feed, Desk.on_made, batch))
        if run.made_ahead:
            self._unnoted.add(run)
            self._count += 1

    def note(self, least: int = 1) -> None:
        """Have partitions note how to go on, if ``least`` batches were announced since they did."""
        if self._count >= least:
            self._count = 0
            for run in self._unnoted:
                run.commits.announced()
            self._unnoted.clear()

    def _columns_of(self, slots: list[Slot]) -> list[Any]:
        """Return the columns of a message: the same list for the same list of slots."""
        known = self._known.get(id(slots))
        if known is None or known[0] is not slots:
            known = slots, [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
            if len(slots) > _MANY_COLUMNS:
                described = Delivery(0, 0, 0, 0, 0, 0, known[1], {})
                FROM_SERVER.encode(Deliver(0, (described,)))
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(slots)] = known
        return known[1]
