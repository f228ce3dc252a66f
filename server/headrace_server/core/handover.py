"""The vocabulary of the hand-over: a batch on offer, and what the shell is told to do with it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Answer", "Batch", "Effect", "Finish", "Freed", "JoinRefused", "Send", "Taken"]


class JoinRefused(ValueError):
    """A trainer can not join as it asked to."""


@dataclass(slots=True, eq=False)
class Batch:
    """One batch on offer.  ``body`` is the shell's: where the bytes lie."""

    partition: int
    number: int
    rows: int
    body: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    rank: int = -1  # coordinated mode: whose it is
    waiting: bool = False  # in a queue of batches that came back or were dealt
    settled: bool = False
    pins: set[Hashable] = field(default_factory=set)

    @property
    def order(self) -> tuple[int, int]:
        return (self.number, self.partition)


@dataclass(frozen=True, slots=True)
class Send:
    """Hand a batch to a session."""

    session: int
    seq: int
    token: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch left the stream of new ones: its worker may make another."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Answer:
    """Tell a session what became of its commits."""

    session: int
    committed: tuple[int, ...]
    stale: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Freed:
    """Nobody needs the bytes of this batch any more."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell a session that the feed is done."""

    session: int


Effect = Send | Taken | Answer | Freed | Finish
