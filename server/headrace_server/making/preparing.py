"""The batch that is expected next, written before it is wanted: all of it but its states.

    expected batch ─► lent block, examples written ─► the batch that is wanted ─┬─► the same one
                                                                                └─► another: dropped

The machine decides a batch when it is wanted, as if nothing had been prepared, and only then the
two are compared: a wrong guess costs time, and changes nothing.  After n wrong guesses in a row,
none is made for 2**n batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace_proto.dtypes import BYTES

from ..core.arena import Block
from ..core.slots import Segments
from .segment_block import BlockLayout, SegmentBlock
from .sequencing import Offer, Sequencing
from .slab import Slab
from .state_table import KeptStates, StateTable

__all__ = ["Preparing"]

#: Exponent that bounds the pause after wrong guesses: 64 batches.
_MOST_WRONG = 6


class Preparing:
    """At most one batch of one partition.  ``offers`` are those of its chunks in memory."""

    def __init__(
        self,
        slab: Slab,
        layout: BlockLayout,
        cutting: Sequencing,
        offers: Mapping[int, Offer],
        table: StateTable,
        kept: KeptStates,
    ) -> None:
        self._slab = slab
        self._layout = layout
        self._machine = cutting.machine
        self._at_trainer = cutting.at_trainer
        self._offers = offers
        self._table = table
        self._kept = kept
        # Where strings are states, places in the block are known when the states are.
        texts = any(state.field.dtype == BYTES for state in cutting.states)
        self._possible = self._at_trainer or not texts
        self._ready: tuple[SegmentBlock, Block] | None = None
        self._wrong = 0  # guesses in a row
        self._pause = 0  # batches for which none is made

    def prepare(self) -> bool:
        """Write the examples of the batch that is expected; False where there is nothing to do."""
        if not self._possible or self._ready is not None or self._pause:
            return False
        batch = self._machine.expected()
        if batch is None or not self._offers.keys() >= set(batch.chunks.tolist()):
            return False
        extra: dict[str, Any] = {}
        states = len(batch)
        if self._at_trainer:
            if batch.segments[batch.starts].any():  # from a state that may still be flushed
                return False
            extra, states = self._kept.columns(batch, self._offers)
        assembly = SegmentBlock(self._layout, batch, self._offers, extra, states)
        block = self._slab.lend(assembly.nbytes)
        if block is None:
            return False
        if not self._at_trainer:  # their slots are nobody's before their first segment is taken
            self._table.grow(self._machine.slots)
            self._table.begin(batch, self._offers)
        assembly.fill_examples(self._slab.memory(block))
        self._ready = assembly, block
        return True

    def take(self, batch: Segments) -> tuple[SegmentBlock, Block] | None:
        """What was written of this batch, which is the one that is wanted, and where.

        States lack that are in the table, where examples that begin have theirs already.
        """
        if self._ready is None:
            self._pause = max(0, self._pause - 1)
            return None
        (assembly, block), self._ready = self._ready, None
        if assembly.batch.same(batch):
            self._wrong = 0
            return (assembly, block) if self._slab.keep(block) else None
        self._slab.give_back(block)
        self._wrong = min(self._wrong + 1, _MOST_WRONG)
        self._pause = 2**self._wrong
        return None
