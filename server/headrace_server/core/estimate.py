"""Acceptance while the mix of the input is still being learned.

    labels of a chunk ─► counts, each row's own label included ─► estimate at that row ─► acceptance

Every class starts with a count of 10.  The estimate at a row counts that very row and all before
it, in integers, so it does not depend on how the rows are cut into chunks.  Estimates and ratios
are float32, as in accept.py.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from .accept import probabilities
from .plan import stored

__all__ = ["ClassEstimator"]

_START: Final = 10  # TensorFlow's: the first rows must not swing the estimate
_BLOCK: Final = 2**18  # numbers computed at once; bounds memory where classes are many
#: Changes of the target that are remembered: a snapshot stays small whatever a trainer does.
_REMEMBERED: Final = 64


class ClassEstimator:
    """Counts classes, and judges rows by them and by the target mix."""

    def __init__(self, num_classes: int, target_probs: Any) -> None:
        if num_classes < 1:
            raise ValueError(f"num_classes={num_classes}; the least is 1")
        self.num_classes = num_classes
        self._counts = np.full(num_classes, _START, np.int64)
        self._rows = 0
        self._changes: list[tuple[int, np.ndarray]] = [(0, self._target(target_probs))]

    @property
    def rows(self) -> int:
        """Rows counted so far: the number of the next row."""
        return self._rows

    @property
    def counts(self) -> np.ndarray:
        """Rows counted by class, less what each class started with."""
        return self._counts - _START

    @property
    def changes(self) -> list[tuple[int, list[float]]]:
        """From which row on which target holds; the oldest of very many are forgotten."""
        return [(row, target.tolist()) for row, target in self._changes]

    def set_target(self, target_probs: Any, row: int | None = None) -> int:
        """Another target from a row on (the next one, if none is given); returns that row."""
        target = self._target(target_probs)
        row = self._rows if row is None else row
        if row < self._rows:
            raise ValueError(f"row {row} was judged already; the next row is {self._rows}")
        changes = [change for change in self._changes if change[0] < row]
        later = [change for change in self._changes if change[0] > row]
        self._changes = [*changes, (row, target), *later]
        return row

    def estimate(self, labels: np.ndarray) -> np.ndarray:
        """Count rows; returns the estimate at each of them, float32 [n, K]."""
        self._check(labels)
        blocks = [estimate.T for _, _, estimate in self._counted(labels)]
        if not blocks:
            return np.empty((0, self.num_classes), np.float32)
        return np.ascontiguousarray(np.concatenate(blocks))

    def accept_estimated(self, labels: np.ndarray) -> np.ndarray:
        """Count rows; returns the probability with which each of them is kept, float64 [n]."""
        self._check(labels)
        accepted = np.empty(len(labels), np.float64)
        for start, target, estimate in self._counted(labels):
            stop = start + estimate.shape[1]
            wanted = target.astype(np.float32)[:, None]
            ratio_KN = np.divide(wanted, estimate, out=estimate)
            own = ratio_KN[labels[start:stop], np.arange(stop - start)]
            accepted[start:stop] = own / ratio_KN.max(axis=0)
        return accepted

    def _counted(self, labels: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Blocks of rows under one target: first row, target, estimate [K, n]."""
        first, at = self._rows, 0
        most = max(_BLOCK // self.num_classes, 1)
        classes = np.arange(self.num_classes)[:, None]
        while at < len(labels):
            change = bisect_right(self._changes, self._rows, key=lambda change: change[0])
            stop = min(at + most, len(labels))
            if change < len(self._changes):
                stop = min(stop, self._changes[change][0] - first)
            counts_KN = np.cumsum(labels[at:stop] == classes, axis=1, dtype=np.int64)
            counts_KN += self._counts[:, None]
            total = self.num_classes * _START + self._rows
            totals = np.arange(total + 1, total + 1 + stop - at, dtype=np.float64)
            self._counts = counts_KN[:, -1].copy()
            self._rows += stop - at
            yield at, self._changes[change - 1][1], (counts_KN / totals).astype(np.float32)
            at = stop
        past = bisect_right(self._changes, self._rows, key=lambda change: change[0])
        self._changes = self._changes[max(past - _REMEMBERED, 0) :]

    def _target(self, target_probs: Any) -> np.ndarray:
        target = probabilities("target_probs", target_probs)
        if len(target) != self.num_classes:
            raise ValueError(
                f"target_probs has {len(target)} classes; there are {self.num_classes}"
            )
        return target

    def _check(self, labels: np.ndarray) -> None:
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise ValueError(f"labels are {labels.dtype}{list(labels.shape)}; one integer per row")
        bad = np.flatnonzero((labels < 0) | (labels >= self.num_classes))
        if bad.size:
            raise ValueError(
                f"row {bad[0]} has label {labels[bad[0]]}; labels are 0 … {self.num_classes - 1}"
            )

    def snapshot(self) -> dict[str, Any]:
        return {
            "counts": self._counts.tolist(),
            "rows": self._rows,
            "changes": [[row, target.tolist()] for row, target in self._changes],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what a snapshot says; ValueError names the field that does not fit."""
        counts, rows, changes = stored(
            state, "a class estimator", {"counts": list, "rows": int, "changes": list}
        )
        if len(counts) != self.num_classes:
            raise ValueError(
                f"the field 'counts' has {len(counts)} classes, the pipeline {self.num_classes}"
            )
        if sum(counts) != rows + self.num_classes * _START or min(counts) < _START:
            raise ValueError(f"the field 'counts' does not add up to rows={rows}")
        known = [(row, self._target(target)) for row, target in changes]
        numbers = [row for row, _ in known]
        if not numbers or numbers[0] > rows or numbers != sorted(set(numbers)):
            raise ValueError(f"the field 'changes' has rows {numbers}; one must be in force")
        self._counts = np.array(counts, np.int64)
        self._rows = rows
        self._changes = known
