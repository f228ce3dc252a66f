"""Rows that an operator has left out, and what that may change of what is read already.

    rows of examples, each with the epoch from which on it is out
        of the epoch in which it was named    a batch of which all rows are out is passed over
        of later epochs                       it is taken out of chunks before they are shaped

Positions that are stored speak of rows by their place in a chunk and of batches by their number.
So nothing is taken out of chunks that were read before the row was named, and batches keep their
numbers and their rows: a batch is passed over whole or not at all.  What was taken out of a chunk
travels with its cursor.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

__all__ = ["LeftOut"]


class LeftOut:
    """The rows that are out, by the reader's numbers of examples."""

    def __init__(self, rows: Iterable[tuple[int, int]]) -> None:
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
