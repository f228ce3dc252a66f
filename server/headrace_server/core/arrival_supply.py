"""The batches of segments in the order of arrival that no trainer has; which trainer gets which.

    credits of trainers ─► deal() ─┬─► next(): its trainer's
                                   └─► wants() ─► Want(partition, more) ─► worker ─► made()
    take() ─► a stripe of its own ─► Want(partition, rows, stripe) ─► made() ─► deal()
                └─ withdrawn, or made twice ─► Release: its rows are ready again

Any trainer gets any batch.  Partitions are asked in turn; one that has to wait for states (starved)
keeps its requests, and another is asked too.

A *take* is a request for a batch of a size that the trainer names.  A partition makes
that batch before all others.  The first batch that comes is granted, and the requests at other
partitions are withdrawn, and so are requests for prefetched batches.  After the first take no batch
outlives its trainer: one that comes back is released, too.  So the next take finds all rows that no
trainer has, in their order, and gets as many as it names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace_proto.messages import Idle

from .dispatch_effects import Batch, Effect, Release, TurnQueue, Want
from .segment_rounds import SegmentRounds
from .segment_supply import Asking, SegmentSupply
from .trainers import Trainer


@dataclass(slots=True)
class _Take:
    request: int  # the trainer's number of this take
    rows: int
    stripe: int
    asked: set[int] = field(default_factory=set)  # partitions that were asked
    batch: Batch | None = None


class ArrivalSupply(SegmentSupply):
    """The batches of ``order="arrival"`` that no trainer has."""

    ranked = SegmentRounds

    def _set_up(self) -> None:
        self.takes: dict[int, _Take] = {}  # by session
        self._done: dict[int, int] = {}  # by partition: batches of earlier lives
        self._turns: Iterator[int] | None = None  # partitions in the order of their turns
        self._sized = False  # whether there was ever a take
        self._ready = TurnQueue()
        self._again = TurnQueue()  # batches that came back
        # Partitions that have ended or finished their epoch, where trainers take turns.
        self._over: list[int] = []

    def start(self, partition: int, number: int, turn: int = -1) -> None:
        super().start(partition, number, turn)
        self._done[partition] = number

    def _turn(self) -> int:
        """Return the partition that is asked next, first of all the one with the fewest batches."""
        if self._turns is None:
            batches = {n: self._done.get(n, 0) + one.made for n, one in self.partitions.items()}
            self._turns = itertools.cycle(batches)
            first = min(batches, key=batches.__getitem__)
            for _ in range([*batches].index(first)):
                next(self._turns)
        return next(self._turns)

    @property
    def open(self) -> bool:
        return self._ready.count > 0 or super().open

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        here = self.partitions[batch.partition]
        here.starved = False
        if self._sized and (stripe := batch.meta.get("stripe", 0)) > self.stripe:
            return self._made_for_take(batch, stripe)
        if self.stripe and batch.meta.get("stripe") != self.stripe:  # made for ranks that have left
            return False
        if here.due:
            here.due -= 1
        elif self._sized:  # it crossed the Want that withdrew it
            self._release_rows(batch)
            return False
        self._ready.push(batch)
        return True

    @property
    def _queues(self) -> Sequence[TurnQueue]:
        return self._ready, self._again

    def drain(self) -> list[Batch]:
        taken = [take.batch for take in self.takes.values() if take.batch is not None]
        self.takes.clear()
        return [*super().drain(), *taken]

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        self._asked_in_vain(partition)
        self._pass_over(partition)

    def _pass_over(self, partition: int) -> None:
        if self._trainers.shared and partition not in self._over:
            self._over.append(partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        here = self.partitions[partition]
        here.starved, here.due = rests, 0
        if rests:
            self._asked_in_vain(partition)
            self._pass_over(partition)
            return
        self._turns = itertools.cycle(self.partitions)  # an epoch begins with the first one
        self._over = [number for number, one in self.partitions.items() if one.ended]
        for trainer in self._trainers.present.values():
            trainer.passed = 0

    def starved(self, partition: int) -> None:
        """Note that a partition can not make more batches before states come back."""
        here = self.partitions[partition]
        taken = any(partition in take.asked for take in self.takes.values())
        here.starved = here.due > 0 or taken

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
            self._pass_next(trainer)

    def _pass_next(self, trainer: Trainer) -> bool:
        if trainer.passed >= len(self._over):
            return False
        self._pass(self._over[trainer.passed], trainer)
        trainer.passed += 1
        return True

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
        if self._sized:
            self._release_rows(batch)
            return False
        self._again.push(batch)
        return True

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions that satisfy the trainers' requests."""
        able = False
        needed = -self._again.count - self._ready.count
        for _, credits in asking:
            needed += credits
        for here in self.partitions.values():
            if not (here.ended or here.starved or here.held):
                able = True
                needed -= here.due
        if needed <= 0 or not able:
            return []
        more: dict[int, int] = {}
        while needed:
            number = self._turn()
            here = self.partitions[number]
            if not (here.ended or here.starved or here.held):
                here.due += 1
                needed -= 1
                more[number] = more.get(number, 0) + 1
        return [Want(number, more[number]) for number in sorted(more)]

    # Takes

    def take(self, trainer: Trainer, request: int, rows: int) -> bool:
        known = self.takes.get(trainer.session)
        if known is not None and rows and known.request == request:  # sent again
            return False
        if known is not None and (rows or known.request == request):
            self._withdraw(trainer.session)
        if not rows:
            return False
        self._sized = True
        self._release_all(super().drain())
        self.next_stripe = max(1, self.next_stripe)
        self.takes[trainer.session] = _Take(request, rows, self.take_stripes(1))
        trainer.idle, trainer.window = False, trainer.seq
        self._trainers.forget(trainer.session)
        self._withdraw_wants()
        return True

    def leave(self, session: int, rank: int) -> None:
        if session in self.takes:
            self._withdraw(session)
        if self._sized:
            self._withdraw_wants()

    def deal(self, paused: bool) -> None:
        if not paused:
            self._deal_takes()
        super().deal(paused)

    def _deal_takes(self) -> None:
        for session, take in list(self.takes.items()):
            trainer = self._trainers.present[session]
            if take.batch is not None:
                if self._trainers.has_room(session):
                    del self.takes[session]
                    self._lifecycle.grant(trainer, take.batch)
            elif self._pass_next(trainer):
                self._withdraw(session)
            else:
                self._ask(trainer, take)

    def _ask(self, trainer: Trainer, take: _Take) -> None:
        """Ask the next partition that may make the batch, unless one that can make it was asked."""
        if any(not self.partitions[number].starved for number in take.asked):
            return
        turns = [self._turn() for _ in self.partitions]
        able = [n for n in turns if n not in take.asked and not self._is_over(n)]
        # A starved partition may have enough rows for a smaller batch.
        able.sort(key=lambda number: self.partitions[number].starved)
        if able:
            while self._turn() != able[0]:
                pass
            take.asked.add(able[0])
            self.partitions[able[0]].starved = False
            self._lifecycle.effects.append(Want(able[0], take.rows, take.stripe))
        elif self._trainers.shared and not trainer.idle:
            trainer.idle = True
            self._lifecycle.effects.append(Idle(trainer.session, trainer.seq))

    def _is_over(self, partition: int) -> bool:
        here = self.partitions[partition]
        return here.ended or here.held or here.rests

    def _made_for_take(self, batch: Batch, stripe: int) -> bool:
        """Take the batch of a take; False where it is not needed any more."""
        take = next((take for take in self.takes.values() if take.stripe == stripe), None)
        if take is None or take.batch is not None:
            self._release_rows(batch)
            return False
        take.asked.discard(batch.partition)
        self._unask(take)
        batch.meta = {"take": take.request}
        take.batch = batch
        return True

    def _asked_in_vain(self, partition: int) -> None:
        """Note that a partition has ended, or rests, and will not meet its requests."""
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
            self._lifecycle.effects.append(Want(number, 0, take.stripe))
        take.asked.clear()

    def _withdraw_wants(self) -> None:
        """Withdraw requests for batches of the declared size that no trainer asks for any more."""
        trainers = self._trainers
        spare = sum(here.due for here in self.partitions.values())
        spare -= sum(max(0, trainers.credits(one)) for one in trainers.asking.values())
        for number, here in self.partitions.items():
            fewer = min(spare, here.due)
            if fewer > 0:
                spare -= fewer
                here.due -= fewer
                here.starved = False  # else it reports that again
                self._lifecycle.effects.append(Want(number, -fewer))

    def _release_all(self, batches: Sequence[Batch]) -> None:
        """Release batches that no trainer has, so that their rows go out in others."""
        for batch in batches:
            self._release_rows(batch)
            self._lifecycle.void(batch)

    def _release_rows(self, batch: Batch) -> None:
        self._lifecycle.effects.append(Release(batch.partition, batch.number))
