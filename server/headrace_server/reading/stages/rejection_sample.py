"""``rejection_sample``: each row with a probability."""

from __future__ import annotations

import numpy as np

from ...pipeline.argument_checks import Selector
from ...shaping.class_acceptance import keep
from ..chunk import BadRecords, Chunk
from ..row_values import Rule, Sampler


class RejectionSample(Sampler):
    """Keeps each row with the probability that its value is."""

    rule = Rule("it must be between 0 and 1", most=1)

    def __init__(self, accept_prob: Selector, seed: int) -> None:
        super().__init__("rejection_sample", "accept_prob", accept_prob)
        self._seed = seed

    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        probabilities = values.astype(np.float64)
        accepted = keep(self._seed, self.number, self.epoch, chunk.ordinals, probabilities)
        return self.kept(chunk, accepted, "rejected")
