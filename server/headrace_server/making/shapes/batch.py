"""``batch``: so many rows, in their order."""

from __future__ import annotations

from typing import Any

from ...pipeline.argument_checks import Selector
from ...reading.chunk import BadRecords, Chunk
from ...shaping.bucket import PlainBatches
from ..shape import PaddedRows, RowFacts, split


class Batch(PaddedRows):
    """Batches of ``batch_size`` rows."""

    counted = True

    def __init__(
        self,
        batch_size: int,
        balance: Selector | None = None,
        balance_batches: int = 0,
        **padding: Any,
    ) -> None:
        super().__init__(**padding)
        self._balance, self._window = balance, balance_batches
        self._size = batch_size
        self.batch_sizes = [batch_size]

    def machine(self, partition: int) -> PlainBatches:
        return PlainBatches(self._size, self.allow_smaller, self._window)

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        chunk, _ = super().facts(chunk, bad)
        return split(self._priced(chunk, bad))

    @property
    def batch_size(self) -> int | None:
        return None if self.allow_smaller else self._size
