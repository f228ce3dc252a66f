"""``batch``: so many rows, in their order."""

from __future__ import annotations

from typing import Any

from ...shaping.bucket import PlainBatches
from ..shape import PaddedRows


class Batch(PaddedRows):
    """Batches of ``batch_size`` rows."""

    counted = True

    def __init__(self, batch_size: int, **padding: Any) -> None:
        super().__init__(**padding)
        self._size = batch_size
        self.batch_sizes = [batch_size]

    def machine(self, partition: int) -> PlainBatches:
        return PlainBatches(self._size, self.allow_smaller)

    @property
    def batch_size(self) -> int | None:
        return None if self.allow_smaller else self._size
