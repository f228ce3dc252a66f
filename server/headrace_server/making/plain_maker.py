"""Chunks of one partition in memory, and batches of their rows: the maker of plain batches.

chunk ─► facts of the shape ─► held ─► Assembly of a plan
                                └─► forgotten
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from headrace_proto.schema import Field

from ..core.class_queues import ClassQueues
from ..core.plan import RESIZED, Plan, Read
from ..pipeline.declaration import Shape
from ..pipeline.selectors import RESERVED
from ..reading.chunk import Chunk
from ..reading.columns import measured
from ..reading.intake import Intake
from ..reading.sampling import Stratified
from .assemble import Assembly, Parts, RaggedAssembly, batch_schema, ragged_schema
from .shaping import Shaping, with_facts

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
