"""Whether a trainer that goes on from a snapshot joins a feed, or has it taken back first.

    Hello(resume=S) ─► is the feed at S, untouched?           join
                       does another trainer live that resumed
                       from S since it was taken back?        join: it is one group
                       may such a one live?                   wait until it is heard of, or given up
                       else                                   take the feed back to S

A group of trainers that all restart with the token of one checkpoint so takes the feed back once.
One that dies alone and comes back finds the others at work and joins them.  A trainer of the same
process is no other: a notebook that begins again means it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Judgement", "Member", "Rewinding"]

#: Trainers that wait for judgement are remembered up to this number.
_REMEMBERED = 10_000


class Judgement(Enum):
    """What becomes of a trainer that brings a token."""

    JOIN = "join"
    WAIT = "wait"
    TAKE_BACK = "take back"


@dataclass(frozen=True, slots=True)
class Member:
    """A trainer that is counted as present."""

    process: bytes
    resumed: str  # the snapshot of its token; "" if it brought none
    seen: float


class Rewinding:
    """One feed's, for the life of a router.

    ``snapshot`` is the one that the feed was taken back to last, ``untouched`` whether this life
    began with that.
    """

    def __init__(self, generation: int = 0, snapshot: str = "", untouched: bool = False) -> None:
        self.generation = generation
        self.snapshot = snapshot
        self.untouched = untouched
        self._asked: dict[bytes, float] = {}  # by nonce: when it asked first

    def of_another_generation(self, generation: int) -> bool:
        """Whether a trainer counts on what was undone.  -1: it comes for the first time."""
        return generation not in (-1, self.generation)

    def judge(
        self, nonce: bytes, process: bytes, resume: str, members: Iterable[Member], now: float
    ) -> Judgement:
        """A trainer's Hello with a token, the first one or another."""
        if resume == self.snapshot:
            if self.untouched:
                return Judgement.JOIN
            asked = self._asked.setdefault(nonce, now)
            if len(self._asked) > _REMEMBERED:
                del self._asked[next(iter(self._asked))]
            group = [m for m in members if m.resumed == resume and m.process != process]
            if any(m.seen > asked for m in group):
                return Judgement.JOIN
            if group:
                return Judgement.WAIT
        return Judgement.TAKE_BACK
