"""Partitions of a worker tell its desks these events: plain data, handed over by a call.

Opened            a partition's source is open, and what an earlier life has left of it
Made              batches lie in the slab
Finished, Failed  a partition has made all its batches, or can not go on
Waiting           a partition reads on and on and can make no batch
Starved, Dry      what is wanted can not be made now, or no more
Kept, Flushed     what trainers brought is kept, or why it is not
Claimed           whether what a trainer has of an earlier life is still its own
Replied           the answer to a question: from which batch on other proportions of classes show;
                  a store was copied
Removed           segments of the slab are gone

What a store has to write first is told when it is written, so an event may come later than what
it tells of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Claimed",
    "Dry",
    "Failed",
    "Finished",
    "Flush",
    "Flushed",
    "Kept",
    "Made",
    "Opened",
    "Placed",
    "Removed",
    "Replied",
    "Starved",
    "Waiting",
]


@dataclass(frozen=True, slots=True)
class Opened:
    """A partition's source is open: the schema of its batches."""

    feed: str
    partition: int
    schema: Any
    properties: dict[str, Any] = field(default_factory=dict)  # what trainers are told beside it
    next: int = 0  # the first batch that an earlier life did not see done
    used: Any = None  # batches that earlier lives saw done, since when and until when, rows
    rounds: Any = None  # what an earlier life has dealt of it to ranks
    done: Iterable[int] = ()  # batches from ``next`` on that were done before


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch, and where its bytes lie."""

    number: int
    rows: int
    segment: str
    offset: int
    nbytes: int
    columns: list[Any]
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Made:
    """Batches of one partition, in order.  All else is as of the last of them."""

    feed: str
    partition: int
    batches: Sequence[Placed]
    dropped: dict[str, int]  # rows of this partition so far, by reason
    crowded: bool = False  # the slab is short of room: trainers should copy out
    stats: dict[str, Any] | None = None  # rows of this partition so far by class, where it has any


@dataclass(frozen=True, slots=True)
class Finished:
    """All batches of a partition were made."""

    feed: str
    partition: int
    dropped: dict[str, int]
    stats: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A feed can not go on: an error's code and text."""

    feed: str
    partition: int
    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Removed:
    """Segments that the slab needs no more."""

    segments: Sequence[str]


@dataclass(frozen=True, slots=True)
class Replied:
    """The answer of a partition to a question that all are asked, or why it has none.

    ``value``: the first batch that other proportions reach, None where all were made before.
    """

    feed: str
    partition: int
    question: int
    value: int | None = None
    fault: str = ""
    stats: dict[str, Any] | None = None  # as in Made: a change is among them already


@dataclass(frozen=True, slots=True)
class Waiting:
    """A partition reads on and on and can make no batch: what it lacks."""

    feed: str
    partition: int
    text: str
    batch: int = -1  # whose states it waits for


@dataclass(frozen=True, slots=True)
class Kept:
    """The partition has kept commits of batches, or refuses them by an error's code and text."""

    feed: str
    partition: int
    batches: Sequence[Sequence[Any]]  # [number, code, text]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The partition judges a claim: "done" before, "yes" as batch ``number``, or "no"."""

    feed: str
    partition: int
    token: int
    verdict: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Starved:
    """A partition waits for trainers: for states, or, of a plain feed, for room in the slab."""

    feed: str
    partition: int


@dataclass(frozen=True, slots=True)
class Dry:
    """A stripe of lanes has no work left."""

    feed: str
    stripe: int


@dataclass(frozen=True, slots=True)
class Flush:
    """To a partition: states of some rows of a batch; it is answered after the last one."""

    number: int
    session: int
    request: int
    rows: Sequence[int]
    columns: Any
    more: bool = False


@dataclass(frozen=True, slots=True)
class Flushed:
    """The states of a flush are kept."""

    feed: str
    session: int
    request: int
