"""Rates of a weighted resample: weights over their running mean.

    offer(weights) ─► rates of the rows whose groups are complete     rate = weight * overall / mean
    finish()       ─► rates of the last, smaller group

Rows are taken in groups of a declared size, wherever chunks begin and end.  The mean at a group
includes that group, so its rows wait until it is complete.  With ``warmup`` the mean of group
number t (from 1) has the decay min((t - 1) / min(t, warmup), mean_decay): the plain mean of the
first ``warmup`` groups, then an exponential one.  With ``warmup=None`` it is the exponential
average from 0, divided by 1 - mean_decay**t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .plan import stored

__all__ = ["RunningMean"]


def _checked(weights: np.ndarray) -> np.ndarray:
    weights = np.asarray(weights, np.float64)
    bad = np.flatnonzero(~((weights >= 0) & (weights < math.inf)))
    if bad.size:
        raise ValueError(
            f"row {bad[0]} has the weight {weights[bad[0]]}; a weight is finite and 0 or more"
        )
    return weights


class RunningMean:
    """The machine of ``.weighted_resample``.  Refused weights change nothing."""

    def __init__(
        self,
        group: int,
        overall_rate: float,
        mean_decay: float = 0.999,
        warmup: int | None = 10,
    ) -> None:
        if group < 1:
            raise ValueError(f"group={group}; the least is 1")
        if not (math.isfinite(overall_rate) and overall_rate >= 0):
            raise ValueError(f"overall_rate={overall_rate}; it must be finite and 0 or more")
        if not 0 <= mean_decay <= 1 or (warmup is None and mean_decay == 1):
            raise ValueError(
                f"mean_decay={mean_decay}; it must be in [0, 1], and below 1 if warmup=None"
            )
        if warmup is not None and warmup < 1:
            raise ValueError(f"warmup={warmup}; the least is 1, or None for the debiased average")
        self.group = group
        self.overall_rate = float(overall_rate)
        self.mean_decay = float(mean_decay)
        self.warmup = warmup
        self._groups = 0
        self._average = 0.0  # before the division by 1 - mean_decay**t, where there is one
        self._power = 1.0  # mean_decay**groups
        self._pending = np.empty(0, np.float64)

    @property
    def pending(self) -> int:
        """Rows whose group is not complete."""
        return len(self._pending)

    def offer(self, weights: np.ndarray) -> np.ndarray:
        """The next rows; returns the rates of the first rows that are still owed theirs."""
        waiting = np.concatenate([self._pending, _checked(weights)])
        whole = len(waiting) // self.group * self.group
        rates = self._rates(waiting[:whole].reshape(-1, self.group))
        self._pending = waiting[whole:].copy()
        return rates

    def whole(self, weights: np.ndarray) -> np.ndarray:
        """The rates of rows that are one group, however many they are."""
        if self.pending:
            raise ValueError(f"{self.pending} rows of an earlier group are still owed their rates")
        weights = _checked(weights)
        return self._rates(weights.reshape(min(len(weights), 1), len(weights)))

    def finish(self) -> np.ndarray:
        """The rates of the rows that are left; they are a group of their own."""
        rates = self._rates(self._pending.reshape(min(self.pending, 1), self.pending))
        self._pending = np.empty(0, np.float64)
        return rates

    def _rates(self, weights_GN: np.ndarray) -> np.ndarray:
        groups, average, power = self._groups, self._average, self._power
        means = np.empty(len(weights_GN))
        # Scaled before they are summed: a sum could be infinite where the mean is not.
        shares = (weights_GN / max(weights_GN.shape[1], 1)).sum(axis=1).tolist()
        for i, share in enumerate(shares):
            groups += 1
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
                    "all weights that count for it are 0, and no rate can be told from them"
                )
            means[i] = mean
        with np.errstate(over="ignore"):
            rates: np.ndarray = weights_GN / means[:, None] * self.overall_rate
        if not np.isfinite(rates).all():
            raise ValueError(
                f"a weight of {weights_GN.max()} over a mean of {means.min()} at overall_rate="
                f"{self.overall_rate} gives no finite rate"
            )
        self._groups, self._average, self._power = groups, average, power
        return rates.reshape(-1)

    def snapshot(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "warmup": self.warmup,
            "mean_decay": self.mean_decay,
            "groups": self._groups,
            "average": self._average,
            "power": self._power,
            "pending": self._pending.tolist(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what a snapshot says; ValueError names the field that does not fit."""
        group, warmup, decay, groups, average, power, pending = stored(
            state,
            "a running mean",
            {
                "group": int,
                "warmup": (int, type(None)),
                "mean_decay": float,
                "groups": int,
                "average": float,
                "power": float,
                "pending": list,
            },
        )
        for name, then, now in (
            ("group", group, self.group),
            ("warmup", warmup, self.warmup),
            ("mean_decay", decay, self.mean_decay),
        ):
            if then != now:
                raise ValueError(
                    f"the snapshot was taken with {name}={then}, the pipeline has {name}={now}"
                )
        if len(pending) >= group:
            raise ValueError(f"the field 'pending' has {len(pending)} rows; a group is {group}")
        self._groups, self._average, self._power = groups, average, power
        self._pending = np.array(pending, np.float64)
