"""Chunks of one partition in memory, and batches of their rows: the maker of plain batches.

chunk ─► facts of the shape ─► held ─► Assembly of a plan
                                └─► forgotten
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack
from headrace_proto.schema import RESERVED, Field

from ..pipeline.declaration import Shape
from ..reading.chunk import Chunk
from ..reading.columns import measured
from ..reading.intake import Intake
from ..reading.sampling import Stratified
from ..shaping.class_queues import ClassQueues
from ..shaping.input import Partition, Rest
from ..shaping.plan import RESIZED, Plan, Read
from ..shaping.stored_state import Change, Saved
from .assemble import Assembly, Parts, RaggedAssembly, batch_schema, ragged_schema
from .partition_commits import PartitionCommits, Target
from .shaping import Shaping, with_facts
from .stored_examples import Numbers

#: Maximum count of a bucket's elements (or costs), so that sums fit 64 bits.
_MOST_COUNTED = 2**53


@dataclass(frozen=True, slots=True, eq=False)
class HeldChunk:
    """A chunk in memory, with all that a later process needs to read it again."""

    chunk: Chunk
    before: Any  # the state of the stages before it; None where they have none
    epoch: int


class PlainMaker:
    """The maker of one partition.  ``held`` are its chunks in memory."""

    made_ahead = True
    together = inf  # number of batches that may be announced at once

    def __init__(self, intake: Intake, shape: Shape, partition: int) -> None:
        self.shaping = Shaping(shape, partition)
        self.capacity = self.shaping.capacity
        self.most_rows = self.shaping.most_rows
        self.held: dict[int, HeldChunk] = {}
        self.padding: dict[int, list[int]] = {}  # bucket → elements with padding, and without
        self._intake = intake
        self._known_fields: Mapping[str, Field] | None = None  # valid up to the next chunk

    @property
    def properties(self) -> Mapping[str, Any]:
        """Description of the feed for trainers, beside its schema."""
        return RESIZED if self.shaping.resized else {}

    def sizes_changed(self) -> None:
        """Adapt the bound of a read to the current batch sizes."""
        self.most_rows = self.shaping.most_rows

    @property
    def schema(self) -> dict[str, Field]:
        """The schema of a batch, with the declared batch size."""
        shaping = self.shaping
        if shaping.ragged:
            return ragged_schema(self._fields, shaping.batch_size)
        return batch_schema(shaping.padded_fields(self._fields), shaping.batch_size)

    @property
    def _fields(self) -> Mapping[str, Field]:
        """Fields of one row of a batch, facts included."""
        if self._known_fields is None:
            known = self._intake.fields
            if known is None:
                return {}
            facts = self.shaping.fields_after(self._intake.stages.fact_fields)
            named = {RESERVED + name: field for name, field in facts.items()}
            self._known_fields = {**known, **named}
        return self._known_fields

    # Chunks

    def read(self, read: Read, before: Any, chunk: Chunk) -> tuple[Chunk, dict[str, Any]]:
        """Hold a chunk; return its rows that can be batched, and the facts for the machine.

        ``before`` is the state of the stages before the read.
        """
        chunk, facts = self.shaped(chunk)
        if len(chunk):
            self.held[read.chunk] = HeldChunk(chunk, before, read.epoch)
        return chunk, dict(facts)

    def read_again(self, read: Read, before: Any) -> None:
        """Hold a chunk that an earlier process read."""
        chunk = self.shaped(self._intake.read_again(read))[0]
        self.held[read.chunk] = HeldChunk(chunk, before, read.epoch)

    def shaped(self, chunk: Chunk) -> tuple[Chunk, Mapping[str, np.ndarray]]:
        """Return the rows that fit, with their facts as columns, and the machine's facts."""
        self._known_fields = None
        chunk, facts = self.shaping.facts(chunk, self._intake.bad)
        columns = {name: measured(column) for name, column in chunk.columns.items()}
        return with_facts(chunk.with_columns(columns)), facts

    def forget(self) -> bool:
        """Drop chunks that no later batch needs; return whether there were any."""
        needed = self.shaping.machine.chunks()
        if len(needed) == len(self.held):
            return False
        for number in self.held.keys() - needed:
            del self.held[number]
        return True

    # Batches

    def begin(self, plan: Plan) -> tuple[Assembly, None]:
        """Return the batch of a plan."""
        shaping, parts = self.shaping, self.parts(plan)
        if shaping.ragged:
            return RaggedAssembly(parts, self._fields), None
        bucket = plan.draft.meta.get("bucket", 0)
        return Assembly(parts, self._fields, shaping.dynamic_pad, shaping.padding, bucket), None

    def parts(self, plan: Plan) -> Parts:
        """Return rows of chunks that make a batch."""
        return [(self.held[part.chunk].chunk, part.rows) for part in plan.draft.parts]

    def epoch_of(self, plan: Plan) -> int:
        """Return the epoch of a batch's first row."""
        return self.held[plan.draft.parts[0].chunk].epoch

    def made(self, plan: Plan) -> Mapping[str, Any]:
        """Count a batch that lies in its block; return its description."""
        meta: Mapping[str, Any] = plan.draft.meta
        self.count(meta)
        return meta

    def count(self, meta: Mapping[str, Any]) -> None:
        """Count the padding of a batch that was made, or skipped because it is done."""
        if "padded" in meta:
            counts = self.padding.setdefault(meta["bucket"], [0, 0])
            for i, name in enumerate(("padded", "real")):
                counts[i] = min(counts[i] + meta[name], _MOST_COUNTED)

    def prepare(self) -> bool:
        """Return False: plain batches are made as soon as possible."""
        return False

    def targets(self) -> list[Stratified | ClassQueues]:
        """Return the stages and shapes whose proportions of classes can be changed."""
        return [*self._intake.stratified, *self.shaping.machine.targets()]

    def stats(self, of_stages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return counters by class, where there are classes, and the padding of buckets."""
        by_class = [{}, *of_stages, *(one.stats() for one in self.shaping.machine.targets())]
        padding = {str(bucket): list(counts) for bucket, counts in self.padding.items()}
        return {"classes": by_class[-1], "padding": padding}

    def sizes(self) -> dict[str, int]:
        """Return the number of rows that were read and are in no batch yet."""
        return {"incomplete": self.shaping.machine.waiting()}

    def progress(self) -> dict[str, Any]:
        """Return nothing: the intake reports all progress."""
        return {}


logger = logging.getLogger("headrace.worker")

#: Maximum number of stored orders; the cursor includes the effect of older ones.
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Order:
    """One order, by its ``kind``.

    "close" says whether to cancel, "target" has proportions of classes, "batch_size" a size for
    each bucket.

        given(read, number, order) ─► listed, and stored with the partition
        restore(count)             ─► those that the cursor does not show are pending
        due(read, number)          ─► each at the place where it was given

    A later process makes batches again from an earlier cursor.  It makes the same ones only if
    every order takes effect after the same number of rows and of batches as when it was given.

        announced() ─► cursor after that batch ─┐
        saved()     ─► which batches are done ──┴─► Change ─► store        resume() ◄─ Saved
        close(), set_target(), set_batch_sizes() ─► Orders ────────────┘

    A later process resumes from the cursor of the first open batch, skips done batches after it,
    and carries out each order at the place where it was given.
    """

    count: int  # number of orders up to this one
    read: int  # number of rows read from the source before it
    number: int  # of the first batch planned after it
    kind: str
    what: Any
    since: int = 0  # the first batch that it affects

    def to_plain(self) -> list[Any]:
        return [self.count, self.read, self.number, self.kind, self.what, self.since]


class Orders:
    """All orders of one partition."""

    def __init__(self) -> None:
        self._given: list[Order] = []
        self._pending: deque[Order] = deque()

    @property
    def count(self) -> int:
        """Number of orders that have taken effect."""
        if self._pending:
            return self._pending[0].count - 1
        return self._given[-1].count if self._given else 0

    @property
    def waits(self) -> bool:
        """Whether an order of an earlier process is pending."""
        return bool(self._pending)

    def given(self, read: int, number: int, kind: str, what: Any, since: int = 0) -> Order:
        """Add an order.  While others are pending it takes effect right after them."""
        if self._pending:
            last = self._pending[-1]
            read, number, since = last.read, last.number, max(since, last.since, last.number)
        count = self._given[-1].count + 1 if self._given else 1
        order = Order(count, read, number, kind, what, since)
        self._given = [*self._given, order][-_REMEMBERED:]
        if self._pending:
            self._pending.append(order)
        return order

    def await_place(self, order: Order) -> None:
        """Let the last order take effect later, at its place."""
        self._pending.append(order)

    def will(self, kind: str) -> bool:
        """Return whether an order of this kind is pending."""
        return any(order.kind == kind for order in self._pending)

    def known(self, kind: str, what: Any) -> bool:
        """Return whether an equal order was given before."""
        return any((order.kind, order.what) == (kind, what) for order in self._given)

    def to_plain(self) -> list[Any]:
        """Return the orders in their stored form."""
        return [order.to_plain() for order in self._given]

    def load(self, plain: list[Any]) -> None:
        """Load the stored orders of an earlier process."""
        self._given = [Order(*one) for one in plain]

    def restore(self, count: int) -> None:
        """Resume from a cursor at which ``count`` orders had taken effect."""
        self._pending = deque(order for order in self._given if order.count > count)

    def limit(self, read: int, limit: int) -> int:
        """Return the maximum number of rows of a read that stops at the place of an order."""
        left = self._pending[0].read - read if self._pending else 0
        return min(limit, left) if left > 0 else limit

    def due(self, read: int, number: int) -> Order | None:
        """Remove the next pending order if its place is reached.

        An order that had to wait for its batch has its place after the rows that are read by then.
        """
        if self._pending:
            order = self._pending[0]
            if read >= order.read and number >= order.number:
                there = replace(order, read=read)
                self._given = [there if one is order else one for one in self._given]
                return self._pending.popleft()
        return None


#: Maximum number of batches by which a trainer's claim can delay the closing of the input.
_MOST_AHEAD = 4096


class PlainCommits(PartitionCommits):
    """The commits of one partition: batches are done or not, and a commit brings no states."""

    def __init__(self, intake: Intake, machine: Partition, maker: PlainMaker) -> None:
        self._machine = machine
        self._numbers = Numbers()
        self._changes: list[Change] = []
        self._claimed = 0  # number below which trainers may hold batches of an earlier process
        self._intake = intake
        self._maker = maker
        self._orders = Orders()
        self._placed = False  # whether an order that waited has taken effect: see take_placed
        self._read_before = 0  # rows of the source read by earlier processes

    # Commits

    def saved(self, number: int, block: Any = b"", columns: Sequence[Any] = ()) -> tuple[str, str]:
        moved = self._numbers.done(number)
        change = self._change
        change.done.append(number)
        if moved is not None:
            change.base, change.meta["cursor"] = moved
        return "", ""

    def claim(self, number: int, segments: bytes) -> int | None:
        if self._numbers.is_done(number):
            return None
        if number < self._machine.next_number + _MOST_AHEAD:
            self._claimed = max(self._claimed, number + 1)
        return number

    @property
    def done_numbers(self) -> list[int]:
        return self._numbers.above

    @property
    def _change(self) -> Change:
        """The change to be stored next."""
        if not self._changes:
            self._changes.append(Change())
        return self._changes[0]

    def take_changes(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes

    # Steps

    def next_step(self, limit: int) -> Read | Plan | type[Rest] | None:
        if self._orders.waits:
            number = self._machine.next_number
            while (order := self._orders.due(self._rows_read, number)) is not None:
                self._follow(order)
                self._store_orders()
                self._placed = True
            limit = self._orders.limit(self._rows_read, limit)
        return self._machine.next_step(limit)

    def planned(self, plan: Plan) -> bool:
        if self._numbers.is_done(plan.number):
            self._maker.count(plan.draft.meta)
            return False
        return True

    def tidy(self) -> None:
        if self._maker.forget():
            self._machine.forget_reads()

    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        due = self._numbers.first_open
        if due < self._machine.next_number:
            return max((epoch for number, epoch in begun if number <= due), default=0)
        return None if ended else self._machine.next_epoch

    # Orders

    @property
    def _rows_read(self) -> int:
        """Number of rows of the source whose reads are complete."""
        return self._read_before + self._intake.rows_read

    def close(self, cancel: bool) -> None:
        if self._orders.known("close", cancel):  # repeated after a restart
            return
        number = max(self._machine.next_number, self._claimed)
        order = self._orders.given(self._rows_read, number, "close", cancel)
        if not self._orders.waits and number > self._machine.next_number:
            self._orders.await_place(order)  # batches that trainers hold are made again first
        self._store_orders()
        if not self._orders.waits:
            self._machine.close(cancel)

    def set_target(self, target: Target, probs: list[float]) -> int:
        # Unmade batches whose rows were all judged before keep these rows.
        first = self._machine.next_number + self._maker.shaping.machine.ready()
        if not self._orders.waits:
            target.set_target(probs, first)
        return self._note("target", probs, first).since

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        shaping = self._maker.shaping
        sizes = shaping.sizes_checked(batch_sizes)
        self.refuse_late()
        if self._orders.waits:
            shaping.change_comes = True
            first = self._machine.next_number + shaping.machine.ready()
        else:
            first = self._resize(sizes)
        return self._note("batch_size", sizes, first).since

    def _resize(self, sizes: Sequence[int]) -> int:
        first = self._maker.shaping.set_batch_sizes(sizes, self._machine.next_number)
        self._maker.sizes_changed()
        return first

    def _note(self, kind: str, value: Any, since: int = 0) -> Order:
        """Store an order, which a later process must carry out at the same place."""
        order = self._orders.given(self._rows_read, self._machine.next_number, kind, value, since)
        self._store_orders()
        return order

    def take_placed(self) -> bool:
        placed, self._placed = self._placed, False
        return placed

    def _store_orders(self) -> None:
        self._change.meta["orders"] = pack(self._orders.to_plain())

    def _follow(self, order: Order) -> None:
        """Carry out an order that an earlier process got."""
        if order.kind == "close":
            self._machine.close(order.what)
        elif order.kind == "batch_size":
            self._maker.shaping.change_comes = self._orders.will("batch_size")
            self._resize(order.what)
        else:
            (target,) = self._maker.targets()
            target.set_target(order.what, order.since)

    def lacks(self) -> tuple[str, int]:
        return self._maker.shaping.machine.waits_for(), -1

    # Cursors

    def announced(self) -> None:
        self._numbers.made(self._machine.first_number - 1, self.cursor())

    def cursor(self) -> bytes:
        """Return the cursor with which another process resumes after the last batch made."""
        maker = self._maker
        held = maker.held.items()
        cursor = {
            "machine": self._machine.cursor(),
            "dropped": self._intake.dropped,
            "stages": self._intake.stages.state(),
            "before": [(n, chunk.before) for n, chunk in held if chunk.before is not None],
            "read": self._rows_read,
        }
        if maker.padding:
            cursor["padding"] = [[bucket, *counts] for bucket, counts in maker.padding.items()]
        if self._orders.count:
            cursor["orders"] = self._orders.count
        return pack(cursor)

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Resume after the batch of the cursor."""
        before = dict(cursor["before"])
        machine = cursor["machine"]
        for read in self._machine.restore(machine):
            stages = before.get(read.chunk)
            if stages is not None:
                self._intake.stages.restore(stages)
            self._maker.read_again(read, stages)
        self._maker.sizes_changed()
        self._intake.stages.restore(cursor["stages"])
        self._intake.resume(machine["epoch"], machine["position"], cursor["dropped"])
        self._read_before = cursor.get("read", 0) - self._intake.rows_read
        self._orders.restore(cursor.get("orders", 0))
        padding = cursor.get("padding", ())
        self._maker.padding = {bucket: counts for bucket, *counts in padding}

    def resume(self, saved: Saved) -> None:
        if "orders" in saved.meta:
            self._orders.load(msgpack.unpackb(saved.meta["orders"]))
            self._orders.restore(0)
        base = 0
        if "cursor" in saved.meta:
            self.restore(msgpack.unpackb(saved.meta["cursor"], strict_map_key=False))
            base = self._machine.first_number
        self._maker.shaping.change_comes = self._orders.will("batch_size")
        self._numbers = Numbers(base, saved.done)
