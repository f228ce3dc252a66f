"""Who gets which batch: the hand-over of one feed, as a pure machine.

    made() ─► ready, by partition ─► next in turn ─► Send to a trainer with window ─► commit()
                    ▲                                   │ left, lost, expired, returned
                    └────────── waiting again ◄─────────┘

The order of a feed is by (number, partition): batch 0 of every partition, then batch 1 …  A
batch that is not there yet is waited for, so one trainer sees the same stream whatever the number
of workers.  Batches that came back go out before new ones.

In coordinated mode the stream is dealt in rounds, one batch of one kind to each rank.  A round
that can not be completed at the end of the feed is dropped, so that all ranks finish together.

Memory: a batch is Freed when it is settled and nobody has it pinned (a trainer that maps it, a
frame of it that is still being sent).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from .handover import Answer, Batch, Effect, Finish, Freed, JoinRefused, Send, Taken
from .lease import Lease, LeaseTable, Verdict

__all__ = ["Dispatcher"]

#: Ranks of a coordinated feed: each costs a queue.
MAX_WORLD = 65_536
#: Batches that wait to go out, smallest order first.
_Queue = list[tuple[tuple[int, int], Batch]]


@dataclass(slots=True)
class _Trainer:
    session: int
    joined: float
    seen: float
    rank: int = -1
    window: int = 0
    seq: int = 0
    told: bool = False  # of the end


@dataclass(slots=True)
class _Partition:
    ready: deque[Batch] = field(default_factory=deque)
    next_number: int = 0
    ended: bool = False


class Dispatcher:
    """The hand-over of one feed.  After every event, ``take_effects`` says what to do."""

    def __init__(self, partitions: int, lease_ttl_s: float, max_window: int = 64) -> None:
        self._partitions = [_Partition() for _ in range(partitions)]
        self._turn = (0, 0)  # order of the batch that is next in the stream
        self._leases: LeaseTable[Batch] = LeaseTable(lease_ttl_s)
        self._max_window = max_window  # deliveries that a trainer may ask for at once
        self._trainers: dict[int, _Trainer] = {}
        self._asking: deque[int] = deque()  # sessions with window, the longest waiting first
        self._again: _Queue = []  # shared mode: came back
        self._world = 0  # 0: shared mode
        self._rounds: dict[Any, list[Batch]] = {}  # coordinated: not yet one for each rank
        self._dealt: list[_Queue] = []  # coordinated: for each rank
        self._open = 0  # batches made and not settled
        self.paused = False  # hands out nothing more; commits still count
        self._effects: list[Effect] = []
        self.counts = {"batches": 0, "rows": 0, "redelivered": 0, "stale": 0, "expired": 0}
        self.dropped: dict[str, int] = {}

    # What the workers bring

    def made(self, batch: Batch) -> None:
        """A worker made the next batch of a partition."""
        partition = self._partitions[batch.partition]
        if partition.ended or batch.number != partition.next_number:
            raise ValueError(
                f"partition {batch.partition} made batch {batch.number}; "
                f"next is {'nothing' if partition.ended else partition.next_number}"
            )
        partition.next_number += 1
        partition.ready.append(batch)
        self._open += 1
        self._deal()

    def partition_ended(self, number: int) -> None:
        """No more batches of a partition will come."""
        self._partitions[number].ended = True
        self._deal()

    # What trainers bring

    def join(self, session: int, now: float, rank: int = -1, world_size: int = 0) -> None:
        """A new session.  JoinRefused when its mode does not fit those that are there."""
        others = self._trainers.values()
        if rank < 0 and not world_size:
            if any(t.rank >= 0 for t in others):
                raise JoinRefused(
                    f"the feed is in coordinated mode with world_size={self._world}: "
                    "connect with rank= and world_size="
                )
            world_size = 0
        elif world_size > MAX_WORLD:
            raise JoinRefused(f"world_size={world_size} is more than {MAX_WORLD}")
        elif not 0 <= rank < world_size:
            raise JoinRefused(f"rank={rank} does not lie in 0 … world_size-1 = {world_size - 1}")
        elif any(t.rank < 0 for t in others):
            raise JoinRefused("the feed is shared by trainers without rank: all or none give one")
        elif any(t.rank == rank for t in others):
            raise JoinRefused(f"rank={rank} is taken by another trainer")
        if world_size != self._world:
            if others:
                raise JoinRefused(
                    f"world_size={world_size} differs from {self._world}, that of the others"
                )
            self._undeal(world_size)
        self._trainers[session] = _Trainer(session, now, now, rank)
        self._deal()

    def _undeal(self, world_size: int) -> None:
        """What was dealt for another world size is dealt again."""
        for queue in (*self._dealt, [(b.order, b) for g in self._rounds.values() for b in g]):
            for entry in queue:
                entry[1].rank = -1
                _push(self._again, entry[1])
        self._rounds.clear()
        self._world = world_size
        self._dealt = [[] for _ in range(world_size)]

    def window(self, session: int, upto: int) -> None:
        """The session takes deliveries up to this number."""
        trainer = self._trainers.get(session)
        upto = min(upto, 0 if trainer is None else trainer.seq + self._max_window)
        if trainer is None or upto <= trainer.window:
            return
        asked = trainer.window > trainer.seq
        trainer.window = upto
        if not asked and trainer.window > trainer.seq:
            self._asking.append(session)
        self._deal()

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session is done with these."""
        if not tokens:
            return
        committed: list[int] = []
        stale: list[int] = []
        for token in tokens:
            verdict, batch = self._leases.commit(token, session)
            (stale if verdict is Verdict.STALE else committed).append(token)
            if batch is not None:
                self._settle(batch)
        self.counts["stale"] += len(stale)
        self._effects.append(Answer(session, tuple(committed), tuple(stale)))
        self._deal()

    def _settle(self, batch: Batch) -> None:
        batch.settled = True
        batch.waiting = False
        self._open -= 1
        self.counts["batches"] += 1
        self.counts["rows"] += batch.rows
        self._free_if_done(batch)

    def give_back(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session returns batches unused."""
        for lease in self._leases.of_session(session):
            if lease.token in tokens:
                self._take_back(lease)
        self._deal()

    def renew(self, session: int, last_seq: int, held: frozenset[int], now: float) -> bool:
        """A heartbeat: alive, with these leases.  False when the session is not known.

        A lease that was delivered (its number is not after ``last_seq``) and is not held got lost
        on the way, so it is taken back.
        """
        if not self.seen(session, now):
            return False
        self._leases.renew(session, now)
        for lease in self._leases.of_session(session):
            if lease.seq <= last_seq and lease.token not in held:
                self._take_back(lease)
        self._deal()
        return True

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        """A session that was given up is back as another one, and still holds these."""
        for token in tokens:
            batch = self._leases.adopt(token, session, now)
            if batch is not None:
                batch.waiting = False

    def resend(self, session: int, last_seq: int) -> None:
        """The session reconnected: what it did not receive is sent again, under the same token."""
        for lease in self._leases.of_session(session):
            if lease.seq > last_seq:
                self._effects.append(Send(session, lease.seq, lease.token, lease.batch))
        trainer = self._trainers.get(session)
        if trainer is not None:
            trainer.told = False
            self._deal()

    def seen(self, session: int, now: float) -> bool:
        """Any sign of life; False when the session is not known."""
        trainer = self._trainers.get(session)
        if trainer is None:
            return False
        trainer.seen = now
        return True

    def leave(self, session: int) -> None:
        """The session is over, by its own word or not: what it holds goes to others."""
        if self._trainers.pop(session, None) is None:
            return
        for lease in self._leases.of_session(session):
            self._take_back(lease)
        self._deal()

    def tick(self, now: float) -> list[int]:
        """Time has passed: ends leases that are over.  Returns sessions that have gone silent."""
        for lease in self._leases.expired(now):
            self.counts["expired"] += 1
            self._take_back(lease)
        self._deal()
        ttl_s = self._leases.ttl_s
        return [t.session for t in self._trainers.values() if t.seen + ttl_s <= now]

    def _take_back(self, lease: Lease[Batch]) -> None:
        batch = self._leases.take_back(lease)
        self.counts["redelivered"] += 1
        queue = self._again if batch.rank < 0 else self._dealt[batch.rank]
        _push(queue, batch)

    # Memory

    def pin(self, batch: Batch, holder: Hashable) -> None:
        """Somebody reads the bytes of this batch."""
        batch.pins.add(holder)

    def unpin(self, batch: Batch, holder: Hashable) -> None:
        """That reader is done."""
        if holder in batch.pins:
            batch.pins.discard(holder)
            self._free_if_done(batch)

    def _free_if_done(self, batch: Batch) -> None:
        if batch.settled and not batch.pins:
            self._effects.append(Freed(batch))

    # The hand-over

    @property
    def ended(self) -> bool:
        """Everything was made, handed out and committed."""
        return not self._open and all(p.ended for p in self._partitions)

    def take_effects(self) -> list[Effect]:
        """What is to be done, in order; to be asked for after every event."""
        effects, self._effects = self._effects, []
        return effects

    def _deal(self) -> None:
        """Hand out what can be handed out."""
        if self.paused:
            return
        for _ in range(len(self._asking)):
            trainer = self._trainers.get(self._asking.popleft())
            while trainer is not None and trainer.window > trainer.seq:
                batch = self._next(trainer.rank)
                if batch is None:
                    self._asking.append(trainer.session)
                    break
                trainer.seq += 1
                lease = self._leases.grant(batch, trainer.session, trainer.seq, trainer.seen)
                self._effects.append(Send(trainer.session, lease.seq, lease.token, batch))
        if self._world and not self._again and not self._open_stream():
            self._drop_rounds()
        if self.ended:
            for trainer in self._trainers.values():
                if not trainer.told:
                    trainer.told = True
                    self._effects.append(Finish(trainer.session))

    def _next(self, rank: int) -> Batch | None:
        if rank < 0:
            return _pop(self._again) or self._next_of_stream()
        while (batch := _pop(self._dealt[rank])) is None:
            fresh = _pop(self._again) or self._next_of_stream()
            if fresh is None:
                return None
            group = self._rounds.setdefault(fresh.meta.get("bucket"), [])
            group.append(fresh)
            if len(group) == self._world:
                del self._rounds[fresh.meta.get("bucket")]
                for i, member in enumerate(group):
                    member.rank = i
                    _push(self._dealt[i], member)
        return batch

    def _next_of_stream(self) -> Batch | None:
        """The batch whose turn it is, if it is there."""
        while self._open_stream():
            number, partition = self._turn
            here = self._partitions[partition]
            if not here.ready and not here.ended:
                return None
            after = partition + 1
            self._turn = (number, after) if after < len(self._partitions) else (number + 1, 0)
            if here.ready:
                batch = here.ready.popleft()
                self._effects.append(Taken(batch))
                return batch
        return None

    def _open_stream(self) -> bool:
        return any(p.ready or not p.ended for p in self._partitions)

    def _drop_rounds(self) -> None:
        for group in self._rounds.values():
            for batch in group:
                self.dropped["incomplete_round"] = (
                    self.dropped.get("incomplete_round", 0) + batch.rows
                )
                batch.settled = True
                self._open -= 1
                self._free_if_done(batch)
        self._rounds.clear()

    # Words

    def describe(self, now: float) -> str:
        """What a trainer that gets nothing is waiting for."""
        reasons = []
        if len(self._leases):
            lease = self._leases.oldest()
            assert lease is not None
            reasons.append(
                f"{len(self._leases)} batches are leased, the longest to trainer {lease.session} "
                f"for {now - lease.since:.0f} s"
            )
        if self._open_stream():
            number, partition = self._turn
            reasons.append(f"batch {number} of partition {partition} is being made")
        if self._world:
            missing = set(range(self._world)) - {t.rank for t in self._trainers.values()}
            if missing:
                reasons.append(f"ranks {sorted(missing)} have not joined")
        return "; ".join(reasons) or "nothing is left but the commits of this trainer"

    @property
    def leased(self) -> int:
        """Number of batches in trainers' hands, or on their way there."""
        return len(self._leases)


def _push(queue: _Queue, batch: Batch) -> None:
    batch.waiting = True
    heapq.heappush(queue, (batch.order, batch))


def _pop(queue: _Queue) -> Batch | None:
    """The first batch of a queue; entries of batches that wait no more are passed over."""
    while queue:
        batch = heapq.heappop(queue)[1]
        if batch.waiting:
            batch.waiting = False
            return batch
    return None
