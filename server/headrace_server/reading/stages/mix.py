"""``mix``: the weights of the sources, the source of each row as a fact, the counts by source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from headrace_proto.schema import Field

from ...pipeline.mix import weights_of
from ...shaping.mix import Schedule, pass_ordinals
from ..chunk import BadRecords, Chunk
from ..partition_rows import PASS
from ..stage import Fields, Stage


class Mix(Stage):
    """``batch.source``.  It is the first stage of a mix, declared with its source."""

    keeps_count = True

    def __init__(self, names: list[str], schedule: Schedule, by: str) -> None:
        self.names = names
        #: The weights from here on: those that were declared, or one entry that a trainer gave.
        self.schedule = schedule
        #: Number of sources of which no batch has rows of two; 0: it may.
        self.apart = len(names) if by == "batch" else 0
        #: Examples that came of each source.
        self.came = np.zeros(len(names), np.int64)

    def fact_fields(self, before: Fields | None) -> dict[str, Field]:
        return {"source": Field("int32")}

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        passes = chunk.facts.get(PASS)
        if passes is None:  # to see the columns that the stages give, the sources are read in turn
            return chunk
        self.came += np.bincount(chunk.facts["source"], minlength=len(self.came))
        chunk = chunk.without_fact(PASS)
        return replace(chunk, ordinals=pass_ordinals(chunk.ordinals, passes))

    def check_target(self, weights: list[float]) -> None:
        """Raise ValueError where these can not be the weights of the sources."""
        if len(weights) != len(self.names):
            raise ValueError(
                f"there are {len(weights)} weights; the mix has {len(self.names)} sources"
            )
        weights_of("weights", dict(zip(self.names, weights, strict=True)), self.names)

    def set_target(self, weights: list[float], number: int) -> None:
        """Draw by other weights from the next example on, in place of the schedule."""
        self.schedule = [[0, weights]]

    def state(self) -> Any:
        return {"came": self.came.tolist(), "schedule": self.schedule}

    def restore(self, state: Any) -> None:
        self.came, self.schedule = np.array(state["came"], np.int64), state["schedule"]

    def stats(self) -> dict[str, int]:
        """Return how many examples came of each source, by its name."""
        return dict(zip(self.names, self.came.tolist(), strict=True))
