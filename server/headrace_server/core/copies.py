"""How often each row is repeated: Poisson, by chance that depends on the row's ordinal alone.

    rates ─► poisson() ─► counts ─► repeat_rows()    which rows, copies of a row side by side
                                └─► copy_ordinals()  a key of its own for each copy's chance

Rates below 10 are inverted: one uniform is held against the summed probabilities.  From 10 on rows
go through Hörmann's transformed rejection (PTRS, 1993): a try takes two uniforms, those of try t
have a key of their own, and about one row in ten needs another try.  Probabilities there are
written as a deviance (Loader, 2000), which loses no digits however large the rate.  Both are exact
but for the rounding of float64.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from . import chance

__all__ = ["MAX_COPIES", "MAX_RATE", "copy_ordinals", "poisson", "repeat_rows"]

#: Counts of larger rates are not exact in float64.
MAX_RATE: Final = 2.0**52
#: Copies made of one chunk: 128 MiB of row numbers.  More is a mistake in the data.
MAX_COPIES: Final = 2**24

_LARGE: Final = 10.0  # the rejection needs rates from here on
#: log(k!) less Stirling's k log k - k + log(2 pi k) / 2, for k = 0 (unused) … 15.
_STIRLING: Final = np.array(
    [0.0]
    + [
        math.lgamma(k + 1) - (k * math.log(k) - k + 0.5 * math.log(2 * math.pi * k))
        for k in range(1, 16)
    ]
)


def poisson(rates: Any, seed: int, stage: int, epoch: int, ordinals: np.ndarray) -> np.ndarray:
    """The number of copies of each row, int64; ``rates`` are one per row, or one for all."""
    rates = np.broadcast_to(np.asarray(rates, np.float64), ordinals.shape)
    bad = np.flatnonzero(~((rates >= 0) & (rates <= MAX_RATE)))
    if bad.size:
        raise ValueError(
            f"row {bad[0]} has the rate {rates[bad[0]]}; a rate is finite, 0 or more, "
            "and at most 2**52"
        )
    counts = np.zeros(len(ordinals), np.int64)
    small = np.flatnonzero((rates > 0) & (rates < _LARGE))
    if small.size:
        sub_seed = chance.derive(seed, chance.COPIES, stage)
        drawn = chance.uniform(sub_seed, chance.COPIES, epoch, ordinals[small])
        counts[small] = _inverted(rates[small], drawn)
    active = np.flatnonzero(rates >= _LARGE)
    attempt = 0
    while active.size:
        sub_seeds = [chance.derive(seed, chance.COPIES, stage, attempt, j) for j in (0, 1)]
        u, v = (chance.uniform(s, chance.COPIES, epoch, ordinals[active]) for s in sub_seeds)
        tried = _tried(rates[active], u, v)
        counts[active] = np.maximum(tried, 0)
        active = active[tried < 0]
        attempt += 1
    return counts


def _inverted(rates: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The least k of which the summed probabilities of 0 … k exceed the uniform."""
    counts = np.zeros(len(rates), np.int64)
    term = np.exp(-rates)
    reached = term.copy()
    active = np.flatnonzero(drawn >= reached)
    rates, drawn, term, reached = rates[active], drawn[active], term[active], reached[active]
    # Of rates below 10 no uniform of 53 bits reaches 64; rounding may keep the sum below one.
    for k in range(1, 64):
        if not active.size:
            break
        counts[active] = k
        term *= rates / k
        reached += term
        on = drawn >= reached
        active, rates, drawn = active[on], rates[on], drawn[on]
        term, reached = term[on], reached[on]
    return counts


def _tried(rates: np.ndarray, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One try of the transformed rejection: the count, or -1 where it is rejected."""
    u = u - 0.5
    root = np.sqrt(rates)
    b = 0.931 + 2.53 * root
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    with np.errstate(divide="ignore", invalid="ignore"):
        # At the very edge (u = -0.5) k is minus infinity, which is rejected like all below 0.
        edge = 0.5 - np.abs(u)
        k = np.floor((2 * a / edge + b) * u + rates + 0.43)
        quick = (edge >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
        hopeless = (k < 0) | ((edge < 0.013) & (v > edge))
        accepted = quick.copy()
        at = np.flatnonzero(~(quick | hopeless))  # few: the quick test spares most the logarithms
        bound = np.log(v[at] * inverse_alpha[at] / (a[at] / (edge[at] * edge[at]) + b[at]))
        accepted[at] = bound <= _log_probability(k[at], rates[at])
    return np.where(accepted, k, -1).astype(np.int64)


def _log_probability(k: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """log of Poisson's probability of k."""
    safe = np.maximum(k, 1)
    off = (safe - rates) / rates
    deviance = rates * ((1 + off) * np.log1p(off) - off)
    inverse = 1 / safe
    square = inverse * inverse
    series = inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))
    table = _STIRLING[np.minimum(safe, len(_STIRLING) - 1).astype(np.int64)]
    stirling = np.where(safe < len(_STIRLING), table, series)
    logs = -stirling - deviance - 0.5 * np.log(2 * math.pi * safe)
    return np.where(k == 0, -rates, logs)


def repeat_rows(counts: np.ndarray, limit: int = MAX_COPIES) -> np.ndarray:
    """Row numbers, each as often as counted, copies side by side."""
    total = counts.sum(dtype=np.float64)  # of int64 it could wrap around
    if total > limit:
        row = int(counts.argmax())
        raise ValueError(
            f"{total:.0f} copies of {len(counts)} rows are more than {limit} at once; "
            f"row {row} alone has {counts[row]}: lower its rate"
        )
    return np.repeat(np.arange(len(counts)), counts)


def copy_ordinals(ordinals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """A key for the chance of each copy: the first keeps its row's ordinal, others are hashed.

    Keys of hashed copies fill 64 bits, negative ones too; of n copies two share a key with a
    chance of about n**2 / 2**65.
    """
    keys = np.repeat(ordinals.astype(np.int64), counts)
    number = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    further = np.flatnonzero(number)
    if further.size:
        apart = chance.bits(0, chance.COPIES, 1, number[further])
        mixed = chance.bits(0, chance.COPIES, 2, keys[further].astype(np.uint64) + apart)
        keys[further] = mixed.view(np.int64)
    return keys
