"""Who gets which batch: the hand-over of one feed, as a pure machine.

    made() ─► stream ─► next in turn ─► Send to a trainer with window ─► commit()
                 ▲                       │
                 └── waiting again ◄─────┘ left, lost, expired, returned

The order of a feed is by (number, partition), see stream.py; batches that came back go out before
new ones.  In coordinated mode the same stream is dealt in rounds, see rounds.py.  A round that can
not be completed at the end of the feed is dropped, so that all ranks finish together.

Who is there, and how much each takes: trainers.py.

Memory: a batch is Freed, once, when it is settled and nobody has it pinned (a trainer that maps
it, a frame of it that is still being sent).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any

from .handover import (
    Answer,
    Batch,
    Effect,
    Finish,
    Freed,
    Full,
    Idle,
    Returned,
    Send,
    Taken,
    Waiting,
)
from .lease import Lease, LeaseTable, Verdict
from .rounds import Rounds
from .stream import Stream
from .trainers import Trainer, Trainers

__all__ = ["Dispatcher"]


class Dispatcher:
    """The hand-over of one feed, or of some of its partitions.

    After every event, ``take_effects`` says what to do.
    ``epoch`` makes the tokens of one life of a server differ from those of all others.
    """

    stateful = False  # whether batches are of segments, and committed by their states

    def __init__(
        self, partitions: Iterable[int], lease_ttl_s: float, max_window: int = 64, epoch: int = 0
    ) -> None:
        self._stream: Any = self._new_stream(partitions)
        self._leases: LeaseTable[Batch] = LeaseTable(lease_ttl_s, epoch)
        self._trainers = Trainers(max_window, self._held_by)
        self._again = Waiting()  # came back, and is no rank's
        self._rounds = Rounds(0)
        self._run = -1  # of the trainers that joined last, see runs.py; -1: nobody has
        self._open = 0  # batches made and not settled
        self.paused = False  # hands out nothing more; commits still count
        self.shared = False  # whether other partitions of the feed are handed out elsewhere
        self._full = False  # whether there is no room for the next batch
        self._effects: list[Effect] = []
        self.counts = {"batches": 0, "rows": 0, "redelivered": 0, "stale": 0, "expired": 0}
        self.dropped: dict[str, int] = {}

    def _held_by(self, session: int) -> int:
        """Number of batches that count against the credits of a session."""
        return self._leases.count(session)

    def _new_stream(self, partitions: Iterable[int]) -> Any:
        return Stream(partitions)

    # What the workers bring

    def made(self, batch: Batch) -> None:
        """A worker made the next batch of a partition."""
        self._stream.made(batch)
        self._open += 1
        self._full = False
        self._deal()

    def starved(self, partition: int) -> None:
        """There is no room for the next batch of a partition before trainers commit some."""
        self._full = True
        self._deal()

    def started(self, partition: int, number: int) -> None:
        """A partition goes on where an earlier server was."""
        self._stream.start(partition, number)

    def partition_ended(self, number: int) -> None:
        """No more batches of a partition will come."""
        self._stream.end(number)
        self._trainers.due.extend(self._trainers.by_rank)
        self._deal()

    # What trainers bring

    def join(
        self, session: int, now: float, rank: int = -1, world_size: int = 0, run: int = 0
    ) -> None:
        """A new session.  JoinRefused when its mode does not fit those that are there."""
        self._trainers.check(session, rank, world_size, self._rounds.world)
        if (run, world_size) != (self._run, self._rounds.world):
            self._start_run(run, world_size)
            self._run = run
        self._trainers.join(session, now, rank)
        self._deal()

    def _start_run(self, run: int, world_size: int) -> None:
        """The first trainer of a run is there: all of it go on with the same round."""
        if world_size == self._rounds.world:
            left = self._rounds.realign()
        else:
            left = self._rounds.undeal()
            self._rounds = Rounds(world_size)
        for batch in left:
            self._again.push(batch)

    def window(self, session: int, upto: int) -> None:
        """The session takes deliveries up to this number."""
        trainer = self._trainers.present.get(session)
        if trainer is not None and upto > trainer.window:
            trainer.window = upto
            self._trainers.ask(session)
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
        self._trainers.ask(session)
        self._deal()

    def _settle(self, batch: Batch) -> None:
        if batch.waits_in is not None:  # it had come back, and its commit came late
            batch.waits_in.remove(batch)
            batch.waits_in = None
        batch.settled = True
        self._open -= 1
        self.counts["batches"] += 1
        self.counts["rows"] += batch.rows
        self._rounds.settled(batch)
        self._free_if_done(batch)

    def give_back(self, session: int, tokens: tuple[int, ...]) -> None:
        """The session returns batches unused."""
        if tokens:
            for lease in self._leases.of_session(session):
                if lease.token in tokens:
                    self._take_back(lease, "returned")
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
                self._take_back(lease, "lost")
        self._deal()
        return True

    def adopt(self, session: int, tokens: tuple[int, ...], now: float) -> None:
        """A session that was given up is back as another one, and still holds these."""
        if session not in self._trainers.present:
            raise ValueError(f"session {session} holds nothing before it has joined")
        for token in tokens:
            batch = self._leases.adopt(token, session, now)
            if batch is not None and batch.waits_in is not None:
                batch.waits_in.remove(batch)
                batch.waits_in = None

    def resend(self, session: int, last_seq: int) -> None:
        """The session reconnected: what it did not receive is sent again, under the same token."""
        trainer = self._trainers.present.get(session)
        if trainer is None:
            return
        self._leases.renew(session, trainer.seen)
        # What was about to be sent is among it, and must not come first.
        self._effects = [
            e for e in self._effects if not (isinstance(e, Send) and e.session == session)
        ]
        # What was lost on the way and went to others meanwhile leaves no gap in the numbers: the
        # trainer reckons its window by what it received.
        trainer.seq = last_seq
        for lease in self._leases.of_session(session):
            if lease.seq > last_seq:
                trainer.seq = max(trainer.seq, lease.seq)
                self._effects.append(Send(session, lease.seq, lease.token, lease.batch))
        trainer.told, trainer.idle, trainer.passed, trainer.full = False, False, 0, None
        self._trainers.ask(session)
        self._deal()

    def seen(self, session: int, now: float) -> bool:
        """Any sign of life; False when the session is not known."""
        trainer = self._trainers.present.get(session)
        if trainer is None:
            return False
        trainer.seen = now
        return True

    def leave(self, session: int) -> None:
        """The session is over, by its own word or not: what it holds goes to others."""
        if not self._trainers.leave(session):
            return
        for lease in self._leases.of_session(session):
            self._take_back(lease, "left")
        self._deal()

    def tick(self, now: float) -> list[int]:
        """Time has passed: ends leases that are over.  Returns sessions that have gone silent."""
        for lease in self._leases.expired(now):
            self.counts["expired"] += 1
            self._take_back(lease, "expired")
        self._deal()
        return self._trainers.silent(now, self._leases.ttl_s)

    def _take_back(self, lease: Lease[Batch], why: str) -> None:
        batch = self._leases.take_back(lease)
        self._effects.append(Returned(lease.token, why))
        self.counts["redelivered"] += 1
        self._returned(lease.session, batch)
        self._trainers.ask(lease.session)

    def _returned(self, session: int, batch: Batch) -> None:
        """A batch came back from a session; it waits to go out again."""
        if batch.rank < 0:
            self._again.push(batch)
        else:
            self._rounds.push(batch)
            self._trainers.due.append(batch.rank)

    # Memory

    def pin(self, batch: Batch, holder: Hashable) -> None:
        """Somebody reads the bytes of this batch."""
        if batch.freed:
            raise ValueError(f"batch {batch.order} is free: its bytes may be another's by now")
        batch.pins.add(holder)

    def unpin(self, batch: Batch, holder: Hashable) -> None:
        """That reader is done."""
        if holder in batch.pins:
            batch.pins.discard(holder)
            self._free_if_done(batch)

    def _free_if_done(self, batch: Batch) -> None:
        if batch.settled and not batch.pins:
            batch.freed = True
            self._effects.append(Freed(batch))

    # The hand-over

    @property
    def ended(self) -> bool:
        """Everything was made, handed out and committed."""
        return not self._open and not self._stream.open

    def take_effects(self) -> list[Effect]:
        """What is to be done, in order; to be asked for after every event.

        What was to be sent, and whose lease has ended since, is not: its memory may be free.
        """
        if not self._effects:
            return []
        effects, self._effects = self._effects, []
        holds = self._leases.holds
        return [e for e in effects if not isinstance(e, Send) or holds(e.session, e.token)]

    def _deal(self) -> None:
        """Hand out what can be handed out."""
        trainers = self._trainers
        due, asking, wants = trainers.due, trainers.asking, trainers.wants
        while not self.paused and (due or asking):
            ranked = bool(due)
            trainer = trainers.by_rank.get(due.popleft()) if ranked else next(iter(asking.values()))
            if trainer is None:
                continue
            batch = self._next(trainer.rank) if wants(trainer) else None
            if batch is not None:
                self._grant(trainer, batch)
                if ranked:
                    due.append(trainer.rank)
            if not wants(trainer):
                asking.pop(trainer.session, None)
            elif batch is not None and not ranked:  # others have waited for longer
                asking.move_to_end(trainer.session)
            elif batch is None and not ranked:
                break
        if self._rounds.world and not self._again and not self._stream.open:
            self._drop_rounds()
        if self.shared and not (self.paused or self._stream.open or self._again):
            self._tell_idle(lambda trainer: trainer.rank < 0)
        if self._full and self.shared and not self._rounds.world:
            self._tell_full()
        self._tell_end()

    def _tell_idle(self, gets_none: Callable[[Trainer], bool]) -> None:
        """Tell trainers that ask for a batch, once, that trainers have to act before they get one.

        One that has several owners to take batches from goes to another then.
        """
        if self.ended:
            return
        for trainer in self._trainers.asking.values():
            if not trainer.idle and gets_none(trainer):
                trainer.idle = True
                self._effects.append(Idle(trainer.session, trainer.seq))

    def _tell_full(self) -> None:
        """Tell trainers that ask for a batch which one comes next, so far as they do not know.

        One that has a smaller one of another owner needs not wait for this.  Else each of two
        could wait for an owner whose batches the other has, and does not use before it has that.
        """
        following = self._stream.missing()
        for trainer in self._trainers.asking.values():
            if trainer.full != following and following is not None:
                trainer.full = following
                self._effects.append(Full(trainer.session, *following))

    def _grant(self, trainer: Trainer, batch: Batch) -> None:
        trainer.seq += 1
        trainer.idle = False
        lease = self._leases.grant(batch, trainer.session, trainer.seq, trainer.seen)
        self._effects.append(Send(trainer.session, lease.seq, lease.token, batch))

    def _tell_end(self) -> None:
        if self.ended:
            for trainer in self._trainers.present.values():
                if not trainer.told:
                    trainer.told = True
                    self._effects.append(Finish(trainer.session))

    def _next(self, rank: int) -> Batch | None:
        if rank < 0:
            return self._fresh()
        while (batch := self._dealt_to(rank)) is None:
            fresh = self._fresh()
            if fresh is None:
                return None
            members = self._rounds.add(fresh)
            for member in members:
                self._leases.void(member)  # from here on it is this rank's
                self._trainers.due.append(member.rank)
            if members:
                self._dealt(members)
            if fresh.partition not in self._coming():  # rounds of others waited for its rounds
                self._trainers.due.extend(self._trainers.by_rank)
        return batch

    def _dealt_to(self, rank: int) -> Batch | None:
        """The batch of a rank's next round, if it may have it now."""
        return self._rounds.pop(rank, self._coming())

    def _dealt(self, members: list[Batch]) -> None:
        """A round was dealt."""

    def _coming(self) -> set[int]:
        """Partitions of which batches may be dealt that were not."""
        return {*self._stream.live, *self._again.partitions()}

    def _fresh(self) -> Batch | None:
        """What came back, else the next of the stream."""
        batch = self._again.pop()
        if batch is None:
            batch = self._stream.next()
            if batch is not None:
                self._effects.append(Taken(batch))
        return batch

    def _drop_rounds(self) -> None:
        for batch in self._rounds.drop():
            self.dropped["incomplete_round"] = self.dropped.get("incomplete_round", 0) + batch.rows
            self._void(batch)

    def _void(self, batch: Batch) -> None:
        """A batch that is nobody's goes, without having been committed."""
        token = self._leases.void(batch)
        if token is not None:
            self._effects.append(Returned(token, "voided"))
        batch.settled = True
        self._open -= 1
        self._free_if_done(batch)

    def exhausted(self, session: int, last_seq: int) -> bool:
        """Whether no batch is left for a session that has received deliveries up to this number.

        Every batch is committed then, or in the hands of a trainer.
        """
        trainer = self._trainers.present.get(session)
        if trainer is None or self.stateful or self._stream.open or self._again:
            return False
        if trainer.rank >= 0 and self._rounds.has_dealt(trainer.rank):
            return False
        return all(lease.seq <= last_seq for lease in self._leases.of_session(session))

    def holds(self, session: int, token: int) -> bool:
        """Whether this lease stands, and is this session's."""
        return self._leases.holds(session, token)

    @property
    def present(self) -> int:
        """Number of sessions."""
        return len(self._trainers.present)

    @property
    def ranked(self) -> Collection[Trainer]:
        """Trainers that have ranks."""
        return self._trainers.by_rank.values()

    # Words

    def describe(self, now: float) -> str:
        """What a trainer that gets nothing is waiting for."""
        reasons = []
        if self.paused:
            reasons.append("the server is stopping and hands out nothing more")
        lease = self._leases.oldest()
        if lease is not None:
            reasons.append(
                f"{len(self._leases)} batches are leased, the longest to trainer {lease.session} "
                f"for {now - lease.since:.0f} s"
            )
        missing = self._stream.missing()
        if missing is not None:
            reasons.append(f"batch {missing[0]} of partition {missing[1]} is being made")
        absent = self._trainers.absent(self._rounds.world)
        if absent:
            reasons.append(absent)
        return "; ".join(reasons) or "nothing is left but the commits of this trainer"

    def holder(self, partition: int, number: int) -> tuple[int, float] | None:
        """Which session has a batch, and since when."""
        for lease in self._leases.held():
            if lease.batch.order == (number, partition):
                return lease.session, lease.since
        return None

    def standing(self) -> dict[str, int]:
        """Where the batches are that were made and are not settled.

        ``ready`` are new, ``returned`` came back or were dealt to a rank, ``leased`` are in hands.
        """
        ready, leased = self._stream.waiting(), len(self._leases)
        return {
            "ready": ready,
            "returned": max(0, self._open - ready - leased),
            "leased": leased,
            "saving": 0,
        }

    def standing_of(self, session: int) -> dict[str, int]:
        """What one trainer has and takes; empty where it is not there."""
        trainer = self._trainers.present.get(session)
        if trainer is None:
            return {}
        return {
            "rank": trainer.rank,
            "window": max(0, self._trainers.credits(trainer)),
            "leases": self._leases.count(session),
        }

    @property
    def leased(self) -> int:
        """Number of batches in trainers' hands, or on their way there."""
        return len(self._leases)

    @property
    def in_doubt(self) -> int:
        """Number of batches of which it is not known yet whether a trainer has done them."""
        return self.leased
