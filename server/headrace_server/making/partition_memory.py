"""The memory of a partition at work: the calls by which it takes what trainers did with batches.

commits, states, wants ─► Memory ─► changes to be stored
                            └─ PlainMemory, SegmentMemory
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..core.changes import Change, Saved
from ..core.partition import Rest
from ..core.plan import Plan, Read
from ..reading.chunk import Chunk
from ..reading.sampling import Stratified
from .shaping import Shaping

#: Answer of a memory that has not read all examples of a claim yet.
UNREAD: Final = -1

Target = Stratified | Shaping


class Memory(ABC):
    """Takes what trainers do with batches, and yields the changes to be stored.

    Calls that a kind of batches does not need do nothing: plain batches are made whether trainers
    want them or not, and have no states.
    """

    @property
    def starved(self) -> bool:
        """Whether a batch is wanted that has to wait for states."""
        return False

    @property
    def content(self) -> bool:
        """Whether trainers want no batch that is not made, and nothing is to be reported."""
        return False

    @abstractmethod
    def resume(self, saved: Saved) -> None:
        """Go on from the stored state; done batches are not made again."""

    @abstractmethod
    def next_step(self, limit: int) -> Read | Plan | type[Rest] | None:
        """The next step of the machine."""

    def planned(self, plan: Plan) -> bool:
        """Note a plan; False if its batch is passed over."""
        return True

    def read(self, read: Read, before: Any, chunk: Chunk, facts: dict[str, Any]) -> None:
        """Note a chunk before the machine has it, and complete its facts."""
        return

    def tidy(self) -> None:
        """Report refused examples, and drop chunks that no batch to come needs."""
        return

    def announced(self) -> None:
        """Note that trainers may have all batches made so far; once done, a restart skips them."""
        return

    def want(self, upto: int, stripe: int) -> None:
        """Allow batches until there have been ``upto``, for the trainer of a stripe of lanes."""
        return

    @abstractmethod
    def saved(self, number: int, block: Any = b"", columns: Sequence[Any] = ()) -> tuple[str, str]:
        """Take a commit with its states; an error's code and text, empty if it is taken."""

    def flushed(self, number: int, rows: list[int], block: Any, columns: Sequence[Any]) -> None:
        """Take states of lanes after a batch, from a trainer that lets go of them."""
        return

    def note_places(self) -> None:
        """Have a snapshot name the lanes of examples, so that they go on in the same rows."""
        return

    def leave(self, stripe: int, instead: int = -1) -> None:
        """Take the examples of a stripe of lanes back from a trainer that left.

        Its rank, if it has one, gets the stripe ``instead``.
        """
        return

    def deal(self, world: int, run: int, stripe: int) -> None:
        """Make rounds for so many ranks, with stripes from this number; 0: for any trainer."""
        return

    @abstractmethod
    def claim(self, number: int, segments: bytes) -> int | None:
        """Number of the batch that a trainer holds from before a restart; None if not its own.

        UNREAD: ask again after another read.
        """

    def release(self, number: int) -> None:
        """Take a claimed batch back from a trainer that did not finish it."""
        return

    @abstractmethod
    def close(self, cancel: bool) -> None:
        """End the input.  With ``cancel`` what was read is dropped."""

    def set_target(self, target: Target, probs: list[float]) -> int:
        """Draw in other proportions from now on; number of the first batch that shows it."""
        raise ValueError("the proportions of this feed can not be changed")

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        """Make batches of other sizes from now on; number of the first one."""
        raise ValueError(
            "a feed of segments has the batch size that it is declared with: rows that continue "
            "have their places in its batches; declare another one and start the server again, "
            "or take single batches of another size by feed.take(batch_size=…)"
        )

    @abstractmethod
    def take_changes(self) -> list[Change]:
        """Changes to store since the last call."""

    @property
    def done_numbers(self) -> list[int]:
        """Batches that are done after the first that is not."""
        return []

    @abstractmethod
    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        """The epoch of the first rows that are not committed; None where no row is left.

        ``ended``: all batches are made.  ``begun``: number and epoch of the first batches of each.
        """

    def take_dry(self) -> list[int]:
        """Stripes of lanes that ran out of work since the last call."""
        return []

    def lacks(self) -> tuple[str, int]:
        """Text on what the next batch lacks, perhaps empty, for the error of a deadline.

        Also the number of the batch whose states are awaited for the longest time, or -1.
        """
        return "", -1

    def seek(self, key: bytes) -> list[list[Any]]:
        """For each example of a key: epoch, segment, of how many, where, number of its batch."""
        return []
