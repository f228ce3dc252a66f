"""Finds frames of small records many at a time: walks a stretch of a file in parallel lanes.

    file   |h....|h.....|h....|h...|h.....|h....|h.....|h...|
    lane 0  ^ ──────────────────►|
    lane 1                       ^ ────────────────►|             each from a header of a known kind
    lane 2                                          ^ ─────►

One walk from frame to frame can not use arrays, but a thousand walks at once can.  The place where
a lane begins is a guess: bytes of a payload may look like a header.  It counts when the lane before
it ends exactly there, so the result is that of a single walk from the first frame. Where a lane
meets a header that was not checked before, a single walk continues.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

_AROUND: Final = 16  # bytes of a frame beside its payload
#: Maximum size of a record in lanes: longer ones are few enough to walk, and slow to find.
_LONGEST: Final = 4096
_LANES: Final = 1024
#: Bytes walked at once, so that progress on a slow disk is visible.
_STRETCH: Final = 64 * 1024**2
_PAGE: Final = 4096
#: Least number of lanes: fewer are no faster than a single walk.
_FEWEST: Final = 64
#: Number of records in a lane: many, compared with the search for its beginning.
_DEEP: Final = 192
_MOST_STEPS: Final = 4 * _DEEP
_NONE: Final = -1


def walk_in_lanes(
    data: np.ndarray, position: int, known: Mapping[int, int], frame: float
) -> tuple[np.ndarray, int]:
    """Return frames from ``position`` on, as far as lanes go, and the start of the next one.

    ``known`` are checksums of lengths, by length; ``frame`` is the usual size of a frame.
    """
    lengths = [length for length in known if length <= _LONGEST]
    reach = max(lengths, default=0) + _AROUND
    last = data.size - reach  # from here on a frame might not be whole
    lane = max(int(_DEEP * frame), 2 * reach)
    count = min(_LANES, _STRETCH // lane, (last - position) // lane)
    if not lengths or count < _FEWEST:
        return np.empty(0, np.int64), position
    # one forward read, which is fast on a disk
    data[position : position + lane * count : _PAGE].max()
    heads = _Heads(data, {length: known[length] for length in lengths})
    starts = np.append(
        position, heads.first(position + lane * np.arange(1, count, dtype=np.int64), reach)
    )
    starts = starts[starts != _NONE]
    ends = np.append(starts[1:], position + lane * count)
    rows, stops = _in_step(heads, starts, ends, last)
    broken = np.flatnonzero(stops != ends)  # the first lane that does not lead to the next
    used = int(broken[0]) + 1 if broken.size else len(starts)
    frames = rows.T[:used]
    return frames[frames != _NONE], int(stops[used - 1])


def _in_step(
    heads: _Heads, starts: np.ndarray, ends: np.ndarray, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return frames by step and lane, and where each lane stopped: at, past or before its end."""
    position, going = starts, np.ones(len(starts), bool)
    rows: list[np.ndarray] = []
    while going.any() and len(rows) < _MOST_STEPS:
        payload = heads.lengths(np.minimum(position, last))
        going = going & (payload != _NONE)
        rows.append(np.where(going, position, _NONE))
        position = np.where(going, position + payload + _AROUND, position)
        going &= position < ends
    return np.array(rows), position


class _Heads:
    """Known headers at any place."""

    def __init__(self, data: np.ndarray, known: Mapping[int, int]) -> None:
        self._lengths = np.ndarray((data.size - 7,), "<u8", data, 0, (1,))
        self._checksums = np.ndarray((data.size - 3,), "<u4", data, 0, (1,))
        self._beyond = max(known) + 1
        self._known = np.full(self._beyond + 1, _NONE, np.int64)
        self._known[list(known)] = list(known.values())

    def lengths(self, at: np.ndarray) -> np.ndarray:
        """Return the lengths in the headers there; -1 where there is no known header."""
        length = np.minimum(self._lengths[at], self._beyond).astype(np.int64)
        sound = self._known[length] == self._checksums[at + 8]
        return np.where(sound, length, _NONE)

    def first(self, at: np.ndarray, within: int) -> np.ndarray:
        """Return the first known header at or after each of these; -1 where none is near."""
        around = at[:, None] + np.arange(within)
        rows, offsets = np.nonzero(self._lengths[around] < self._beyond)
        places = around[rows, offsets]
        sound = self.lengths(places) != _NONE
        found = np.full(len(at), _NONE)
        rows, firsts = np.unique(rows[sound], return_index=True)
        found[rows] = places[sound][firsts]
        return found
