"""The commits of a partition at work: the calls by which it takes what trainers did with batches.

commits, states, wants ─► PartitionCommits ─► changes to be stored
                            └─ PlainCommits, SegmentCommits
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..reading.chunk import Chunk
from ..reading.stages.stratified_sample import StratifiedSample
from ..shaping.class_queues import ClassQueues
from ..shaping.plan import Read

#: Answer of a partition that has not read all examples of a claim yet.
UNREAD: Final = -1

#: Answer to a change of batches that comes when all are made.
TOO_LATE: Final = "all batches of the feed were made before"

Target = StratifiedSample | ClassQueues


class PartitionCommits:
    """Takes what trainers do with batches, and yields the changes to be stored.

    Calls that a kind of batches does not need do nothing: plain batches are made whether trainers
    want them or not, and have no states.
    """

    #: Whether no batch is left to be made.
    all_made = False

    def refuse_late(self) -> None:
        """Raise ValueError where no batch is left that could be changed."""
        if self.all_made:
            raise ValueError(TOO_LATE)

    @property
    def starved(self) -> bool:
        """Whether a wanted batch has to wait for states."""
        return False

    @property
    def content(self) -> bool:
        """Whether all wanted batches are made, and no report is due."""
        return False

    def read(self, read: Read, before: Any, chunk: Chunk, facts: dict[str, Any]) -> None:
        """Note a chunk before the machine gets it, and complete its facts."""

    def announced(self) -> None:
        """Note that trainers may have all batches made so far; a restart skips done ones."""

    def want(self, more: int, stripe: int) -> None:
        """Allow more batches for the trainer of a stripe of lanes (``dispatch_effects.Want``)."""

    def flushed(self, number: int, rows: list[int], block: Any, columns: Sequence[Any]) -> None:
        """Take states of lanes after a batch, from a trainer that flushes them."""

    def note_places(self) -> None:
        """Record the lanes of examples for a snapshot, so that they continue in the same rows."""

    def leave(self, stripe: int, instead: int = -1) -> None:
        """Take the examples of a stripe of lanes back from a trainer that left.

        Its rank, if it has one, gets the stripe ``instead``.
        """

    def deal(self, world: int, run: int, stripe: int, at: int = 0) -> None:
        """Make rounds for ``world`` ranks, with numbers from ``at`` on; 0: for any trainer.

        Ranks have the stripes from ``stripe`` on.
        """

    def release(self, number: int) -> None:
        """Take a claimed batch back from a trainer that did not finish it."""

    @property
    def done_numbers(self) -> list[int]:
        """The done batches after the first open one."""
        return []

    def take_placed(self) -> bool:
        """Return whether an order has taken its place since the last call."""
        return False

    def take_dry(self) -> list[int]:
        """Return the stripes of lanes that ran out of work since the last call."""
        return []

    def seek(self, key: bytes) -> list[list[Any]]:
        """Return a key's examples: epoch, segment, number of segments, place, batch number."""
        return []
