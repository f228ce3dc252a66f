"""The batches of segments that no trainer has: the common part of both orders and of rounds.

trainers that ask ─► deal() ─┬─► next(): granted
                             └─► wants(): asked of partitions

A batch of segments is formed when a trainer asks for it, since states may have just come.  So
partitions make as many batches as trainers ask for, and no more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from typing import Any

from headrace_proto import limits
from headrace_proto.messages import Idle, Passed

from ..shaping.input import TURN_BITS
from .admitted_examples import AT_SERVER, NOWHERE, place_of
from .dispatch_effects import (
    Batch,
    Deal,
    Dealt,
    Effect,
    JoinRefused,
    Leave,
    TurnQueue,
    Want,
    of_numbers,
)
from .lease import BatchLifecycle
from .rounds import DealtRounds, Rounds
from .supply import Supply
from .trainers import Trainer

#: A trainer, and the number of batches that it takes now.
Asking = tuple[int, int]


@dataclass(slots=True)
class PartitionDemand:
    made: int = 0
    before: int = 0  # batches of this epoch by earlier lives, less those made here before it
    due: int = 0  # batches that were asked for and have not come
    ended: bool = False
    starved: bool = False
    held: bool = False  # claims on it are being judged: send it no requests
    epoch: int = 0  # where batches end with their epoch
    # whether it waits for others in an earlier epoch, where batches end with theirs
    rests: bool = False

    @property
    def turn(self) -> tuple[int, int]:
        """Epoch, and number in the epoch, of the next batch that it may be asked for."""
        return self.epoch, self.before + self.made + self.due


class SegmentSupply(Supply, ABC):
    """The common part of both orders and of rounds.  ``states``: where states are kept."""

    run = 0  # number of the ranks' run

    def __init__(
        self, partitions: Sequence[int], lifecycle: BatchLifecycle, states: str = AT_SERVER
    ) -> None:
        super().__init__(lifecycle)
        self.partitions = of_numbers(partitions, PartitionDemand)
        self.states = states
        #: The class of supply for trainers without ranks.
        self._unranked: type[SegmentSupply] = type(self)
        self.stripe = 0  # the first stripe of this supply
        self.next_stripe = 0  # the first that no supply of the feed has used
        self.loaded: dict[int, DealtRounds] = {}  # rounds dealt by an earlier life, by partition
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Begin without batches and without trainers."""

    def load_rounds(self, partition: int, dealt: DealtRounds) -> None:
        if dealt.world:
            self.loaded[partition] = dealt

    def start_run(self, run: int, world: int) -> SegmentSupply:
        """Return the supply for the trainers of a run, or, without ranks, for any trainers.

        All batches that are out go out again, except rounds of an earlier life of this run.  The
        rounds of another run have the numbers from the first one on that was not done by all ranks,
        so they come of the partition whose turn it was.
        """
        if (run, world) == (self.run, self.world) and not self.loaded:
            return self
        drained = self.drain()
        for batch in drained:
            self._lifecycle.void(batch)
        first_rounds = {n: self._first_round(n, drained) for n in self.partitions}
        kind = SegmentRounds if world else self._unranked
        supply = kind([*self.partitions], self._lifecycle, self.states)
        supply._go_on_from(self, run, world)
        same = {n: d for n, d in self.loaded.items() if (d.run, d.world) == (run, world)}
        first = supply.take_stripes(max(1, world))
        supply.begin(first, first_rounds, same)
        self._lifecycle.effects += [
            Deal(n, world, run, first, at if world else 0)
            for n, at in first_rounds.items()
            if n not in same
        ]
        return supply

    def _first_round(self, partition: int, drained: Iterable[Batch]) -> int:
        """Return the first round of a partition that not all ranks have done.

        ``drained``: all batches that waited.
        """
        dealt = self.loaded.get(partition)
        return 0 if dealt is None else min([m[0] for m in dealt.members], default=dealt.next_round)

    def _go_on_from(self, before: SegmentSupply, run: int, world: int) -> None:
        """Take over the partitions of an earlier supply."""
        self.run, self.world, self._unranked = run, world, before._unranked
        self.partitions = before.partitions
        self.stripe = self.next_stripe = before.next_stripe
        for here in self.partitions.values():
            here.due, here.starved, here.held = 0, here.rests, False

    def begin(
        self, stripe: int, first_rounds: Mapping[int, int], going: Mapping[int, DealtRounds]
    ) -> None:
        """Begin with stripes and rounds from these numbers on, and with ``going`` rounds."""

    def take_stripes(self, n: int) -> int:
        """Reserve ``n`` numbers of stripes; return the first."""
        self.next_stripe += n
        return self.next_stripe - n

    def start(self, partition: int, number: int, turn: int = -1) -> None:
        self.begin_epoch(partition, number if turn < 0 else turn)

    def begin_epoch(self, partition: int, turn: int) -> None:
        here = self.partitions[partition]
        here.epoch, number = divmod(turn, 1 << TURN_BITS)
        here.before = number - here.made

    @property
    @abstractmethod
    def _queues(self) -> Iterable[TurnQueue]:
        """The queues of all batches that wait for trainers."""

    def drain(self) -> list[Batch]:
        """Take all batches that wait."""
        return [batch for queue in self._queues for batch in queue.drain()]

    def waiting(self) -> int:
        return sum(map(len, self._queues))

    def waiting_rows(self) -> int:
        return sum(queue.rows() for queue in self._queues)

    def _note_made(self, batch: Batch) -> None:
        here = self.partitions[batch.partition]
        if here.ended or batch.number != here.made:
            raise ValueError(
                f"partition {batch.partition} made batch {batch.number}; "
                f"next is {'nothing' if here.ended else here.made}"
            )
        here.made += 1

    def hold(self, partition: int, held: bool) -> None:
        """Send a partition no requests while claims on it are being judged, or ask it again."""
        self.partitions[partition].held = held

    def set_rests(self, partition: int, rests: bool) -> None:
        here = self.partitions[partition]
        if here.rests != rests:
            here.rests = rests
            self._on_rests(partition, rests)

    @abstractmethod
    def _on_rests(self, partition: int, rests: bool) -> None:
        """Send a partition no requests while it rests, or ask it again."""

    def claimed(self, batch: Batch) -> Batch:
        """Count a claimed batch as made; return it."""
        self.partitions[batch.partition].made += 1
        self._lifecycle.open += 1
        return batch

    def claimed_in_vain(self, partition: int) -> None:
        self.partitions[partition].made += 1

    @property
    def open(self) -> bool:
        return any(not p.ended for p in self.partitions.values())

    def deal(self, paused: bool) -> None:
        trainers = self._trainers
        if paused or not trainers.asking:
            return
        asking = []
        for session, trainer in list(trainers.asking.items()):
            credits = trainers.credits(trainer)
            while credits > 0 and (batch := self.next(session)) is not None:
                self._lifecycle.grant(trainer, batch)
                credits -= 1
            if credits > 0 and trainers.shared:
                self.tell_passed(trainer)
                credits = trainers.credits(trainer)
            if credits > 0:
                asking.append((session, credits))
            else:
                del trainers.asking[session]
        if asking:
            self._lifecycle.effects += self.wants(asking)

    def tell(self, paused: bool) -> None:
        for trainer in self._trainers.asking.values():
            if not (paused or trainer.idle) and self.is_idle(trainer.session):
                trainer.idle = True
                self._lifecycle.effects.append(Idle(trainer.session, trainer.seq))

    @abstractmethod
    def made(self, batch: Batch) -> bool:
        """Take the next batch of a partition; return False where its trainer is gone."""

    @abstractmethod
    def end(self, partition: int) -> None:
        """Note that no more batches of a partition will come."""

    @abstractmethod
    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a batch that a session returned; return False where no trainer may get it."""

    @abstractmethod
    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of the batch for which trainers wait, if any."""

    @abstractmethod
    def tell_passed(self, trainer: Trainer) -> None:
        """Tell a trainer that asks for batches which partitions have none for it."""

    @abstractmethod
    def next(self, session: int) -> Batch | None:
        """Return the next batch for a trainer, if it is here."""

    @abstractmethod
    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions that satisfy the trainers' requests."""

    @abstractmethod
    def is_idle(self, session: int) -> bool:
        """Return whether a trainer that asks gets no batch before trainers have acted."""

    def _pass(self, partition: int, trainer: Trainer) -> None:
        trainer.seq, trainer.idle = trainer.seq + 1, False
        self._lifecycle.effects.append(Passed(trainer.session, trainer.seq, partition))


