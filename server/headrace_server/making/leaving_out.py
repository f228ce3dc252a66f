"""Rows that an operator has left out, and what that may change of what is read already.

    rows of examples, each with the epoch from which on it is out
        of the epoch in which it was named    a batch of which all rows are out is passed over
        of later epochs                       it is taken out of chunks before they are shaped

Positions that are stored speak of rows by their place in a chunk and of batches by their number.
So nothing is taken out of chunks that were read before the row was named, and batches keep their
numbers and their rows: a batch is passed over whole or not at all.  What was taken out of a chunk
travels with its cursor.  Examples of segments are lines: those that are out are dealt with as if
they had ended, and take an insertion index as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..core.changes import Change
from ..core.plan import Read
from ..core.sequences import BEGUN
from ..core.slots import Begun
from .keeper import Keeper

__all__ = ["EndedLines", "LeftOut"]


class LeftOut:
    """The rows that are out, by the reader's numbers of examples."""

    def __init__(self, rows: Iterable[tuple[int, int]] = ()) -> None:
        """``rows``: number of the example, and the epoch from which on it is out."""
        since = dict(rows)
        self._rows = np.array(sorted(since), np.int64)
        self._since = np.array([since[row] for row in self._rows.tolist()], np.int64)

    def __len__(self) -> int:
        return len(self._rows)

    def mask(self, ordinals: np.ndarray, epoch: int, later: bool = False) -> np.ndarray:
        """Which of these rows are out in this epoch; ``later``: those of earlier epochs only."""
        if not len(self._rows) or not len(ordinals):
            return np.zeros(len(ordinals), bool)
        places = np.minimum(np.searchsorted(self._rows, ordinals), len(self._rows) - 1)
        since = self._since[places]
        reached = since < epoch if later else since <= epoch
        out: np.ndarray = (self._rows[places] == ordinals) & reached
        return out


class EndedLines:
    """Examples of segments that are out, and what that changes in what is stored."""

    def __init__(self, rows: LeftOut, keeper: Keeper) -> None:
        self._rows = rows
        self._keeper = keeper

    def of_a_chunk(
        self, read: Read, ordinals: np.ndarray, known: np.ndarray | None
    ) -> tuple[np.ndarray | None, list[Change]]:
        """Marks of a chunk's rows (as ``known``) with those that are out, and a change for each."""
        out = self._rows.mask(ordinals, read.epoch)
        if not out.any():
            return known, []
        if known is None:
            known = np.zeros(len(ordinals), np.int8)
        rows = np.flatnonzero(out & (known == 0))
        known[rows] = BEGUN
        return known, [self._keeper.passed_over(read.chunk, row) for row in rows.tolist()]

    def of_begun(
        self, begun: Begun, ordinals_of: Callable[[int], np.ndarray]
    ) -> tuple[np.ndarray, list[Change]]:
        """Places of examples that have begun and go on, and a change for each of the others.

        ``ordinals_of`` reads a chunk again.
        """
        out = np.zeros(len(begun.keys), bool)
        for chunk in np.unique(begun.chunks).tolist() if self._rows else ():
            here = np.flatnonzero(begun.chunks == chunk)
            ordinals = ordinals_of(chunk)[begun.rows[here]]
            out[here] = self._rows.mask(ordinals, self._keeper.reread(chunk)[0].epoch)
        gone = zip(begun.lines[out].tolist(), begun.chunks[out].tolist(), strict=True)
        return np.flatnonzero(~out), [self._keeper.ended(line, chunk) for line, chunk in gone]
