"""Stages that drop or repeat rows by one value of each: a column, a function or a constant.

Chance is keyed by seed, stage, epoch and ordinal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .chunk import Chunk
from .reader import BadRecords
from .row_values import Rule, Values
from .stage import Stage


class Sampler(Stage):
    """A stage that keeps the columns: it judges each row by one value."""

    #: The rule of values.
    rule: Rule

    def __init__(self, call: str, argument: str, selector: list[Any] | None) -> None:
        """``call`` and ``argument`` name the value in errors."""
        self._named = call, argument, selector or []

    def open(self) -> None:
        self.values = Values(*self._named)

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        chunk, values = self.values.sound(chunk, bad, self.rule)
        return self.sampled(chunk, values, bad) if len(chunk) else chunk

    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        """Return the remaining rows of those with sound values, or their copies."""
        raise NotImplementedError
