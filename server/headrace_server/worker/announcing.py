"""Announcements of the batches that a worker makes within a moment.

add(partition, batch) … ─► announce() ─► Made, one for each partition
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace_proto.errors import ProtocolError
from headrace_proto.layout import Slot
from headrace_proto.messages import FROM_SERVER, Deliver, Delivery

from ..core.handover import Batch
from ..making.run import MadeBatch, Run
from ..making.slab import Slab
from ..process.relay import BlockPlace
from .events import Made, Removed

#: Fraction of the slab in use above which trainers copy batches out instead of holding them.
_CROWDED = 0.5
#: Number of batches that are announced at once, however recent they are.
_BATCHES = 16
#: Number of columns above which a description is checked against the limit of a header.
_MANY_COLUMNS = 64
#: Maximum number of cached lists of columns: most batches of a feed share a few.
_MOST_KNOWN = 64

_Name = tuple[str, int]


class Announcer:
    """The announcements of one worker."""

    def __init__(self, slab: Slab, send: Callable[..., None]) -> None:
        self._slab = slab
        self._send = send
        self._ready: dict[_Name, tuple[Run, list[MadeBatch]]] = {}
        self._batches = 0
        self._known: dict[int, tuple[list[Slot], list[Any]]] = {}  # columns by identity of slots

    def add(self, name: _Name, run: Run, made: MadeBatch) -> None:
        """Add a batch that a partition has made."""
        if name not in self._ready:
            self._ready[name] = run, []
        self._ready[name][1].append(made)
        self._batches += 1

    @property
    def full(self) -> bool:
        """Whether to announce now, however recent the batches are."""
        return self._batches >= _BATCHES

    def announce(self) -> list[tuple[_Name, ProtocolError]]:
        """Announce all batches; the partitions whose batches fit no message, and why."""
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        self._batches = 0
        failed = []
        for name, (run, batches) in ready.items():
            try:
                message = self._message(name, run, batches)
                run.announced()
                self._send(message)
            except ProtocolError as error:  # for example, too many columns
                failed.append((name, error))
        if self._slab.removed:
            self._send(Removed(tuple(self._slab.removed)))
            self._slab.removed.clear()
        return failed

    def _message(self, name: _Name, run: Run, batches: Sequence[MadeBatch]) -> Made:
        crowded = self._slab.fraction_used > _CROWDED
        placed = [self._placed(name[1], made, crowded) for made in batches]
        return Made(*name, placed)

    def _placed(self, partition: int, made: MadeBatch, crowded: bool) -> Batch:
        block, columns = made.block, self._columns_of(made.slots)
        place = BlockPlace(self._slab.name_of(block), block.offset, made.nbytes, columns, crowded)
        meta, epoch, turn = dict(made.meta), made.epoch, made.turn
        return Batch(partition, made.number, made.rows, place, meta, epoch, turn)

    def _columns_of(self, slots: list[Slot]) -> list[Any]:
        """The columns of a message: the same list for the same list of slots."""
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
