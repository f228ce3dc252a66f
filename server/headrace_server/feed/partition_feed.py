"""One partition at work: the machine decides, this reads, runs the stages and assembles.

advance() ─► Made        a batch lies in its block
          ─► Busy        something was read; call again
          ─► Blocked     the slab has no room; call again when a block was freed
          ─► Done        all batches were made
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace_proto.codec import pack
from headrace_proto.errors import DataError
from headrace_proto.layout import Slot
from headrace_proto.schema import Field

from ..core.arena import Block
from ..core.partition import Partition
from ..core.plan import Plan, Position, Read
from ..pipeline.declaration import Declaration
from ..pipeline.selectors import RESERVED
from .assemble import Assembly, batch_schema
from .chunk import Chunk
from .order import PartitionReader
from .reader import BadRecords, IndexedReader, Reader
from .sampling import Stratified
from .shaping import Shaping, with_facts
from .slab import Slab
from .stages import RowStages

__all__ = ["Blocked", "Busy", "Done", "MadeBatch", "PartitionFeed"]

#: A chunk should take about this long to read and map: long enough to work on whole arrays, short
#: enough that commits and new orders are heard in between.
_CHUNK_SECONDS = 0.03
_FIRST_CHUNK = 64
_LARGEST_CHUNK = 4096
#: Rows that are looked at at once to learn a schema that was not declared; the same for all
#: partitions …
_PROBE_ROWS = 64
#: … and how many at most, when filters let none of them through.
_MOST_PROBE_ROWS = 2**20


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
    cursor: bytes


class PartitionFeed:
    """One partition of one feed, in a worker."""

    def __init__(
        self,
        reader: Reader,
        declaration: Declaration,
        partition: int,
        partitions: int,
        slab: Slab,
        bad: BadRecords,
    ) -> None:
        self._bad = bad  # shared by the partitions of a reader: emptied after each read
        self._dropped: dict[str, int] = {}
        self._reader = PartitionReader(reader, declaration.order, partition, partitions)
        # With fewer streams than partitions each of them reads, and finds bad, the same records.
        few_streams = not isinstance(reader, IndexedReader) and reader.streams < partitions
        self._counted_elsewhere = few_streams and partition > 0
        self._stages = RowStages(declaration.stages, reader.fields)
        for sampler in self._stages.samplers:
            sampler.announces = partition == 0
        self._count_dropped()  # what showed when the source was opened
        if self._stages.fields is None:
            _probe(reader, self._stages)
            bad.counts.clear()  # the same rows are read again, and counted, in their turn
        self._shaping = Shaping(declaration.shape, partition)
        self._machine = Partition(
            self._shaping.machine, self._reader.start(), declaration.order.epochs
        )
        # Rates are told for whole groups of the source, so a group is what is read at once.
        self._group = max((s.options.get("group") or 0 for s in declaration.stages), default=0)
        self._before: dict[int, Any] = {}  # chunk → what the stages remembered before it
        self._slab = slab
        self._most_bad = declaration.policy.max_bad_examples
        self._chunks: dict[int, Chunk] = {}
        self._blocked: tuple[Plan, Assembly] | None = None
        self._limit = _FIRST_CHUNK
        self._most_rows = self._shaping.most_rows or _LARGEST_CHUNK

    @property
    def next_number(self) -> int:
        """Number of the batch that is made next."""
        return self._blocked[0].number if self._blocked else self._machine.next_number

    @property
    def schema(self) -> dict[str, Field]:
        """The schema of a batch."""
        return batch_schema(self._fields, self._shaping.batch_size)

    @property
    def _fields(self) -> dict[str, Field]:
        """Columns of a batch, with the facts that travel as columns."""
        known = self._stages.fields
        if known is None:
            return {}
        facts = self._shaping.fields_after(self._stages.fact_fields)
        return {**known, **{RESERVED + name: field for name, field in facts.items()}}

    @property
    def capacity(self) -> int | None:
        """Batches that may be made ahead of the trainers, where the pipeline says it."""
        return self._shaping.capacity

    def stats(self) -> dict[str, Any] | None:
        """Counters by class, where there are classes."""
        told = [s.stats() for s in self._stages.samplers if isinstance(s, Stratified)]
        told += self._shaping.stats()
        return told[-1] if told else None

    def set_target_probs(self, probs: list[float]) -> int:
        """Other proportions of classes from now on; the number of the first batch they reach."""
        samplers = [s for s in self._stages.samplers if isinstance(s, Stratified)]
        targets: list[Stratified | Shaping] = [*samplers, *self._shaping.retargetable()]
        if len(targets) != 1:
            raise ValueError(
                f"the feed has {len(targets)} stages with target proportions; "
                "set_target_probs() needs exactly one"
            )
        # Batches of which all rows were judged before are not made yet, and keep them.
        first = self._machine.next_number + self._shaping.ready()
        return int(targets[0].set_target(probs, first))

    def waits_for(self) -> str:
        """What the next batch lacks, where that can be said; for a deadline's error."""
        return self._shaping.waits_for()

    def dropped(self) -> dict[str, int]:
        """Rows dropped so far, by reason; those that broke a rule start with ``bad:``."""
        counts = dict(self._dropped)
        for reason, n in self._machine.dropped().items():
            counts[reason] = counts.get(reason, 0) + n
        return counts

    def _count_dropped(self) -> None:
        """Make what the stages and the reader just dropped this partition's own."""
        for prefix, counts in (("bad:", self._bad.counts), ("", self._stages.counts)):
            for reason, n in counts.items():
                self._dropped[prefix + reason] = self._dropped.get(prefix + reason, 0) + n
            counts.clear()

    def restore(self, cursor: Mapping[str, Any]) -> None:
        """Go on after the batch that the cursor came with."""
        before = dict(cursor["before"])
        for read in self._machine.restore(cursor["machine"]):
            if read.chunk in before:
                self._before[read.chunk] = before[read.chunk]
                self._stages.restore(before[read.chunk])
            self._chunks[read.chunk] = self._chunk(read)[0]
        self._stages.restore(cursor["stages"])
        epoch, position = cursor["machine"]["epoch"], cursor["machine"]["position"]
        if isinstance(position, list) and position[2]:
            self._reader.read(epoch, position, 1)  # amid a window, which is remembered from here on
        # What was dropped in these chunks was counted when they were first read.
        self._stages.counts.clear()
        self._bad.counts.clear()
        self._dropped = dict(cursor["dropped"])

    def committed(self, number: int) -> None:
        """A batch is done."""
        self._machine.committed(number)

    def close(self, cancel: bool) -> None:
        """Read no more; see Partition.close."""
        self._machine.close(cancel)

    def advance(self) -> MadeBatch | type[Busy] | type[Blocked] | type[Done]:
        """One step of work."""
        if self._blocked is not None:
            return self._place(*self._blocked)
        step = self._machine.next_step(self._group or min(self._limit, self._most_rows))
        if step is None:
            return Done
        if isinstance(step, Read):
            self._read(step)
            return Busy
        parts = [(self._chunks[part.chunk], part.rows) for part in step.draft.parts]
        return self._place(step, Assembly(parts, self._fields, self._shaping.dynamic_pad))

    def _chunk(self, read: Read) -> tuple[Chunk, Mapping[str, np.ndarray], Position | None]:
        """The rows of a read after the stages, the facts about them, and where to read next."""
        chunk, position = self._reader.read(read.epoch, read.position, read.limit)
        if self._group and len(chunk) < read.limit and position is not None:
            parts = [chunk]
            while position is not None and (left := read.limit - sum(map(len, parts))):
                chunk, position = self._reader.read(read.epoch, position, left)
                parts.append(chunk)
            chunk = Chunk.join(parts)
        if self._counted_elsewhere:
            self._bad.counts.clear()
        chunk = self._stages.apply(chunk, self._bad, read.epoch)
        chunk, facts = self._shaping.facts(chunk, self._bad)
        return with_facts(chunk), facts, position

    def _read(self, read: Read) -> None:
        started = time.monotonic()
        before = self._stages.state()
        chunk, facts, position = self._chunk(read)
        self._count_dropped()
        self._check_bad()
        if len(chunk):
            self._chunks[read.chunk] = chunk
            if before is not None:
                self._before[read.chunk] = before
        self._machine.arrived(read, len(chunk), position, facts)
        if len(chunk) and read.chunk not in self._machine.chunks():
            # None of its rows is wanted.  Where a batch is long in coming there may be many such.
            self._forget({read.chunk})
        seconds = time.monotonic() - started
        if seconds > 2 * _CHUNK_SECONDS:
            self._limit = max(1, self._limit // 2)
        elif seconds < _CHUNK_SECONDS / 2:
            self._limit = min(_LARGEST_CHUNK, self._limit * 2)

    def _forget(self, chunks: set[int]) -> None:
        for number in chunks:
            del self._chunks[number]
            self._before.pop(number, None)
        self._machine.forget_reads()

    def _check_bad(self) -> None:
        """No more bad examples than the feed allows; over all partitions the router counts."""
        limit = self._most_bad
        bad = {r[4:]: n for r, n in self._dropped.items() if r.startswith("bad:")}
        if limit is not None and sum(bad.values()) > limit:
            listed = ", ".join(f"{n} {reason}" for reason, n in sorted(bad.items()))
            raise DataError(f"more than max_bad_examples={limit} bad examples: {listed}")

    def _place(self, plan: Plan, assembly: Assembly) -> MadeBatch | type[Blocked]:
        block = self._slab.allocate(assembly.nbytes)
        if block is None:
            self._blocked = (plan, assembly)
            return Blocked
        self._blocked = None
        assembly.fill(self._slab.memory(block))
        self._forget(self._chunks.keys() - self._machine.chunks())
        cursor = pack(
            {
                "machine": self._machine.cursor(),
                "dropped": self._dropped,
                "stages": self._stages.state(),
                "before": list(self._before.items()),
            }
        )
        return MadeBatch(
            plan.number,
            assembly.rows,
            block,
            assembly.nbytes,
            assembly.slots,
            plan.draft.meta,
            cursor,
        )


def _probe(reader: Reader, stages: RowStages) -> None:
    """Learn the schema that user functions yield from the first rows that come out."""
    seen = 0
    for chunk in _from_the_start(reader):
        if len(chunk) and stages.probe(chunk) is not None:
            return
        seen += len(chunk)
        if seen >= _MOST_PROBE_ROWS:
            raise DataError(
                f"the filters let none of the first {seen} examples through, so the schema of "
                "what map gives can not be learnt: declare it with map(…, schema=…)"
            )


def _from_the_start(reader: Reader) -> Iterator[Chunk]:
    """The source from its first row on, in stretches that grow."""
    rows = _PROBE_ROWS
    if isinstance(reader, IndexedReader):
        start = 0
        while start < reader.length:
            stop = min(start + rows, reader.length)
            yield reader.slice(start, stop)
            start, rows = stop, min(2 * rows, _LARGEST_CHUNK)
        return
    for stream in range(reader.streams):
        position: bytes | None = b""
        while position is not None:
            chunk, position = reader.read(stream, position, rows)
            yield chunk
            rows = min(2 * rows, _LARGEST_CHUNK)
