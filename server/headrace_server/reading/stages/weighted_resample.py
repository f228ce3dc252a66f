"""``weighted_resample``: each row a Poisson number of times, in proportion to its weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ...pipeline.argument_checks import Selector
from ...shaping.plan import State
from ...shaping.row_copies import RunningMean
from ..chunk import BadRecords, Chunk
from ..row_values import Rule, Sampler
from ..stage import Fields
from .resample_at_rate import ResampleAtRate

#: Examples over which a mean of weights moves, where a budget and no size ends batches.
_AT_ONCE: Final = 32


class WeightedResample(ResampleAtRate):
    """Rates over a running mean of weights."""

    rule = Rule("a weight is finite and 0 or more")

    def __init__(
        self,
        weights: Selector,
        overall_rate: float,
        mean_decay: float,
        warmup: int | None,
        seed: int,
        group: int | None,
    ) -> None:
        Sampler.__init__(self, "weighted_resample", "weights", weights)
        self.group, self._seed = group, seed
        self._mean = RunningMean(group or 1, overall_rate, mean_decay, warmup)

    def usual_group(self, batch_sizes: Sequence[int | None], bound: int | None) -> int | None:
        known = [size for size in batch_sizes if size is not None]
        return max(known, default=min(_AT_ONCE, bound or _AT_ONCE))

    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        try:
            # A chunk is a group of the source, for any number of rows after earlier stages.
            rates = self._mean.rates(values)
        except ValueError as error:
            fault = DataError(
                f"{chunk.origin.describe(0)} and those after it: {self.values.label}: {error}"
            )
            bad.report(fault, "zero_weights", len(chunk))
            return chunk.take(slice(0, 0))
        return self.copied(chunk.with_fact("rate", rates.astype(np.float32)), rates)

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        return {"rate": Field("float32")}

    def state(self) -> State:
        return self._mean.snapshot()

    def restore(self, state: State) -> None:
        self._mean.restore(state)
