"""The plain shape: every ``batch_size`` rows in the order of their arrival, as in one bucket.

A new batch size applies to the rows that make no whole batch yet.  So a stream depends on the place
of the change among rows and batches, and not on how many batches were drafted by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .bucket import Buckets
from .row_queue import Rows


class PlainBatches(Buckets):
    """Shaper of ``.batch(batch_size, allow_smaller_final_batch)``."""

    kind = "batch"

    def __init__(self, batch_size: int, allow_smaller_final_batch: bool = False) -> None:
        super().__init__([batch_size], allow_smaller_final_batch)
        self._settings = {"batch_size": batch_size}

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        if rows:
            self._queues[0].append(chunk, np.arange(rows))
            size = self.batch_sizes[0] or 0
            full, self._open[0] = divmod(self._open[0] + rows, size)
            self._form(((0, size),), full)

    def _meta(self, rows: Rows, longest: int, real: int | None) -> dict[str, Any]:
        return {}
