"""Which source of a mix supplies each example: a function of the example's number.

    example n, source k ─► uniform(seed, n, k) ─► -log(1 - u) / weight of k     the least supplies n

These times are exponential, so source k has the least one with a chance of its weight over the sum
of all.  A source that has ended has no time: only the examples that it would have supplied fall to
others.  So the mix does not depend on when the end of a source is noticed.

Weights are a schedule, ``[[0, weights], [100_000, weights], …]``: from which number on they hold.
They may follow from numbers that trainers report with their commits (``Reports``):

    a report of n rows ─► sums and rows of all sources · 2 ** (-n / half_life), plus its own
    mean = sum / rows  ─► proportional: the mean, or 0          ─► p: its part of all sources' …
                          softmax: exp(mean / temperature)
    weight = floor / sources + (1 - floor) · p

A source of which nothing was reported counts like the mean of the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from . import chance

#: Weights follow from reports once this part of a half-life was reported since the last ones.
_PART = 10
#: Plain data: by number of the first example, in order, the weight of each source.
Schedule = Sequence[Sequence[Any]]


def times(seed: int, epoch: int, numbers: np.ndarray, sources: int) -> np.ndarray:
    """Return by example and source an exponential number of mean 1."""
    counters = numbers[:, None] * sources + np.arange(sources)
    uniform = chance.uniform(seed, chance.MIXES, epoch, counters.reshape(-1))
    exponential: np.ndarray = -np.log1p(-uniform)
    return exponential.reshape(counters.shape)


def suppliers(
    times: np.ndarray, numbers: np.ndarray, schedule: Schedule, live: np.ndarray
) -> np.ndarray:
    """Return the source of each example, or -1 from the first on that none supplies.

    ``numbers`` ascend.  Where no source that is ``live`` has a weight, the next weights of the
    schedule hold.
    """
    found = np.full(len(numbers), -1, np.int64)
    starts = [start for start, _ in schedule]
    cuts = [0, *np.searchsorted(numbers, starts[1:]).tolist(), len(numbers)]
    for i, (low, high) in enumerate(pairwise(cuts)):
        for _, weights in schedule[i:]:
            weighing = np.flatnonzero(live & (np.asarray(weights) > 0))
            if len(weighing):
                sooner = times[low:high, weighing] / np.asarray(weights)[weighing]
                found[low:high] = weighing[sooner.argmin(axis=1)]
                break
    return found


class Reports:
    """The numbers that trainers report by source, and the weights that follow from them."""

    def __init__(
        self,
        sources: int,
        rule: str = "",
        floor: float = 0.0,
        half_life: float = 1000.0,
        temperature: float = 1.0,
    ) -> None:
        """``rule``: "proportional", "softmax", or "" where no weights follow."""
        self.rule, self._floor = rule, floor
        self._half_life, self._temperature = half_life, temperature
        self.sums, self.rows = np.zeros(sources), np.zeros(sources)
        self._since = 0.0  # rows that were reported since the last weights
        self.stored = True  # whether the journal has all

    def take(self, report: bytes) -> None:
        """Take the report of a commit: number, rows and sum of each of its sources."""
        numbers, rows, sums = np.frombuffer(report, "<f8").reshape(-1, 3).T
        decay = 0.5 ** (rows.sum() / self._half_life)
        self.sums *= decay
        self.rows *= decay
        self.sums[numbers.astype(np.int64)] += sums
        self.rows[numbers.astype(np.int64)] += rows
        self._since += rows.sum()
        self.stored = False

    @property
    def due(self) -> bool:
        """Whether other weights follow."""
        return bool(self.rule) and self._since * _PART >= self._half_life

    def weights(self) -> list[float]:
        """Return the weights that follow."""
        known = self.rows > 0
        means = np.divide(self.sums, self.rows, out=np.zeros_like(self.sums), where=known)
        if self.rule == "softmax":
            parts = np.exp((means - means[known].max()) / self._temperature)
        else:
            parts = np.maximum(means, 0)
        parts[~known] = parts[known].mean()
        parts = parts / parts.sum() if parts.any() else np.full(len(parts), 1 / len(parts))
        weights: list[float] = (self._floor / len(parts) + (1 - self._floor) * parts).tolist()
        return weights

    def weighed(self) -> None:
        """Note that the weights hold."""
        self._since, self.stored = 0.0, False

    def state(self) -> list[object]:
        return [self.sums.tolist(), self.rows.tolist(), self._since]

    def restore(self, state: list[Any]) -> None:
        sums, rows, self._since = state
        self.sums, self.rows = np.array(sums), np.array(rows)


def pass_ordinals(ordinals: np.ndarray, passes: np.ndarray) -> np.ndarray:
    """Return a key for the chance of each row: its ordinal in the first pass over its source.

    Later passes have hashes of it, so that no stage draws the same for an example in two passes.
    """
    later = np.flatnonzero(passes)
    if later.size:
        apart = chance.bits(0, chance.PASSES, 0, passes[later])
        mixed = chance.bits(0, chance.PASSES, 1, ordinals[later].astype(np.uint64) + apart)
        ordinals = ordinals.astype(np.int64)
        ordinals[later] = mixed.view(np.int64)
    return ordinals
