"""``keep``: the rows for which a value is true (``keep_input`` of the buckets)."""

from __future__ import annotations

import numpy as np

from ...pipeline.argument_checks import Selector
from ..chunk import BadRecords, Chunk
from ..row_values import Rule, Sampler


class Keep(Sampler):
    """Drops the rows whose value is false."""

    rule = Rule("it must be true or false", "wrong_type", most=1, whole=True)

    def __init__(self, keep: Selector) -> None:
        super().__init__("bucket", "keep_input", keep)

    def sampled(self, chunk: Chunk, values: np.ndarray, bad: BadRecords) -> Chunk:
        return self.kept(chunk, values.astype(bool), "not_kept")
