"""Chunks of one partition in memory, and batches of their rows: the maker of plain batches.

chunk ─► facts of the shape ─► held ─► Assembly of a plan
                                └─► forgotten
commits ─► Plain ─► records ─► Change ─► store ─► Saved ─► Plain of another life
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack
from headrace_proto.schema import RESERVED, Field

from ..leasing.protocol import Batch, Token
from ..reading.chunk import Chunk
from ..reading.columns import measured
from ..reading.intake import Intake
from ..reading.stages.stratified_sample import StratifiedSample
from ..shaping.bucket import Buckets
from ..shaping.class_queues import ClassQueues
from ..shaping.plain import Plain, Stored
from ..shaping.plan import RESIZED, Plan, Read
from ..shaping.stored_state import Change, Saved
from .assemble import Assembly, Parts, RaggedAssembly, batch_schema, ragged_schema
from .shaping import Shaping, with_facts


@dataclass(frozen=True, slots=True, eq=False)
class HeldChunk:
    """A chunk in memory, with all that a later process needs to read it again."""

    chunk: Chunk
    before: Any  # the state of the stages before it; None where they have none
    epoch: int


class PlainMaker:
    """The maker of one partition.  ``held`` are its chunks in memory."""

    def __init__(self, intake: Intake, shaping: Shaping, machine: Plain) -> None:
        self.shaping = shaping
        self.capacity = self.shaping.capacity
        self.most_rows = self.shaping.most_rows
        self.held: dict[int, HeldChunk] = {}
        self._intake = intake
        self._machine = machine
        self._known_fields: Mapping[str, Field] | None = None  # valid up to the next chunk

    @property
    def properties(self) -> Mapping[str, Any]:
        """Description of the feed for trainers, beside its schema."""
        resized = self.shaping.machine.resized or self._machine.will_resize()
        return RESIZED if resized else {}

    def sizes_checked(self, batch_sizes: Sequence[int]) -> Sequence[int]:
        return self.shaping.sizes_checked(batch_sizes)

    def sizes_changed(self) -> None:
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

    def forget(self, needed: set[int]) -> bool:
        """Drop all chunks but these; return whether there were any."""
        gone = self.held.keys() - needed
        for number in gone:
            del self.held[number]
        return bool(gone)

    # Batches

    def begin(self, plan: Plan) -> tuple[Assembly, None]:
        shaping, parts = self.shaping, self.parts(plan)
        if shaping.ragged:
            return RaggedAssembly(parts, self._fields), None
        bucket = max(plan.batch.bucket, 0)
        return Assembly(parts, self._fields, shaping.dynamic_pad, shaping.padding, bucket), None

    def parts(self, plan: Plan) -> Parts:
        """Return rows of chunks that make a batch."""
        return [(self.held[part.chunk].chunk, part.rows) for part in plan.draft.parts]

    def prepare(self) -> bool:
        """Return False: plain batches are made as soon as possible."""
        return False

    def targets(self) -> Sequence[StratifiedSample | ClassQueues]:
        return self._machine.targets()

    def stats(self, of_stages: list[dict[str, Any]]) -> dict[str, Any]:
        """Return counters by class, where there are classes, and the padding of buckets."""
        shaper = self.shaping.machine
        by_class = [{}, *of_stages, *(one.stats() for one in shaper.targets())]
        counts = shaper.padding if isinstance(shaper, Buckets) else {}
        padding = {str(bucket): list(of_bucket) for bucket, of_bucket in counts.items()}
        return {"classes": by_class[-1], "padding": padding}

    def sizes(self) -> dict[str, int]:
        """Return the number of rows that were read and are in no batch yet."""
        return {"incomplete": self.shaping.machine.waiting()}

    def progress(self) -> dict[str, Any]:
        """Return nothing: the intake reports all progress."""
        return {}


#: Names of what is stored of each rank: which deal, and the turn after its last commit.
_AFTER = "after "


class PlainCommits:
    """The commits of one partition: batches are done or not, and a commit brings no states."""

    def __init__(self, intake: Intake, machine: Plain, maker: PlainMaker) -> None:
        self._intake = intake
        self._machine = machine
        self._maker = maker

    def commit(self, batch: Batch, token: Token, payload: Any) -> tuple[str, str] | None:
        return self._machine.commit(batch, token, payload)

    def read(self, read: Read, before: Any, chunk: Chunk, facts: dict[str, Any]) -> None:
        """Do nothing: a mark has all."""

    def tidy(self) -> None:
        needed = self._machine.chunks()
        if self._maker.forget(needed):
            self._machine.input.forget_reads(needed)

    def keep(self, batch: Batch, rows: Sequence[int], columns: Sequence[Any], block: Any) -> None:
        """Do nothing: there are no states."""

    def note_places(self) -> None:
        """Do nothing: there are no lanes."""

    def seek(self, key: bytes) -> list[list[Any]]:
        """Return nothing: rows have no keys."""
        return []

    # The store

    def mark(self) -> None:
        needed, held = self._machine.input.chunks(), self._maker.held.items()
        cursor = {
            "machine": self._machine.cursor(),
            "dropped": self._intake.dropped,
            "stages": self._intake.stages.state(),
            "before": [
                (n, chunk.before) for n, chunk in held if n in needed and chunk.before is not None
            ],
        }
        self._machine.mark(pack(cursor))

    def take_changes(self) -> list[Change]:
        change = Change()
        for kind, *what in self._machine.take_records():
            if kind == "done":
                change.done += what
            elif kind == "mark":
                change.base, change.meta["cursor"] = what
            elif kind == "after":
                deals, rank, turn = what
                change.meta[f"{_AFTER}{rank}"] = pack([deals, *turn])
            else:
                change.meta[kind] = pack(what)
        return [change] if change else []

    def resume(self, saved: Saved) -> None:
        stored, meta = Stored(done={*saved.done}), saved.meta
        cursor = _unpacked(meta["cursor"]) if "cursor" in meta else None
        if cursor is not None:
            stored.base, stored.cursor = cursor["machine"]["next_number"], cursor["machine"]
        for kind in ("orders", "deal"):
            if kind in meta:
                stored.fold(kind, *_unpacked(meta[kind]))
        for name, packed in meta.items():
            if name.startswith(_AFTER):
                deals, *turn = _unpacked(packed)
                stored.fold("after", deals, int(name.removeprefix(_AFTER)), tuple(turn))
        reads = self._machine.resume(stored)
        if cursor is None:
            return
        before = dict(cursor["before"])
        for read in reads:
            stages = before.get(read.chunk)
            if stages is not None:
                self._intake.stages.restore(stages)
            self._maker.read_again(read, stages)
        self._intake.stages.restore(cursor["stages"])
        at = stored.cursor
        self._intake.resume(at["epoch"], at["position"], cursor["dropped"])


def _unpacked(packed: bytes) -> Any:
    return msgpack.unpackb(packed, strict_map_key=False)
