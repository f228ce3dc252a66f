"""Whose batch a trainer gets next, where a feed has several owners: a pure machine.

    session with owner 0 ── 0/0 ── 1/0 ── 2/0 ──┐
    session with owner 1 ── 0/1 ── 1/1 ─────────┼──► 0/0  0/1  0/2  1/0  1/1 …   number/partition
    session with owner 2 ── 0/2 ── 1/2 ── 2/2 ──┘

An owner has some of the partitions (``headrace_proto/placement.py``), on one of the feed's servers,
and hands its batches out in order.  A *head* is the first batch of a session that is there and not
taken.

    Alone      of a feed with one owner: its session
    ByNumber   of a plain feed: the smallest (number, partition), once no owner can have a smaller
    InTurn     of segments in the order of arrival: the owner of the partition with the least turn,
               of those that can give some
    ByLanes    of segments in lanes: one owner, and another when it has no work left
    AsTheyCome   with order="any": each batch that is there, of owners in turn

Where batches of segments end with their epoch, only the owners in the least epoch count.

Other trainers take batches of an owner, too, so its smallest remaining batch is known when it
delivers one, or reports that it has no room to make it (``following``).

An owner that has reported that it has no batch until trainers act (``idle``) is passed over.  A
trainer that waited for it, with the head of another owner at hand, might wait for itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heapreplace
from math import inf
from typing import Any

from headrace_proto.errors import ProtocolError
from headrace_proto.placement import Placement

from .session import Received, Session

_Claim = Callable[[Session], Received | None]
#: Where a batch stands in the order of a feed: its number, or that of its round, and its partition.
_Place = tuple[float, int]
#: Epoch, and number in the epoch, of a partition's next batch.
_Turn = tuple[int, int]


class Merge(ABC):
    """The sessions of one trainer with the owners of a feed, by the number of the owner.

    ``placement`` maps a partition to its owner.

    All sessions together prefetch ``prefetch`` batches, and one of each owner that can
    deliver.  With 0 an owner is asked when the trainer waits for its batch.
    """

    def __init__(self, sessions: Sequence[Session], prefetch: int, across: bool = True) -> None:
        """``across``: owners may be in different epochs, since batches cross them."""
        self._sessions = sessions
        self._across = across
        owners = Counter(session.share for session in sessions)
        self.placement = Placement([owners[share] for share in sorted(owners)])
        self._prefetch = prefetch
        self.awaited = sessions[0]  # the session that a wait for the next batch is about
        self._waited_s = 0.0  # counted time of the current wait
        self._share()

    def come_ahead(self, batches: int) -> None:
        """Prefetch this many batches from now on."""
        self._prefetch = batches
        self._share()

    def take(self, claim: _Claim) -> Received | None:
        """Return the next batch, if it is there and ``claim`` takes it from its session."""
        session = self._next()
        received = None if session is None else claim(session)
        if session is not None and received is not None:
            self._took(session, received)
        return received

    def want(self, waited_s: float = 0.0) -> None:
        """Note that the trainer waits for a batch now, and has for ``waited_s``."""
        self.waited(waited_s)
        self._share()
        wanted = self._wanted()
        for session in wanted:
            session.want()
        self.awaited = wanted[0] if wanted else self._sessions[0]

    def waited(self, waited_s: float) -> None:
        """Add the time that the trainer has waited, to see whether another owner is to be asked."""
        self.awaited.awaited_s += max(0.0, waited_s - self._waited_s)
        self._waited_s = waited_s

    @abstractmethod
    def _next(self) -> Session | None:
        """Return the session whose head is the next batch."""

    @abstractmethod
    def _wanted(self) -> list[Session]:
        """Return the sessions that should deliver a batch now."""

    @abstractmethod
    def _took(self, session: Session, received: Received) -> None:
        """Note that the head of a session was taken."""

    def _present(self) -> Sequence[Session]:
        """Return the sessions whose batches may be taken now."""
        if self._across:
            return self._sessions
        epoch = self._epoch
        return [session for session in self._sessions if epoch_of(session) <= epoch]

    @property
    def _epoch(self) -> int:
        """The least epoch in which an owner is."""
        return min((epoch_of(one) for one in self._sessions if not one.finished), default=0)

    def _is_over(self, session: Session, partition: int) -> bool:
        """Return whether a partition has no new batch for this trainer."""
        # An owner names these for the epoch that it has announced.
        current = self._across or epoch_of(session) <= session.epoch
        return partition in session.passed and current

    def _share(self) -> None:
        """Divide the prefetch among the owners that can deliver."""
        able = [session for session in self._sessions if is_able(session)] or self._sessions
        for session in able:
            session.prefetch = -(-self._prefetch // len(able))


class Alone(Merge):
    """The one session of a feed that has one owner."""

    def take(self, claim: _Claim) -> Received | None:
        return claim(self._sessions[0])

    def want(self, waited_s: float = 0.0) -> None:
        self._sessions[0].want()

    def waited(self, waited_s: float) -> None:
        pass  # its owner knows that all waits are for it

    def _next(self) -> Session:
        return self._sessions[0]

    def _wanted(self) -> list[Session]:
        return [self._sessions[0]]

    def _took(self, session: Session, received: Received) -> None:
        pass


def is_able(session: Session) -> bool:
    """Return whether a batch may come without an action of any trainer."""
    return not (session.finished or session.exhausted or session.idle)


def epoch_of(session: Session) -> int:
    """Return the least epoch of the batches to come, where batches end with theirs.

    The first batch of an epoch may come before the notice that the epoch has begun: that waits
    until the last commit of the epoch before is stored.
    """
    return max(session.epoch, session.ready[0].delivery.epoch if session.ready else 0)


class ByNumber(Merge):
    """The order of a plain feed, and of its rounds."""

    def __init__(self, sessions: Sequence[Session], prefetch: int) -> None:
        super().__init__(sessions, prefetch)
        self._owned = [session.partitions for session in sessions]
        #: By owner: the place before which it has no new batch.
        self._least: list[_Place] = [(0, owned.start) for owned in self._owned]

    def _next(self) -> Session | None:
        first = self._first()
        return first if first is not None and not self._doubts(first) else None

    def _first(self) -> Session | None:
        there = [session for session in self._sessions if session.ready]
        return min(there, key=_head, default=None)

    def _doubts(self, first: Session | None) -> list[int]:
        """Return owners without a head that may still deliver a smaller one."""
        place = (inf, 0) if first is None else _head(first)
        return [
            owner
            for owner, session in enumerate(self._sessions)
            if not session.ready and is_able(session) and self._least_of(owner) < place
        ]

    def _least_of(self, owner: int) -> _Place:
        """Return a place before which an owner has no new batch."""
        return max(self._least[owner], self._sessions[owner].following)

    def _wanted(self) -> list[Session]:
        first = self._first()
        doubts = self._doubts(first)
        if first is None and not doubts:  # all batches are in trainers' hands, and may come back
            return [session for session in self._sessions if not session.finished]
        if not self._prefetch:
            doubts = sorted(doubts, key=self._least_of)[:1]
        return [self._sessions[owner] for owner in doubts]

    def _took(self, session: Session, received: Received) -> None:
        owner = self._sessions.index(session)
        owned = self._owned[owner]
        number, partition = _place(received)
        following = (number, partition + owned.step)
        if following[1] >= owned.stop:
            following = (number + 1, owned.start)
        self._least[owner] = max(self._least[owner], following)


class InTurn(Merge):
    """Batches of segments that are made when they are wanted: partitions are asked in turn."""

    _of_turn = 0  # the epoch in which partitions are in turn

    def __init__(
        self, sessions: Sequence[Session], prefetch: int, across: bool, before: Merge | None = None
    ) -> None:
        """``before``: the order until now, where a server restarted with other owners."""
        super().__init__(sessions, prefetch, across)
        #: By partition: epoch, and number in the epoch, of its next batch.
        self._turns: dict[int, _Turn] = (
            before._turns if isinstance(before, InTurn) else turns_of(sessions)
        )
        self._line_up()

    def _line_up(self) -> None:
        #: By owner: heap of turns and partitions, the latter once each.
        self._heaps = [
            sorted((self._turns[p], p) for p in one.partitions) for one in self._sessions
        ]
        #: By owner: what was taken from its heap, since the partition is over.
        self._ended: list[list[tuple[_Turn, int]]] = [[] for _ in self._sessions]

    def _least(self, owner: int) -> tuple[_Turn, int] | None:
        """Return the least turn of an owner, and its partition; None where all are over."""
        session, heap, ended = self._sessions[owner], self._heaps[owner], self._ended[owner]
        if ended and not self._is_over(session, ended[-1][1]):
            heap += ended
            heapify(heap)
            ended.clear()
        while heap:
            turn, partition = heap[0]
            if self._turns[partition] != turn:
                heapreplace(heap, (self._turns[partition], partition))
            elif self._is_over(session, partition):
                ended.append(heappop(heap))
            else:
                return heap[0]
        return None

    def _rotated(self) -> list[Session]:
        """Return the owners by their least turn, without those whose partitions have all ended."""
        epoch = 0 if self._across else self._epoch
        if epoch != self._of_turn:
            self._of_turn = epoch
            self._turns = {p: max(turn, (epoch, 0)) for p, turn in self._turns.items()}
            self._line_up()
        found = [(self._least(owner), session) for owner, session in enumerate(self._sessions)]
        live = [(least, session) for least, session in found if least is not None]
        rotated = [session for _, session in sorted(live, key=lambda one: one[0])]
        return rotated if self._across else [s for s in rotated if epoch_of(s) <= epoch]

    def _next(self) -> Session | None:
        for session in self._rotated():
            if session.ready:
                return session
            # Requests to other owners from the epoch before are answered later.
            if not self._across and is_able(session):
                return None
        # A partition that is over may have a batch that came back.
        return next((session for session in self._present() if session.ready), None)

    def _wanted(self) -> list[Session]:
        rotated = self._rotated()
        able = [session for session in rotated if is_able(session)]
        return able[:1] or [session for session in self._present() if not session.finished]

    def _took(self, session: Session, received: Received) -> None:
        epoch, number = self._turns[received.delivery.partition]
        self._turns[received.delivery.partition] = epoch, number + 1


class ByLanes(Merge):
    """A trainer's lanes are all of one partition, and of another when that has no work left."""

    _of_turn = 0  # the epoch in which partitions are in turn

    def __init__(
        self, sessions: Sequence[Session], prefetch: int, across: bool, before: Merge | None = None
    ) -> None:
        self._partitions = sum(len(session.partitions) for session in sessions)
        #: The partition whose owner is asked.
        self._here: int = before._here if isinstance(before, ByLanes) else first_lanes(sessions)
        super().__init__(sessions, prefetch, across)

    def _owner(self) -> Session | None:
        """Return the owner of the first partition from here on that may have work."""
        epoch = 0 if self._across else self._epoch
        if epoch != self._of_turn:  # it begins with the first partition
            self._of_turn, self._here = epoch, 0
        for ahead in range(self._partitions):
            partition = (self._here + ahead) % self._partitions
            session = self._sessions[self.placement.owner_of(partition)]
            if self._is_over(session, partition) or not is_able(session):
                continue
            if self._across or epoch_of(session) <= epoch:
                return session
        return None

    def _next(self) -> Session | None:
        owner = self._owner()
        if owner is not None and (owner.ready or not self._across):
            return owner if owner.ready else None
        return next((session for session in self._present() if session.ready), None)

    def _wanted(self) -> list[Session]:
        owner = self._owner()
        if owner is None:  # batches that other trainers give back may come from any
            return [session for session in self._present() if not session.finished]
        return [owner]

    def _took(self, session: Session, received: Received) -> None:
        self._here = received.delivery.partition

    def _share(self) -> None:
        owner = self._owner()
        for session in self._sessions:
            session.prefetch = self._prefetch if session is owner else 0


