"""The trainers of one feed: which are present, how many batches each takes, and whose turn it is.

    join() ─► present ── window grew, or something came back ─► asking, the longest waiting first
                 └── leave()                                    due: ranks, each for its own round

All trainers have a rank or none has.  A trainer asks with a window: the number of the last
delivery that it takes.  It never holds more than ``max_window`` batches, even if it asks for more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from headrace_proto.messages import Hello

from ..process.bounded_map import BoundedMap
from .dispatch_effects import JoinRefused
from .end_of_feed import RETURN_S

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


#: A number from the wire must leave room for the runs after it.
MAX_RUN = 1 << 62


class Runs:
    """The runs of one feed, as one owner knows them; ``term`` numbers the owner's start.

    A *run* is the trainers that train together, one of each rank, and all of them get the same
    rounds. So a run begins with whole rounds: remaining batches of a round that an earlier run has
    begun are dealt anew (rounds.py).  A rank that dies alone and comes back belongs to the same
    run, and goes on after its own last commit.

        Hello ─► judge() ─► the run that it names
                            a new one, where no trainer of the last run is left
                            the last one, where one of its trainers is alive
                         ─► None: ask again, for nobody knows yet whether one is
                         ─► JoinRefused: it names a run that is over

    One owner decides, since owners notice the same deaths at different times: a trainer greets
    owner 0 first, which assigns its run, and tells the run to the other owners.  Numbers of runs
    ascend, those of a later life of an owner after those of an earlier one.
    """

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
