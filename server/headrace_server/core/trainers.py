"""The trainers of one feed: which are present, how many batches each takes, and whose turn it is.

    join() ─► present ── window grew, or something came back ─► asking, the longest waiting first
                 └── leave()                                    due: ranks, each for its own round

All trainers have a rank or none has.  A trainer asks with a window: the number of the last
delivery that it takes.  It never holds more than ``max_window`` batches, even if it asks for more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from .dispatch_effects import JoinRefused

#: Maximum world size, since a number from the wire determines the number of queues.
MAX_WORLD = 65_536
#: Maximum number of trainers whose first request is remembered while they wait to be let in.
MAX_WAITING = 10_000
#: A message that comes later than this after another trainer has first asked shows that its sender
#: lives; an earlier one may be late, of a trainer that is dead.
LATE_S = 2.5


@dataclass(slots=True, eq=False)
class Trainer:
    """One session, and the number of its last delivery."""

    session: int
    seen: float
    rank: int = -1
    window: int = 0
    seq: int = 0
    knows_end: bool = False  # of the feed
    passed: int = 0  # number of ended partitions of which it knows
    idle: bool = False  # whether it knows that no batch comes before trainers act
    knows_drain: bool = False
    epoch: int = 0  # the least epoch of coming batches that was announced to it
    following: tuple[int, int] | None = None  # the next batch here that was announced to it

    def knows_nothing(self) -> None:
        """Note that it may have missed all notices."""
        self.knows_end = self.idle = self.knows_drain = False
        self.passed, self.following, self.epoch = 0, None, 0


class Trainers:
    """The trainers of one feed; ``held`` returns the number of batches that a session holds.

    ``shared``: the feed has other owners, too.
    """

    def __init__(self, max_window: int, held: Callable[[int], int], shared: bool = False) -> None:
        self.max_window = max_window
        self.shared = shared
        self._held = held
        self.present: dict[int, Trainer] = {}  # by session
        self.by_rank: dict[int, Trainer] = {}
        # The trainers that want more batches.  Where the first of them can not be served, none can,
        # until a batch comes.
        self.asking: OrderedDict[int, Trainer] = OrderedDict()
        self.due: deque[int] = deque()  # ranks for which a dealt batch may wait

    def check(self, session: int, rank: int, world_size: int, world: int) -> None:
        """Raise JoinRefused where a session does not fit the others, with ``world`` ranks."""
        if session in self.present:
            raise ValueError(f"session {session} is there already")
        if rank < 0 and not world_size:
            if self.present and world:
                raise JoinRefused(
                    f"the feed is in coordinated mode with world_size={world}: "
                    "connect with rank= and world_size="
                )
        elif world_size > MAX_WORLD:
            raise JoinRefused(f"world_size={world_size} is more than {MAX_WORLD}")
        elif not 0 <= rank < world_size:
            raise JoinRefused(f"rank={rank} does not lie in 0 … world_size-1 = {world_size - 1}")
        elif self.present and not world:
            raise JoinRefused("the feed is shared by trainers without rank: all or none give one")
        elif self.present and world_size != world:
            raise JoinRefused(f"world_size={world_size} differs from {world}, that of the others")
        elif rank in self.by_rank:
            raise JoinRefused(f"rank={rank} is taken by another trainer")

    def join(self, session: int, now: float, rank: int) -> None:
        """Add a session that was checked."""
        trainer = self.present[session] = Trainer(session, now, rank)
        if rank >= 0:
            self.by_rank[rank] = trainer

    def leave(self, session: int) -> int | None:
        """Remove a session; return its rank (-1: none), or None where it is not known."""
        trainer = self.present.pop(session, None)
        if trainer is None:
            return None
        self.by_rank.pop(trainer.rank, None)
        self.asking.pop(session, None)
        return trainer.rank

    def credits(self, trainer: Trainer) -> int:
        """Return how many batches it takes now."""
        credits = trainer.window - trainer.seq
        return min(credits, self.max_window - self._held(trainer.session)) if credits > 0 else 0

    def ask(self, session: int) -> None:
        """Consider a trainer at the next hand-out, if it wants more."""
        if session in self.asking and not self.by_rank:
            return
        trainer = self.present.get(session)
        if trainer is not None and trainer.window > trainer.seq:  # whether it has room shows then
            self.asking.setdefault(session, trainer)
            if trainer.rank >= 0:
                self.due.append(trainer.rank)

    def new_ranks(self) -> list[Trainer]:
        """Return the trainers with ranks that do not know of which round their next batch is."""
        return [trainer for trainer in self.by_rank.values() if trainer.following is None]

    def silent(self, now: float, ttl_s: float) -> list[int]:
        """Return the sessions that were silent for ``ttl_s``."""
        return [t.session for t in self.present.values() if t.seen + ttl_s <= now]

    def absent(self, world: int) -> str:
        """Return which of ``world`` ranks have not joined, for people; "" when all have."""
        missing = world - len(self.by_rank)
        if not missing:
            return ""
        ranks = (rank for rank in range(world) if rank not in self.by_rank)
        listed = ", ".join(map(str, islice(ranks, 8)))
        return f"{missing} ranks have not joined: {listed}{', …' if missing > 8 else ''}"
