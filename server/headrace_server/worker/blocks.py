"""The blocks of batches in shared memory: each is free once nobody needs its bytes.

    placed() ─► in the desk ── gone() ──┐
                  pin() … unpin() ──────┴─► freed

The desk says that it needs the bytes no more: the batch is committed, or made anew.  A trainer that
maps it, or a message that is being sent, pins it until then and beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace_proto.layout import Slot
from headrace_proto.messages import FROM_SERVER, Give, Given
from headrace_proto.step_messages import pack_columns

from ..leasing.words import Batch
from ..making.slab import Slab
from ..partition.partition_run import Body, Untaken

#: Number of columns above which a description is checked against the limit of a header.
_MANY_COLUMNS = 64
#: Maximum number of cached descriptions of columns: most batches of a feed share a few.
_MOST_KNOWN = 64


class Blocks:
    """The blocks of all batches of one worker."""

    def __init__(
        self, slab: Slab, feeds: Iterable[str], freed: Callable[[], object] = lambda: None
    ) -> None:
        """``freed`` is called when memory was freed."""
        self._slab = slab
        self._freed = freed
        self.untaken = {feed: Untaken() for feed in feeds}
        #: Packed columns, by identity of slots.
        self._known: dict[int, tuple[Sequence[Slot], bytes]] = {}

    def placed(self, feed: str, batch: Batch) -> bool:
        """Describe a batch's body for messages; return False if it was described before.

        ProtocolError if it has too many columns.
        """
        body, untaken = batch.body, self.untaken[feed]
        if body.segment:  # it was dealt anew
            return False
        body.columns, body.crowded = self._columns_of(body.slots), self._slab.crowded
        body.segment, body.untaken = self._slab.name_in_messages(body.block), untaken
        untaken.count += 1
        untaken.nbytes += batch.nbytes
        return True

    def taken(self, batch: Batch) -> None:
        """Note that a trainer gets a batch."""
        body = batch.body
        if not body.taken:
            body.taken = True
            body.untaken.count -= 1
            body.untaken.nbytes -= batch.nbytes

    def _columns_of(self, slots: Sequence[Slot]) -> bytes:
        """Return the columns as a message has them."""
        known = self._known.get(id(slots))
        if known is None or known[0] is not slots:
            columns = [[slot.offset, slot.nbytes, list(slot.shape)] for slot in slots]
            if len(slots) > _MANY_COLUMNS:
                given = Given(0, 0, 0, 0, 0, 0, 0, 0, 0, columns)
                FROM_SERVER.encode(Give(0, (given,)))
            known = slots, pack_columns(columns)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[id(slots)] = known
        return known[1]

    def pin(self, batch: Batch) -> None:
        """Keep the bytes of a batch until ``unpin``."""
        batch.body.pins += 1

    def unpin(self, batch: Batch) -> None:
        body = batch.body
        body.pins -= 1
        if body.gone and not body.pins:
            self._free(body)

    def gone(self, batch: Batch) -> None:
        """Note that the desk needs the bytes of a batch no more."""
        body = batch.body
        if body is None or body.gone:  # an earlier life made it
            return
        body.gone = True
        if not body.taken:
            self.taken(batch)
        if not body.pins:
            self._free(body)

    def _free(self, body: Body) -> None:
        self._slab.free(body.block)
        self._freed()
