"""Windows with context, or with a drawn first segment, copied to their places in a batch.

example      0 1 2 3 4 5 6 7 8        segment that begins at 6, left 2, num_unroll 4, right 1
                     └───────┘
row        │ 4 5 │ 6 7 8 0 │ 0 │      whole windows are copied at once, those that reach beyond
                                      the example, and first segments, one by one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.segment_geometry import Geometry
from ..reading.columns import Ragged
from ..reading.stretches import window as windows_of

#: Bytes per window above which copying windows singly beats an index, which copies twice.
LONG_WINDOW = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """The windows of some rows, by the first step and the number of own steps of each."""

    geometry: Geometry
    begins: np.ndarray
    sizes: np.ndarray

    def write(
        self,
        block: np.ndarray,
        offset: int,
        count: int,
        column: Ragged,
        places: Any,
        rows: np.ndarray,
    ) -> None:
        """Copy the windows of a column to their places, with zeros where there is no step.

        ``count`` rows of the batch begin at ``offset`` of the block.
        """
        geometry, item, raw = self.geometry, column.item_bytes, column.payload
        width = geometry.width * item
        starts, steps = column.starts[rows], column.lengths[rows]
        alone = np.arange(len(rows))
        if width <= LONG_WINDOW and width <= raw.size:
            begins = self.begins - geometry.left
            whole = (begins >= 0) & (begins + geometry.width <= steps)
            whole &= self.sizes == geometry.num_unroll
            out = np.ndarray((count,), f"V{width}", block, offset)
            # The others get arbitrary bytes here: the loop below overwrites them singly.
            out[places] = windows_of(raw, width)[np.where(whole, starts + begins * item, 0)]
            alone = (~whole).nonzero()[0]
        numbers = alone if isinstance(places, slice) else places[alone]
        target, source = block.data, raw.data
        for place, row in zip(numbers.tolist(), alone.tolist(), strict=True):
            at = offset + place * width
            block[at : at + width] = 0
            start, end = int(starts[row]), int(steps[row])
            for first, stop, room in geometry.parts(int(self.begins[row]), int(self.sizes[row])):
                skipped = max(0, -first)  # steps before the first one
                count_real = min(stop, end) - first - skipped
                if count_real > 0:
                    data = start + (first + skipped) * item
                    to = at + skipped * item
                    nbytes = count_real * item
                    target[to : to + nbytes] = source[data : data + nbytes]
                at += room * item
