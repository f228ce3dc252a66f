"""Generators for functions that draw: one for each example, whatever was read or drawn before it.

    seed, stage, epoch ─► key of Philox ─┐
    ordinal ─► its counter ──────────────┴─► Generator: 2**128 numbers that no other example has

A generator is made anew for each call, so a resume, a replay and a retry draw the same numbers.
"""

from __future__ import annotations

import numpy as np

from ..core import chance


class Draws:
    """The chance of one stage; ``stage`` keeps stages of one seed apart."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = chance.derive(seed, chance.MAPS, stage)
        #: The pass over the data that the next chunk belongs to.
        self.epoch = 0

    def generator(self, ordinal: int) -> np.random.Generator:
        """The generator of one example."""
        key = chance.key(self._seed, chance.MAPS, self.epoch)
        counter = np.array([0, 0, ordinal & (2**64 - 1), 0], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))
