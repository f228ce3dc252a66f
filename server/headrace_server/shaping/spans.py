"""Segments as steps: where an example is cut, and the segments of a batch.

A segment is the steps [first, after) of an example.  ``after`` is where the next one begins; of the
last segment it is the end of the example.

    unroll 4, stride 3      0 1 2 3 4 5 6 7 8    of 9 steps
    segment 0              [0 1 2]3              after 3, with 4 steps of its own
    segment 1                    [3 4 5]6        after 6
    segment 2                          [6 7 8]   after 9: the last one

With a phase the first segment has ``opening`` steps, 1 … stride; segment k still begins after
k - 1 strides and a bit, so its number follows from its first step alone.  In a packed row a segment
has the steps for which the row has room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .stored_state import VERSION

NO_NUMBERS = np.empty(0, np.int64)
#: A segment in ``Batch.place``: its lane (or row), the insertion index of its example after that of
#: the batch's first one, its steps, and the token of the commit that saved the state before it; 0:
#: none.  ``after`` is negative where the segment was known to be the last one.
SEGMENT_PLACE = np.dtype(
    [("lane", "<i4"), ("delta", "<i4"), ("first", "<i4"), ("after", "<i4"), ("version", "<u8")]
)
#: A segment that begins inside a packed row, at step 0 of its example: to its end, or the row's.
FILL_PLACE = np.dtype([("lane", "<i4"), ("delta", "<i4")])
_NUMBER = np.dtype("<i8")  # the index of the first example; of a packed batch also its rows
#: A segment as it was read from a place; ``after`` is 0 where it follows from the row.
_READ = np.dtype([(n, "<i8") for n in ("lane", "index", "first", "after", "version")])
#: All rows of a batch, in order.
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Cut:
    """How examples are cut."""

    unroll: int = 1  # own steps of a segment, or of a packed row
    stride: int = 1
    packed: bool = False
    grows: bool = False  # whether examples are cut before all of their steps are there

    def after(
        self,
        first: np.ndarray,
        end: np.ndarray,
        openings: np.ndarray | None = None,
        room: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the step after each segment that begins at ``first``.

        ``room``: steps that are left of the packed row in which it begins.
        """
        own: np.ndarray | int = self.unroll
        step: np.ndarray | int = self.stride
        if room is not None:
            own = step = room
        elif openings is not None:
            own = np.where(first == 0, openings, own)
            step = np.where(first == 0, openings, step)
        return np.where(end - first > own, first + step, end)

    def before(self, first: np.ndarray) -> np.ndarray:
        """Return the number of segments before these first steps; of packed examples of steps."""
        if self.packed:
            return first
        number: np.ndarray = -(-first // self.stride)
        return number

    def left(
        self, first: np.ndarray, end: np.ndarray, openings: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the number of segments from these steps on; of packed examples of steps."""
        steps = end - first
        if self.packed:
            return np.asarray(steps)
        opened: np.ndarray | int = 0  # of the segments, the first ones with their own length
        if openings is not None:
            opens = (first == 0) & (steps > openings)
            steps, opened = steps - opens * openings, opens
        more = -(np.minimum(self.unroll - steps, 0) // self.stride)
        return np.where(steps > 0, opened + 1 + more, 0)


class Spans:
    """The segments of a batch, as columns: one of each of some examples.

    Nothing of it changes, but a commit saves states after it and so gives it other versions.

        lane 0 │ a a a a │ b b │ c c c     packed: one for each of a, b, c, d; the lanes ascend
        lane 1 │ d d d d   d d   d d d     heads: a, d    tails: c, d    begins: 0, 4, 6, 0
    """

    #: The first segment of each row, the last, and the row of each segment among those.
    heads: Any = ALL
    tails: Any = ALL
    row_of: Any = ALL

    def __init__(
        self,
        entries: np.ndarray,
        numbers: np.ndarray,
        cut: Cut,
        lanes: np.ndarray = NO_NUMBERS,
        starts: np.ndarray = NO_NUMBERS,
        size: int = 0,
        openings: np.ndarray | None = None,
    ) -> None:
        """``entries``: of their examples, in the table.  ``openings``: where these are drawn.

        ``starts``: segments whose lanes have new examples.  ``size``: rows of the batch's block,
        with ranks: then ``lanes`` are the rows of the segments.  0: the block has the rows that
        hold a segment.
        """
        self.entries = entries
        self.numbers = numbers  # a row for each number of stored_state.Examples
        self.cut, self.lanes, self.starts, self.size = cut, lanes, starts, size
        self.openings = openings
        # lines: numbers of the examples as they were read; rows: of the examples in their chunks;
        # versions: tokens of the commits that saved their states
        self.lines, self.indices, self.chunks, self.rows, first, end, self.versions = numbers
        room = None
        self.height = len(entries)  # number of rows that hold a segment
        if cut.packed:
            self.heads, self.row_of, self.begins = laid_out(lanes, end - first)
            self.height = len(self.heads)
            self.tails = np.append(self.heads[1:], len(first))[: len(self.heads)] - 1
            room = cut.unroll - self.begins
        self.first, self.end = first, end
        self.after = after = cut.after(first, end, openings, room)
        #: Row of each segment in the block.
        self.places: Any = lanes if size else self.row_of
        self.last = after == end  # mask of the last segments of their examples …
        self.ended = entries[self.last]  # … and the entries of these

    def __len__(self) -> int:
        return len(self.entries)

    def of_chunks(self) -> set[int]:
        """Return the numbers of the chunks from which the segments come."""
        return set(self.chunks.tolist())

    def place(self) -> bytes:
        """Return what a later life needs to know the batch again."""
        if not len(self.entries):
            return b""
        base, lanes = self.indices[:1], self.lanes
        if not len(lanes):
            lanes = np.arange(len(self.entries))
        after = self.after.copy()
        np.negative(after, after, where=self.last)
        # two numbers of 32 bits in each of 64: the first one, in the lower bits, is not negative
        pairs = lanes + (self.indices - base << 32), self.first + (after << 32), self.versions
        place = np.array(pairs).T
        if not self.cut.packed:
            return b"".join([base.tobytes(), place.tobytes()])
        heads, fills = place[self.heads], place[self.begins > 0, 0]
        parts = base, np.array(len(heads), _NUMBER), heads, fills
        return b"".join([part.tobytes() for part in parts])

    def has(self, numbers: np.ndarray, lanes: np.ndarray, starts: np.ndarray) -> bool:
        """Return whether this batch has the same segments in the same places.

        Versions may differ: this batch was expected before its states were there.
        """
        return (
            self.numbers[:VERSION].tobytes() == numbers[:VERSION].tobytes()
            and self.lanes.tobytes() == lanes.tobytes()
            and self.starts.tobytes() == starts.tobytes()
        )


def joined(batches: Sequence[Spans]) -> Spans:
    """Return the segments of some batches of one feed, in their order."""
    openings = None
    if batches[0].openings is not None:
        openings = np.concatenate([spans.openings for spans in batches if len(spans)])
    return Spans(
        np.concatenate([spans.entries for spans in batches]),
        np.concatenate([spans.numbers for spans in batches], 1),
        batches[0].cut,
        np.concatenate([spans.lanes for spans in batches]),
        openings=openings,
    )


def laid_out(lanes: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first segment of each packed row, and of each segment its row and step there.

    Segments of a lane stand together, with these ``steps`` left of their examples.
    """
    new = np.ones(len(lanes), bool)
    new[1:] = lanes[1:] != lanes[:-1]
    heads, rows = new.nonzero()[0], new.cumsum() - 1
    before = steps.cumsum() - steps
    return heads, rows, before - before[heads][rows]


def read_place(data: bytes, packed: bool) -> np.ndarray | None:
    """Return the segments of a ``Spans.place``, by lane; None where it can not be one."""
    if not data:
        return np.zeros(0, _READ)
    at = _NUMBER.itemsize * (1 + packed)
    if len(data) < at:
        return None
    base, *counted = np.frombuffer(data, _NUMBER, 1 + packed).tolist()
    count = counted[0] if packed else (len(data) - at) // SEGMENT_PLACE.itemsize
    rest = len(data) - at - count * SEGMENT_PLACE.itemsize
    if count < 0 or rest < 0 or rest % FILL_PLACE.itemsize or (rest and not packed):
        return None
    heads = np.frombuffer(data, SEGMENT_PLACE, count, at)
    fills = np.frombuffer(data, FILL_PLACE, offset=len(data) - rest)
    if packed:
        lanes = np.unique(heads["lane"])
        if len(lanes) < count or not np.isin(fills["lane"], lanes).all():
            return None
    place = np.zeros(count + len(fills), _READ)
    for name in ("lane", "first", "after", "version"):
        place[name][:count] = heads[name]
    place["lane"][count:] = fills["lane"]
    place["index"] = np.concatenate([heads["delta"], fills["delta"]]) + np.int64(base)
    return place[place["lane"].argsort(kind="stable")] if packed else place
