"""Random generators for user functions: one for each example, independent of earlier draws.

    seed, stage, epoch ─► key of Philox ─┐
    ordinal ─► its counter ──────────────┴─► Generator: 2**128 numbers that no other example has

Each call gets a new generator, so a resume and a retry draw the same numbers.
"""

from __future__ import annotations

import numpy as np

from ..core import chance


class Draws:
    """The generators of one stage; ``stage`` distinguishes stages of one seed."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = chance.derive(seed, chance.MAPS, stage)
        #: The pass over the data to which the next chunk belongs.
        self.epoch = 0

    def generator(self, ordinal: int) -> np.random.Generator:
        """Return the generator of one example."""
        key = chance.key(self._seed, chance.MAPS, self.epoch)
        counter = np.array([0, 0, ordinal & (2**64 - 1), 0], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))
