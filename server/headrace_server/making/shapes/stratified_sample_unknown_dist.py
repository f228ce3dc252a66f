"""``stratified_sample_unknown_dist``: batches of a wanted mix of classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from headrace_proto.schema import Field

from ...pipeline.argument_checks import Selector
from ...reading.chunk import BadRecords, Chunk
from ...reading.row_values import Values
from ...shaping import chance
from ...shaping.class_queues import ClassQueues
from ..shape import Fields, PaddedRows, RowFacts, numbered, split


class StratifiedSampleUnknownDist(PaddedRows):
    """Batches with class counts that are drawn from ``probs``."""

    def __init__(
        self,
        labels: Selector,
        probs: Sequence[float],
        batch_size: int,
        queue_capacity: int,
        seed: int,
        max_examples_in_flight: int,
        **padding: Any,
    ) -> None:
        super().__init__(**padding)
        self._labels, self._probs, self._size = labels, probs, batch_size
        self.batch_sizes = [batch_size]
        self._queue_capacity, self._seed = queue_capacity, seed
        self._in_flight = max_examples_in_flight

    def machine(self, partition: int) -> ClassQueues:
        # The machine draws by the number of the batch, so every partition has a seed of its own.
        seed = chance.derive(self._seed, chance.CLASSES, partition)
        return ClassQueues(
            len(self._probs), self._probs, self._size, self._queue_capacity, seed, self._in_flight
        )

    def open(self, partition: int) -> None:
        super().open(partition)
        self._values = Values(self.kind, "labels", self._labels)

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        chunk, _ = super().facts(chunk, bad)
        chunk, facts = split(numbered(chunk, self._values, "label", len(self._probs), bad))
        return chunk.with_fact("label", facts["label"].astype(np.int32)), facts

    def fact_fields(self, fields: Fields) -> Fields:
        return {**fields, "label": Field("int32")}

    @property
    def batch_size(self) -> int | None:
        return self._size
