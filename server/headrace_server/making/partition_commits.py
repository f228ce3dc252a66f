"""The commits of a partition at work: the calls by which it takes what trainers did with batches.

commits, states, wants ─► PartitionCommits ─► changes to be stored
                            └─ PlainCommits, SegmentCommits
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..core.class_queues import ClassQueues
from ..core.partition import Rest
from ..core.plan import Plan, Read
from ..core.stored_state import Change, Saved
from ..reading.chunk import Chunk
from ..reading.sampling import Stratified

#: Answer of a partition that has not read all examples of a claim yet.
UNREAD: Final = -1

#: Answer to a change of batches that comes when all are made.
TOO_LATE: Final = "all batches of the feed were made before"

Target = Stratified | ClassQueues


class PartitionCommits(ABC):
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

    @abstractmethod
    def resume(self, saved: Saved) -> None:
        """Go on from the stored state; done batches are not made again."""

    @abstractmethod
    def next_step(self, limit: int) -> Read | Plan | type[Rest] | None:
        """Return the next step of the machine."""

    def planned(self, plan: Plan) -> bool:
        """Note a plan; return False if its batch is passed over."""
        return True

    def read(self, read: Read, before: Any, chunk: Chunk, facts: dict[str, Any]) -> None:
        """Note a chunk before the machine gets it, and complete its facts."""
        return

    def tidy(self) -> None:
        """Report refused examples, and drop chunks that no later batch needs."""
        return

    def announced(self) -> None:
        """Note that trainers may have all batches made so far; a restart skips done ones."""
        return

    def want(self, more: int, stripe: int) -> None:
        """Allow more batches for the trainer of a stripe of lanes (``dispatch_effects.Want``)."""
        return

    @abstractmethod
    def saved(self, number: int, block: Any = b"", columns: Sequence[Any] = ()) -> tuple[str, str]:
        """Take a commit with its states; return an error's code and text, or empty ones."""

    def flushed(self, number: int, rows: list[int], block: Any, columns: Sequence[Any]) -> None:
        """Take states of lanes after a batch, from a trainer that flushes them."""
        return

    def note_places(self) -> None:
        """Record the lanes of examples for a snapshot, so that they continue in the same rows."""
        return

    def leave(self, stripe: int, instead: int = -1) -> None:
        """Take the examples of a stripe of lanes back from a trainer that left.

        Its rank, if it has one, gets the stripe ``instead``.
        """
        return

    def deal(self, world: int, run: int, stripe: int, at: int = 0) -> None:
        """Make rounds for ``world`` ranks, with numbers from ``at`` on; 0: for any trainer.

        Ranks have the stripes from ``stripe`` on.
        """
        return

    @abstractmethod
    def claim(self, number: int, segments: bytes) -> int | None:
        """Return the number of the batch that a trainer holds from before a restart, or None.

        UNREAD: ask again after another read.
        """

    def release(self, number: int) -> None:
        """Take a claimed batch back from a trainer that did not finish it."""
        return

    @abstractmethod
    def close(self, cancel: bool) -> None:
        """End the input.  With ``cancel`` drop all rows that were read."""

    @abstractmethod
    def set_target(self, target: Target, probs: list[float]) -> int:
        """Draw in other proportions from now on; return the number of the first such batch."""

    @abstractmethod
    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        """Make batches of other sizes from now on; return the number of the first one."""

    @abstractmethod
    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, which are to be stored."""

    @property
    def done_numbers(self) -> list[int]:
        """The done batches after the first open one."""
        return []

    @abstractmethod
    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        """Return the epoch of the first uncommitted rows; None where no row is left.

        ``ended``: all batches are made.  ``begun``: number and epoch of the first batches of each.
        """

    def take_placed(self) -> bool:
        """Return whether an order has taken its place since the last call."""
        return False

    def take_dry(self) -> list[int]:
        """Return the stripes of lanes that ran out of work since the last call."""
        return []

    def lacks(self) -> tuple[str, int]:
        """Describe, for the error of a deadline, what the next batch lacks; may be empty.

        Return also the number of the batch whose states are awaited for the longest time, or -1.
        """
        return "", -1

    def seek(self, key: bytes) -> list[list[Any]]:
        """Return a key's examples: epoch, segment, number of segments, place, batch number."""
        return []
