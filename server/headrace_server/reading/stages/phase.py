"""``read_tokens(phase="random")``: windows that begin elsewhere in each epoch.

    stride 3, window 3, shift 1     tokens of the source   0 1 2 3 4 5 │ 3 4 5 6 7 8 │ …
    an epoch of phase 2             tokens                     2 3 4   │     5 6 7   │ …
                                    targets                      3 4 5 │       6 7 8 │ …

All windows of an epoch begin by as much later than in the source.
"""

from __future__ import annotations

import numpy as np

from headrace_proto.schema import Field

from ...shaping import chance
from ..chunk import BadRecords, Chunk
from ..stage import Fields, Stage


class Phase(Stage):
    """Cut the window of the epoch, and its targets, out of the longer one that the source gives."""

    keeps_count = True

    def __init__(self, window: int, stride: int, shift: int, seed: int) -> None:
        self._window, self._stride, self._shift, self._seed = window, stride, shift, seed

    def fields_after(self, before: Fields | None) -> Fields | None:
        if before is None:
            return None
        field = Field(before["tokens"].dtype, (self._window,))
        return {"tokens": field, **({"targets": field} if self._shift else {})}

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        tokens = chunk.columns["tokens"]
        assert isinstance(tokens, np.ndarray)
        drawn = chance.uniform(self._seed, chance.PHASES, self.epoch, np.arange(1))[0]
        at = min(int(drawn * self._stride), self._stride - 1)
        columns = {"tokens": tokens[:, at : at + self._window]}
        if self._shift:
            at += self._shift
            columns["targets"] = tokens[:, at : at + self._window]
        return chunk.with_columns(columns)
