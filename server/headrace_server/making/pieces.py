"""Pieces of examples in the memory of a batch: the steps [first, after) of each, copied once.

    example      0 1 2 3 4 5 6 7 8        segment [6, 9), left 2, num_unroll 4, right 1
                         └───────┘
    row        │ 4 5 │ 6 7 8 · │ · │      one piece: steps 4 … 8, to the beginning of the row

A piece lies in one stretch of a buffer.  A chunk has each example in one, so a segment with its
context is one piece; two where it has fewer own steps than the row has room for, and context to
the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..shaping.spans import ALL, Spans
from .segment_cutting import Geometry, Group


@dataclass(slots=True, eq=False)
class Pieces:
    """Steps of the examples of a batch, and where they lie in it, in all of its sequences."""

    first: np.ndarray
    sizes: np.ndarray
    to: np.ndarray  # the step in the block
    groups: list[Group]
    #: Row of the block of each, which it has to itself; None: they share rows.
    places: Any = None
    #: Further pieces of some of the segments.
    more: Pieces | None = None

    @classmethod
    def of(cls, spans: Spans, geometry: Geometry, groups: list[Group]) -> Pieces:
        """Return the pieces of all segments of a batch."""
        first, width = spans.first, geometry.width
        if spans.cut.packed:
            to = spans.places * width + spans.begins
            return cls(first, spans.after - first, to, groups)
        places = spans.places if spans.size else np.arange(len(first))
        to, more, left = places * width, None, geometry.left
        own = geometry.own(first, spans.openings)
        after = first + own
        if geometry.right:
            end = np.minimum(after + geometry.right, spans.available)
            short = own < geometry.cut.unroll
            if np.any(short):
                sizes = np.where(short, np.maximum(end - after, 0), 0)
                more = cls(after, sizes, to + left + geometry.cut.unroll, groups)
            after = np.where(short, after, end)
        after = np.minimum(after, spans.available)
        if left:
            before = np.minimum(first, left)
            first, to = first - before, to + left - before
        return cls(first, after - first, to, groups, spans.places, more)


def write_sequence(
    block: np.ndarray, offset: int, rows: int, width: int, source: str, pieces: Pieces
) -> None:
    """Write a sequence to ``rows`` of ``width`` steps, with zeros where there is no step.

    Rows that pieces share are zero already.
    """
    for offer, of, numbers in pieces.groups:
        item, origins, raw, every = offer.steps_of(source, width)
        starts, sizes = origins.take(numbers) + pieces.first[of] * item, pieces.sizes[of]
        to, places = pieces.to[of], pieces.places
        if places is not None:
            if every is not None:
                inside = np.minimum(starts, len(every) - 1)  # partial ones are written again
                at = of if places is ALL else places[of]
                np.ndarray((rows,), every.dtype, block, offset)[at] = every[inside]
            partial = (sizes < width).nonzero()[0]
            if len(partial):
                blank = np.ndarray((rows, width * item), np.uint8, block, offset)
                blank[to.take(partial) // width] = 0
            if every is not None:
                starts, sizes, to = starts.take(partial), sizes.take(partial), to.take(partial)
        counted = starts.tolist(), (sizes * item).tolist(), (to * item + offset).tolist()
        target = block.data
        for start, size, place in zip(*counted, strict=True):
            target[place : place + size] = raw[start : start + size]
    if pieces.more is not None:
        write_sequence(block, offset, rows, width, source, pieces.more)
