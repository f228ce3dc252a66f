"""The batches of segments that nobody has, which trainer gets which, and who makes more.

    credits of trainers ─► deal() ─┬─► next(): its trainer's
                                   └─► wants() ─► Want(partition, upto) ─► worker ─► made()

A batch of segments is decided when a trainer asks for it, for its states may just have come.  So
partitions make as many batches as trainers ask for, and no more.

    Arrivals     any trainer gets any batch.  Partitions are asked in turn; one that has to wait for
                 states (starved) keeps what it was asked for, and another is asked too.  Sizes that
                 trainers name are in sized.py
    LaneQueues   each trainer has a stripe of lanes in one partition, and gets the batches of that
                 stripe alone, which are void when the trainer leaves.  Without states a stripe is
                 dry before its last batches are done, and its trainer goes on in another partition
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from .handover import Batch, Effect, Leave, Line, Release, Want
from .hands import Hands
from .segment_supply import Asking, SegmentSupply
from .sized import SizedBatches
from .trainers import Trainer, Trainers

__all__ = ["Arrivals", "LaneQueues"]


class Arrivals(SizedBatches):
    """The batches of ``order="arrival"`` that nobody has."""

    claims_wait = True

    def __init__(
        self,
        partitions: Sequence[int],
        hands: Hands,
        trainers: Trainers,
        stateless: bool = False,
        stays: bool = False,
    ) -> None:
        super().__init__(partitions, hands, trainers, stateless, stays)
        self._ready = Line()
        self._again = Line()  # batches that came back
        # Partitions that have ended, or all of whose epoch is done, where trainers take turns.
        self._over: list[int] = []

    @property
    def open(self) -> bool:
        return self._ready.count > 0 or super().open

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        self.partitions[batch.partition].starved = False
        if self._sized and (stripe := batch.meta.get("stripe", 0)) > self.stripe:
            return self.made_for_take(batch, stripe)
        if self.stripe and batch.meta.get("stripe") != self.stripe:  # made for ranks that left
            return False
        self._ready.push(batch)
        return True

    def drain(self) -> list[Batch]:
        taken = [take.batch for take in self.takes.values() if take.batch is not None]
        self.takes.clear()
        return [*self._unowned(), *taken]

    def _unowned(self) -> list[Batch]:
        return [*self._ready.drain(), *self._again.drain()]

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        self.asked_in_vain(partition)
        self._pass_over(partition)

    def _pass_over(self, partition: int) -> None:
        if self._trainers.shared and partition not in self._over:
            self._over.append(partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        here = self.partitions[partition]
        here.starved, here.wanted = rests, here.made
        if rests:
            self.asked_in_vain(partition)
            self._pass_over(partition)
            return
        self._turns = itertools.cycle(self.partitions)  # an epoch begins with the first one
        self._over = [number for number, one in self.partitions.items() if one.ended]
        for trainer in self._trainers.present.values():
            trainer.passed = 0

    def starved(self, partition: int) -> None:
        """Note that a partition can not make more batches before states come back."""
        here = self.partitions[partition]
        here.starved = here.wanted > here.made or any(
            partition in take.asked for take in self.takes.values()
        )

    def waiting(self) -> int:
        return len(self._ready)

    def waiting_rows(self) -> int:
        return self._ready.rows() + self._again.rows()

    def next(self, session: int) -> Batch | None:
        """Return the first batch that came back, else the first new one."""
        return self._again.pop() if self._again.count else self._ready.pop()

    def tell_passed(self, trainer: Trainer) -> None:
        """Answer a trainer with one ended partition in place of each batch that it asks for.

        The trainer then knows whose turn it is, which may be another owner's.
        """
        while trainer.passed < len(self._over) and self._trainers.wants(trainer):
            self._pass_next(trainer)

    def _pass_next(self, trainer: Trainer) -> bool:
        if trainer.passed >= len(self._over):
            return False
        self._pass(self._over[trainer.passed], trainer)
        trainer.passed += 1
        return True

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of a batch that was asked for and can be made, if any."""
        for number, p in self.partitions.items():
            if p.wanted > p.made and not p.ended and not p.starved:
                return p.made, number
        return None

    def is_idle(self, session: int) -> bool:
        """Whether no batch is here, and none of the partitions can make more."""
        if self._ready.count:
            return False
        return all(p.ended or p.starved or p.held for p in self.partitions.values())

    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a batch that came back; the first trainer that asks gets it."""
        if self._sized:
            self._hands.effects.append(Release(batch.partition, batch.number))
            return False
        self._again.push(batch)
        return True

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions that meet what trainers ask for."""
        able = False
        needed = -self._again.count - self._ready.count
        for _, credits in asking:
            needed += credits
        for here in self.partitions.values():
            if not (here.ended or here.starved or here.held):
                able = True
                needed -= here.wanted - here.made
        if needed <= 0 or not able:
            return []
        asked = set()
        while needed:
            number = next(self._turns)
            here = self.partitions[number]
            if not (here.ended or here.starved or here.held):
                here.wanted += 1
                needed -= 1
                asked.add(number)
        return [Want(number, self.partitions[number].wanted) for number in sorted(asked)]


@dataclass(slots=True)
class _Stripe:
    partition: int
    number: int
    leaves: int  # of its partition, when it was opened
    made: int = 0
    wanted: int = 0
    ready: Line = field(default_factory=Line)


