"""The number of copies of each row: Poisson, by chance that depends on its ordinal alone.

    rates ─► poisson() ─► counts ─► copy_ordinals()  a key of its own for each copy's chance

A row with a rate below 10 takes one draw: a uniform is compared with the summed probabilities.
From 10 on the rate is split evenly over draws of at most 9, and the row's count is their sum, which
is Poisson again.  A draw costs no more than the copies that it leads to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from . import chance
from .plan import State, stored_fields

#: Maximum rate: counts of larger rates are not exact in float64.
MAX_RATE: Final = 2.0**52
#: Maximum copies made of one chunk: 128 MiB of row numbers.  More is a mistake in the data.
MAX_COPIES: Final = 2**24

_LARGE: Final = 10.0  # rates from here on take several draws
_PIECE: Final = 9.0  # the largest rate of each of these draws
_DRAWS: Final = 1  # a use of keys: the draws of a large rate
_ROWS: Final = 2  # … the rows that stage 0 makes of one; those of stage n have _ROWS + n


def poisson(
    rates: ArrayLike, seed: int, stage: int, epoch: int, ordinals: np.ndarray
) -> np.ndarray:
    """Return the number of copies of each row; ``rates``: one per row, or one for all."""
    rates = np.broadcast_to(np.asarray(rates, np.float64), ordinals.shape)
    bad = np.flatnonzero(~((rates >= 0) & (rates <= MAX_RATE)))
    if bad.size:
        raise ValueError(
            f"row {bad[0]} has the rate {rates[bad[0]]}; a rate is finite, 0 or more, "
            "and at most 2**52"
        )
    if rates.sum() > 2 * MAX_COPIES:  # neither the draws nor the copies would fit in memory
        row = int(rates.argmax())
        raise ValueError(
            f"{rates.sum():.0f} copies of {len(rates)} rows are more than {MAX_COPIES} at once; "
            f"row {row} alone has {rates[row]:.0f}: lower its rate"
        )
    sub_seed = chance.derive(seed, chance.COPIES, stage)
    if not (rates >= _LARGE).any():
        return _inverted(rates, chance.uniform(sub_seed, chance.COPIES, epoch, ordinals))
    draws = np.where(rates < _LARGE, 1, np.ceil(rates / _PIECE)).astype(np.int64)
    keys = _keys(ordinals, draws, _DRAWS)
    rows = np.repeat(np.arange(len(draws)), draws)
    drawn = chance.uniform(sub_seed, chance.COPIES, epoch, keys)
    found = _inverted((rates / draws)[rows], drawn)
    return np.bincount(rows, found, minlength=len(draws)).astype(np.int64)


def _inverted(rates: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the least k for which the summed probabilities of 0 … k exceed the uniform."""
    counts = np.zeros(len(rates), np.int64)
    term = np.exp(-rates)
    reached = term.copy()
    active = np.flatnonzero(drawn >= reached)
    rates, drawn, term, reached = rates[active], drawn[active], term[active], reached[active]
    # With rates below 10 no uniform of 53 bits reaches 64; rounding may keep the sum below one.
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


def copy_ordinals(ordinals: np.ndarray, counts: np.ndarray, stage: int) -> np.ndarray:
    """Return a key for the chance of each row that a stage makes of one.

    The first keeps its row's ordinal; others have a hash of it and of the stage, so that the copies
    of a copy are apart from those of the original.  Hashes fill 64 bits, negative numbers too; two
    of n rows share a key with a chance of about n**2 / 2**65.
    """
    return _keys(ordinals, counts, _ROWS + stage)


def _keys(ordinals: np.ndarray, counts: np.ndarray, use: int) -> np.ndarray:
    keys = np.repeat(ordinals.astype(np.int64), counts)
    number = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    further = np.flatnonzero(number)
    if further.size:
        apart = chance.bits(use, chance.COPIES, 1, number[further])
        mixed = chance.bits(use, chance.COPIES, 2, keys[further].astype(np.uint64) + apart)
        keys[further] = mixed.view(np.int64)
    return keys


#: Fields of a snapshot: those that must be as they were, and those that change.
_SETTINGS = ("group", "warmup", "mean_decay")
_STATE: Mapping[str, type] = {"groups": int, "average": float, "power": float}


@dataclass(slots=True)
class RunningMean:
    """The machine of ``.weighted_resample``.  Refused weights change nothing.

        rates(weights of a group) ─► rate = weight * overall / mean

    The mean at a group includes that group.  With ``warmup`` the mean at group number t (from 1)
    has the decay min((t - 1) / min(t, warmup), mean_decay): the plain mean of the first ``warmup``
    groups, then an exponential one.  With ``warmup=None`` it is the exponential average from 0,
    divided by 1 - mean_decay**t.
    """

    group: int
    overall_rate: float
    mean_decay: float = 0.999
    warmup: int | None = 10
    groups: int = 0
    average: float = 0.0  # before the division by 1 - mean_decay**t, if any
    power: float = 1.0  # mean_decay**groups

    def rates(self, weights: np.ndarray) -> np.ndarray:
        """Return the rates of rows that form one group of any size."""
        weights = np.asarray(weights, np.float64)
        if not len(weights):
            return weights
        groups, average, power = self.groups + 1, self.average, self.power
        # Scaled before they are summed: a sum could be infinite where the mean is not.
        share = float((weights / len(weights)).sum())
        if self.warmup is None:
            average = self.mean_decay * average + (1 - self.mean_decay) * share
            power *= self.mean_decay
            mean = average / (1 - power)
        else:
            decay = min((groups - 1) / min(groups, self.warmup), self.mean_decay)
            average = mean = decay * average + (1 - decay) * share
        if mean == 0:
            raise ValueError(
                f"the mean of the weights is 0 at group number {groups} of {self.group} rows: "
                "all weights that count for it are 0, and no rate can follow from them"
            )
        with np.errstate(over="ignore"):
            rates: np.ndarray = weights / mean * self.overall_rate
        if not np.isfinite(rates).all():
            raise ValueError(
                f"a weight of {weights.max()} over a mean of {mean} at overall_rate="
                f"{self.overall_rate} gives no finite rate"
            )
        self.groups, self.average, self.power = groups, average, power
        return rates

    def snapshot(self) -> State:
        return {name: getattr(self, name) for name in (*_SETTINGS, *_STATE)}

    def restore(self, state: State) -> None:
        """Restore a snapshot; ValueError names the field that does not fit."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        for name, value in stored_fields(state, "a running mean", _STATE, **settings).items():
            setattr(self, name, value)
