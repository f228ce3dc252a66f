"""The batches of segments that nobody has, which trainer gets which, and what is to be made.

    credits of trainers ─► deal() ─┬─► what is there: its trainer's
                                   └─► Want ─► worker ─► made()

Who gets what is decided by the order, see demand.py: with lanes a batch belongs to the trainer of
its stripe, and is void when that leaves.
"""

from __future__ import annotations

from collections.abc import Iterable

from .demand import Arrivals, LaneQueues
from .handover import Batch, Effect, Idle, Passed, Waiting
from .hands import Hands
from .trainers import Trainer, Trainers

__all__ = ["SegmentSupply"]


class SegmentSupply:
    """Of one feed of segments, or of some of its partitions."""

    world = 0  # trainers have no ranks

    def __init__(
        self, partitions: Iterable[int], hands: Hands, trainers: Trainers, lanes: bool
    ) -> None:
        self.queue: Arrivals | LaneQueues = (LaneQueues if lanes else Arrivals)(partitions)
        self._lanes = lanes
        self._hands = hands
        self._trainers = trainers
        self._again = Waiting()  # came back, and is anybody's
        self._over: list[int] = []  # partitions that make no more, where trainers take turns

    # What workers bring

    def made(self, batch: Batch) -> bool:
        """A worker made the next batch of a partition.  Whether somebody may have it."""
        return self.queue.made(batch)

    def starved(self, partition: int) -> None:
        """A partition waits for states before it can make what it was asked for."""
        if isinstance(self.queue, Arrivals):
            self.queue.starve(partition)

    def dry(self, stripe: int) -> None:
        """A stripe of lanes has no work left."""
        if isinstance(self.queue, LaneQueues):
            self.queue.dry(stripe)

    def end(self, partition: int) -> None:
        """No more batches of a partition will come."""
        if self._trainers.shared and not self._lanes and partition not in self._over:
            self._over.append(partition)
        self.queue.end(partition)

    # What trainers bring

    def put_back(self, session: int, batch: Batch) -> bool:
        """A batch came back from a session.  Whether somebody may have it."""
        if isinstance(self.queue, LaneQueues):
            return self.queue.put_back(session, batch)
        self._again.push(batch)
        return True

    def leave(self, session: int) -> tuple[list[Batch], list[Effect]]:
        """A trainer is gone: batches that are void by that, and who is to be told."""
        return self.queue.leave(session)

    def settled(self, batch: Batch) -> None:
        """A commit of a batch is stored."""

    # The hand-out

    def deal(self, paused: bool) -> None:
        """Hand out what there is, and ask for more where trainers want more."""
        trainers, again, queue = self._trainers, self._again, self.queue
        if paused or not trainers.asking:
            return
        asking = []
        for session, trainer in list(trainers.asking.items()):
            if trainers.shared and self._lanes:
                self._tell_left(trainer)
            elif self._over:
                self._tell_over(trainer)
            credits = trainers.credits(trainer)
            while credits > 0 and (batch := again.pop() if again.count else queue.next(session)):
                self._hands.grant(trainer, batch)
                credits -= 1
            if credits > 0:
                asking.append((session, credits))
            else:
                del trainers.asking[session]
        if asking:
            self._hands.effects += queue.wants(asking, again.count)

    def tell(self, paused: bool) -> None:
        """Tell trainers that have other owners, once, that they get none here before some act."""
        if paused:
            return
        for trainer in self._trainers.asking.values():
            if not trainer.idle and self.queue.is_idle(trainer.session):
                trainer.idle = True
                self._hands.effects.append(Idle(trainer.session, trainer.seq))

    def _tell_over(self, trainer: Trainer) -> None:
        """Tell a trainer of partitions that are over, each in place of a batch that it asks for.

        Whose turn it is then is the trainer's to know: it may be that of another owner.
        """
        while trainer.passed < len(self._over) and self._trainers.wants(trainer):
            trainer.seq += 1
            told = Passed(trainer.session, trainer.seq, self._over[trainer.passed])
            self._hands.effects.append(told)
            trainer.passed += 1

    def _tell_left(self, trainer: Trainer) -> None:
        """Tell a trainer of partitions without work for lanes of its, in place of all it asks for.

        It asks again, here or another owner.
        """
        if self._trainers.wants(trainer) and isinstance(self.queue, LaneQueues):
            for partition in self.queue.take_left(trainer.session):
                trainer.seq += 1
                self._hands.effects.append(Passed(trainer.session, trainer.seq, partition))
                trainer.window = trainer.seq

    # Words

    @property
    def open(self) -> bool:
        """Whether batches are to come, or wait here."""
        return self.queue.open

    def is_exhausted(self, rank: int) -> bool:
        """Whether nothing is left for a trainer: as long as a batch is out, more may follow."""
        return False

    def missing(self) -> tuple[int, int] | None:
        """Number and partition of a batch that was asked for and can be made, if one is."""
        return self.queue.missing()

    def waiting(self) -> int:
        """How many new batches are there, and not taken."""
        return self.queue.waiting()
