"""The batches of a plain feed that no trainer has, and which trainer gets which.

    made() ─► stream ───────────┐
    put_back() ─► waiting again ┴─► next in turn ─┬─ trainers in turn
                                                  └─ ranks: dealt in rounds ─► each its own

The order of a feed is by (number, partition), see ``FeedOrder``; batches that came back go out
before new ones.  In coordinated mode the same stream is dealt in rounds, see rounds.py.  A
round that can not be completed at the end of the feed is dropped, so that all ranks finish
together.

Rounds outlive an owner: they are stored with their partition before their batches go out, and the
next life deals them again as they were, see rounds.py.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace_proto.messages import Following, Idle

from .dispatch_effects import Batch, Dealt, PassOver, TurnQueue, of_numbers
from .lease import BatchLifecycle
from .partition_turns import Untaken
from .rounds import DealtRounds, PlainRounds
from .supply import Supply
from .trainers import Trainer


@dataclass(slots=True)
class _Partition:
    ready: deque[Batch] = field(default_factory=deque)
    next_number: int = 0
    next_turn: int = 0
    ended: bool = False
    gaps: bool = False  # an earlier server may have seen some of its batches done


class FeedOrder(Untaken):
    """The batches that are made and not yet taken: ``count`` of them, of ``nbytes``.

        made(0/0) made(1/0) … ─► a queue for each partition ─► next(): 0/0 1/0 2/0  0/1 1/1 …

    The turn of a batch is its number.  Where batches end with their epoch it is its epoch and its
    number in the epoch, and a partition that begins the next epoch (``begin_epoch``) does not block
    others.  Each turn belongs to the partition whose next batch is the first by (turn, partition),
    and waits for that batch.  So the order depends neither on the speed of partitions, nor on the
    batches that an earlier server has handed out.  The partitions are those of one owner, which
    need not be all.
    """

    def __init__(self, partitions: Iterable[int]) -> None:
        self.count = self.nbytes = 0
        self._partitions = of_numbers(partitions, _Partition)
        # number of partitions that have batches or will make some
        self._live = len(self._partitions)
        # Heap of the least next turn of each partition, and the partition.
        self._turns = [(0, partition) for partition in self._partitions]

    @property
    def open(self) -> bool:
        """Whether batches are here, or will come."""
        return self._live > 0

    def made(self, batch: Batch) -> None:
        """Take the next batch of a partition."""
        here = self._partitions[batch.partition]
        passes = here.gaps and batch.number > here.next_number
        if here.ended or (batch.number != here.next_number and not passes):
            raise ValueError(
                f"partition {batch.partition} made batch {batch.number}; "
                f"next is {'nothing' if here.ended else here.next_number}"
            )
        if batch.turn < 0:
            batch.turn = batch.number
        here.next_number = batch.number + 1
        here.next_turn = batch.turn + 1
        here.ready.append(batch)
        self.count += 1
        self.nbytes += batch.nbytes

    def start(self, partition: int, number: int, turn: int = -1) -> None:
        """Let a partition continue where an earlier server was: with this batch or a later one."""
        here = self._partitions[partition]
        here.next_number = max(here.next_number, number)
        here.next_turn = max(here.next_turn, number if turn < 0 else turn)
        here.gaps = True

    def begin_epoch(self, partition: int, turn: int) -> None:
        """Note that the next batch of a partition has this turn, or a later one."""
        here = self._partitions[partition]
        here.next_turn = max(here.next_turn, turn)

    def pick(self, number: int, partition: int) -> Batch | None:
        """Take one batch out of turn, if it is here."""
        here = self._partitions[partition]
        for batch in here.ready:
            if batch.number == number:
                here.ready.remove(batch)
                return self._taken(batch, here)
        return None

    def _taken(self, batch: Batch, here: _Partition) -> Batch:
        self._live -= here.ended and not here.ready
        self.count -= 1
        self.nbytes -= batch.nbytes
        return batch

    def of(self, partition: int) -> int:
        return len(self._partitions[partition].ready)

    def will_make(self, number: int, partition: int) -> bool:
        """Return whether a batch may still come."""
        here = self._partitions[partition]
        return not here.ended and number >= here.next_number

    def end(self, partition: int) -> None:
        """Note that a partition makes no more batches."""
        here = self._partitions[partition]
        if not here.ended:
            here.ended = True
            self._live -= not here.ready

    def next(self) -> Batch | None:
        """Take the batch whose turn it is, if it is here."""
        turn = self._turn()
        if turn is None:
            return None
        here = self._partitions[turn[1]]
        if not here.ready:
            return None
        heapq.heapreplace(self._turns, (turn[0] + 1, turn[1]))
        return self._taken(here.ready.popleft(), here)

    @property
    def live(self) -> Sequence[int]:
        """Partitions that have batches or may make some."""
        return [p for p, here in self._partitions.items() if here.ready or not here.ended]

    def following(self) -> tuple[int, int] | None:
        """Return turn and partition of the batch for which trainers wait, if any."""
        turn = self._turn()
        return None if turn is None or self._partitions[turn[1]].ready else turn

    def missing(self) -> tuple[int, int] | None:
        """Return number and partition of the batch for which trainers wait, if any."""
        following = self.following()
        if following is None:
            return None
        return self._partitions[following[1]].next_number, following[1]

    def _turn(self) -> tuple[int, int] | None:
        """Return the least next turn and its partition."""
        turns = self._turns
        while turns:
            turn, partition = turns[0]
            here = self._partitions[partition]
            first = here.ready[0].turn if here.ready else here.next_turn
            if not here.ready and here.ended:
                heapq.heappop(turns)
            elif first > turn:
                heapq.heapreplace(turns, (first, partition))
            else:
                return turn, partition
        return None


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
        if self._full and not self.world:
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
