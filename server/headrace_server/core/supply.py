"""The batches that no trainer has: the interface of all supplies, with defaults.

made(), put_back() ─► supply ─► deal(): granted to trainers that ask
                             ─► tell(): told when to ask elsewhere
"""

from __future__ import annotations

from typing import Any

from .admitted_examples import NOWHERE
from .dispatch_effects import Batch
from .lease import BatchLifecycle
from .partition_turns import Untaken
from .rounds import DealtRounds
from .trainers import Trainer


class Supply:
    """The supply of one feed, or of some of its partitions."""

    world = 0  # number of ranks; 0: trainers have none
    states = NOWHERE  # where states of segments are kept
    untaken = Untaken()  # batches that are made ahead; of segments none

    def __init__(self, lifecycle: BatchLifecycle) -> None:
        self._lifecycle = lifecycle
        self._trainers = lifecycle.trainers

    # From partitions

    def set_rests(self, partition: int, rests: bool) -> None:
        """Set whether a partition of segments waits for others in an earlier epoch.

        Partitions without segments never rest.
        """

    def starved(self, partition: int) -> None:
        """Note that a partition makes no batch before trainers have acted."""

    def dry(self, stripe: int) -> None:
        """Note that a stripe of lanes has no work left."""

    def settled(self, batch: Batch) -> None:
        """Note that a commit of a batch is stored."""

    # From trainers

    def leave(self, session: int, rank: int) -> None:
        """Void the batches that only a trainer which has left could get."""

    # Claims on batches of an earlier life

    def name_of(self, batch: Batch) -> tuple[int, ...]:
        """Return the name under which a batch is made again."""
        return batch.order

    def name_of_claim(self, session: int, held: Any) -> tuple[int, ...] | None:
        """Return the name of the batch that a trainer claims; None where it can not have it."""
        return held.number, held.partition

    def pick(self, name: tuple[int, ...]) -> Batch | None:
        """Take a batch out of turn, if it is here; its partition may make another."""
        return None

    def will_make(self, name: tuple[int, ...]) -> bool:
        """Return whether a batch that is not here will come."""
        return False

    def claimed_in_vain(self, partition: int) -> None:
        """Note that a partition counts a batch as out whose claim is void."""

    def announced(self) -> dict[str, Any]:
        """Return the properties by which a trainer that joins chooses the owner to ask first."""
        return {}

    # Rounds of ranks

    def rounds_dealt(self, partition: int) -> DealtRounds:
        """Return the rounds of a partition that this life has dealt, to be stored.

        There are none of segments: the partition itself stores those.
        """
        return DealtRounds(0, 0, 0, ())

    # To trainers

    def is_exhausted(self, trainer: Trainer) -> bool:
        """Return whether no batch is left for a trainer; while a batch is out, more may follow."""
        return False

    def waiting_rows(self) -> int:
        """Return how many segments are in batches that no trainer has."""
        return 0
