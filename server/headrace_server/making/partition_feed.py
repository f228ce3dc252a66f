"""One partition at work: the machine decides, this reads, runs the stages and assembles.

advance() ─► MadeBatch   a batch lies in its block; cursor() tells how to go on after it
          ─► Busy        something was read; call again
          ─► Blocked     the slab has no room; call again when a block was freed
          ─► Done        all batches were made
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack
from headrace_proto.layout import Slot
from headrace_proto.schema import Field

from ..core.arena import Block
from ..core.changes import Change, Saved
from ..core.orders import Order, Orders
from ..core.partition import Partition
from ..core.plan import Plan, Position, Read
from ..core.progress import Numbers
from ..pipeline.declaration import Declaration
from ..pipeline.selectors import RESERVED
from ..reading.chunk import Chunk
from ..reading.intake import Intake
from ..reading.reader import BadRecords, Reader
from ..reading.sampling import Stratified
from ..reading.trace import Source, Trace
from .assemble import Assembly, batch_schema
from .leaving_out import LeftOut
from .shaping import Shaping, with_facts
from .slab import Slab

__all__ = ["Blocked", "Busy", "Done", "MadeBatch", "PartitionFeed"]


logger = logging.getLogger("headrace.worker")


class Busy:
    pass


class Blocked:
    pass


class Done:
    pass


@dataclass(frozen=True, slots=True)
class MadeBatch:
    number: int
    rows: int
    block: Block
    nbytes: int
    slots: list[Slot]
    meta: Mapping[str, Any]
    trace: Trace | None = None  # where its rows came from, where that is recorded


class PartitionFeed:
    """One partition of one feed, in a worker."""

    properties: Mapping[str, Any] = MappingProxyType({})  # told to trainers beside the schema

    def __init__(
        self,
        reader: Reader,
        declaration: Declaration,
        partition: int,
        partitions: int,
        slab: Slab,
        bad: BadRecords,
    ) -> None:
        self._intake = Intake(reader, declaration, partition, partitions, bad)
        self._shaping = Shaping(declaration.shape, partition)
        self._machine = Partition(
            self._shaping.machine, self._intake.start(), declaration.order.epochs
        )
        self._before: dict[int, Any] = {}  # chunk → what the stages remembered before it
        self._known_fields: Mapping[str, Field] | None = None  # up to the next chunk
        self._slab = slab
        self._chunks: dict[int, Chunk] = {}
        self._blocked: tuple[Plan, Assembly] | None = None
        self._numbers = Numbers()
        self._changes: list[Change] = []
        self._padding: dict[int, list[int]] = {}  # bucket → elements with padding, and without
        self._orders = Orders()
        self._read_before = 0  # rows of the source, by earlier lives
        #: Shown every batch before it is written.
        self.observe: Callable[[Assembly], None] = lambda assembly: None
        self._sources: dict[int, Source] | None = None  # of chunks, where traces are wanted
        self._left_out: LeftOut | None = None
        self._without: dict[int, list[int]] = {}  # chunk → rows that were taken out of it

    @property
    def next_number(self) -> int:
        """Number of the batch that is made next."""
        return self._blocked[0].number if self._blocked else self._machine.first_number

    @property
    def schema(self) -> dict[str, Field]:
        """The schema of a batch."""
        return batch_schema(self._fields, self._shaping.batch_size)

    @property
    def _fields(self) -> Mapping[str, Field]:
        """Columns of a batch, with the facts that travel as columns."""
        if self._known_fields is None:
            known = self._intake.fields
            if known is None:
                return {}
            facts = self._shaping.fields_after(self._intake.fact_fields)
            named = {RESERVED + name: field for name, field in facts.items()}
            self._known_fields = {**known, **named}
        return self._known_fields

    @property
    def capacity(self) -> int | None:
        """Batches that may be made ahead of the trainers, where the pipeline says it."""
        return self._shaping.capacity

    def stats(self) -> dict[str, Any] | None:
        """Counters by class, where there are classes; the padding of buckets."""
        told = [s.stats() for s in self._intake.stratified]
        told += self._shaping.stats()
        if self._padding:
            padding = [[bucket, *counts] for bucket, counts in self._padding.items()]
            return {**(told[-1] if told else {}), "padding": padding}
        return told[-1] if told else None

    def _count_padding(self, meta: Mapping[str, Any]) -> None:
        """A batch was made, or passed over since it is done."""
        if "padded" in meta:
            counts = self._padding.setdefault(meta["bucket"], [0, 0])
            counts[0] += meta["padded"]
            counts[1] += meta["real"]

    def set_target_probs(self, probs: list[float]) -> int:
        """Other proportions of classes from now on; the number of the first batch they reach."""
        target = self._target()
        first = self._first_reached(target)
        if self._orders.waits:
            return self._note("target", probs, first).since
        first = int(target.set_target(probs, first))
        self._note("target", probs, first)
        return first

    def _note(self, kind: str, what: Any, since: int = 0) -> Order:
        """An order that a later life has to follow at the same place."""
        order = self._orders.given(self._rows_read, self._machine.next_number, kind, what, since)
        self._change.meta["orders"] = pack(self._orders.to_plain())
        return order

    @property
    def _rows_read(self) -> int:
        """Rows of the source that were read for good."""
        return self._read_before + self._intake.rows_read

    @property
    def _change(self) -> Change:
        """What is to be stored next."""
        if not self._changes:
            self._changes.append(Change())
        return self._changes[0]

    def _follow(self, order: Order) -> None:
        """An order of an earlier life takes effect."""
        if order.kind == "close":
            self._machine.close(order.what)
        else:
            self._target().set_target(order.what, order.since)

    def _first_reached(self, target: Stratified | Shaping) -> int:
        """The first batch that other proportions would reach now."""
        # Batches of which all rows were judged before are not made yet, and keep them.
        if target is self._shaping:
            return self._shaping.first_not_formed()
        return self._machine.next_number + self._shaping.ready()

    def _target(self) -> Stratified | Shaping:
        targets: list[Stratified | Shaping] = [
            *self._intake.stratified,
            *self._shaping.retargetable(),
        ]
        if len(targets) != 1:
            raise ValueError(
                f"the feed has {len(targets)} stages with target proportions; "
                "set_target_probs() needs exactly one"
            )
        return targets[0]

    def waits_for(self) -> str:
        """What the next batch lacks, where that can be said; for a deadline's error."""
        return self._shaping.waits_for()

    def progress(self) -> dict[str, Any]:
        """How far it is, in numbers for people."""
        return self._intake.progress(self._machine.reading())

    def dropped(self) -> dict[str, int]:
        """Rows dropped so far, by reason; those that broke a rule start with ``bad:``."""
        return self._intake.dropped_with(self._machine.dropped())

    def record(self, states: bool = False) -> None:
        """Tell with every batch where its rows came from.  To be said before anything is read.

        ``states`` asks for those that go out with a batch; here there are none.
        """
        self._sources = {}

    def leave_out(self, rows: LeftOut) -> None:
        """These rows are out.  To be said before anything is read."""
        self._left_out = rows

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Go on after the batch that the cursor came with."""
        before = dict(cursor["before"])
        without = dict(cursor.get("without", ()))
        for read in self._machine.restore(cursor["machine"]):
            if read.chunk in before:
                self._before[read.chunk] = before[read.chunk]
                self._intake.restore_stages(before[read.chunk])
            chunk = self._chunk(read)[0]
            if read.chunk in without:
                self._without[read.chunk] = without[read.chunk]
                chunk = chunk.take(np.flatnonzero(~np.isin(chunk.ordinals, without[read.chunk])))
            self._chunks[read.chunk] = chunk
            self._note_source(read, before.get(read.chunk), chunk)
        self._intake.restore_stages(cursor["stages"])
        machine = cursor["machine"]
        self._intake.resume(machine["epoch"], machine["position"], cursor["dropped"])
        self._read_before = cursor.get("read", 0) - self._intake.rows_read
        self._orders.restore(cursor.get("orders", 0))
        self._padding = {bucket: counts for bucket, *counts in cursor.get("padding", ())}

    def resume(self, saved: Saved) -> None:
        """Go on from what an earlier life has stored: what was done is not made again."""
        base = 0
        if "orders" in saved.meta:
            self._orders.load(msgpack.unpackb(saved.meta["orders"]))
            self._orders.restore(0)
        if "cursor" in saved.meta:
            self.restore(msgpack.unpackb(saved.meta["cursor"], strict_map_key=False))
            base = self.next_number
        self._numbers = Numbers(base, saved.done)

    def saved(self, number: int) -> None:
        """A trainer is done with a batch; what that changes is to be stored."""
        moved = self._numbers.done(number)
        change = self._change
        change.done.append(number)
        if moved is not None:
            change.base, change.meta["cursor"] = moved

    def claim(self, number: int) -> int | None:
        """A trainer has a batch from an earlier life: its number, unless it is done."""
        return None if self._numbers.is_done(number) else number

    @property
    def done_numbers(self) -> list[int]:
        """Batches after the first that is not done which are done."""
        return self._numbers.above

    def take_changes(self) -> list[Change]:
        """What is to be stored since this was asked."""
        changes, self._changes = self._changes, []
        return changes

    def committed(self, number: int) -> None:
        """The bytes of a batch are free."""
        self._machine.committed(number)

    def close(self, cancel: bool) -> None:
        """Read no more; see Partition.close."""
        if self._orders.known("close", cancel):  # told again
            return
        self._note("close", cancel)
        if not self._orders.waits:
            self._machine.close(cancel)

    def advance(self) -> MadeBatch | type[Busy] | type[Blocked] | type[Done]:
        """One step of work."""
        if self._blocked is not None:
            return self._place(*self._blocked)
        limit = self._intake.limit(self._shaping.most_rows)
        if self._orders.waits:
            number = self._machine.next_number
            while (order := self._orders.due(self._rows_read, number)) is not None:
                self._follow(order)
            limit = self._orders.limit(self._rows_read, limit)
        step = self._machine.next_step(limit)
        if isinstance(step, Read):
            self._read(step)
            return Busy
        if not isinstance(step, Plan):
            return Done
        if self._numbers.is_done(step.number):
            self._count_padding(step.draft.meta)
            self._machine.committed(step.number)
            self._forget_unneeded()
            return Busy
        if self._left_out is not None and self._is_out(step):
            return Busy
        parts = [(self._chunks[part.chunk], part.rows) for part in step.draft.parts]
        return self._place(step, Assembly(parts, self._fields, self._shaping.dynamic_pad))

    def _chunk(self, read: Read) -> tuple[Chunk, Mapping[str, np.ndarray], Position | None]:
        """The rows of a read after the stages, the facts about them, and where to read next."""
        chunk, position = self._intake.chunk(read)
        self._known_fields = None
        chunk, facts = self._shaping.facts(chunk, self._intake.bad)
        return with_facts(chunk), facts, position

    def _read(self, read: Read) -> None:
        before = self._intake.begin()
        try:
            self._read_on(read, before)
        except Exception:  # what was made before it can still be told, with a cursor
            self._machine.failed()
            if before is not None:
                self._intake.restore_stages(before)
            raise

    def _read_on(self, read: Read, before: Any) -> None:
        chunk, facts, position = self._chunk(read)
        if self._left_out is not None:
            chunk, facts = self._less(read, chunk, facts)
        if len(chunk):
            self._chunks[read.chunk] = chunk
            self._note_source(read, before, chunk)
            if before is not None:
                self._before[read.chunk] = before
        self._machine.arrived(read, len(chunk), position, facts)
        if len(chunk) and read.chunk not in self._machine.chunks():
            # None of its rows is wanted.  Where a batch is long in coming there may be many such.
            self._forget({read.chunk})
        self._intake.end()

    def read_again(self, read: Read, stages: Any) -> Chunk:
        """The rows of a chunk as they were when it was read."""
        if stages is not None:
            self._intake.restore_stages(stages)
        return self._chunk(read)[0]

    def _note_source(self, read: Read, stages: Any, chunk: Chunk) -> None:
        if self._sources is not None:
            self._sources[read.chunk] = Source(read, stages, chunk.ordinals, chunk.origin)

    def _less(
        self, read: Read, chunk: Chunk, facts: Mapping[str, np.ndarray]
    ) -> tuple[Chunk, Mapping[str, np.ndarray]]:
        """A chunk that is read for the first time, less the rows that are out by now."""
        assert self._left_out is not None
        out = self._left_out.mask(chunk.ordinals, read.epoch, later=True)
        if not out.any():
            return chunk, facts
        if not out.all():
            self._without[read.chunk] = np.unique(chunk.ordinals[out]).tolist()
        self._intake.count("skipped", int(out.sum()))
        return chunk.take(np.flatnonzero(~out)), {name: f[~out] for name, f in facts.items()}

    def _is_out(self, plan: Plan) -> bool:
        """Whether a batch is passed over: all its rows are out."""
        assert self._left_out is not None
        out = rows = 0
        for part in plan.draft.parts:
            ordinals = self._chunks[part.chunk].ordinals[part.rows]
            out += int(self._left_out.mask(ordinals, self._machine.epoch_of(part.chunk)).sum())
            rows += len(ordinals)
        if out and out < rows:
            logger.warning(
                "batch %d holds %d rows that are to be left out and %d others: it is given out "
                "as it is, for without them all that follows would move",
                *(plan.number, out, rows - out),
            )
        if out < rows:
            return False
        self._intake.count("skipped", rows)
        self._machine.committed(plan.number)
        self.saved(plan.number)
        self._forget_unneeded()
        return True

    def _forget_unneeded(self) -> None:
        needed = self._machine.chunks()
        if len(needed) < len(self._chunks):
            self._forget(self._chunks.keys() - needed)

    def _forget(self, chunks: set[int]) -> None:
        for number in chunks:
            del self._chunks[number]
            self._before.pop(number, None)
            self._without.pop(number, None)
            if self._sources is not None:
                del self._sources[number]
        self._machine.forget_reads()

    def _place(self, plan: Plan, assembly: Assembly) -> MadeBatch | type[Blocked]:
        block = self._slab.allocate(assembly.nbytes)
        if block is None:
            self._blocked = (plan, assembly)
            return Blocked
        self._blocked = None
        self._count_padding(plan.draft.meta)
        self.observe(assembly)
        assembly.fill(self._slab.memory(block))
        trace = None if self._sources is None else self._trace(plan, self._sources)
        self._forget_unneeded()
        return MadeBatch(
            plan.number,
            assembly.rows,
            block,
            assembly.nbytes,
            assembly.slots,
            plan.draft.meta,
            trace,
        )

    def announced(self) -> None:
        """All that was made is told: once it is done, another life goes on after it."""
        self._numbers.made(self.next_number - 1, self.cursor())

    def cursor(self) -> bytes:
        """How another life goes on after the last batch that was made."""
        held = self._blocked[0] if self._blocked else None
        told = {
            "machine": self._machine.cursor(held),
            "dropped": self._intake.dropped,
            "stages": self._intake.state(),
            "before": list(self._before.items()),
            "read": self._rows_read,
        }
        if self._padding:
            told["padding"] = [[bucket, *counts] for bucket, counts in self._padding.items()]
        if self._orders.count:
            told["orders"] = self._orders.count
        if self._without:
            told["without"] = list(self._without.items())
        return pack(told)

    def _trace(self, plan: Plan, sources: Mapping[int, Source]) -> Trace:
        parts = plan.draft.parts
        used = {part.chunk: sources[part.chunk] for part in parts}
        return Trace(used, parts, meta=plan.draft.meta)