class LaneQueues(SegmentSupply):
    """The batches of ``order="lanes"``, each for the trainer that has the stripe."""

    def __init__(
        self,
        partitions: Sequence[int],
        hands: Hands,
        trainers: Trainers,
        stateless: bool = False,
        stays: bool = False,
    ) -> None:
        super().__init__(partitions, hands, trainers, stateless, stays)
        self._spent: dict[int, list[_Stripe]] = {}  # by session: dry, with batches that may be out
        self._stripes: dict[int, _Stripe] = {}  # by session
        self._by_number: dict[int, int] = {}  # stripe → session
        self._dry: set[int] = set()  # partitions without work for another stripe
        # Stripes that trainers have left, by partition: their examples need another stripe.
        self._leaves = dict.fromkeys(self.partitions, 0)
        self._left: dict[int, set[int]] = {}  # by session: partitions without work for it

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        session = self._by_number.get(batch.meta["stripe"])
        if session is None:
            return False
        stripe = self._stripes[session]
        stripe.made += 1
        stripe.ready.push(batch)
        return True

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        for session, stripe in list(self._stripes.items()):
            if stripe.partition == partition and not len(stripe.ready):
                self._close(session)
                self._left.setdefault(session, set()).add(partition)

    def dry(self, number: int) -> None:
        """Close a stripe without work; its trainer may get one in another partition.

        It may get one in the same partition where another trainer has left that since, which the
        partition may not have known.
        """
        session = self._by_number.get(number)
        if session is not None:
            stripe = self._close(session)
            if self.stateless:
                self._spent.setdefault(session, []).append(stripe)
            self._left.setdefault(session, set()).add(stripe.partition)
            if stripe.leaves == self._leaves[stripe.partition]:
                self._dry.add(stripe.partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        if not rests:
            self._dry.discard(partition)
            for partitions in self._left.values():
                partitions.discard(partition)
            return
        for session, stripe in list(self._stripes.items()):  # they are empty
            if stripe.partition == partition:
                self._close(session)
                self._left.setdefault(session, set()).add(partition)
                self._hands.effects.append(Leave(partition, stripe.number))

    def _close(self, session: int) -> _Stripe:
        stripe = self._stripes.pop(session)
        del self._by_number[stripe.number]
        return stripe

    def waiting(self) -> int:
        return sum(len(stripe.ready) for stripe in self._stripes.values())

    def waiting_rows(self) -> int:
        return sum(stripe.ready.rows() for stripe in self._stripes.values())

    def next(self, session: int) -> Batch | None:
        """Return the next batch of a trainer's own lanes."""
        for spent in self._spent.get(session, ()) if self._spent else ():
            if len(spent.ready):
                return spent.ready.pop()
        stripe = self._stripes.get(session)
        return None if stripe is None else stripe.ready.pop()

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of a batch that was asked for, if any."""
        for stripe in self._stripes.values():
            if stripe.wanted > stripe.made:
                return self.partitions[stripe.partition].made, stripe.partition
        return None

    def tell_passed(self, trainer: Trainer) -> None:
        """Answer a trainer with the partitions that have no work for its lanes any more.

        They stand in place of all batches that it asks for; it asks again, here or elsewhere.
        """
        if trainer.session in self._left and self._trainers.wants(trainer):
            for partition in sorted(self._left.pop(trainer.session)):
                self._pass(partition, trainer)
                trainer.window = trainer.seq

    def is_idle(self, session: int) -> bool:
        """Whether a trainer has no lanes, and could get none."""
        return session not in self._stripes

    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a batch that was lost on its way; its trainer gets it again."""
        number = batch.meta["stripe"]
        for stripe in (self._stripes.get(session), *self._spent.get(session, ())):
            if stripe is not None and stripe.number == number:
                stripe.ready.push(batch)
                return True
        return False

    def is_exhausted(self, trainer: Trainer) -> bool:
        if not self.stateless or trainer.session in self._stripes:
            return False
        if any(len(spent.ready) for spent in self._spent.get(trainer.session, ())):
            return False
        return all(one.ended or number in self._dry for number, one in self.partitions.items())

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions; a trainer without lanes gets some where work is."""
        effects: list[Effect] = []
        for session, credits in asking:
            stripe = self._stripes.get(session) or self._open(session)
            if stripe is None:
                continue
            upto = stripe.made + credits - len(stripe.ready)
            if upto > stripe.wanted:
                stripe.wanted = upto
                effects.append(Want(stripe.partition, upto, stripe.number))
        return effects

    def _open(self, session: int) -> _Stripe | None:
        load = {
            number: 0
            for number, here in self.partitions.items()
            if not (here.ended or here.rests or number in self._dry)
        }
        if not load:
            return None
        for other in self._stripes.values():
            if other.partition in load:
                load[other.partition] += 1
        partition = min(load, key=lambda n: (load[n], n))
        stripe = _Stripe(partition, self.next_stripe, self._leaves[partition])
        self._stripes[session] = stripe
        self._by_number[self.next_stripe] = session
        self.next_stripe += 1
        return stripe

    def drain(self) -> list[Batch]:
        return [batch for stripe in self._stripes.values() for batch in stripe.ready.drain()]

    def leave(self, session: int, rank: int) -> None:
        """Void the batches of a trainer that has left; its examples go on with others."""
        self._left.pop(session, None)
        left = self._spent.pop(session, [])
        if session in self._stripes:
            left.append(self._close(session))
        for stripe in left:
            self._dry.discard(stripe.partition)
            self._leaves[stripe.partition] += 1
            for batch in stripe.ready.drain():
                self._hands.void(batch)
            self._hands.effects.append(Leave(stripe.partition, stripe.number))
