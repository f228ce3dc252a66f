"""``batch``: so many rows, in their order."""

from __future__ import annotations

from ...pipeline.declaration import Plain
from ...reading.chunk import BadRecords, Chunk
from ...reading.row_values import Values
from ...shaping.bucket import PlainBatches
from ..shape import PaddedRows, RowFacts, priced, split


class Batch(PaddedRows):
    """Batches of ``batch_size`` rows."""

    counted = True

    def __init__(
        self, batch_size: int, balance: Plain = None, balance_batches: int = 0, **padding: Plain
    ) -> None:
        super().__init__(**padding)
        self._balance, self._window = balance, balance_batches
        self._costs: Values | None = None
        self._size = batch_size
        self.batch_sizes = [batch_size]

    def machine(self, partition: int) -> PlainBatches:
        return PlainBatches(self._size, self.allow_smaller, self._window)

    def open(self, partition: int) -> None:
        super().open(partition)
        if self._balance is not None:
            self._costs = Values(self.kind, "balance", self._balance, sequence=True)

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        chunk, _ = super().facts(chunk, bad)
        return split(priced(chunk, self._costs, bad))

    @property
    def batch_size(self) -> int | None:
        return None if self.allow_smaller else self._size
