"""The vocabulary of the hand-over: a batch on offer, and the effects that the shell carries out.

Full, Idle and Passed are the messages that trainers get.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from headrace_proto.messages import Full, Idle, Passed
from headrace_proto.record import record

__all__ = [
    "Answer",
    "Batch",
    "Claim",
    "Dealt",
    "Effect",
    "Finish",
    "Flush",
    "Freed",
    "Full",
    "Idle",
    "JoinRefused",
    "Leave",
    "Passed",
    "Reclaimed",
    "Release",
    "Returned",
    "Rewound",
    "Save",
    "Send",
    "Taken",
    "Waiting",
    "Want",
    "of_numbers",
]


P = TypeVar("P")


class _Here(dict[int, P]):
    """Partitions by number.  ValueError for one that is not here."""

    def __missing__(self, number: int) -> P:
        raise ValueError(f"partition {number} is none of those here: {[*self]}")


def of_numbers(numbers: Iterable[int], kind: type[P]) -> _Here[P]:
    """Return new partitions of these numbers, in their order."""
    return _Here({number: kind() for number in sorted(numbers)})


class JoinRefused(ValueError):
    """A trainer can not join as it asked to."""


class Place(Protocol):
    """Where a batch waits: a queue, or a round that is not complete."""

    def remove(self, batch: Batch, /) -> None: ...


@dataclass(slots=True, eq=False)
class Batch:
    """One batch on offer.  ``body`` is the shell's: where the bytes lie."""

    partition: int
    number: int
    rows: int
    body: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    rank: int = -1  # coordinated mode: whose it is …
    round: int = -1  # … and in which round
    waits_in: Place | None = None  # at most one place, and none while it is leased
    settled: bool = False
    freed: bool = False
    pins: set[Hashable] = field(default_factory=set)

    def wait_no_more(self) -> None:
        """Leave the place where it waits, if it does."""
        if self.waits_in is not None:
            self.waits_in.remove(self)
            self.waits_in = None

    @property
    def order(self) -> tuple[int, int]:
        return (self.number, self.partition)

    @property
    def turn(self) -> tuple[int, int, int]:
        """Where it stands among batches that wait: in its round, if it has one."""
        if self.round < 0:
            return (self.round, *self.order)
        return (self.round, self.partition, self.number)


class Waiting:
    """Batches that came back or were dealt, the first of their order first."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, ...], Batch]] = []
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def push(self, batch: Batch) -> None:
        batch.waits_in = self
        self.count += 1
        heapq.heappush(self._heap, (batch.turn, batch))

    def pop(self) -> Batch | None:
        """The first batch; entries of those that wait no more are passed over."""
        while self._heap:
            batch = heapq.heappop(self._heap)[1]
            if batch.waits_in is self:
                self.remove(batch)
                return batch
        return None

    def partitions(self) -> set[int]:
        """The partitions whose batches wait."""
        return {batch.partition for _, batch in self._heap if batch.waits_in is self}

    def remove(self, batch: Batch, /) -> None:
        batch.waits_in = None  # its entry stays, and says nothing any more
        self.count -= 1

    def drain(self) -> list[Batch]:
        """All batches, in order."""
        batches = []
        while (batch := self.pop()) is not None:
            batches.append(batch)
        return batches


@record
class Send:
    """Hand a batch to a session."""

    session: int
    seq: int
    token: int
    batch: Batch


@record
class Taken:
    """A batch left the stream of new ones: its worker may make another."""

    batch: Batch


@record
class Answer:
    """Tell a session what became of its commits."""

    session: int
    committed: tuple[int, ...]
    stale: tuple[int, ...]
    faults: tuple[tuple[int, str, str], ...] = ()  # token, code and text of those refused


@record
class Returned:
    """A lease ended without a commit, for the record: nothing is to be done.

    ``why``: expired, returned, lost (on the way to its trainer), left (its trainer), voided.
    """

    token: int
    why: str


@record
class Freed:
    """Nobody needs the bytes of this batch any more."""

    batch: Batch


@record
class Finish:
    """Tell a session that the feed is done."""

    session: int


@record
class Save:
    """A batch of segments is done: its worker keeps the states.  ``payload`` is the shell's."""

    batch: Batch
    payload: Any
    token: int = 0


@record
class Flush(Save):
    """States of lanes as they are after a batch that was saved, for its worker to keep."""


@record
class Want:
    """A partition may make batches (of a stripe of lanes) until there have been so many."""

    partition: int
    upto: int
    stripe: int = 0


@record
class Leave:
    """The trainer of a stripe of lanes is gone."""

    partition: int
    stripe: int


@record
class Claim:
    """A trainer has a batch of an earlier server: can it still be done?  ``place`` says which."""

    partition: int
    place: Any


@record
class Dealt:
    """Rounds of these partitions were dealt, or dealt anew: a later life has to know of them."""

    partitions: tuple[int, ...]


@record
class Release:
    """A batch that was claimed is not to be done by its trainer: its rows go out again."""

    partition: int
    number: int


@record
class Reclaimed:
    """A session has a batch that an earlier server handed out; its lease stands again."""

    token: int


@record
class Rewound:
    """Send a trainer away: a commit that it was told to be kept is not in the state."""

    session: int


Effect = (
    Claim
    | Dealt
    | Release
    | Send
    | Taken
    | Answer
    | Returned
    | Freed
    | Finish
    | Full
    | Idle
    | Passed
    | Save
    | Want
    | Leave
    | Rewound
    | Reclaimed
)
