"""The batches of ranks: each rank takes its member of every round, in one order.

    push(member) ─► its rank's queue ─► pop(rank) ─► granted
                         ▲                 │ came back
                         └─────────────────┘

Each partition numbers its rounds, and their order is by (round, partition).  Ranks take them in
this order, for any division of partitions among owners: a round waits until no earlier one can
come.  A dealt round never changes: a returned batch goes to the same rank again.

All ranks get equally many batches only if a rank gets the members that it *lacks* of earlier rounds
before those of later ones: batches that an earlier life has dealt, or that are made again.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from math import inf
from typing import Any

from headrace_proto.messages import Following
from headrace_proto.record import record

from .dispatch_effects import Batch, TurnQueue
from .trainers import Trainer

#: A round: its number in its partition, and the partition.
RoundName = tuple[int, int]
#: A round, and a rank.
Member = tuple[int, int, int]


@record
class DealtRounds:
    """The unfinished dealt rounds of one partition."""

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

    def tell(self, trainers: Iterable[Trainer], coming: Collection[int]) -> list[Following]:
        """Return messages that tell trainers of which round their next batch is.

        A trainer that came back has the batches of rounds that it took in its earlier life behind
        it.  It may get the next one of another owner at once, and must know that this one has none
        before it.
        """
        messages = []
        for trainer in trainers:
            waiting = [batch.round_name for batch in self.queues[trainer.rank].waiting()]
            rounds = [*self._coming(trainer.rank, coming), *waiting]
            rounds = rounds or [self.next_name(partition) for partition in self.next_round]
            trainer.following = min(rounds, default=(0, 0))
            messages.append(Following(trainer.session, *trainer.following))
        return messages

    def take(self, at: int, partition: int, rank: int) -> Batch | None:
        """Take a rank's batch of a round out of turn, if it waits."""
        for batch in self.queues[rank].waiting():
            if (batch.round, batch.partition) == (at, partition):
                batch.wait_no_more()
                return batch
        return None
