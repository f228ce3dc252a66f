"""Acceptance while the mix of the input is still being learned.

    labels of a chunk ─► counts, each row's own label included ─► estimate at that row ─► acceptance

Every class starts with a count of 10.  The estimate at a row counts that very row and all before
it, in integers, so it does not depend on how rows are divided into chunks.  Estimates and ratios
are float32, as in class_acceptance.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from .plan import stored_fields

_START: Final = 10  # TensorFlow's: the first rows must not swing the estimate
_BLOCK: Final = 2**18  # values computed at once; bounds memory with many classes


class ClassEstimator:
    """Counts classes, and computes acceptance from the counts and a target mix."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._counts = np.full(num_classes, _START, np.int64)

    @property
    def rows(self) -> int:
        """Rows counted so far."""
        return int(self._counts.sum()) - self.num_classes * _START

    def accept_estimated(self, labels: np.ndarray, target: np.ndarray) -> np.ndarray:
        """Count rows; return the probability of keeping each of them, float64 [n]."""
        accepted = np.empty(len(labels), np.float64)
        wanted = target.astype(np.float32)[:, None]
        classes = np.arange(self.num_classes)[:, None]
        most = max(_BLOCK // self.num_classes, 1)
        for start in range(0, len(labels), most):
            own = labels[start : start + most]
            total = int(self._counts.sum())
            counts_KN = np.cumsum(own == classes, axis=1, dtype=np.int64)
            counts_KN += self._counts[:, None]
            self._counts = counts_KN[:, -1].copy()
            totals = np.arange(total + 1, total + 1 + len(own), dtype=np.float64)
            ratio_KN = wanted / (counts_KN / totals).astype(np.float32)
            ratio_of_own = ratio_KN[own, np.arange(len(own))]
            accepted[start : start + most] = ratio_of_own / ratio_KN.max(axis=0)
        return accepted

    def snapshot(self) -> dict[str, Any]:
        return {"counts": self._counts.tolist(), "rows": self.rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot; ValueError names the field that does not fit."""
        counts, rows = stored_fields(state, "a class estimator", {"counts": list, "rows": int})
        if len(counts) != self.num_classes:
            raise ValueError(
                f"the field 'counts' has {len(counts)} classes, the pipeline {self.num_classes}"
            )
        if sum(counts) != rows + self.num_classes * _START or min(counts) < _START:
            raise ValueError(f"the field 'counts' does not add up to rows={rows}")
        self._counts = np.array(counts, np.int64)
