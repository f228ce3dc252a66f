"""The state of an example, found by its key.

ready          its next segment waits for a batch
not begun      its first segment waits for a batch, or for a place of the capacity
out            it is in a batch that was made and is not saved
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from .slots import Segments, Slots


@dataclass(frozen=True, slots=True)
class FoundExample:
    """One example: ``segment``, of ``segments``, is the next or is out."""

    epoch: int
    segments: int
    segment: int = 0
    out: Segments | None = None

    @property
    def where(self) -> str:
        """The state in words."""
        if self.out is not None:
            return "out"
        return "ready" if self.segment else "not begun"


@dataclass(frozen=True, slots=True)
class OfferedExamples:
    """Facts of a chunk's examples while some of them wait."""

    keys: Sequence[Hashable]
    counts: np.ndarray
    columns: np.ndarray  # columns of the tables
    line: int  # of its first example
    known: np.ndarray | None  # by row: BEGUN or REFUSED (admitted_examples.py); None: all are new

    def left(self, start: int, stop: int) -> int:
        """Return the number of segments of examples that no earlier process has handled."""
        counts = self.counts[start:stop]
        return int(
            counts.sum() if self.known is None else counts[self.known[start:stop] == 0].sum()
        )

    def seek(self, key: Hashable, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Return epoch and number of segments of each example with this key."""
        for row in range(start, stop):
            epoch, name = cast("tuple[int, Hashable]", self.keys[row])
            if name == key and (self.known is None or not self.known[row]):
                yield epoch, int(self.counts[row])


def found_in(slots: Slots, key: Hashable, out: Iterable[Segments]) -> Iterator[FoundExample]:
    """Return a key's examples that have a slot; ``out``: batches that are out, oldest first."""
    batches = list(out)
    for slot, epoch in slots.of_name(key):
        count, segment = int(slots.count[slot]), int(slots.segment[slot])
        for batch in batches:
            at = (batch.slots == slot).nonzero()[0]
            if len(at):
                yield FoundExample(epoch, count, int(batch.segments[at[0]]), batch)
                break
        else:
            yield FoundExample(epoch, count, segment)