class AsTheyCome(Merge):
    """Any batch.  Owners that are reachable come before the others."""

    def __init__(self, sessions: Sequence[Session], prefetch: int) -> None:
        self._turn = 0  # the owner that comes first
        super().__init__(sessions, prefetch)

    def _rotated(self) -> list[Session]:
        return [*self._sessions[self._turn :], *self._sessions[: self._turn]]

    def _next(self) -> Session | None:
        there = (session for session in self._rotated() if session.ready and session.connected)
        return next(there, None)

    def _wanted(self) -> list[Session]:
        able = [one for one in self._rotated() if is_able(one) and one.connected]
        if able:
            return able if self._prefetch else able[:1]
        return [session for session in self._sessions if not session.finished]

    def _took(self, session: Session, received: Received) -> None:
        owner = self.placement.owner_of(received.delivery.partition)
        self._turn = (owner + 1) % len(self._sessions)


def turns_of(sessions: Sequence[Session]) -> dict[int, _Turn]:
    """Return the turn of the next batch of each partition, as the owners announced them."""
    turns: dict[int, _Turn] = {}
    for session in sessions:
        announced = _announced(session, "turns", [0, 0], _is_turn)
        turns.update(zip(session.partitions, map(tuple, announced), strict=True))
    return turns


def first_lanes(sessions: Sequence[Session]) -> int:
    """Return the partition in which a new trainer's lanes begin: one with the fewest trainers.

    Trainers that join together begin in different ones, and a trainer alone in the first one.
    """
    partitions = sum(len(session.partitions) for session in sessions)
    trainers = sessions[0].properties.get("trainers", 1)
    if not _is_count(trainers):
        raise ProtocolError(f"a feed of lanes has trainers={trainers!r:.40}")
    load = []
    for session in sessions:
        stripes = _announced(session, "stripes", 0, _is_count)
        load += [
            (count, (partition + 1 - trainers) % partitions, partition)
            for partition, count in zip(session.partitions, stripes, strict=True)
        ]
    return min(load)[2]


