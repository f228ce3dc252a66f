"""Which source of a mix supplies each example: a function of the example's number.

    example n, source k ─► uniform(seed, n, k) ─► -log(1 - u) / weight of k     the least supplies n

These times are exponential, so source k has the least one with a chance of its weight over the sum
of all.  A source that has ended has no time: only the examples that it would have supplied fall to
others.  So the mix does not depend on when the end of a source is noticed.

Weights are a schedule, ``[[0, weights], [100_000, weights], …]``: from which number on they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from . import chance

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
