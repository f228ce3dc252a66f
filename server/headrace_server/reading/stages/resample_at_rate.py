"""``resample_at_rate``: each row a Poisson number of times."""

from __future__ import annotations

import numpy as np

from headrace_proto.errors import DataError

from ...pipeline.argument_checks import Selector
from ...shaping.row_copies import MAX_RATE, poisson
from ..chunk import BadRecords, Chunk
from ..row_values import Rule, Sampler


class ResampleAtRate(Sampler):
    """Rows repeated by rates."""

    rule = Rule("a rate is finite, 0 or more, and at most 2**52", most=MAX_RATE)

    def __init__(self, rates: Selector, seed: int) -> None:
        super().__init__("resample_at_rate", "rates", rates)
        self._seed = seed

    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        return self.copied(chunk, values.astype(np.float64))

    def copied(self, chunk: Chunk, rates: np.ndarray) -> Chunk:
        """Return the copies of each row, of which there are ``rates`` on the average."""
        try:
            counts = poisson(rates, self._seed, self.number, self.epoch, chunk.ordinals)
        except ValueError as error:
            place = chunk.origin.describe(int(rates.argmax()))
            raise DataError(f"{place}: {self.values.label}: {error}") from None
        repeated = self.repeated(chunk, counts)
        self.counts["resampled_away"] += int((counts == 0).sum())
        return repeated