def _announced(
    session: Session, name: str, unknown: Any, is_one: Callable[[Any], bool]
) -> list[Any]:
    """Return what an owner has announced of each of its partitions."""
    known = session.properties.get(name, [unknown] * len(session.partitions))
    if not _is_list(known, len(session.partitions)) or not all(map(is_one, known)):
        raise ProtocolError(
            f"an owner of {len(session.partitions)} partitions has {name}={known!r:.80}"
        )
    return list(known)


def _is_list(value: Any, length: int) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == length


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_turn(value: Any) -> bool:
    return _is_list(value, 2) and all(map(_is_count, value))


def _head(session: Session) -> _Place:
    return _place(session.ready[0])


def _place(received: Received) -> _Place:
    """Return a batch's place in the order: with ranks by its round in its partition."""
    delivery = received.delivery
    return delivery.meta.get("round", delivery.number), delivery.partition


def merge_of(sessions: Sequence[Session], first: Session, before: Merge | None = None) -> Merge:
    """Return the order in which a feed's batches are taken; ``first`` was opened first.

    ``before``: the order until now, where a server restarted with another number of owners.
    ValueError where a trainer that takes any order would lose its lanes, or mix epochs.
    """
    prefetch, welcome = first.prefetch, first.welcome
    properties = {} if welcome is None else welcome.properties
    lanes, across = properties.get("order") == "lanes", properties.get("across_batches", True)
    if first.order != "feed" and welcome is not None:
        text = f"order={first.order!r}: %s of feed {welcome.feed!r} %s; leave it out"
        if lanes:
            raise ValueError(text % ("the rows", "stay in lanes, which one owner has"))
        if not across:
            what = "end with their epoch, and any order mixes the epochs of its servers"
            raise ValueError(text % ("batches", what))
    if len(sessions) == 1 or welcome is None:
        return Alone(sessions, prefetch)
    if first.order != "feed":
        return AsTheyCome(sessions, prefetch)
    if properties.get("shape") != "sequences" or first.rank >= 0:
        return ByNumber(sessions, prefetch)
    return (ByLanes if lanes else InTurn)(sessions, prefetch, across, before)
