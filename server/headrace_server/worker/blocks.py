"""The blocks of batches in shared memory: each is free once nobody needs its bytes.

    placed() ─► in the desk ── gone() ──┐
             Outbox.give() … unpin() ───┴─► freed

The desk says that it needs the bytes no more: the batch is committed, or made anew.  A trainer that
maps it, or a message that is being sent, pins it until then and beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace_proto.layout import ColumnPlace
from headrace_proto.messages import FROM_SERVER, Give, Given
from headrace_proto.step_messages import pack_columns

from ..leasing.words import Batch
from ..making.slab import Slab
from ..partition.partition_run import Body, Made

#: Number of columns above which a description is checked against the limit of a header.
_MANY_COLUMNS = 64
#: Maximum number of cached descriptions of columns: most batches of a feed share a few.
_MOST_KNOWN = 64


class Blocks:
    """The blocks of all batches of one worker."""

    def __init__(self, slab: Slab, freed: Callable[[], object] = lambda: None) -> None:
        """``freed`` is called when memory was freed."""
        self._slab = slab
        self.segment = slab.name  # as messages have it
        self._freed = freed
        #: Packed columns, by identity of slots.
        self._known: dict[int, tuple[Sequence[ColumnPlace], bytes]] = {}

    def placed(self, made: Made, batches: Iterable[Batch]) -> None:
        """Describe the bodies of new batches for messages, and count these in ``made``.

        ProtocolError if one has too many columns.
        """
        for batch in batches:
            body = batch.body
            if body.made is not None:  # it was dealt anew
                continue
            slots = body.slots
            known = self._known.get(id(slots))
            body.columns = known[1] if known and known[0] is slots else self._columns_of(slots)
            body.crowded, body.made = self._slab.crowded, made
            made.batches += 1
            made.rows += batch.rows
            made.bytes += batch.nbytes

    def _columns_of(self, slots: Sequence[ColumnPlace]) -> bytes:
        """Return the columns as a message has them, and remember them."""
        columns: list[Any] = [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
        if len(slots) > _MANY_COLUMNS:
            given = Given(0, 0, 0, 0, 0, 0, 0, 0, 0, columns=columns)
            FROM_SERVER.encode(Give(0, (given,)))
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(slots)] = slots, packed = slots, pack_columns(columns)
        return packed

    def memory(self, batch: Batch) -> memoryview:
        """Return the bytes of a batch."""
        return self._slab.memory(batch.body.block).data[: batch.nbytes]

    def unpin(self, batch: Batch) -> None:
        body = batch.body
        body.pins -= 1
        if body.gone and not body.pins:
            self._free(body)

    def gone(self, batch: Batch) -> None:
        """Free the block of a batch once no message or trainer needs it; the desk does not."""
        body = batch.body
        if body is None or body.gone:  # an earlier life made it
            return
        body.gone = True
        if not body.taken:
            body.taken = True
            body.made.taken += 1
            body.made.taken_bytes += batch.nbytes
        if not body.pins:
            self._free(body)

    def _free(self, body: Body) -> None:
        self._slab.free(body.block)
        self._freed()
