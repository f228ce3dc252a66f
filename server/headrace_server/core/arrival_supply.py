"""The batches of segments in the order of arrival that no trainer has; which trainer gets which.

    credits of trainers ─► deal() ─┬─► next(): its trainer's
                                   └─► wants() ─► Want(partition, more) ─► worker ─► made()

Any trainer gets any batch.  The partition with the least turn is asked next: the one of which the
fewest batches of this epoch were asked for, by earlier lives too.  One that has to wait for states
(starved) keeps its requests, and another is asked too.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace
from typing import Any

from .dispatch_effects import Batch, Effect, TurnQueue, Want
from .segment_rounds import SegmentRounds
from .segment_supply import Asking, SegmentSupply
from .trainers import Trainer


class ArrivalSupply(SegmentSupply):
    """The batches of ``order="arrival"`` that no trainer has."""

    ranked = SegmentRounds

    def _set_up(self) -> None:
        self._ready = TurnQueue()
        self._again = TurnQueue()  # batches that came back
        # Partitions that have ended or finished their epoch, where trainers take turns.
        self._over: list[int] = []

    def announced(self) -> dict[str, Any]:
        """Return the turn of the next batch of each partition."""
        return {"turns": [here.turn for here in self.partitions.values()]}

    @property
    def open(self) -> bool:
        return self._ready.count > 0 or super().open

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        here = self.partitions[batch.partition]
        here.starved = False
        if self.stripe and batch.meta.get("stripe") != self.stripe:  # made for ranks that have left
            return False
        if here.due:
            here.due -= 1
        self._ready.push(batch)
        return True

    @property
    def _queues(self) -> Sequence[TurnQueue]:
        return self._ready, self._again

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        self._pass_over(partition)

    def _pass_over(self, partition: int) -> None:
        if self._trainers.shared and partition not in self._over:
            self._over.append(partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        here = self.partitions[partition]
        here.starved, here.due = rests, 0
        if rests:
            self._pass_over(partition)
            return
        self._over = [number for number, one in self.partitions.items() if one.ended]
        for trainer in self._trainers.present.values():
            trainer.passed = 0

    def starved(self, partition: int) -> None:
        """Note that a partition can not make more batches before states come back."""
        here = self.partitions[partition]
        here.starved = here.due > 0

    def waiting(self) -> int:
        return len(self._ready)

    def next(self, session: int) -> Batch | None:
        """Return the first returned batch, else the first new one."""
        queue = self._again if self._again.count else self._ready
        return queue.pop() if queue.count else None

    def tell_passed(self, trainer: Trainer) -> None:
        """Answer a trainer with one ended partition in place of each batch that it asks for.

        The trainer then knows which partition is next, which may be another owner's.
        """
        while trainer.passed < len(self._over) and self._trainers.credits(trainer) > 0:
            self._pass(self._over[trainer.passed], trainer)
            trainer.passed += 1

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of a requested batch that can be made, if any."""
        for number, p in self.partitions.items():
            if p.due and not p.ended and not p.starved:
                return p.made, number
        return None

    def is_idle(self, session: int) -> bool:
        """Return whether no batch is here and no partition can make more."""
        if self._ready.count:
            return False
        return all(p.ended or p.starved or p.held for p in self.partitions.values())

    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a returned batch; the first trainer that asks gets it."""
        self._again.push(batch)
        return True

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions that satisfy the trainers' requests."""
        needed = -self._again.count - self._ready.count
        for _, credits in asking:
            needed += credits
        able = []
        for number, here in self.partitions.items():
            if not (here.ended or here.starved or here.held):
                able.append((here.turn, number))
                needed -= here.due
        if needed <= 0 or not able:
            return []
        more: dict[int, int] = {}
        heapify(able)
        for _ in range(needed):
            number = able[0][1]
            here = self.partitions[number]
            here.due += 1
            more[number] = more.get(number, 0) + 1
            heapreplace(able, (here.turn, number))
        return [Want(number, more[number]) for number in sorted(more)]
