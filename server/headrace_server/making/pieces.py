"""Pieces of examples in the memory of a batch: the steps [first, after) of each, copied once.

    example      0 1 2 3 4 5 6 7 8        segment [6, 9), left 2, num_unroll 4, right 1
                         └───────┘
    row        │ 4 5 │ 6 7 8 · │ · │      one piece: steps 4 … 8, to the beginning of the row

A piece lies in one stretch of a buffer.  A chunk has each example in one, so a segment with its
context is one piece; two where it has fewer own steps than the row has room for, and context to
the right.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..shaping.spans import ALL, Spans
from .segment_cutting import Geometry, Group

#: A piece of each segment of a batch: its first step, number of steps, and step in the column.
Pieces = tuple[np.ndarray, np.ndarray, np.ndarray]


def pieces_of(spans: Spans, geometry: Geometry, rows: np.ndarray) -> list[Pieces]:
    """Return the pieces of all segments, which lie in these ``rows``; packed ones share rows."""
    first, width = spans.first, geometry.width
    if spans.cut.packed:
        return [(first, spans.after - first, spans.places * width + spans.begins)]
    to, more, left = rows * width, list[Pieces](), geometry.left
    own = geometry.own(first, spans.openings)
    after = first + own
    if geometry.right:
        end = np.minimum(after + geometry.right, spans.end)
        short = own < geometry.cut.unroll
        if np.any(short):
            sizes = np.where(short, np.maximum(end - after, 0), 0)
            more.append((after, sizes, to + left + geometry.cut.unroll))
        after = np.where(short, after, end)
    after = np.minimum(after, spans.end)
    if left:
        before = np.minimum(first, left)
        first, to = first - before, to + left - before
    return [(first, after - first, to), *more]


def write_sequence(
    block: np.ndarray,
    offset: int,
    width: int,
    source: str,
    groups: list[Group],
    pieces: list[Pieces],
    chosen: Any = ALL,
) -> None:
    """Copy the pieces of a sequence, or of the ``chosen`` segments; other steps stay as they are.

    The column begins at ``offset``.
    """
    target = block.data
    for offer, of, rows in groups:
        item, origins, raw, _ = offer.steps_of(source, width)
        which = chosen if chosen is ALL else chosen[of]
        for first, sizes, to in pieces:
            starts = origins.take(rows) + first[of] * item
            counted = starts, sizes[of] * item, to[of] * item + offset
            for start, size, at in zip(*(part[which].tolist() for part in counted), strict=True):
                target[at : at + size] = raw[start : start + size]
