"""Coordinated mode of plain feeds: a round deals a batch of a kind of a partition to each rank.

    add() ─► a group for each kind ── one for each rank? ──► a round, dealt ─► settled(): forgotten
             of each partition                               dealt_of() ─► stored, whole
    the next life:  load() ─► begin_run() ─► made(batch): it has its rank and round again

The trainers of another run lack the same batches of a round only where no rank has done its own:
the batches left of begun rounds are dealt anew for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from math import inf
from typing import Any

from headrace_proto.record import record

from ..shaping.input import TURN_BITS
from .dispatch_effects import Batch, TurnQueue

#: A round: its number in its partition, and the partition.
RoundName = tuple[int, int]
#: A round, and a rank.
Member = tuple[int, int, int]


@record
class DealtRounds:
    """The unfinished dealt rounds of one partition.

        push(member) ─► its rank's queue ─► pop(rank) ─► granted
                             ▲                 │ came back
                             └─────────────────┘

    Each partition numbers its rounds, and their order is by (round, partition).  Ranks take them in
    this order, for any division of partitions among owners: a round waits until no earlier one can
    come.  A dealt round never changes: a returned batch goes to the same rank again.

    All ranks get equally many batches only if a rank gets the members that it *lacks* of earlier
    rounds before those of later ones: batches that an earlier life has dealt, or that are made
    again.
    """

    world: int
    run: int
    next_round: int
    #: Number, round and rank of each batch; of segments round and rank.
    members: Sequence[Sequence[int]]

    def to_plain(self) -> list[Any]:
        return [self.world, self.run, self.next_round, self.members]

    def left(self, first: int, done: Container[int]) -> DealtRounds:
        """Return the rounds without done batches: those before ``first``, and those in ``done``."""
        members = [one for one in self.members if one[0] >= first and one[0] not in done]
        return DealtRounds(self.world, self.run, self.next_round, members)


class Rounds:
    """The rounds of one world size; with 0 ranks nothing is dealt."""

    def __init__(self, world: int) -> None:
        self.next_round: dict[int, int] = {}  # by partition
        #: Dealt members whose batches have not come, by the key of the batch.
        self.lacking: dict[tuple[int, ...], Member] = {}
        self._begin(world)

    def _begin(self, world: int) -> None:
        self.world = world
        #: By rank: the batches that wait for it.
        self.queues = [TurnQueue() for _ in range(world)]

    def pass_by(self, at: int, partition: int, rank: int) -> bool:
        """Note that a member was made; return whether it is the last of its round.

        Members are made in the order of ranks, and no rank gets one before the last is made.
        """
        whole = rank == self.world - 1 and at >= self.next_round.get(partition, 0)
        if whole:
            self.next_round[partition] = at + 1
        return whole

    def begin_at(self, partition: int, number: int) -> None:
        """Continue a partition's rounds with round ``number``."""
        self.next_round[partition] = max(number, self.next_round.get(partition, 0))

    def next_name(self, partition: int) -> RoundName:
        """Return the name of a partition's next round."""
        return self.next_round.get(partition, 0), partition

    def forget_lacking(self, partition: int, number: float = inf) -> None:
        """Forget members of a partition that will not come: all, or batches before ``number``."""
        for name in [one for one in self.lacking if one[1] == partition and one[0] < number]:
            del self.lacking[name]

    def push(self, batch: Batch) -> None:
        """Let a member of a round wait for its rank."""
        self.queues[batch.rank].push(batch)

    def pop(self, rank: int, coming: Iterable[int]) -> Batch | None:
        """Take the batch of a rank's next round, if it is here.

        ``coming``: partitions that may have more rounds; none of these may come first.
        """
        batch = self.queues[rank].pop()
        if batch is None:
            return None
        earlier = self._coming(rank, coming)
        if not earlier or batch.round_name < min(earlier):
            return batch
        self.push(batch)
        return None

    def _coming(self, rank: int, partitions: Iterable[int]) -> list[RoundName]:
        """Return the rounds of which a rank may still get batches that are not here."""
        lacking = [(at, partition) for at, partition, of in self.lacking.values() if of == rank]
        return [*map(self.next_name, partitions), *lacking]

    def take(self, at: int, partition: int, rank: int) -> Batch | None:
        """Take a rank's batch of a round out of turn, if it waits."""
        for batch in self.queues[rank].waiting():
            if (batch.round, batch.partition) == (at, partition):
                batch.wait_no_more()
                return batch
        return None


#: Number and partition of a batch.
_Order = tuple[int, int]


