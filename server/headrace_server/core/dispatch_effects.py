"""The effects that a dispatcher decides and the worker carries out, and the batch on offer in them.

EpochBegun, Following, Idle and Passed are the messages that trainers get.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from headrace_proto.messages import EpochBegun, Following, Idle, Passed
from headrace_proto.record import record

P = TypeVar("P")


class _Here(dict[int, P]):
    """The owner's partitions by number.  ValueError for any other number."""

    def __missing__(self, number: int) -> P:
        raise ValueError(f"partition {number} is none of those here: {[*self]}")


def of_numbers(numbers: Iterable[int], kind: type[P]) -> _Here[P]:
    """Return new partitions of these numbers, in their order."""
    return _Here({number: kind() for number in sorted(numbers)})


class JoinRefused(ValueError):
    """A trainer's request to join does not fit the feed."""


class Queue(Protocol):
    """A queue in which a batch waits, or a round that is not complete."""

    def remove(self, batch: Batch, /) -> None: ...


@dataclass(slots=True, eq=False)
class Batch:
    """One batch on offer.  Only the worker reads ``body``: where the bytes lie."""

    partition: int
    number: int
    rows: int
    body: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0  # epoch of its first row
    turn: int = -1  # among the batches of all partitions; -1: its number
    rank: int = -1  # coordinated mode: the rank that gets it …
    round: int = -1  # … and in which round
    waits_in: Queue | None = None  # None while it is leased
    let_go: bool = False  # no trainer gets it again
    freed: bool = False
    pins: set[Hashable] = field(default_factory=set)
    nbytes: int = 0  # of its bytes

    def __str__(self) -> str:
        return f"{self.number} of partition {self.partition}"

    def wait_no_more(self) -> None:
        """Leave the queue in which it waits, if any."""
        if self.waits_in is not None:
            self.waits_in.remove(self)
            self.waits_in = None

    @property
    def order(self) -> tuple[int, int]:
        return (self.number, self.partition)

    @property
    def round_name(self) -> tuple[int, int]:
        return (self.round, self.partition)

    @property
    def filled(self) -> int:
        """Number of rows that hold something: those of a rank's batch may be empty."""
        return self.rows - int(self.meta.get("empty", 0))


class TurnQueue:
    """Batches that came back or were dealt, by round or turn, then by partition."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], Batch]] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def push(self, batch: Batch) -> None:
        """Add a batch, at the place of its round if it has one, else of its turn."""
        batch.waits_in = self
        self.count += 1
        place = batch.partition, batch.number
        if batch.round < 0:
            place = batch.number if batch.turn < 0 else batch.turn, batch.partition
        heapq.heappush(self._heap, ((batch.round, *place), batch))

    def pop(self) -> Batch | None:
        """Take the first batch; skip entries of batches that do not wait any more."""
        while self._heap:
            batch = heapq.heappop(self._heap)[1]
            if batch.waits_in is self:
                batch.waits_in = None
                self.count -= 1
                return batch
        return None

    def waiting(self) -> set[Batch]:
        """Return all batches that wait."""
        return {batch for _, batch in self._heap if batch.waits_in is self}

    def rows(self) -> int:
        """Return their rows."""
        return sum(batch.rows for batch in self.waiting())

    def remove(self, batch: Batch, /) -> None:
        batch.waits_in = None  # its entry stays in the heap until pop meets it
        self.count -= 1

    def drain(self) -> list[Batch]:
        """Take all batches, in order."""
        batches = []
        while (batch := self.pop()) is not None:
            batches.append(batch)
        return batches


class _Effect:
    """A decision of the dispatcher that the worker carries out."""

    __slots__ = ()


@record
class Send(_Effect):
    """Hand a batch to a session."""

    session: int
    seq: int
    token: int
    batch: Batch


@record
class Answer(_Effect):
    """Answer the commits of a session."""

    session: int
    committed: tuple[int, ...]
    stale: tuple[int, ...]
    faults: tuple[tuple[int, str, str], ...] = ()  # token, code and text of those refused


@record
class Freed(_Effect):
    """The bytes of this batch are not needed any more."""

    batch: Batch


@record
class Finish(_Effect):
    """Tell a session that the feed is done."""

    session: int


@record
class StoreCommit(_Effect):
    """Store a commit, with the states of segments.  Only the worker reads ``payload``."""

    batch: Batch
    payload: Any
    token: int = 0


@record
class StoreLanes(StoreCommit):
    """Store the states of lanes as they are after a saved batch."""


@record
class Want(_Effect):
    """Let a partition make ``more`` further batches of a stripe of lanes."""

    partition: int
    more: int
    stripe: int = 0


@record
class BeginEpoch(_Effect):
    """Let a partition that rests at the border of an epoch begin the next one."""

    partition: int


@record
class PassOver(_Effect):
    """Let a partition count a batch as done that no trainer gets."""

    partition: int
    number: int


@record
class Leave(_Effect):
    """Tell a partition that the trainer of a stripe of lanes has left.

    Its rank, if it has one, has the stripe ``instead`` from now on.
    """

    partition: int
    stripe: int
    instead: int = -1


@record
class Deal(_Effect):
    """Have a partition of segments form rounds of ``world`` batches; 0: batches for any trainer.

    All batches that are out become ready again.  Ranks have the stripes from ``stripe`` on, and
    rounds the numbers from ``at`` on.
    """

    partition: int
    world: int
    run: int
    stripe: int
    at: int = 0


@record
class Claim(_Effect):
    """Ask a partition whether a batch of an earlier server (``place``) can still be committed."""

    partition: int
    place: Any


@record
class Dealt(_Effect):
    """Store the rounds of these partitions, which were dealt or dealt anew."""

    partitions: tuple[int, ...]


@record
class Release(_Effect):
    """Hand the rows of a claimed batch out again: its trainer does not commit it."""

    partition: int
    number: int


@record
class Rewound(_Effect):
    """Send a trainer away: a commit that was acknowledged to it is not in the state."""

    session: int


Effect = _Effect | EpochBegun | Following | Idle | Passed
