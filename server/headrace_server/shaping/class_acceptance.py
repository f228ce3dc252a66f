"""Keeps rows so that the classes come in the wanted mix.

A row of a class with share ``init`` of the input and target share ``target`` is kept with
probability r / max(r), where r = target / init: the mix is then right, and as few rows are rejected
as possible.  The ratios are float32, as in TensorFlow's stratified_sample.  Whether a row is kept
depends on its ordinal and the seed alone, so survivors keep their order and any worker agrees.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from . import chance
from .plan import State, stored_fields

#: Sums of probabilities may be off by less than this.
_TOLERANCE: Final = 1e-6
#: Maximum number of remembered changes of proportions, so that a snapshot stays small.
_REMEMBERED: Final = 64
#: Maximum number of probabilities in the changes that travel with a batch.
_MOST_NUMBERS: Final = 2048


def probabilities(name: str, values: object) -> np.ndarray:
    """Return one probability per class, as float64; ValueError names the argument and the fault."""
    try:
        array = np.asarray(values)
        if array.dtype.kind == "c":
            raise TypeError
        array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={values!r:.80} is not one probability per class") from None
    if array.ndim != 1:
        raise ValueError(
            f"{name} has the shape {array.shape}; it must be 1-D, one probability per class"
        )
    bad = np.flatnonzero(~(array >= 0))
    if bad.size:
        raise ValueError(f"{name}[{bad[0]}]={array[bad[0]]}; a probability is 0 or more")
    try:
        total = math.fsum(array.tolist())
    except OverflowError:
        total = math.inf
    if not abs(total - 1) < _TOLERANCE:
        raise ValueError(f"{name} sums to {total!r}; it must sum to 1 within {_TOLERANCE}")
    return array


class Proportions:
    """The wanted proportions of classes, and the batches from which earlier ones held."""

    def __init__(self, name: str, values: object) -> None:
        self._name = name
        self.changes: list[tuple[int, np.ndarray]] = [(0, probabilities(name, values))]

    @property
    def now(self) -> np.ndarray:
        return self.changes[-1][1]

    def checked(self, values: object) -> np.ndarray:
        """Return other proportions of these classes; ValueError for wrong ones."""
        probs = probabilities(self._name, values)
        if len(probs) != len(self.now):
            raise ValueError(f"{self._name} has {len(probs)} classes; there are {len(self.now)}")
        return probs

    def change(self, values: object, since: int) -> None:
        """Want others from batch ``since`` on."""
        known = [change for change in self.changes if change[0] != since]
        self.changes = [*known, (since, self.checked(values))][-_REMEMBERED:]

    def to_plain(self) -> list[list[object]]:
        """Return the first batch and the proportions of each change."""
        return [[number, probs.tolist()] for number, probs in self.changes]

    def recent(self) -> list[list[object]]:
        """Return the last changes, as many as fit a message."""
        return self.to_plain()[-max(1, _MOST_NUMBERS // len(self.now)) :]

    def from_plain(self, plain: Iterable[tuple[int, object]]) -> list[tuple[int, np.ndarray]]:
        """Return the changes of a snapshot; ValueError where one does not fit."""
        return [(int(number), self.checked(probs)) for number, probs in plain]


def rejected_fraction(init: object, target: object) -> float:
    """Return the share of the input that acceptance will reject."""
    return float(((1 - acceptance(init, target)) * probabilities("init_probs", init)).sum())


def acceptance(init: object, target: object) -> np.ndarray:
    """Return the probability with which a row of each class is kept."""
    init = probabilities("init_probs", init)
    target = probabilities("target_probs", target)
    if len(init) != len(target):
        raise ValueError(
            f"init_probs has {len(init)} classes and target_probs {len(target)}; "
            "they must have the same length"
        )
    missing = np.flatnonzero((init == 0) & (target > 0))
    if missing.size:
        k = missing[0]
        raise ValueError(
            f"init_probs[{k}]=0 but target_probs[{k}]={target[k]}; "
            "a class that never comes can not be wanted: give it target 0"
        )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = target.astype(np.float32) / init.astype(np.float32)
    ratio[target == 0] = 0
    beyond = np.flatnonzero(~np.isfinite(ratio))
    if beyond.size:
        k = beyond[0]
        raise ValueError(
            f"target_probs[{k}]={target[k]} over init_probs[{k}]={init[k]} is more than float32 "
            "holds; such a class never comes: give it target 0"
        )
    kept: np.ndarray = (ratio / ratio.max()).astype(np.float64)
    return kept


def keep(
    seed: int, stage: int, epoch: int, ordinals: np.ndarray, accept_probs: np.ndarray
) -> np.ndarray:
    """Return a mask of the kept rows; ``accept_probs`` has one number or bool for each row.

    Probability 1 always keeps and 0 never.  ``stage`` distinguishes several samplers of one seed.
    """
    sub_seed = chance.derive(seed, chance.ACCEPT, stage)
    kept: np.ndarray = chance.uniform(sub_seed, chance.ACCEPT, epoch, ordinals) < accept_probs
    return kept


_START: Final = 10  # TensorFlow's: the first rows must not swing the estimate
_BLOCK: Final = 2**18  # values computed at once; bounds memory with many classes


class ClassEstimator:
    """Counts classes, and computes acceptance from the counts and a target mix.

        labels of a chunk ─► counts, each row's own included ─► estimate at that row ─► acceptance

    Every class starts with a count of 10.  The estimate at a row counts that very row and all
    before it, in integers, so it does not depend on how rows are divided into chunks.  Estimates
    and ratios are float32, as above.
    """

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

    def snapshot(self) -> State:
        return {"counts": self._counts.tolist(), "rows": self.rows}

    def restore(self, state: State) -> None:
        """Restore a snapshot; ValueError names the field that does not fit."""
        fields = stored_fields(state, "a class estimator", {"counts": list, "rows": int})
        counts, rows = fields.values()
        if len(counts) != self.num_classes:
            raise ValueError(
                f"the field 'counts' has {len(counts)} classes, the pipeline {self.num_classes}"
            )
        if sum(counts) != rows + self.num_classes * _START or min(counts) < _START:
            raise ValueError(f"the field 'counts' does not add up to rows={rows}")
        self._counts = np.array(counts, np.int64)
