"""Rates of a weighted resample: weights over their running mean.

    rates(weights of a group) ─► rate = weight * overall / mean

The mean at a group includes that group.  With ``warmup`` the mean at group number t (from 1) has
the decay min((t - 1) / min(t, warmup), mean_decay): the plain mean of the first ``warmup`` groups,
then an exponential one.  With ``warmup=None`` it is the exponential average from 0, divided by
1 - mean_decay**t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .plan import stored_fields

#: Fields of a snapshot: those that must be as they were, and those that change.
_SETTINGS = ("group", "warmup", "mean_decay")
_STATE: Mapping[str, type] = {"groups": int, "average": float, "power": float}


@dataclass(slots=True)
class RunningMean:
    """The machine of ``.weighted_resample``.  Refused weights change nothing."""

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

    def snapshot(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*_SETTINGS, *_STATE)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a snapshot; ValueError names the field that does not fit."""
        settings = {name: getattr(self, name) for name in _SETTINGS}
        values = stored_fields(state, "a running mean", _STATE, **settings)
        for name, value in zip(_STATE, values, strict=True):
            setattr(self, name, value)
