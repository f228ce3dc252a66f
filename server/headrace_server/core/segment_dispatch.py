"""The hand-over of a feed of segments: batches that are asked for, and committed by their states.

    window() ─► Want ─► worker ─► made() ─► Send ─► save() ─► Save ─► worker ─► kept() ─► Answer

Saves are answered when the worker has kept the states, see keeping.py.  Who gets what is decided
by the order, see demand.py: with lanes a batch belongs to the trainer of its stripe, and is void
when that leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace_proto.record import record

from .demand import Arrivals, LaneQueues
from .handover import Answer, Batch, Effect, JoinRefused, Passed, Release, Save
from .keeping import Claimed, KeepingDispatcher
from .trainers import Trainer

__all__ = ["LANES_LOST", "Flush", "SegmentDispatcher"]

#: Of the segments that a trainer says it has: insertion index (int64), number (int32).
_BYTES_PER_ROW = 12

LANES_LOST = (
    "the states of lanes were not handed over: the lease of their last batch had ended.  These "
    "sequences go on from the states that the server has, and what was done since is done again"
)


@record
class Flush(Save):
    """States of lanes as they are after a batch that was saved, for its worker to keep."""


class SegmentDispatcher(KeepingDispatcher):
    """The hand-over of one feed of segments.  ``order`` is "arrival" or "lanes"."""

    stateful = True

    def __init__(
        self,
        partitions: Iterable[int],
        lease_ttl_s: float,
        max_window: int = 64,
        epoch: int = 0,
        order: str = "arrival",
    ) -> None:
        self._lanes = order == "lanes"
        self._over: list[int] = []  # partitions that make no more, where trainers take turns
        super().__init__(partitions, lease_ttl_s, max_window, epoch)
        self._changed = False
        self._saved: dict[int, tuple[int, Batch]] = {}  # by session: the last one
        self._unsaid: dict[int, list[int]] = {}  # by partition: tokens of claims, oldest last
        self._awaited: dict[int, int] = {}  # by partition: the claim that others wait for
        self._expected: set[int] = set()  # claims whose saves are to come
        self._doubtful: set[int] = set()  # claims on what may come to be by the save of another
        self._others_come = False  # trainers of an earlier server, which have not greeted this one

    def _new_stream(self, partitions: Iterable[int]) -> Arrivals | LaneQueues:
        return LaneQueues(partitions) if self._lanes else Arrivals(partitions)

    # What workers bring

    def made(self, batch: Batch) -> None:
        """A worker made the next batch of a partition."""
        wanted = self._stream.made(batch) is not False
        self._open += 1
        if not wanted:
            self._void(batch)
        self._deal()

    def partition_ended(self, number: int) -> None:
        if self.shared and not self._lanes and number not in self._over:
            self._over.append(number)
        super().partition_ended(number)

    def starved(self, partition: int) -> None:
        """A partition waits for states before it can make what it was asked for."""
        if not self._lanes:
            self._stream.starve(partition)
            self._deal()

    def dry(self, stripe: int) -> None:
        """A stripe of lanes has no work left."""
        if self._lanes:
            self._stream.dry(stripe)
            self._deal()

    def _say_claim(self, token: int, saved: bool) -> None:
        partition = self._claims[token].place.partition
        if self._lanes:
            super()._say_claim(token, saved)
            return
        if saved:
            self._expected.add(token)
        self._unsaid[partition] = sorted([*self._unsaid.get(partition, ()), token], reverse=True)
        self._say_next_claims(partition)
        if partition in self._awaited:
            self._stream.hold(partition, True)
        else:
            del self._unsaid[partition]

    def _say_next_claims(self, partition: int) -> None:
        unsaid = self._unsaid[partition]
        while unsaid and partition not in self._awaited:
            token = unsaid.pop()
            super()._say_claim(token, saved=False)
            if token in self._early or token in self._expected:
                self._awaited[partition] = token

    def _arrived(self, partition: int, token: int) -> None:
        """A claim is judged; its states are there, or never will be."""
        if self._awaited.get(partition) == token:
            del self._awaited[partition]
            self._say_next_claims(partition)
        if partition in self._awaited:
            return
        of_it = {t for t, claim in self._claims.items() if claim.place.partition == partition}
        if of_it and of_it <= self._doubtful and not self._others_come:
            self._judge_again(partition)
        elif not of_it and partition in self._unsaid:
            del self._unsaid[partition]
            self._stream.hold(partition, False)
            self._deal()

    def claimed(self, token: int, verdict: str, number: int) -> None:
        claim = self._claims.get(token)
        self._doubtful.discard(token)
        if claim is not None and verdict == "no" and self._may_be_made_up(token, claim):
            self._doubtful.add(token)
            partition = claim.place.partition
            self._unsaid.setdefault(partition, [])
            self._stream.hold(partition, True)
            if self._awaited.get(partition) == token:
                del self._awaited[partition]
                self._say_next_claims(partition)
            return
        super().claimed(token, verdict, number)
        if claim is None:
            return
        comes = token in self._expected and verdict == "yes" and token not in self._kept_tokens
        self._expected.discard(token)
        stands = comes and self._leases.batch_of(token, claim.session) is not None
        if not stands and token not in self._kept_tokens:
            self._arrived(claim.place.partition, token)

    def _may_be_made_up(self, token: int, claim: Claimed) -> bool:
        """Whether what a batch was made of may still be saved, by another trainer.

        Others are to greet, or have claims that are not judged yet.
        """
        if self._lanes:
            return False
        return self._others_come or any(
            other.place.partition == claim.place.partition
            for t, other in self._claims.items()
            if t != token and t not in self._doubtful
        )

    def await_others(self) -> None:
        """Trainers of an earlier server are to greet this one, until ``all_are_back``."""
        self._others_come = True

    def all_are_back(self) -> None:
        """Every trainer of an earlier server that still lives has greeted this one."""
        self._others_come = False
        for partition in {self._claims[token].place.partition for token in self._doubtful}:
            self._judge_again(partition)

    def _judge_again(self, partition: int) -> None:
        """Have a partition judge claims that it has refused: by now it may know their rows."""
        again = {t for t in self._doubtful if self._claims[t].place.partition == partition}
        if again:
            self._doubtful -= again
            unsaid = {*self._unsaid.get(partition, ()), *again}
            self._unsaid[partition] = sorted(unsaid, reverse=True)
            self._say_next_claims(partition)

    def kept(self, partition: int, number: int, code: str = "", text: str = "") -> None:
        keeping = self._keeping.get((number, partition))
        super().kept(partition, number, code, text)
        if keeping is not None:
            self._judge_again(partition)
            self._arrived(partition, keeping.token)

    def claim(self, session: int, place: Any, saved: bool = False) -> None:
        if place.rows and len(place.segments) == _BYTES_PER_ROW * place.rows:
            super().claim(session, place, saved)

    def _set_aside(self, token: int, claim: Any) -> None:
        """The worker knows which segments are out; numbers are of one server."""

    def _will_be_made(self, token: int, place: Any) -> bool:
        return False

    def _claimed_batch(self, place: Any, number: int) -> Batch | None:
        """Its rows are out again, in the worker's books under this number.

        What is wanted is said again: a wish that crossed the claim did not count it.
        """
        self._effects.append(self._stream.claimed(place.partition))
        self._open += 1
        return Batch(place.partition, number, place.rows, None, {"claimed": place})

    # What trainers bring

    def join(
        self, session: int, now: float, rank: int = -1, world_size: int = 0, run: int = 0
    ) -> None:
        if rank >= 0 or world_size:
            raise JoinRefused(
                "a feed of segments has no coordinated mode: connect without rank= and "
                "world_size=; with order='lanes' each trainer keeps its own rows"
            )
        super().join(session, now)

    def commit(self, session: int, tokens: tuple[int, ...]) -> None:
        """A batch of segments is not committed so: its states are missing."""
        text = "a batch of segments is committed by its states: save them"
        if tokens:
            faults = tuple((token, "state", text) for token in tokens)
            self._effects.append(Answer(session, (), (), faults))

    def save(self, session: int, token: int, payload: Any = None) -> None:
        batch = self._leases.batch_of(token, session)
        super().save(session, token, payload)
        if batch is not None:
            self._saved[session] = token, batch

    def refuse(self, session: int, token: int, code: str, text: str) -> None:
        """A save that can not be one; the lease stands."""
        self._effects.append(Answer(session, (), (), ((token, code, text),)))

    def leased_batch(self, session: int, token: int) -> Batch | None:
        """The batch of a lease that stands, that can still be saved, or that is claimed."""
        claim = self._claims.get(token)
        if claim is not None:
            place = claim.place
            return Batch(place.partition, place.number, place.rows)
        return self._leases.batch_of(token, session)

    def last_saved(self, session: int, token: int) -> Batch | None:
        """The batch of a token, if it is the last one that the session has saved."""
        saved, batch = self._saved.get(session, (0, None))
        return batch if saved == token else None

    def lost_lanes(self, session: int, token: int) -> bool:
        """Whether a batch that can not be flushed was the session's, and its lease has ended.

        False where the session has still to save it, or nobody was ever given this token.
        """
        return self._leases.issued(token) and not self._leases.holds(session, token)

    def flush(self, batch: Batch, payload: Any) -> None:
        """States of lanes after a batch that was saved last: they follow what it was saved with."""
        self._effects.append(Flush(batch, payload))

    def leave(self, session: int) -> None:
        if session not in self._trainers.present:
            return
        super().leave(session)
        self._saved.pop(session, None)
        void, effects = self._stream.leave(session)
        for batch in void:
            batch.waits_in = None
            self._void(batch)
        self._effects += effects
        self._deal()

    def _returned(self, session: int, batch: Batch) -> None:
        if batch.body is None:  # claimed: nobody else can be given its bytes
            self._effects.append(Release(batch.partition, batch.number))
            self._void(batch)
            self._arrived(batch.partition, batch.meta["claimed"].token)
        elif not self._stream.put_back(session, batch):
            if self._lanes:
                self._void(batch)
            else:
                self._again.push(batch)

    # The hand-over

    def _deal(self) -> None:
        """Once for all events of a round: what one of them brings serves what another asked for."""
        self._changed = True

    def take_effects(self) -> list[Effect]:
        if self._changed:
            self._changed = False
            self._deal_out()
        return super().take_effects()

    def _deal_out(self) -> None:
        if not self.paused:
            trainers = self._trainers
            for trainer in list(trainers.asking.values()):
                if self.shared and self._lanes:
                    self._tell_left(trainer)
                elif self._over:
                    self._tell_over(trainer)
                while (more := trainers.wants(trainer)) and (
                    batch := self._next_of(trainer.session)
                ):
                    self._grant(trainer, batch)
                if not more:
                    del trainers.asking[trainer.session]
            if trainers.asking:
                asking = [(s, trainers.credits(t)) for s, t in trainers.asking.items()]
                self._effects += self._stream.wants(asking, len(self._again))
                if self.shared:
                    self._tell_idle(lambda trainer: self._stream.is_idle(trainer.session))
        self._tell_end()

    def _tell_over(self, trainer: Trainer) -> None:
        """Tell a trainer of partitions that are over, each in place of a batch that it asks for.

        Whose turn it is then is the trainer's to know: it may be that of another owner.
        """
        while trainer.passed < len(self._over) and self._trainers.wants(trainer):
            trainer.seq += 1
            told = Passed(trainer.session, trainer.seq, self._over[trainer.passed])
            self._effects.append(told)
            trainer.passed += 1

    def _tell_left(self, trainer: Trainer) -> None:
        """Tell a trainer of partitions without work for lanes of its, in place of all it asks for.

        It asks again, here or another owner.
        """
        if self._trainers.wants(trainer):
            for partition in self._stream.take_left(trainer.session):
                trainer.seq += 1
                self._effects.append(Passed(trainer.session, trainer.seq, partition))
                trainer.window = trainer.seq

    def _next_of(self, session: int) -> Batch | None:
        return self._again.pop() or self._stream.next(session)
