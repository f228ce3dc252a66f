"""Batches of sizes that trainers name, each made for one of them: a layer of `Arrivals`.

    take() ─► a stripe of its own ─► Want(partition, rows, stripe) ─► made() ─► deal_takes()
                └─ withdrawn, or made twice ─► Release: its rows are ready again

Partitions are asked in turn, and make such a batch before all others.  One that has to wait for
states keeps the request, and another is asked too; the first batch is granted, and the requests at
others are withdrawn.

Since the first take no batch outlives its trainer: one that comes back is released, too.  So the
next take finds all rows that nobody has, in their order, and gets as many as it names.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from .handover import Batch, Idle, Release, Want
from .hands import Hands
from .segment_supply import SegmentSupply
from .trainers import Trainer, Trainers

__all__ = ["SizedBatches"]


@dataclass(slots=True)
class _Take:
    request: int  # names it at its trainer
    rows: int
    stripe: int
    asked: set[int] = field(default_factory=set)  # partitions
    batch: Batch | None = None


class SizedBatches(SegmentSupply):
    """The takes of trainers."""

    def __init__(
        self,
        partitions: Sequence[int],
        hands: Hands,
        trainers: Trainers,
        stateless: bool = False,
        stays: bool = False,
    ) -> None:
        super().__init__(partitions, hands, trainers, stateless, stays)
        self.takes: dict[int, _Take] = {}  # by session
        self._turns = itertools.cycle(self.partitions)  # the partition that is asked next
        self._sized = False  # whether there was ever a take

    def take(self, trainer: Trainer, request: int, rows: int) -> bool:
        known = self.takes.get(trainer.session)
        if known is not None and rows and known.request == request:  # sent again
            return False
        if known is not None and (rows or known.request == request):
            self._withdraw(trainer.session)
        if not rows:
            return False
        self._sized = True
        self._release_all(self._unowned())
        stripe = max(1, self.next_stripe)
        self.next_stripe = stripe + 1
        self.takes[trainer.session] = _Take(request, rows, stripe)
        trainer.idle, trainer.window = False, trainer.seq
        self._trainers.asking.pop(trainer.session, None)
        return True

    def leave(self, session: int, rank: int) -> None:
        if session in self.takes:
            self._withdraw(session)

    def deal_takes(self) -> None:
        for session, take in list(self.takes.items()):
            trainer = self._trainers.present[session]
            if take.batch is not None:
                if self._trainers.has_room(session):
                    del self.takes[session]
                    self._hands.grant(trainer, take.batch)
            elif self._pass_next(trainer):
                self._withdraw(session)
            else:
                self._ask(trainer, take)

    def _ask(self, trainer: Trainer, take: _Take) -> None:
        """Ask the next partition that may make the batch, unless one is asked that can."""
        if any(not self.partitions[number].starved for number in take.asked):
            return
        turns = [next(self._turns) for _ in self.partitions]
        able = [n for n in turns if n not in take.asked and not self._is_over(n)]
        # One that is starved may have enough for fewer rows.
        able.sort(key=lambda number: self.partitions[number].starved)
        if able:
            while next(self._turns) != able[0]:
                pass
            take.asked.add(able[0])
            self.partitions[able[0]].starved = False
            self._hands.effects.append(Want(able[0], take.rows, take.stripe))
        elif self._trainers.shared and not trainer.idle:
            trainer.idle = True
            self._hands.effects.append(Idle(trainer.session, trainer.seq))

    def _is_over(self, partition: int) -> bool:
        here = self.partitions[partition]
        return here.ended or here.held or here.rests

    def made_for_take(self, batch: Batch, stripe: int) -> bool:
        """Take the batch of a take; False where it is not needed any more."""
        here = self.partitions[batch.partition]
        here.wanted += 1
        if here.wanted > here.made:  # a Want that crossed this batch did not count it
            self._hands.effects.append(Want(batch.partition, here.wanted))
        take = next((take for take in self.takes.values() if take.stripe == stripe), None)
        if take is None or take.batch is not None:
            self._hands.effects.append(Release(batch.partition, batch.number))
            return False
        take.asked.discard(batch.partition)
        self._unask(take)
        batch.meta = {"take": take.request}
        take.batch = batch
        return True

    def asked_in_vain(self, partition: int) -> None:
        """Note that a partition has ended, or rests, and makes nothing of what it was asked for."""
        for take in self.takes.values():
            take.asked.discard(partition)

    def _withdraw(self, session: int) -> None:
        take = self.takes.pop(session)
        self._unask(take)
        if take.batch is not None:
            self._release_all([take.batch])

    def _unask(self, take: _Take) -> None:
        for number in sorted(take.asked):
            self.partitions[number].starved = False  # else it reports that again
            self._hands.effects.append(Want(number, 0, take.stripe))
        take.asked.clear()

    def _release_all(self, batches: Sequence[Batch]) -> None:
        """Let the rows of batches that nobody has go out in others."""
        for batch in batches:
            self._hands.effects.append(Release(batch.partition, batch.number))
            self._hands.void(batch)

    @abstractmethod
    def _unowned(self) -> list[Batch]:
        """Take all batches that wait for any trainer."""

    @abstractmethod
    def _pass_next(self, trainer: Trainer) -> bool:
        """Answer a trainer with an ended partition that it does not know of, if there is one."""
