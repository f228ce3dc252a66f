"""Rows that an operator has left out, and how batches come without them.

    a row, with the epoch from which on it is out
        in the epoch in which it was named    a batch whose rows are all out is passed over
        in later epochs                       the row is taken out of its chunk before the shape

Stored positions name rows by their place in a chunk, and batches by their number.  So a row is not
taken out of a chunk that was read before the row was named, and batches keep their numbers and
rows: a batch is skipped whole or not at all.  A cursor lists the rows that were left out of
its chunks.  A left-out example of segments counts as ended, and takes an insertion index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from ..core.admitted_examples import BEGUN
from ..core.plan import Read
from ..core.stored_state import CHUNK, ROW, Change, Examples
from .stored_examples import StoredExamples


class LeftOut:
    """Rows that are left out, by the number that the reader gives to an example."""

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        """``rows``: number of each example, and the first epoch in which it is left out."""
        since = dict(rows)
        self._rows = np.array(sorted(since), np.int64)
        self._since = np.array([since[row] for row in self._rows.tolist()], np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def mask(self, ordinals: np.ndarray, epoch: int, later: bool = False) -> np.ndarray:
        """Return a mask of the rows out in this epoch; with ``later`` if named before it."""
        if not len(self._rows) or not len(ordinals):
            return np.zeros(len(ordinals), bool)
        places = np.minimum(np.searchsorted(self._rows, ordinals), len(self._rows) - 1)
        since = self._since[places]
        reached = since < epoch if later else since <= epoch
        out: np.ndarray = (self._rows[places] == ordinals) & reached
        return out


#: Leaves no row out.
ALL_ROWS: Final = LeftOut()


class EndedLines:
    """Left-out examples of segments, and the changes that record them."""

    def __init__(self, rows: LeftOut, stored: StoredExamples) -> None:
        self._rows = rows
        self._stored = stored

    def of_a_chunk(
        self, read: Read, ordinals: np.ndarray, known: np.ndarray | None
    ) -> tuple[np.ndarray | None, list[Change]]:
        """Return marks of a chunk's rows, with left-out ones, and a change for each of these."""
        out = self._rows.mask(ordinals, read.epoch)
        if not out.any():
            return known, []
        if known is None:
            known = np.zeros(len(ordinals), np.int8)
        rows = np.flatnonzero(out & (known == 0))
        known[rows] = BEGUN
        return known, [self._stored.passed_over(read.chunk, row) for row in rows.tolist()]

    def of_begun(
        self, begun: Examples, ordinals_of: Callable[[int], np.ndarray]
    ) -> tuple[np.ndarray, list[Change]]:
        """Return the places of begun examples that are not left out, and a change for each other.

        ``ordinals_of`` reads a chunk again.
        """
        out, chunks = np.zeros(len(begun), bool), begun.numbers[CHUNK]
        for chunk in np.unique(chunks).tolist() if self._rows else ():
            here = np.flatnonzero(chunks == chunk)
            ordinals = ordinals_of(chunk)[begun.numbers[ROW, here]]
            out[here] = self._rows.mask(ordinals, self._stored.reread(chunk)[0].epoch)
        ended = zip(begun.lines[out].tolist(), chunks[out].tolist(), strict=True)
        return np.flatnonzero(~out), [self._stored.ended(line, chunk) for line, chunk in ended]
