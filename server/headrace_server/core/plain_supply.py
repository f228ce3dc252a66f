"""The batches of a plain feed that no trainer has, and which trainer gets which.

    made() ─► stream ───────────┐
    put_back() ─► waiting again ┴─► next in turn ─┬─ trainers in turn
                                                  └─ ranks: dealt in rounds ─► each its own

The order of a feed is by (number, partition), see feed_order.py; batches that came back go out
before new ones.  In coordinated mode the same stream is dealt in rounds, see plain_rounds.py.  A
round that can not be completed at the end of the feed is dropped, so that all ranks finish
together.

Rounds outlive an owner: they are stored with their partition before their batches go out, and the
next life deals them again as they were, see plain_rounds.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_proto.messages import Following, Idle

from .batch_lifecycle import BatchLifecycle
from .dispatch_effects import Batch, Dealt, PassOver, TurnQueue
from .feed_order import FeedOrder
from .plain_rounds import PlainRounds
from .rounds import DealtRounds
from .supply import Supply
from .trainers import Trainer


class PlainSupply(Supply):
    """The supply of a feed whose batches any trainer may get."""

    def __init__(self, partitions: Sequence[int], lifecycle: BatchLifecycle) -> None:
        super().__init__(lifecycle)
        self._partitions = tuple(partitions)
        self.untaken = self.stream = FeedOrder(self._partitions)
        self._again = TurnQueue()  # returned batches that belong to no rank
        self._rounds = PlainRounds()
        self._full = False  # whether there is no room for the next batch

    # From workers

    def made(self, batch: Batch) -> bool:
        self.stream.made(batch)
        self._full = False
        # Until ranks have joined, the batch only waits.
        if self.world and self._rounds.lacking:
            self._rounds.forget_lacking(batch.partition, batch.number)
            if self._rounds.made(batch):
                self.pick(batch.order)
                self._deal_again(batch)
        return True

    def starved(self, partition: int) -> None:
        self._full = True

    def start(self, partition: int, number: int, turn: int = -1) -> None:
        self.stream.start(partition, number, turn)

    def begin_epoch(self, partition: int, turn: int) -> None:
        self.stream.begin_epoch(partition, turn)

    def end(self, partition: int) -> None:
        if self.world:
            self._rounds.forget_lacking(partition)
        self.stream.end(partition)
        self._trainers.due.extend(self._trainers.by_rank)

    # From trainers

    def start_run(self, run: int, world: int) -> PlainSupply:
        """Prepare for a trainer of a run; the first one sets the round that all continue with."""
        rounds = self._rounds
        if (run, world) == (rounds.run, rounds.world):
            return self
        had_ranks = bool(rounds.world) or rounds.loaded
        for batch in rounds.begin_run(run, world):
            self._again.push(batch)
        self.world = world
        self._place()
        if world or had_ranks:
            self._lifecycle.effects.append(Dealt(self._partitions))
        return self

    def _place(self) -> None:
        """Deal batches, made before any rank had joined, to their ranks."""
        for order in list(self._rounds.lacking):
            batch = self.pick(order)
            if batch is not None and self._rounds.made(batch):
                self._deal_again(batch)
            elif batch is None and not self.will_make(order):
                del self._rounds.lacking[order]

    def _deal_again(self, batch: Batch) -> None:
        """Let a batch that was dealt wait for its rank."""
        self._rounds.push(batch)
        self._trainers.due.append(batch.rank)

    def put_back(self, session: int, batch: Batch) -> bool:
        if batch.rank < 0:
            self._again.push(batch)
        else:
            self._deal_again(batch)
        return True

    def settled(self, batch: Batch) -> None:
        self._rounds.settled(batch)

    # Rounds of another life

    def load_rounds(self, partition: int, dealt: DealtRounds) -> None:
        self._rounds.load(partition, dealt)

    def rounds_dealt(self, partition: int) -> DealtRounds:
        return self._rounds.dealt_of(partition)

    # Claims

    def pick(self, name: tuple[int, ...]) -> Batch | None:
        number, partition = name
        return self._rounds.pick((number, partition)) or self.stream.pick(number, partition)

    def will_make(self, name: tuple[int, ...]) -> bool:
        return self.stream.will_make(*name)

    # The hand-out

    def deal(self, paused: bool) -> None:
        if not paused:
            self._deal_out()
        if self.world and not self._again and not self.stream.open:
            self._leave_out(self._rounds.drop())

    def _leave_out(self, batches: Iterable[Batch]) -> None:
        """Drop batches that fill no round, also for later lives."""
        for batch in batches:
            self._lifecycle.effects.append(PassOver(batch.partition, batch.number))
            self._lifecycle.drop(batch, "incomplete_round")

    def _deal_out(self) -> None:
        trainers = self._trainers
        due, asking = trainers.due, trainers.asking
        while due or asking:
            ranked = bool(due)
            trainer = trainers.by_rank.get(due.popleft()) if ranked else next(iter(asking.values()))
            if trainer is None:
                continue
            rank, credits, batch = trainer.rank, trainers.credits(trainer), None
            if credits > 0:
                batch = self._fresh() if rank < 0 else self._next_of_rank(rank)
            if batch is not None:
                self._lifecycle.grant(trainer, batch)
                credits -= 1
                if ranked:
                    due.append(rank)
            if credits <= 0:
                asking.pop(trainer.session, None)
            # returned batches go to trainers that have waited for longer
            elif batch is not None and not ranked:
                asking.move_to_end(trainer.session)
            elif not ranked:
                break

    def _next_of_rank(self, rank: int) -> Batch | None:
        while (batch := self._rounds.pop(rank, self._coming())) is None:
            fresh = self._fresh()
            if fresh is None:
                return None
            self._leave_out(self._rounds.begin_epoch(fresh))
            trainers, members = self._trainers, self._rounds.add(fresh)
            for member in members:
                self._lifecycle.leases.void(member)  # from here on it belongs to this rank
                trainers.due.append(member.rank)
            if members:
                self._lifecycle.effects.append(Dealt((fresh.partition,)))
            # rounds of other partitions waited for its rounds
            if fresh.partition not in self._coming():
                trainers.due.extend(trainers.by_rank)
        return batch

    def _coming(self) -> set[int]:
        """Return the partitions that have or may get batches to deal."""
        return {*self.stream.live, *(batch.partition for batch in self._again.waiting())}

    def _fresh(self) -> Batch | None:
        """Return a returned batch, else the next of the stream."""
        return self._again.pop() if self._again.count else self.stream.next()

    def tell(self, paused: bool) -> None:
        if not (paused or self.stream.open or self._again):
            for trainer in self._trainers.asking.values():
                if not trainer.idle and trainer.rank < 0:
                    trainer.idle = True
                    self._lifecycle.effects.append(Idle(trainer.session, trainer.seq))
        if self.world:
            if not paused and (new := self._trainers.new_ranks()):
                self._lifecycle.effects += self._rounds.tell(new, self._coming())
        elif self._full:
            self._tell_following()

    def _tell_following(self) -> None:
        """Tell each waiting trainer once which batch this owner makes next.

        A trainer that has an earlier batch from another owner then takes that one.  Otherwise two
        trainers could deadlock, each waiting for the owner whose batches the other one holds.
        """
        following = self.stream.following()
        for trainer in self._trainers.asking.values():
            if trainer.following != following and following is not None:
                trainer.following = following
                self._lifecycle.effects.append(Following(trainer.session, *following))

    # Queries

    @property
    def open(self) -> bool:
        return self.stream.open

    def is_exhausted(self, trainer: Trainer) -> bool:
        if self.stream.open or self._again:
            return False
        return trainer.rank < 0 or not self._rounds.queues[trainer.rank].count

    def missing(self) -> tuple[int, int] | None:
        return self.stream.missing()

    def waiting(self) -> int:
        return self.stream.count
