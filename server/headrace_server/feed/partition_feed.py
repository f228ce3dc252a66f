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

from headrace_proto.codec import pack
from headrace_proto.errors import DataError
from headrace_proto.layout import Slot
from headrace_proto.schema import Field

from ..core.arena import Block
from ..core.batch import PlainBatches
from ..core.partition import Partition
from ..core.plan import Plan, Read, Shaper
from ..pipeline.declaration import Declaration, Shape
from .assemble import Assembly, batch_schema
from .chunk import Chunk
from .order import PartitionReader
from .reader import BadRecords, IndexedReader, Reader
from .slab import Slab
from .stages import RowStages

__all__ = ["Blocked", "Busy", "Done", "MadeBatch", "PartitionFeed", "shaper_of"]

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


def shaper_of(shape: Shape) -> Shaper:
    """The machine of a declared shape."""
    options = shape.options
    if shape.kind == "batch":
        return PlainBatches(options["batch_size"], options["allow_smaller_final_batch"])
    raise ValueError(f"unknown shape {shape.kind!r}")


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
        self._stages = RowStages(declaration.stages, reader.fields)
        self._count_dropped()  # what showed when the source was opened
        if self._stages.fields is None:
            _probe(reader, self._stages)
            bad.counts.clear()  # the same rows are read again, and counted, in their turn
        self._machine = Partition(
            shaper_of(declaration.shape), self._reader.start(), declaration.order.epochs
        )
        self._shape = declaration.shape
        self._slab = slab
        self._chunks: dict[int, Chunk] = {}
        self._blocked: tuple[Plan, Assembly] | None = None
        self._limit = _FIRST_CHUNK

    @property
    def next_number(self) -> int:
        """Number of the batch that is made next."""
        return self._blocked[0].number if self._blocked else self._machine.next_number

    @property
    def schema(self) -> dict[str, Field]:
        """The schema of a batch."""
        options = self._shape.options
        size = None if options["allow_smaller_final_batch"] else options["batch_size"]
        return batch_schema(self._stages.fields or {}, size)

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
        for read in self._machine.restore(cursor["machine"]):
            chunk, _ = self._reader.read(read.epoch, read.position, read.limit)
            self._chunks[read.chunk] = self._stages.apply(chunk, self._bad)
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
        step = self._machine.next_step(self._limit)
        if step is None:
            return Done
        if isinstance(step, Read):
            self._read(step)
            return Busy
        parts = [(self._chunks[part.chunk], part.rows) for part in step.draft.parts]
        assembly = Assembly(
            parts, self._stages.fields or {}, self._shape.options.get("dynamic_pad", False)
        )
        return self._place(step, assembly)

    def _read(self, read: Read) -> None:
        started = time.monotonic()
        chunk, position = self._reader.read(read.epoch, read.position, read.limit)
        chunk = self._stages.apply(chunk, self._bad)
        self._count_dropped()
        if len(chunk):
            self._chunks[read.chunk] = chunk
        self._machine.arrived(read, len(chunk), position)
        seconds = time.monotonic() - started
        if seconds > 2 * _CHUNK_SECONDS:
            self._limit = max(1, self._limit // 2)
        elif seconds < _CHUNK_SECONDS / 2:
            self._limit = min(_LARGEST_CHUNK, self._limit * 2)

    def _place(self, plan: Plan, assembly: Assembly) -> MadeBatch | type[Blocked]:
        block = self._slab.allocate(assembly.nbytes)
        if block is None:
            self._blocked = (plan, assembly)
            return Blocked
        self._blocked = None
        assembly.fill(self._slab.memory(block))
        needed = self._machine.chunks()
        for number in [number for number in self._chunks if number not in needed]:
            del self._chunks[number]
        self._machine.forget_reads()
        cursor = pack({"machine": self._machine.cursor(), "dropped": self._dropped})
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
