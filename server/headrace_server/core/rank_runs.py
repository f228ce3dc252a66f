"""Which run a trainer with a rank belongs to: the rule that keeps ranks in step.

A *run* is the trainers that train together, one of each rank, and all of them get the same rounds.
So a run begins with whole rounds: remaining batches of a round that an earlier run has begun are
dealt anew (rounds.py).  A rank that dies alone and comes back belongs to the same run, and goes on
after its own last commit.

    Hello ─► judge() ─► the run that it names
                        a new one, where no trainer of the last run is left
                        the last one, where one of its trainers is alive
                     ─► None: ask again, for nobody knows yet whether one is
                     ─► JoinRefused: it names a run that is over

One owner decides, since owners notice the same deaths at different times: a trainer greets
owner 0 first, which assigns its run, and tells the run to the other owners.  Numbers of runs
ascend, those of a later life of an owner after those of an earlier one.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_proto.messages import Hello

from .bounded_map import BoundedMap
from .dispatch_effects import JoinRefused
from .end_of_feed import RETURN_S
from .trainers import LATE_S, MAX_WAITING, Trainer

#: A number from the wire must leave room for the runs after it.
MAX_RUN = 1 << 62


class Runs:
    """The runs of one feed, as one owner knows them; ``term`` numbers the owner's start."""

    def __init__(self, term: int = 0) -> None:
        self.current = 0  # the last run that a trainer joined; 0: none
        self._first = term << 32  # runs that this life begins have larger numbers
        self._world = 0
        self._ranks: set[int] = set()  # ranks of the current run that have joined here
        # by nonce: time of a trainer's first request
        self._asked: BoundedMap[bytes, float] = BoundedMap(MAX_WAITING)

    def goes_on(self, run: int) -> None:
        """Note a run of an earlier life, whose trainers may come back."""
        self.current = max(self.current, run)

    def judge(self, hello: Hello, present: Iterable[Trainer], now: float) -> int | None:
        """Return the run of a trainer that greets; None where it has to ask again.

        ``present``: the trainers that have ranks here.
        """
        if hello.run and not self.current <= hello.run <= MAX_RUN:
            raise JoinRefused(
                f"rank={hello.rank}: this trainer is of a run that is over, for other trainers "
                "have begun another one since; start all ranks again"
            )
        rank, named = hello.rank, hello.run  # 0 if it comes for the first time
        asked = self._asked.first(hello.nonce, now)
        there = {trainer.rank: trainer.seen > asked + LATE_S for trainer in present}
        if not named and not there:
            # Trainers of an earlier life are on their way, if they live.
            returns = bool(self.current) and not self._ranks and now < asked + RETURN_S
            return None if returns else max(self.current, self._first) + 1
        if there and named not in (0, self.current):
            return None  # the others are dead, which this owner has not noticed yet
        if rank in there and not there[rank]:
            return None
        if named:
            return named
        comes_back = rank in self._ranks or hello.world_size != self._world
        return None if comes_back and not any(there.values()) else self.current

    def joined(self, hello: Hello, run: int) -> None:
        """Note that a trainer has joined a run."""
        self._asked.pop(hello.nonce, None)
        if run != self.current or hello.world_size != self._world:
            self._ranks.clear()
        self.current, self._world = run, hello.world_size
        self._ranks.add(hello.rank)
