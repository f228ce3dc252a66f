"""Finds the records that are laid out like one that has been walked.

A layout comes from one walked record: where the wanted values lie, and all other bytes (tags,
lengths, names).  A record of the same length with the same other bytes has the same layout,
so comparing these bytes, eight at a time for all rows at once, replaces the walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace_server.reading.stretches import ranges

from .example_columns import spans_of
from .example_wire import INTS, Run

#: Words of 8 bytes compared per row.  With more than that a walk is no slower.
_MAX_WORDS = 128


@dataclass(frozen=True, slots=True, eq=False)
class RecordLayout:
    """``spans`` are, by slot, starts in the record and sizes; None: the record has no value."""

    words: tuple[tuple[int, np.uint64, np.uint64], ...]  # offset, mask and masked content
    spans: tuple[tuple[np.ndarray, np.ndarray] | None, ...]

    def matches(self, data_words: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return a mask of the records at ``starts`` with this layout."""
        differs = np.zeros(starts.size, np.uint64)
        for offset, mask, word in self.words:
            differs |= (data_words[starts + offset] ^ word) & mask
        same: np.ndarray = differs == 0
        return same


def learn_layout(
    record: np.ndarray,
    kinds: Sequence[int],
    found: Sequence[Sequence[Run] | None],
    opaque: Sequence[tuple[int, int]],
) -> RecordLayout | None:
    """Return the layout of a walked record (uint8); None where no other could share it.

    ``opaque``: (start, stop) of unwanted bytes, which may differ.
    """
    mask = np.full(record.size, 0xFF, np.uint8)
    for start, stop in opaque:
        mask[start:stop] = 0
    spans = tuple(None if runs is None else spans_of(runs) for runs in found)
    for kind, values in zip(kinds, spans, strict=True):
        if values is None:
            continue
        mask[ranges(*values)] = 0
        for start, size in zip(*(v.tolist() for v in values), strict=True) if kind == INTS else ():
            # How long a single number is belongs to the layout; in packed ones the number of them
            # is counted row by row, and only where the last one ends belongs to it.
            single = np.count_nonzero(record[start : start + size] < 0x80) == 1
            mask[start if single else start + size - 1 : start + size] = 0x80
    words: list[tuple[int, np.uint64, np.uint64]] = []
    covered = 0
    for at in np.flatnonzero(mask).tolist():
        if at < covered:
            continue
        offset = min(at, record.size - 8)
        covered = offset + 8
        if len(words) == _MAX_WORDS:
            return None
        content = record[offset:covered].view("<u8")[0]
        words.append((offset, mask[offset:covered].view("<u8")[0], content))
    return RecordLayout(tuple(words), spans)
