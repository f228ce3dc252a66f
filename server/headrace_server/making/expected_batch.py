"""The expected next batch, written before trainers want it, except its states.

    expected batch ─► lent block, examples written ─► the batch that is wanted ─┬─► the same one
                                                                                └─► another: dropped

The machine decides the batch when it is wanted, as if nothing had been prepared, and gives the
expected one where it is that.  So a wrong guess costs time and changes nothing.  After n wrong
guesses in a row it makes none for 2**n batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from headrace_proto.dtypes import BYTES

from ..core.arena import Block
from ..core.slots import Segments
from .segment_block import SegmentBlock
from .slab import Slab

if TYPE_CHECKING:
    from .segment_maker import SegmentMaker

#: Exponent that bounds the pause after wrong guesses: 64 batches.
_MOST_WRONG = 6


class Preparing:
    """At most one prepared batch of one partition."""

    def __init__(self, slab: Slab, maker: SegmentMaker) -> None:
        self._slab = slab
        self._maker = maker
        # States with strings decide where columns lie in the block, so they must be known.
        cutting = maker.cutting
        texts = any(state.field.dtype == BYTES for state in cutting.states)
        self._possible = cutting.at_trainer or not texts
        self._ready: tuple[SegmentBlock, Block] | None = None
        self._wrong = 0  # number of wrong guesses in a row
        self._pause = 0  # number of batches without a guess

    def prepare(self) -> bool:
        """Write the examples of the expected batch; return whether there was one."""
        if not self._possible or self._ready is not None or self._pause:
            return False
        maker = self._maker
        batch = maker.cutting.machine.expected()
        if batch is None or not maker.offers.keys() >= set(batch.of_chunks()):
            return False
        if maker.cutting.at_trainer and np.count_nonzero(batch.segments[batch.starts]):
            return False  # they start from states that may still be flushed
        written = maker.written(batch)
        block = self._slab.lend(written.nbytes)
        if block is None:
            return False
        written.fill_examples(self._slab.memory(block))
        self._ready = written, block
        return True

    def take(self, batch: Segments) -> tuple[SegmentBlock, Block] | None:
        """Return the prepared batch and its block if it is this one; else None.

        States of the table are still to be written; initial states are already in the block.
        """
        if self._ready is None:
            self._pause = max(0, self._pause - 1)
            return None
        (written, block), self._ready = self._ready, None
        if written.batch is batch:
            self._wrong = 0
            return (written, block) if self._slab.use(block) else None
        self._slab.give_back(block)
        self._wrong = min(self._wrong + 1, _MOST_WRONG)
        self._pause = 2**self._wrong
        return None
