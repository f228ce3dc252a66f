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

from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from struct import calcsize, unpack
from typing import Any

import numpy as np

from .admitted_examples import READ_AHEAD, AdmittedExamples
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


def _place(batch: Segments) -> RoundRank:
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
        self.again.update((_place(batch), None) for batch in out)
        self.drafted = deque(batch for batch in self.drafted if batch.stripe != stripe)

    def newest_rows(self) -> list[list[Any]]:
        """Return round, rank and rows of each member of the last round, as plain data."""
        rows = []
        for batch in self.newest:
            found = MemberRows(batch.indices, batch.segments, batch.lanes)
            rows.append([*_place(batch), *found.to_plain()])
        return rows


class InStep(AdmittedExamples):
    """Examples whose batches may be members of rounds: the common part of both orders."""

    members: RoundMembers | None = None  # None: batches are for any trainer
    first_stripe = 0  # of batches for any trainer in the order of arrival
    ahead = False  # whether a batch is drafted before the one before it is done
    #: Insertion indices and lanes of unfinished examples, for the stripes that open next.
    places: Sequence[tuple[np.ndarray, np.ndarray]] = ()

    def deal(self, world: int, run: int, stripe: int, epoch: int = 0, at: int = 0) -> None:
        """Draft rounds, from number ``at`` on, for ``world`` ranks; 0: batches for any trainer.

        All batches that are out become ready again, with the states that are kept here.
        """
        self.members = None
        self._recall()
        self.first_stripe = stripe
        if world:
            self.members = RoundMembers(world, run, stripe, self.batch_size, epoch, at)
            self._open_stripes()
        self._adapt_to_rows()

    def resume_rounds(self, members: RoundMembers, rows: dict[RoundRank, MemberRows]) -> None:
        """Resume the rounds of an earlier process; ``rows``: of the last round.

        Unfinished members go to ``again``.
        """
        self.members = members
        self._open_stripes()
        self._adapt_to_rows()
        if self.ahead:
            return
        for place, known in rows.items():
            if place in members.again:
                members.again[place] = known
            else:
                self._keep_lanes(place[1], known)

    def _adapt_to_rows(self) -> None:
        self._read_ahead = max(READ_AHEAD, 4 * self.most_rows)
        self._drop_leftovers()

    @property
    def _ranks(self) -> RoundMembers:
        """The members, where batches are for ranks."""
        assert self.members is not None
        return self.members

    @property
    def most_rows(self) -> int:
        """Number of rows that are drafted together: those of a batch, or of a round."""
        return self.batch_size if self.members is None else self.members.rows

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        members = self.members
        if members is not None:  # an earlier process may have drafted rounds of this epoch
            members.epoch = epoch
            members.next_round = max(members.next_round, epoch << TURN_BITS)

    def places_after(self, saved: Mapping[int, Segments]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the ``places`` for a later life; none in the order of arrival."""
        return []

    # Members

    def _next_member(self) -> Segments | None:
        members = self._ranks
        if not members.drafted and not (members.begun and self._draft_more()):
            return None
        return members.drafted.popleft()

    def _draft_more(self) -> bool:
        """Draft the next batch or round; return False if it has to wait for states or input."""
        members = self._ranks
        again = members.next_again
        if again is not None:
            return self._draft_again(again)
        waits = self._out and not self.ahead
        if waits or not members.wanted:
            return False
        parts = self._round()
        if parts:
            members.newest = parts
            members.next_round += 1
            members.wanted -= 1
            for batch in parts:
                members.add(batch)
            self._drop_leftovers()
        return bool(parts)

    def _draft_again(self, place: RoundRank) -> bool:
        """Draft a member of ``again``; return False if its rows must be read first."""
        members = self._ranks
        rows = members.again[place]
        member = RoundMember(*place, members.size)
        if rows is None:
            batch = self._any_rows(member)
            if batch is None:
                return False
        else:
            slots = self.find(rows.indices)
            if (slots < 0).any() and not self._closed:
                return False
            there = (slots >= 0).nonzero()[0]  # others have been left out since
            there = there[self._slots.segment[slots[there]] == rows.segments[there]]
            batch = self._same_rows(member, slots[there], rows.lanes[there])
        del members.again[place]
        members.add(batch)
        return True

    def will_make(self, place: RoundRank) -> bool:
        """Return whether a member is or will be drafted again with the same rows."""
        if self.members is None or self.ahead:
            return False
        return place in self.members.again or place in map(_place, self._out.values())

    @property
    def left(self) -> list[list[int]]:
        """Round and rank of members that are not done."""
        out = map(_place, self._out.values())
        return sorted([*place] for place in (*out, *self._ranks.again))

    @property
    def done(self) -> bool:
        members = self.members
        if members is not None and (
            members.drafted or members.next_again or (self.ahead and self._out)
        ):  # a member without rows, too, is made again when its rank leaves
            return False
        return super().done

    # The order

    @abstractmethod
    def _recall(self) -> None:
        """Take back all batches that are out."""

    @abstractmethod
    def _drop_leftovers(self) -> None:
        """Drop examples that can not fill a batch or a round any more, unless it may be smaller."""

    @abstractmethod
    def _round(self) -> list[Segments]:
        """Return the members of the next round; empty if it has to wait, or there is none."""

    @abstractmethod
    def _same_rows(self, member: RoundMember, slots: np.ndarray, lanes: np.ndarray) -> Segments:
        """Make a member of exactly these rows, which are ready."""

    def _any_rows(self, member: RoundMember) -> Segments | None:
        """Make a member of the rows that its rank has now."""
        raise ValueError(f"the rows of {member} are not known")

    def _open_stripes(self) -> None:
        """Open the stripes of ranks, where rows have lanes."""
        return

    def _keep_lanes(self, rank: int, rows: MemberRows) -> None:
        """Put the unfinished rows of a done member in its lanes."""
        return
