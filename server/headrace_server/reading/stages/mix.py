"""``mix``: the source of each row of a mix as a fact, and how many came of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from headrace_proto.schema import Field

from ...shaping.mix import pass_ordinals
from ..chunk import BadRecords, Chunk
from ..partition_rows import PASS
from ..stage import Fields, Stage


class Mix(Stage):
    """``batch.source``.  It is the first stage of a mix, declared with its source."""

    keeps_count = True

    def __init__(self, names: list[str]) -> None:
        self._names = names
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

    def state(self) -> Any:
        return {"came": self.came.tolist()}

    def restore(self, state: Any) -> None:
        self.came = np.array(state["came"], np.int64)

    def stats(self) -> dict[str, int]:
        """Return how many examples came of each source, by its name."""
        return dict(zip(self._names, self.came.tolist(), strict=True))
