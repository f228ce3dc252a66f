"""The machine of a plain partition: batches, buckets and classes, made ahead of requests.

    step() ─► Read
           ─► draft ─► number, turn ─┬─ for anyone ────────────────────────────────► Plan
                                     └─ for ranks: a group of each (epoch, bucket)
                                          └─ as many as there are ranks: a round ──► Plan of each
    commit() ─► done numbers, marks ─► records ─► a later life

Batches of a partition are 0, 1, 2 …  A life goes on from a mark, before which all are done.  It
makes the batches after it again, and leaves out those that are done or that trainers hold.  Each
epoch begins with a mark: from the last one a life knows the turn of the next batch.

Rounds follow from what is stored.  Of each epoch and bucket the next batches that were not done
when the run of ranks began (``before``) are a round, one for each rank in order; rounds of an epoch
are 0, 1, 2 …  An incomplete round is left out at the end of its epoch, and of the input: its
batches count as done once all others of their epoch are; until then another run may have them.

An order takes effect where it was given: after so many rows of the source, and so many batches.
So a later life, which makes batches again, makes the same ones.  The place of a batch says how many
orders were given before it: a batch that was handed out before another order came may differ from
the one of its number that is made now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..leasing.words import ANYONE, Batch, Order, Outlook, Slot, Token, Turn
from .input import Input, Rest
from .machine import MOST_AHEAD, REMEMBERED, TOO_LATE, Machine
from .plan import Draft, Plan, Read, RowShaper, State

#: Rounds of which the worst ratio of costs is known.
_COMPARED = 100
#: Kind of a round: its epoch (0 where batches cross epochs), and bucket.
_Kind = tuple[int, int]


class Numbers:
    """Which batches are done.  ``base`` is the first that a later life makes again."""

    def __init__(self, base: int = 0, done: Iterable[int] = ()) -> None:
        self.base = self.first_open = base  # the latter: the first that is not done
        self._done = {number for number in done if number >= base}
        #: In their order: number of the next batch, and how a later life goes on there.
        self._marks: deque[tuple[int, object]] = deque()
        self._pass_done()

    def mark(self, number: int, cursor: object) -> tuple[int, object] | None:
        """Add a mark; return it if a later life goes on from it at once."""
        if self._marks and self._marks[-1][0] == number:
            self._marks.pop()
        self._marks.append((number, cursor))
        return self._advance()

    def forget_marks(self) -> None:
        self._marks.clear()

    @property
    def above(self) -> list[int]:
        """Done batches from the base on."""
        return sorted(self._done)

    @property
    def end(self) -> int:
        """The number after all that are done."""
        return max(self._done, default=self.first_open - 1) + 1

    def is_done(self, number: int) -> bool:
        return number < self.base or number in self._done

    def done(self, number: int) -> tuple[int, object] | None:
        """Note a done batch; return the new mark from which a later life goes on, if any."""
        self._done.add(number)
        self._pass_done()
        return self._advance()

    def _pass_done(self) -> None:
        while self.first_open in self._done:
            self.first_open += 1

    def _advance(self) -> tuple[int, object] | None:
        moved = None
        while self._marks and self._marks[0][0] <= self.first_open:
            moved = self._marks.popleft()
        if moved is None or moved[0] < self.base:  # one in its place is of a later moment
            return None
        self._done.difference_update(range(self.base, moved[0]))
        self.base = moved[0]
        return moved


@dataclass(slots=True)
class Stored:
    """The state that a later life finds: the fold of the records."""

    base: int = 0
    cursor: State | None = None  # None: at the beginning
    done: set[int] = field(default_factory=set)  # from the base on
    orders: list[list[Any]] = field(default_factory=list)
    deals: int = 0  # number of runs that have begun, of ranks or of others
    run: int = 0
    world: int = 0
    before: set[int] = field(default_factory=set)  # what was done when the run began
    after: dict[int, Turn] = field(default_factory=dict)  # by rank: the turn after its last commit

    def fold(self, kind: str, *what: Any) -> None:
        """Take a record of ``PlainMachine.take_records``."""
        if kind == "done":
            self.done.add(*what)
        elif kind == "mark":
            self.base, self.cursor = what
            self.done = {number for number in self.done if number >= self.base}
        elif kind == "orders":
            (self.orders,) = what
        elif kind == "deal":
            self.deals, self.run, self.world, before = what
            self.before, self.after = set(before), {}
        else:
            deals, rank, turn = what
            if deals == self.deals:
                self.after[rank] = turn


class PlainMachine(Machine):
    """The machine of one partition."""

    ahead, voids = True, False
    drops = ()  # its records name each batch that it leaves out

    def __init__(self, number: int, source: Input, shaper: RowShaper) -> None:
        super().__init__(number)
        self.input = source
        self.shaper = shaper
        self.targets = shaper.targets()
        self._stored_orders = self.orders
        self._deals = 0
        self._ended = False
        self._numbers = Numbers()
        self._open: dict[int, tuple[Plan, Turn]] = {}  # not done; the turn is that without ranks
        self._claimed: dict[int, Batch] = {}  # that trainers hold from an earlier life
        self._passed: set[int] = set()  # those of them that were made again, and not written
        self._groups: dict[_Kind, list[Plan]] = {}  # incomplete rounds
        self._filled: dict[_Kind, int] = {}  # members of these, with those before the base
        self._left: dict[int, list[int]] = {}  # by epoch: open ones of rounds that are left out
        self._rounds: dict[int, int] = {}  # by epoch: number of the next round
        self._compared, self._ratios = 0, 0.0  # rounds, and the sum of their ratios
        self._last_ratios: deque[float] = deque(maxlen=_COMPARED)
        self._before: set[int] = set()
        self._after: dict[int, Turn] = {}
        self._records: list[tuple[Any, ...]] = []

    # Making

    def step(
        self, slot: Slot, epoch: int, limit: int, most: int = 1
    ) -> Read | list[Plan] | Outlook:
        """Do one step for a slot: a read, batches to be written (maybe none), or why there is none.

        ``limit`` bounds the rows of a read and does not affect batches, of which up to ``most`` are
        drafted.  A batch that has a body was written before.
        """
        if self.epoch > epoch:
            return Outlook.OVER
        limit = self._up_to_order(limit)
        read = self.input.next_read(limit) if self._reads_first() else None
        step = read or self.input.next_step(limit)
        if isinstance(step, Draft):
            plans = self._made(step)
            for _ in range(1, most):
                if self._reads_first() or (more := self.input.drafted()) is None:
                    break
                plans += self._made(more)
            return plans
        if isinstance(step, Read):
            return step
        self._leave_out()
        if step is Rest:
            self.input.begin_epoch()
            return []
        self._ended = True
        # A rank waits for the others: one that comes back finds it there, and is of its run.
        return Outlook.IDLE if self._claimed or self._open else Outlook.ENDED

    def _made(self, draft: Draft) -> list[Plan]:
        source = self.input
        number = source.next_number - 1
        turn = (0, number)
        if not source.across_batches:
            turn = source.epoch, number - source.first_of_epoch
        rows = draft.ends
        if rows is None:
            rows = 0
            for part in draft.parts:
                taken = part.rows
                rows += taken.stop - taken.start if isinstance(taken, slice) else len(taken)
        epoch = source.epoch_of(draft.parts[0].chunk)
        place = self._place_of(number)
        batch = Batch(self.number, number, ANYONE, turn, rows, place, epoch, draft.bucket)
        return self._deal(Plan(batch, draft), turn)

    def _place_of(self, number: int) -> bytes:
        if not self.orders:
            return b""
        before = (order.count for order in reversed(self.orders) if order.number <= number)
        count = next(before, self.orders[0].count - 1)
        return count.to_bytes(4, "little") if count else b""

    def _deal(self, plan: Plan, turn: Turn) -> list[Plan]:
        """Return what goes out now: a batch, or a round that it completes."""
        number, world = plan.batch.number, self.world
        done = self._numbers.is_done(number)
        if done and (not world or number in self._before):
            return []
        if not done:
            self._open[number] = plan, turn
        if not world:
            return self._out([plan])
        epoch = turn[0]
        kind = epoch, plan.batch.bucket
        self._leave_out(epoch)
        group = self._groups.setdefault(kind, [])
        group.append(plan)
        self._filled[kind] = self._filled.get(kind, 0) + 1
        if self._filled[kind] < world:
            return []
        del self._groups[kind], self._filled[kind]
        at = self._rounds.get(epoch, 0)
        self._rounds[epoch] = at + 1
        self._compare([member.draft.cost for member in group])
        for rank, member in enumerate(group, world - len(group)):  # those before are done
            member.batch.slot, member.batch.turn = rank, (epoch, at)
        return self._out([one for one in group if one.batch.number in self._open])

    def _compare(self, costs: list[float]) -> None:
        """Count a round of balanced batches by the cost of its dearest rank over the mean."""
        if len(costs) == self.world and (total := sum(costs)) > 0:
            self._last_ratios.append(ratio := max(costs) * self.world / total)
            self._ratios += ratio
            self._compared += 1

    def balance(self) -> dict[str, float]:
        """Return the number of rounds, their mean ratio, and the worst of the last."""
        mean = self._ratios / (self._compared or 1)
        worst = max(self._last_ratios, default=0.0)
        return {"rounds": self._compared, "mean": mean, "worst": worst}

    def _out(self, plans: list[Plan]) -> list[Plan]:
        if not self._claimed:
            return plans
        held = [one.batch.number for one in plans if one.batch.number in self._claimed]
        self._passed.update(held)
        return [one for one in plans if one.batch.number not in held]

    def _leave_out(self, epoch: int | None = None) -> None:
        """Leave out incomplete rounds: all, or those before an epoch."""
        for kind in [one for one in self._filled if epoch is None or one[0] < epoch]:
            del self._filled[kind]
            group = [plan.batch.number for plan in self._groups.pop(kind, ())]
            self._left.setdefault(kind[0], []).extend(n for n in group if n in self._open)
        self._settle_left()
        if epoch is not None:
            self._rounds = {of: at for of, at in self._rounds.items() if of >= epoch}

    def _settle_left(self) -> None:
        """Let what is left out count as done where that is all that is open of its epoch."""
        if self._claimed:
            return
        for epoch, numbers in [*self._left.items()]:
            if len(numbers) < sum(turn[0] == epoch for _, turn in self._open.values()):
                continue
            del self._left[epoch]
            for number in numbers:
                plan, _ = self._open.pop(number)
                if plan.batch.body is not None:
                    self.gone.append(plan.batch)
                self.left_out += plan.batch.rows
                self._done(number)

    def chunks(self) -> set[int]:
        """Return the chunks whose payload future batches need."""
        chunks = self.input.chunks()
        for plan, _ in self._open.values():
            if plan.batch.body is None:
                chunks.update(plan.draft.of_chunks())
        return chunks

    # Trainers

    def next_turn(self, slot: Slot) -> Turn:
        source = self.input
        number = max(source.next_number, self._numbers.first_open)  # those before are done
        if self.world:  # a new life has not yet made all rounds that the rank has done
            turn = self.epoch, self._rounds.get(self.epoch, 0)
            turn = max(turn, self._after.get(slot, turn)) if isinstance(slot, int) else turn
        elif source.across_batches:
            turn = 0, number
        else:
            turn = source.epoch, number - source.first_of_epoch
        return min([turn, *self._unwritten_turns(slot)]) if self.unwritten else turn

    def live(self, slot: Slot) -> bool:
        return True

    def seat(self, slot: Slot) -> None:
        """Nothing: no slot has lanes."""

    def commit(self, batch: Batch, token: Token, payload: object) -> tuple[str, str] | None:
        number = batch.number
        if self._numbers.is_done(number):
            return "stale", f"batch {batch} is done"
        if self.world and isinstance(batch.slot, int):
            turn = batch.turn[0], batch.turn[1] + 1
            turn = self._after[batch.slot] = max(turn, self._after.get(batch.slot, turn))
            self._records.append(("after", self._deals, batch.slot, turn))
        self._open.pop(number, None)
        self._claimed.pop(number, None)
        self._passed.discard(number)
        self._done(number)
        if self._left:
            self._settle_left()
        return None

    def _done(self, number: int) -> None:
        self._records.append(("done", number))
        if (moved := self._numbers.done(number)) is not None:
            self._records.append(("mark", *moved))

    def returned(self, batch: Batch) -> bool:
        number = batch.number
        if self._claimed.pop(number, None) is None:
            return True
        if number in self._passed:
            self._passed.remove(number)
            self.unwritten.append(self._open[number][0])
        return False

    def leave(self, slot: Slot, since: Turn = (0, -1)) -> None:
        """Nothing: no slot has lanes."""

    def reclaim(self, batch: Batch) -> bool:
        number = batch.number
        if self._numbers.is_done(number) or number in self._claimed:
            return False
        if batch.place != self._place_of(number):
            return False
        if number in self._open:
            plan, _ = self._open[number]
            if plan.batch.body is not None:
                return False
            if not any(plan in group for group in self._groups.values()):
                self._passed.add(number)
                self.unwritten = deque(one for one in self.unwritten if one is not plan)
        elif self._ended or not 0 <= number - self.input.next_number < MOST_AHEAD:
            return False
        epoch, index = batch.turn  # each turn has a batch, and an epoch may have none …
        late = MOST_AHEAD if self.world else 0  # … and a round waits for its last batch
        if index > number + late or epoch > self.input.epoch + MOST_AHEAD:
            return False
        self._claimed[number] = batch
        return True

    def deal(self, run: int, world: int) -> list[Batch]:
        """Return what goes out now; what has no body is written next, and others follow it."""
        left = [self._open[number] for number in sorted(self._open)]
        self.run, self.world = run, world
        self._before = {*self._numbers.above}
        self._deals += 1
        self._records.append(("deal", self._deals, run, world, self._numbers.above))
        self._numbers.forget_marks()  # they lack this deal
        for of in (self._open, self._claimed, self._passed, self._groups, self._filled, self._left):
            of.clear()
        self._rounds, self._after = {}, {}
        dealt = []
        for plan, turn in left:
            plan.batch.slot, plan.batch.turn = ANYONE, turn
            dealt += self._deal(plan, turn)
        bare = (at for at, plan in enumerate(dealt) if plan.batch.body is None)
        there = next(bare, len(dealt))
        self.unwritten = deque(dealt[there:])
        return [plan.batch for plan in dealt[:there]]

    # Orders

    def _place(self, kind: str) -> tuple[int, int] | None:
        if self.is_behind():
            return None
        if self._ended and kind != "close":
            raise ValueError(TOO_LATE)
        # a later life repeats the stored orders from the base on; one place is left for "close"
        needed = [order for order in self.orders if order.number >= self._numbers.base]
        if kind != "close" and len(needed) >= REMEMBERED - 1:
            raise ValueError(
                f"{len(needed)} changes were made while earlier batches are not committed, which "
                f"is the limit: commit batch {self._numbers.first_open}, or change less often"
            )
        number = self.input.next_number
        # Batches that are formed and not yet made keep their rows.
        return number, number + (0 if kind == "close" else self.shaper.ready())

    def is_behind(self) -> bool:
        """Return whether batches come that an earlier life has made and trainers may have."""
        if self._ended:
            return False
        first = self.input.next_number
        if self._pending or self._numbers.end > first:
            return True
        if any(number >= first for number in self._claimed):
            return True
        return any(  # some ranks have done a round of which others lack their batches
            self._filled[kind] > sum(one.batch.number in self._open for one in group)
            or any(one.batch.number in self._claimed for one in group)
            for kind, group in self._groups.items()
        ) or bool(self._filled.keys() - self._groups.keys())

    def will_resize(self) -> bool:
        """Return whether a stored change of sizes is still to take effect."""
        return any(order.kind == "batch_size" for order in self._pending)

    def _reached(self, order: Order) -> bool:
        return super()._reached(order) and order.number <= self.input.next_number

    def _reads_first(self) -> bool:
        """Return whether the rows before a pending order are read before the next batch is formed.

        The life that got the order had read these, maybe at once, and had not made this batch.
        """
        return bool(self._pending) and self._pending[0].number <= self.input.next_number

    def _resize(self, batch_sizes: Sequence[int]) -> None:
        if tuple(batch_sizes) != self.shaper.batch_sizes:
            self.shaper.set_batch_sizes(batch_sizes)

    # Other lives

    def mark(self, cursor: object) -> None:
        """Note how a later life goes on here: by ``cursor()``, and what the caller adds to it."""
        if (moved := self._numbers.mark(self.input.next_number, cursor)) is not None:
            self._records.append(("mark", *moved))

    def cursor(self) -> State:
        """Return plain data from which another life goes on after the last batch."""
        last = self.orders[-1].count if self.orders else 0
        left = (self._open[number][0] for numbers in self._left.values() for number in numbers)
        return {
            **self.input.cursor(),
            "orders": last - len(self._pending),
            "deals": self._deals,
            "filled": [[*kind, n] for kind, n in self._filled.items()],
            "rounds": [*self._rounds.items()],
            "left_out": self.left_out + sum(plan.batch.rows for plan in left),
        }

    def resume(self, stored: Stored) -> list[Read]:
        """Go on as another life left it; return the reads whose chunks are needed again."""
        cursor: State | None = stored.cursor
        self._deals, self.run, self.world = stored.deals, stored.run, stored.world
        self._numbers = Numbers(stored.base, stored.done)
        self._before, self._after = set(stored.before), dict(stored.after)
        self.orders = self._stored_orders = [Order(*one) for one in stored.orders]
        self._pending = deque(self.orders)
        if cursor is None:
            return []
        reads = self.input.restore(cursor)
        self.left_out = cursor["left_out"]
        self._pending = deque(one for one in self.orders if one.count > cursor["orders"])
        if cursor["deals"] == self._deals:  # else rounds began at or after it
            self._filled = {(epoch, bucket): n for epoch, bucket, n in cursor["filled"]}
            self._rounds = dict(cursor["rounds"])
        return reads

    def take_records(self) -> list[tuple[Any, ...]]:
        """Return what a later life needs to know of since the last call; see ``Stored.fold``."""
        records, self._records = self._records, []
        if self.orders is not self._stored_orders:
            self._stored_orders = self.orders
            records.append(("orders", [order.to_plain() for order in self.orders]))
        return records

    # Queries

    def due(self) -> int | None:
        """Return the epoch of the first uncommitted rows; None where none is left."""
        least = min((plan.batch.epoch for plan, _ in self._open.values()), default=None)
        return self.input.next_epoch if least is None and not self._ended else least

    def waits_for(self) -> str:
        return self.shaper.waits_for()

    def sizes(self) -> dict[str, int]:
        """Return the number of rows that were read and are in no batch yet."""
        return {"incomplete": self.shaper.waiting()}

    def unfinished(self) -> tuple[int, int]:
        return self.shaper.waiting(), sum(plan.batch.rows for plan, _ in self._open.values())
