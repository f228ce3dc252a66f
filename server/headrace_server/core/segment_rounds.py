"""The batches of segments for ranks: whole rounds of each partition, in one order.

    ranks ask ─► Want(partition, rounds) ─► made() × ranks ─► a whole round ─► next(): each its own
                                              ▲
    a rank leaves: its batches wait for it ───┘ or, with states that it had alone, are made again

Ranks take rounds by (round, partition), for any division of partitions among owners, so all take
the same ones.  A partition that has ended is passed over.  Partitions form the rounds, see
``RoundMembers``, and have stored a round before its batches go out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .admitted_examples import AT_SERVER, place_of
from .dispatch_effects import Batch, Dealt, Effect, JoinRefused, Leave, TurnQueue, Want
from .partition import TURN_BITS
from .rounds import DealtRounds, Rounds
from .segment_supply import Asking, SegmentSupply
from .trainers import Trainer


class SegmentRounds(SegmentSupply):
    """The batches of ranks in step."""

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

    def tell(self, paused: bool) -> None:
        """Tell a rank of which round its next batch here is: it waits for the owner of its next."""
        if not paused and (new := self._trainers.new_ranks()):
            self._lifecycle.effects += self._rounds.tell(new, self._live())

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


SegmentRounds.ranked = SegmentRounds


def check_rows(world_size: int, batch_size: int, capacity: int | None) -> None:
    """Raise JoinRefused where a partition can not have the examples of a whole round in flight."""
    rows = world_size * batch_size
    if capacity is not None and capacity < rows:
        raise JoinRefused(
            f"world_size={world_size}: a round is of world_size x batch_size={rows} examples in "
            f"flight, and the feed has capacity={capacity}; declare capacity={rows} or more"
        )
