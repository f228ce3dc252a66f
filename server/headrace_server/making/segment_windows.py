"""Windows of examples, copied to their places in a batch.

example      0 1 2 3 4 5 6 7 8        segment that begins at 6, left 2, num_unroll 4, right 1
                     └───────┘
row        │ 4 5 │ 6 7 8 0 │ 0 │      whole windows are copied at once, those that reach beyond
                                      the example, and short first segments, one by one
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np

from ..core.segment_geometry import Geometry
from ..reading.buffer_ranges import window as windows_of
from ..reading.columns import Ragged

#: Bytes per window above which copying windows singly beats an index, which copies twice.
_LONG_WINDOW = 8192


def write_windows(
    block: np.ndarray,
    offset: int,
    item: int,
    geometry: Geometry,
    column: Ragged,
    places: Any,
    rows: np.ndarray,
    begins: np.ndarray,
    sizes: np.ndarray | None,
) -> None:
    """Copy a window of each row to its place, with zeros where there is no step.

    The rows of the batch begin at ``offset`` of the block; a step has ``item`` bytes.  ``begins``
    are the first own steps of segments, ``sizes`` the numbers of own steps; None: all have
    ``num_unroll``.
    """
    raw, left, width = column.payload, geometry.left, geometry.width * item
    lengths, origins = column.lengths[rows], column.starts[rows]
    firsts = begins - left
    starts, ends = origins + firsts * item, (lengths - firsts) * item  # in bytes
    if sizes is not None:  # what follows a short segment does not follow it in the window
        short = sizes < geometry.num_unroll
        ends = np.where(short, np.minimum(ends, (left + sizes) * item), ends)
    partial = ends < width
    if left:
        partial |= firsts < 0
    in_order = isinstance(places, slice)  # then these are all rows of the batch
    at_once = width <= min(_LONG_WINDOW, raw.size)
    alone = partial.nonzero()[0] if at_once else np.arange(len(rows))
    numbers = (alone if in_order else places[alone]).tolist()
    before = firsts[alone].tolist() if left else repeat(0)
    parts = numbers, before, starts[alone].tolist(), ends[alone].tolist()
    if at_once:
        starts[alone] = 0  # the loop below writes these again
        every = windows_of(raw, width)
        count = len(rows) if in_order else (block.size - offset) // width
        np.ndarray((count,), every.dtype, block, offset)[places] = every[starts]
    target, source = block.data, raw.data
    for place, first, start, end in zip(*parts, strict=False):
        at, to = offset + place * width, offset + (place + 1) * width
        if first < 0:
            block[at : at - first * item] = 0
            at, start, end = at - first * item, start - first * item, end + first * item
        end = min(end, to - at)
        target[at : at + end] = source[start : start + end]
        if at + end < to:
            block[at + end : to] = 0
    if sizes is None or not geometry.right:
        return
    after = begins + sizes
    real = np.minimum(lengths - after, geometry.right) * item
    again = (short & (real > 0)).nonzero()[0]
    numbers = (again if in_order else places[again]).tolist()
    sources = (origins + after * item)[again].tolist()
    for place, start, size in zip(numbers, sources, real[again].tolist(), strict=True):
        at = offset + place * width + (left + geometry.num_unroll) * item
        target[at : at + size] = source[start : start + size]
