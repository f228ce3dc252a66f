"""The rounds of one partition of segments: the member for each rank, and unfinished members.

    ready rows ─► a round, a member for each rank ─► drafted ─► out ─► done
                                                        ▲        │ its lanes were left
         an earlier process: its members ─► again ──────┴────────┘

A *member* is the batch of one rank in one round: a block of ``batch_size`` rows, of which those
without an example are empty.  The members of a round are drafted together, and a round that was
drafted never changes.  The next round is drafted when all members of the last one are done, so it
depends only on the rows read and the states saved.  Where a batch needs no states of the server, it
is drafted as soon as trainers want it.  Where no batch crosses the border of an epoch, the number
of a round begins with its epoch, so all partitions' rounds of an epoch come before those of the
next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from struct import calcsize, unpack
from typing import Any

import numpy as np

from .partition import TURN_BITS
from .slots import RoundMember, Segments

#: Number of a round, and the rank that gets the member.
RoundRank = tuple[int, int]
#: Form in which a trainer's claim names a round and a rank.
_CLAIM = "<qq"


def place_of(claim: bytes) -> RoundRank | None:
    """Return the round and rank that a claim names; None where it names segments."""
    if len(claim) != calcsize(_CLAIM):
        return None
    at, rank = unpack(_CLAIM, claim)
    return at, rank


@dataclass(frozen=True, slots=True, eq=False)
class MemberRows:
    """The rows of a member, by which a later process finds them."""

    indices: np.ndarray
    segments: np.ndarray
    lanes: np.ndarray  # their places in the block

    def to_plain(self) -> list[bytes]:
        return [a.astype("<i8").tobytes() for a in (self.indices, self.segments, self.lanes)]

    @classmethod
    def from_plain(cls, plain: Iterable[bytes]) -> MemberRows:
        return cls(*(np.frombuffer(column, "<i8").astype(np.int64) for column in plain))


def member_place(batch: Segments) -> RoundRank:
    """Return the place of a batch that is a member."""
    assert batch.member is not None
    return batch.member.round, batch.member.rank


class RoundMembers:
    """The rounds of one partition, and the members that are to be planned or drafted again."""

    def __init__(
        self, world: int, run: int, stripe: int, size: int, epoch: int = 0, at: int = 0
    ) -> None:
        """``size``: rows of a member's block.  Ranks have the stripes from ``stripe`` on.

        ``epoch``: that is read, where no batch crosses its border; else 0.  ``at``: the least
        number of a round.
        """
        self.world = world
        self.run = run
        self.size = size
        self.stripes = list(range(stripe, stripe + world))
        self.epoch = epoch
        self.next_round = max(epoch << TURN_BITS, at)
        self.wanted = 0  # number of rounds that are wanted and not drafted
        self.begun = False  # whether anything was ever wanted
        self.drafted: deque[Segments] = deque()  # not planned yet
        #: To be drafted again; None: with any rows.
        self.again: dict[RoundRank, MemberRows | None] = {}
        self.over = False  # whether no round follows
        self.newest: list[Segments] = []  # the members of the last round that was drafted
        self.moved = False  # whether members were drafted or done since that was stored

    @property
    def rows(self) -> int:
        """Number of rows of a whole round."""
        return self.world * self.size

    @property
    def next_again(self) -> RoundRank | None:
        """The first member to draft again, unless it is of an epoch that is not read yet."""
        first = min(self.again, default=None)
        return first if first is not None and first[0] >> TURN_BITS <= self.epoch else None

    def want(self, more: int) -> None:
        """Allow more rounds, and all members of ``again``."""
        self.wanted, self.begun = self.wanted + more, True

    def add(self, batch: Segments) -> None:
        """Add a member that was drafted."""
        self.drafted.append(batch)
        self.moved = True

    def next_member(self, rank: int) -> RoundMember:
        """Return the place of a rank's batch in the round that is being drafted."""
        return RoundMember(self.next_round, rank, self.size)

    def leave(self, stripe: int, instead: int, out: Iterable[Segments]) -> None:
        """Give a rank another stripe; its members that are out are drafted again."""
        self.stripes[self.stripes.index(stripe)] = instead
        self.again.update((member_place(batch), None) for batch in out)
        self.drafted = deque(batch for batch in self.drafted if batch.stripe != stripe)

    def newest_rows(self) -> list[list[Any]]:
        """Return round, rank and rows of each member of the last round, as plain data."""
        rows = []
        for batch in self.newest:
            found = MemberRows(batch.indices, batch.segments, batch.lanes)
            rows.append([*member_place(batch), *found.to_plain()])
        return rows
