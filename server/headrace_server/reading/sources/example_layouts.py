"""Finds the records that are laid out like one that has been walked.

A layout is what one walked record shows: where the wanted values lie, and all other bytes (tags,
lengths, names).  A record of the same length whose other bytes are the same is laid out the same,
so that comparing these bytes, eight at a time for all rows at once, replaces the walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .example_wants import Recipe
from .example_wire import FLOATS, INTS, FoundValues

#: Words of 8 bytes compared per row.  With more than that a walk is no slower.
_MAX_WORDS = 128


@dataclass(frozen=True, slots=True, eq=False)
class RecordLayout:
    offsets: tuple[int, ...]
    masks: tuple[np.uint64, ...]
    words: tuple[np.uint64, ...]
    plans: tuple[Recipe, ...]

    def matches(self, data_words: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """A mask of the records at ``starts`` that are laid out like this."""
        differs = np.zeros(starts.size, np.uint64)
        for offset, mask, word in zip(self.offsets, self.masks, self.words, strict=True):
            differs |= (data_words[starts + offset] ^ word) & mask
        same: np.ndarray = differs == 0
        return same


def _open(record: np.ndarray, mask: np.ndarray, plan: Recipe, found: FoundValues) -> bool:
    """Clear the mask at the bytes of the values.  False where no layout can be made."""
    for part in found.parts:
        start, size = part[0], part[1]
        if found.kind == INTS:
            # How long each varint is belongs to the layout; in packed ones the number of them is
            # counted row by row, and only where the last one ends belongs to it.
            single = not part[2] or plan.values == 1
            if single and (size > 10 or np.count_nonzero(record[start : start + size] < 0x80) != 1):
                return False
            mask[start : start + size] = 0x80 if single else 0
            mask[start + size - 1] = 0x80
        elif found.kind == FLOATS:
            at = np.arange(start, start + part[3] * part[2], part[2])
            mask[at[:, None] + np.arange(size)] = 0
        else:
            mask[start : start + size] = 0
    return True


def learn_layout(
    record: np.ndarray,
    found: Sequence[FoundValues | None],
    plans: tuple[Recipe, ...],
    opaque: Sequence[tuple[int, int]],
) -> RecordLayout | None:
    """The layout of a walked record (uint8); None where it has none that could hold for others.

    ``opaque`` are the (start, stop) of bytes that are free because nobody wants them.
    """
    mask = np.full(record.size, 0xFF, np.uint8)
    for start, stop in opaque:
        mask[start:stop] = 0
    for plan, values in zip(plans, found, strict=True):
        if plan.form == "loose" or (values and not _open(record, mask, plan, values)):
            return None
    offsets: list[int] = []
    masks: list[np.uint64] = []
    words: list[np.uint64] = []
    covered = 0
    for at in np.flatnonzero(mask).tolist():
        if at < covered:
            continue
        offset = min(at, record.size - 8)
        covered = offset + 8
        if len(offsets) == _MAX_WORDS:
            return None
        offsets.append(offset)
        masks.append(mask[offset:covered].view("<u8")[0])
        words.append(record[offset:covered].view("<u8")[0])
    return RecordLayout(tuple(offsets), tuple(masks), tuple(words), plans)
