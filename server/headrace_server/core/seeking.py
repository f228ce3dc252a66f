"""The state of an example, found by its key.

ready          its next segment waits for a batch
not begun      its first segment waits for a batch, or for a place of the capacity
out            it is in a batch that was made and is not saved
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

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