class PlainRounds(Rounds):
    """The rounds of a plain feed."""

    def __init__(self) -> None:
        super().__init__(0)
        self.run = -1  # number of the last run of trainers, see ``Runs``; -1: none yet
        #: Batches of incomplete rounds, by partition, kind and epoch.
        self._groups: dict[tuple[int, Any, int], list[Batch]] = {}
        self._dealt: dict[_Order, Batch] = {}  # dealt by this life and not settled
        self._before: dict[int, DealtRounds] = {}  # by partition, until the first trainer joins

    # A run

    @property
    def loaded(self) -> bool:
        """Whether rounds of an earlier life are known and no trainer has joined yet."""
        return bool(self._before)

    def load(self, partition: int, dealt: DealtRounds) -> None:
        """Load the batches of a partition that an earlier life dealt and no rank has done."""
        self._before[partition] = dealt
        for number, at, rank in dealt.members:
            self.lacking[number, partition] = at, partition, rank

    def begin_run(self, run: int, world: int) -> list[Batch]:
        """Begin a run; return the batches that are to be dealt anew."""
        begun, same, anew = self._begun(world), world == self.world, list[Batch]()
        for batch in [batch for queue in self.queues for batch in queue.drain()]:
            if same and (batch.round, batch.partition) not in begun:
                self.push(batch)
            else:
                batch.rank = batch.round = -1
                anew.append(batch)
        if not same:
            anew += self.drop()
            self._begin(world)
            self.next_round = {}
        last = DealtRounds(self.world if same else -1, self.run, 0, ())
        for order, (at, partition, _) in list(self.lacking.items()):
            before = self._before.get(partition, last)
            if before.world != world or (before.run != run and (at, partition) in begun):
                del self.lacking[order]
        going = {p: one.next_round for p, one in self._before.items() if one.world == world}
        self.next_round.update(going)
        self._before.clear()
        self.run = run
        return anew

    def _begun(self, world: int) -> set[RoundName]:
        """Return the rounds that some of ``world`` ranks have done and others have not."""
        left = Counter((b.round, b.partition) for b in self._dealt.values() if b.round >= 0)
        left.update((at, partition) for at, partition, _ in self.lacking.values())
        return {name for name, count in left.items() if count < world}

    # Rounds

    def add(self, batch: Batch) -> list[Batch]:
        """Add a new batch; return all batches of its round if the round is complete now."""
        partition = batch.partition
        name = partition, batch.meta.get("bucket"), batch.turn >> TURN_BITS
        group = self._groups.setdefault(name, [])
        batch.waits_in = group
        group.append(batch)
        if len(group) < self.world:
            return []
        del self._groups[name]
        number = self.next_round.get(partition, 0)
        for rank, member in enumerate(group):
            member.rank, member.round = rank, number
            self.push(member)
            self._dealt[member.order] = member
        self.next_round[partition] = number + 1
        return group

    def begin_epoch(self, batch: Batch) -> list[Batch]:
        """Return the batches of incomplete rounds, if a new batch belongs to a later epoch.

        The new epoch's rounds come after all rounds of the earlier epoch, in all partitions.
        """
        number = batch.turn >> TURN_BITS << TURN_BITS
        if number <= self.next_round.get(batch.partition, 0):
            return []
        self.begin_at(batch.partition, number)
        return self.drop(batch.partition)

    def drop(self, partition: int | None = None) -> list[Batch]:
        """Return and forget the batches of rounds that are not complete, in a partition or all."""
        names = [name for name in self._groups if partition in (None, name[0])]
        left = [one for name in names for one in self._groups.pop(name)]
        for one in left:
            one.waits_in = None
        return left

    def settled(self, batch: Batch) -> None:
        """Forget a done batch."""
        self._dealt.pop(batch.order, None)

    def dealt_of(self, partition: int) -> DealtRounds:
        """Return the rounds of a partition, to be stored."""
        dealt = [
            [o[0], b.round, b.rank]
            for o, b in self._dealt.items()
            if o[1] == partition and b.round >= 0
        ]
        lacking = [[o[0], at, r] for o, (at, p, r) in self.lacking.items() if p == partition]
        next_round = self.next_round.get(partition, 0)
        return DealtRounds(self.world, self.run, next_round, sorted([*dealt, *lacking]))

    # Batches of the life before

    def made(self, batch: Batch) -> bool:
        """Give a batch its earlier round and rank.  Return False where it had none."""
        member = self.lacking.pop(batch.order, None)
        if member is not None:
            batch.round, _, batch.rank = member
            self._dealt[batch.order] = batch
        return member is not None

    def pick(self, order: _Order) -> Batch | None:
        """Take a batch that was dealt out of its turn, if it waits."""
        batch = self._dealt.get(order)
        if batch is None or batch.waits_in is None:  # it is in the stream, or leased
            return None
        batch.wait_no_more()
        return batch
