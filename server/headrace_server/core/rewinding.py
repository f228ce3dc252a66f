"""Whether a trainer with a snapshot joins the feed as it is, or has the feed rewound first.

The beginning of a feed is like a snapshot: ``connect(restart=True)`` takes the feed back to it, but
never while trainers use the feed that did not ask for it.

    Hello(resume=S) ─► is the feed at S, untouched?           join
                       is another trainer alive that resumed
                       from S since it was taken back?        join: it is one group
                       may such a trainer be alive?           wait until it is, or is given up
                       S is the beginning, others use it?     refuse
                       else                                   take the feed back to S

A trainer that has worked under a start unknown to this state proves that an earlier state
was restored: its work is undone.

So a group of trainers that all restart with the token of one checkpoint takes the feed back once.
A trainer that dies alone and comes back finds the others at work and joins them.  A trainer of the
same process does not count as another: a notebook that begins again does so on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from headrace_proto.errors import FeedInUse

from .bounded_map import BoundedMap
from .trainers import LATE_S, MAX_WAITING

#: Takes the place of a snapshot's name: the state before the first batch.
BEGINNING = "beginning"

#: An owner's report to the other owners: batches of an earlier server are done …
USED = "used"
#: … and a trainer has committed since the feed was taken back.
TOUCHED = "touched"


class Judgement(Enum):
    """The answer to a trainer that brings a token."""

    JOIN = "join"
    WAIT = "wait"
    TAKE_BACK = "take back"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class PresentTrainer:
    """A trainer that counts as present."""

    process: bytes
    resumed: str  # the snapshot of its token, or BEGINNING; "": without a token
    seen: float
    uses: bool = True  # whether it has not acknowledged the end of the feed


class Rewinding:
    """The judge of one feed, for the life of an owner.

    ``snapshot`` is the one that the feed was taken back to last, ``untouched`` whether this life
    began with it.  ``starts`` are the last starts of the server, this one at the end; none where
    nothing outlives a server.
    """

    def __init__(
        self,
        generation: int = 0,
        snapshot: str = "",
        untouched: bool = False,
        starts: tuple[int, ...] = (),
    ) -> None:
        self.generation = generation
        self.snapshot = snapshot or BEGINNING
        self.untouched = untouched
        self._starts = frozenset(starts)
        self._first = starts[0] if starts else 0  # earlier starts may have been forgotten
        # by nonce: time of its first request
        self._asked: BoundedMap[bytes, float] = BoundedMap(MAX_WAITING)

    def of_another_generation(self, generation: int) -> bool:
        """Return whether a trainer relies on undone work.  -1: it comes for the first time."""
        return generation not in (-1, self.generation)

    def unknown_start(self, starts: Iterable[int]) -> int | None:
        """Return a start under which a trainer has worked, but which this state does not know."""
        if not self._starts:
            return None
        return next((n for n in starts if n >= self._first and n not in self._starts), None)

    def judge(
        self,
        nonce: bytes,
        process: bytes,
        resume: str,
        members: Iterable[PresentTrainer],
        now: float,
    ) -> Judgement:
        """Judge a Hello with a token, the first one or a repeated one."""
        if resume == self.snapshot and self.untouched:
            return Judgement.JOIN
        asked = self._asked.first(nonce, now) + LATE_S
        others = [m for m in members if m.process != process]
        group = [m for m in others if m.resumed == resume == self.snapshot]
        if any(m.seen > asked for m in group):
            return Judgement.JOIN
        if group:
            return Judgement.WAIT
        users = [m for m in others if m.uses]
        if resume == BEGINNING and users:
            alive = any(m.seen > asked for m in users)
            return Judgement.REFUSE if alive else Judgement.WAIT
        return Judgement.TAKE_BACK


def in_use(feed: str, trainers: str) -> FeedInUse:
    """Return the error for a feed that is not started from its beginning."""
    return FeedInUse(
        f"feed {feed!r} can not be started from its beginning: {trainers}.  Close those trainers, "
        f"or undo their work by headrace restart {feed} --force, "
        f"Server.restart({feed!r}, force=True)"
    )
