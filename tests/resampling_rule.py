"""The rule of weighted resampling as it is written down, one group after another."""

from __future__ import annotations

import math
from collections.abc import Sequence


def rates_by_rule(
    weights: Sequence[float], group: int, overall: float, decay: float, warmup: int | None
) -> list[float]:
    """Return the rate of each row."""
    rates: list[float] = []
    mean = biased = 0.0
    for number, start in enumerate(range(0, len(weights), group), 1):
        own = weights[start : start + group]
        share = math.fsum(own) / len(own)
        if warmup is None:
            biased = decay * biased + (1 - decay) * share
            mean = biased / (1 - decay**number)
        else:
            now = min((number - 1) / min(number, warmup), decay)
            mean = now * mean + (1 - now) * share
        rates += [weight * overall / mean for weight in own]
    return rates