class ArrivalSupply(SegmentSupply):
    """The batches of ``order="arrival"`` that no trainer has.

        credits of trainers ─► deal() ─┬─► next(): its trainer's
                                       └─► wants() ─► Want(partition, more) ─► worker ─► made()

    Any trainer gets any batch.  The partition with the least turn is asked next: the one of which
    the fewest batches of this epoch were asked for, by earlier lives too.  One that has to wait for
    states (starved) keeps its requests, and another is asked too.
    """

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


@dataclass(slots=True)
class _Stripe:
    session: int
    partition: int
    number: int
    leaves: int  # number of left stripes of its partition when it was opened
    due: int = 0  # batches that were asked for and have not come
    ready: TurnQueue = field(default_factory=TurnQueue)


class LaneSupply(SegmentSupply):
    """The batches of ``order="lanes"``, each for the trainer that has the stripe.

        a trainer asks ─► a stripe in the partition with the fewest
                       ─► Want(partition, more, stripe) ─► made() ─► next(): its trainer's

    The batches of a stripe are void when its trainer leaves.  Without states a stripe is dry before
    its last batches are done, and its trainer goes on in another partition.

    Where the feed has other owners, a trainer gets a stripe in another partition only once it knows
    that the earlier one has no work for it, for it may be another owner's turn.  So a window that
    crosses that message (``Passed``) has no effect: the number of the message lies beyond it.
    """

    def _set_up(self) -> None:
        self._open: dict[int, _Stripe] = {}  # by number: those that get further batches
        #: By session, in the order in which they were opened: its open stripe, and dry ones whose
        #: batches may be out.
        self._of: dict[int, list[_Stripe]] = {}
        self._dry: set[int] = set()  # partitions without work for a new stripe
        # By partition: number of stripes that trainers have left; their examples need others.
        self._leaves = dict.fromkeys(self.partitions, 0)
        #: By session: partitions without work for it, and the number of the Passed that told it.
        self._left: dict[int, dict[int, int]] = {}

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        stripe = self._open.get(batch.meta["stripe"])
        if stripe is None:
            return False
        stripe.due -= 1
        stripe.ready.push(batch)
        return True

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        for stripe in list(self._open.values()):
            if stripe.partition == partition and not len(stripe.ready):
                self._close(stripe)

    def dry(self, number: int) -> None:
        """Close a stripe without work; its trainer may get one in another partition.

        It may get one in the same partition if another trainer has left it since, which the
        partition may not have known.
        """
        stripe = self._open.get(number)
        if stripe is not None:
            self._close(stripe, spent=self.states == NOWHERE)
            if stripe.leaves == self._leaves[stripe.partition]:
                self._dry.add(stripe.partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        if not rests:
            self._dry.discard(partition)
            for left in self._left.values():
                left.pop(partition, None)
            return
        for stripe in list(self._open.values()):  # they are empty
            if stripe.partition == partition:
                self._close(stripe)
                self._lifecycle.effects.append(Leave(partition, stripe.number))

    def _close(self, stripe: _Stripe, spent: bool = False) -> None:
        """Close a stripe; ``spent``: its batches may be out."""
        del self._open[stripe.number]
        if not spent:
            self._of[stripe.session].remove(stripe)
        self._left.setdefault(stripe.session, {})[stripe.partition] = 0

    def announced(self) -> dict[str, Any]:
        """Return the number of stripes in each partition, and of trainers with the new one."""
        stripes = dict.fromkeys(self.partitions, 0)
        for stripe in self._open.values():
            stripes[stripe.partition] += 1
        return {"stripes": [*stripes.values()], "trainers": len(self._trainers.present)}

    def _stripe_of(self, session: int) -> _Stripe | None:
        """Return a trainer's open stripe."""
        last = self._of.get(session, ())[-1:]
        return last[0] if last and last[0].number in self._open else None

    @property
    def _queues(self) -> list[TurnQueue]:
        return [stripe.ready for stripe in self._open.values()]

    def next(self, session: int) -> Batch | None:
        """Return the next batch of a trainer's own lanes."""
        for stripe in self._of.get(session, ()):
            if stripe.ready.count:
                return stripe.ready.pop()
        return None

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of a requested batch, if any."""
        for stripe in self._open.values():
            if stripe.due:
                return self.partitions[stripe.partition].made, stripe.partition
        return None

    def tell_passed(self, trainer: Trainer) -> None:
        """Answer a trainer with the partitions that have no work for its lanes.

        They replace all batches that it has asked for; it asks again, here or elsewhere.
        A message lost with a connection is resent: its number is beyond the last delivery.
        """
        session = trainer.session
        if self._stripe_of(session) is not None:
            return
        left = self._left.setdefault(session, {})
        for number, here in self.partitions.items():
            if here.ended or here.rests:
                left.setdefault(number, 0)
        for partition in sorted(n for n, seq in left.items() if not 0 < seq <= trainer.seq):
            trainer.seq += limits.MAX_PREFETCH
            self._pass(partition, trainer)
            trainer.window = left[partition] = trainer.seq

    def is_idle(self, session: int) -> bool:
        """Return whether a trainer has no lanes and can get none."""
        return self._stripe_of(session) is None and not self._goes_on(session)

    def put_back(self, session: int, batch: Batch) -> bool:
        """Take a batch that was lost on its way; its trainer gets it again."""
        number = batch.meta["stripe"]
        for stripe in self._of.get(session, ()):
            if stripe.number == number:
                stripe.ready.push(batch)
                return True
        return False

    def is_exhausted(self, trainer: Trainer) -> bool:
        session = trainer.session
        if self.states != NOWHERE or self._stripe_of(session) is not None:
            return False
        if any(spent.ready.count for spent in self._of.get(session, ())):
            return False
        return all(one.ended or number in self._dry for number, one in self.partitions.items())

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions; give trainers without lanes some where work is."""
        effects: list[Effect] = []
        for session, credits in asking:
            stripe = self._stripe_of(session) or self._give(session)
            if stripe is None or self.partitions[stripe.partition].held:
                continue
            more = credits - len(stripe.ready) - stripe.due
            if more > 0:
                stripe.due += more
                effects.append(Want(stripe.partition, more, stripe.number))
        return effects

    def _give(self, session: int) -> _Stripe | None:
        """Open a stripe for a trainer, where there is work for it."""
        load = {
            number: 0
            for number, here in self.partitions.items()
            if not (here.ended or here.rests or here.held or number in self._dry)
        }
        if not load or self._goes_on(session):
            return None
        for other in self._open.values():
            if other.partition in load:
                load[other.partition] += 1
        partition = min(load, key=lambda n: (load[n], n))
        stripe = _Stripe(session, partition, self.take_stripes(1), self._leaves[partition])
        self._open[stripe.number] = stripe
        self._of.setdefault(session, []).append(stripe)
        return stripe

    def _goes_on(self, session: int) -> bool:
        """Return whether a trainer has still to save batches of an earlier life.

        It continues their examples, so it gets lanes only once these saves are stored.
        """
        leases, claims = self._lifecycle.leases, self._lifecycle.claims
        return (
            any(claim.session == session for claim in claims.values())
            or any("claimed" in lease.batch.meta for lease in leases.of_session(session))
            or (session in leases.unstored and any(p.held for p in self.partitions.values()))
        )

    def leave(self, session: int, rank: int) -> None:
        """Void the batches of a trainer that left its lanes; its examples continue in others."""
        if session not in self._trainers.present:  # else it gets other lanes
            self._left.pop(session, None)
        for stripe in self._of.pop(session, ()):
            self._open.pop(stripe.number, None)
            self._dry.discard(stripe.partition)
            self._leaves[stripe.partition] += 1
            for batch in stripe.ready.drain():
                self._lifecycle.void(batch)
            self._lifecycle.effects.append(Leave(stripe.partition, stripe.number))


class SegmentRounds(SegmentSupply):
    """The batches of ranks in step.

        ranks ask ─► Want(partition, rounds) ─► made() × ranks ─► a whole round ─► next()
                                                  ▲
        a rank leaves: its batches wait for it ───┘ or, with states that it had alone, are made
                                                    again

    Ranks take rounds by (round, partition), for any division of partitions among owners, so all
    take the same ones.  A partition that has ended is passed over.  Partitions form the rounds, see
    ``RoundMembers``, and have stored a round before its batches go out.
    """

    def _set_up(self) -> None:
        self._rounds = Rounds(0)
        #: By rank: its stripe; members of others belong to an earlier run or a trainer that has
        #: left.
        self._stripes: list[int] = []
        self._left: dict[int, int] = {}  # rank, by the stripe that it has left
        #: By partition: number of rounds that were asked for and have not come.
        self._due = dict.fromkeys(self.partitions, 0)
        self._resumed: set[int] = set()  # partitions that must make members again

    def begin(
        self, stripe: int, first_rounds: Mapping[int, int], going: Mapping[int, DealtRounds]
    ) -> None:
        """Give each rank a stripe, from this number on."""
        self._rounds = Rounds(self.world)
        self._stripes = list(range(stripe, stripe + self.world))
        for number, here in self.partitions.items():
            self._rounds.begin_at(number, max(here.epoch << TURN_BITS, first_rounds[number]))
        for number, dealt in going.items():
            self._rounds.begin_at(number, dealt.next_round)
            for at, rank in dealt.members:
                self._lack(at, number, rank)
                self._resumed.add(number)

    def _first_round(self, partition: int, drained: Iterable[Batch]) -> int:
        waiting = [batch.round for batch in drained if batch.partition == partition]
        lacking = [at for at, of, _ in self._rounds.lacking.values() if of == partition]
        return min([*waiting, *lacking], default=self._rounds.next_name(partition)[0])

    # From partitions

    def made(self, batch: Batch) -> bool:
        self._note_made(batch)
        rank = batch.meta.get("rank", -1)
        at, stripe = batch.meta.get("round", -1), batch.meta.get("stripe", -1)
        present = 0 <= rank < self.world and self._stripes[rank] == stripe
        if not present and self._left.get(stripe) != rank:
            return False
        whole = self._rounds.pass_by(at, batch.partition, rank)
        self._due[batch.partition] -= whole
        if not present:
            self._lack(at, batch.partition, rank)
            return False
        self._rounds.lacking.pop((at, batch.partition, rank), None)
        batch.rank, batch.round = rank, at
        self._rounds.push(batch)
        if whole:
            self._lifecycle.effects.append(Dealt((batch.partition,)))
        return True

    def _lack(self, at: int, partition: int, rank: int) -> None:
        """Note that a rank lacks a member of a round, which is made again."""
        self._rounds.lacking[at, partition, rank] = at, partition, rank

    def end(self, partition: int) -> None:
        self.partitions[partition].ended = True
        self._rounds.forget_lacking(partition)

    def _on_rests(self, partition: int, rests: bool) -> None:
        """Do nothing: rounds of an epoch come before those of the next."""

    # From trainers

    def put_back(self, session: int, batch: Batch) -> bool:
        if batch.meta["stripe"] != self._stripes[batch.rank]:  # a claim on it ended late
            self._lack(batch.round, batch.partition, batch.rank)
            return False
        self._rounds.push(batch)
        return True

    def leave(self, session: int, rank: int) -> None:
        """Keep the batches of a rank for its next trainer.

        Where its states were in its memory, the batches are void and made again from the states
        that it has flushed.
        """
        if self.states == AT_SERVER:
            return
        before = self._stripes[rank]
        self._left[before] = rank
        self._stripes[rank] = after = self.take_stripes(1)
        for batch in self._rounds.queues[rank].drain():
            self._lack(batch.round, batch.partition, rank)
            self._lifecycle.void(batch)
        self._lifecycle.effects += [
            Leave(number, before, after) for number, p in self.partitions.items() if not p.ended
        ]

    @property
    def _queues(self) -> list[TurnQueue]:
        return self._rounds.queues

    # Claims

    def name_of(self, batch: Batch) -> tuple[int, ...]:
        return batch.round, batch.partition, batch.rank

    def name_of_claim(self, session: int, held: Any) -> tuple[int, ...] | None:
        """Return round, partition and rank of a member; None for that of another rank."""
        member, trainer = place_of(held.segments), self._trainers.present.get(session)
        if member is None or trainer is None or member[1] != trainer.rank:
            return None
        return member[0], held.partition, member[1]

    def pick(self, name: tuple[int, ...]) -> Batch | None:
        return self._rounds.take(*name)

    def will_make(self, name: tuple[int, ...]) -> bool:
        """Have a member made again; return whether it will come."""
        comes = name in self._rounds.lacking
        if comes:
            self._lifecycle.effects.append(Want(name[1], 0))
        return comes

    # To trainers

    def deal(self, paused: bool) -> None:
        self._trainers.due.clear()
        super().deal(paused)

    def tell_passed(self, trainer: Trainer) -> None:
        """Tell nothing: an owner whose partitions have ended ends the feed for its trainers."""

    def next(self, session: int) -> Batch | None:
        return self._rounds.pop(self._trainers.present[session].rank, self._live())

    def _live(self) -> list[int]:
        return [number for number, p in self.partitions.items() if not p.ended]

    def wants(self, asking: Sequence[Asking]) -> list[Effect]:
        """Return the requests to partitions for the rounds that come next."""
        live = self._live()
        present = self._trainers.present
        here = {present[session].rank: credits for session, credits in asking}
        due, more = self._due, dict.fromkeys(self._resumed.intersection(live), 0)
        self._resumed.clear()
        needed = max(n - len(self._rounds.queues[rank]) for rank, n in here.items())
        needed -= sum(due[number] for number in live)
        first = min(live, key=self._rounds.next_name, default=-1)
        # rounds of other partitions wait for the first one
        while live and (needed > 0 or not due[first]):
            number = min(live, key=lambda n: (self._rounds.next_name(n)[0] + due[n], n))
            due[number] += 1
            more[number] = more.get(number, 0) + 1
            needed -= 1
        return [Want(number, more[number]) for number in sorted(more)]

    def begin_epoch(self, partition: int, turn: int) -> None:
        super().begin_epoch(partition, turn)
        self._rounds.begin_at(partition, self.partitions[partition].epoch << TURN_BITS)

    def is_idle(self, session: int) -> bool:
        return False

    def missing(self) -> tuple[int, int] | None:
        return None


def check_rows(world_size: int, batch_size: int, capacity: int | None) -> None:
    """Raise JoinRefused where a partition can not have the examples of a whole round in flight."""
    rows = world_size * batch_size
    if capacity is not None and capacity < rows:
        raise JoinRefused(
            f"world_size={world_size}: a round is of world_size x batch_size={rows} examples in "
            f"flight, and the feed has capacity={capacity}; declare capacity={rows} or more"
        )
