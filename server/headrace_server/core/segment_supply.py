"""The batches of segments that no trainer has: the common part of both orders and of rounds.

trainers that ask ─► deal() ─┬─► next(): granted
                             └─► wants(): asked of partitions

A batch of segments is formed when a trainer asks for it, since states may have just come.  So
partitions make as many batches as trainers ask for, and no more.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace_proto.messages import Idle, Passed

from .admitted_examples import AT_SERVER
from .dispatch_effects import Batch, Deal, Effect, TurnQueue, of_numbers
from .lease import BatchLifecycle
from .partition import TURN_BITS
from .rounds import DealtRounds
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


class SegmentSupply(Supply):
    """The common part of both orders and of rounds.  ``states``: where states are kept."""

    run = 0  # number of the ranks' run
    ranked: type[SegmentSupply]  # the class of supply for ranks

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
        kind = self.ranked if world else self._unranked
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
