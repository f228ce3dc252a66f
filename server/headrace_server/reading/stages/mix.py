"""``mix``: the weights of the sources, the source of each row as a fact, the counts by source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from headrace_proto.schema import Field

from ...pipeline.mix import weights_of
from ...shaping.mix import Schedule, pass_ordinals
from ...shaping.plan import State
from ..chunk import BadRecords, Chunk
from ..partition_rows import PASS
from ..stage import Fields, Stage


class Mix(Stage):
    """``batch.source``.  It is the first stage of a mix, declared with its source."""

    keeps_count = True

    def __init__(self, names: list[str], schedule: Schedule, by: str) -> None:
        self.names = names
        self._now: list[float] = schedule[0][1]  # the weights of the last read
        self._declared = schedule
        #: Each change by set_weights: the epoch and the example from which it holds, its weights.
        self._changes: list[list[Any]] = []
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

    def set_target(self, change: list[Any], number: int) -> None:
        """Draw by other weights from an epoch and example on, in place of a schedule.

        The place is part of the change, so it does not matter when this is called before that.
        """
        self._changes = [one for one in self._changes if one[:2] < change[:2]] + [change]

    def schedule(self, epoch: int, came: int, numbered: Callable[[int], int]) -> Schedule:
        """Return the weights from an example of a partition on.

        ``numbered`` gives the number that an example of the partition has in the mix.
        """
        while len(self._changes) > 1 and self._changes[1][:2] <= [epoch, came]:
            del self._changes[0]  # a state from before it has it
        schedule = [*self._declared]
        for since, first, weights in self._changes:
            if since <= epoch:
                start = numbered(first) if since == epoch and first else 0
                schedule = [one for one in schedule if one[0] < start] + [[start, weights]]
        self._now = [weights for start, weights in schedule if start <= numbered(came)][-1]
        return schedule

    def state(self) -> State:
        return {"came": self.came.tolist(), "changes": [*self._changes]}

    def restore(self, state: State) -> None:
        self.came, self._changes = np.array(state["came"], np.int64), [*state["changes"]]

    def stats(self) -> dict[str, object]:
        """Return by source how many examples came, and the weight."""
        shares = (np.array(self._now) / np.sum(self._now)).tolist()
        return {
            "sources": dict(zip(self.names, self.came.tolist(), strict=True)),
            "weights": {name: [share, 1] for name, share in zip(self.names, shares, strict=True)},
        }
