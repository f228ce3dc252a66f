"""A partition of plain batches, buckets or classes at work: chunks in memory, and their batches.

chunk ─► facts of the shape ─► held ─► Assembly of a plan
                                └─► forgotten
commits ─► PlainMachine ─► records ─► Change ─► store ─► Saved ─► PlainMachine of another life

Batches are done or not, and a commit brings no states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgpack

from headrace_proto.codec import pack
from headrace_proto.schema import RESERVED, Field

from ..leasing.words import Batch, Order, Token
from ..making.assemble import Assembly
from ..making.shape import Shape, with_facts
from ..making.slab import Slab
from ..reading.chunk import Chunk
from ..reading.columns import measured
from ..reading.intake import Intake
from ..shaping import plain
from ..shaping.plan import RESIZED, Plan, Read, Stages, State
from ..shaping.stored_state import Change, Saved
from .partition_run import Facts, Payload, Run

#: Names of what is stored of each rank: which deal, and the turn after its last commit.
_AFTER = "after "


class PlainRun(Run):
    """One partition at work."""

    machine: plain.PlainMachine

    def __init__(
        self, intake: Intake, machine: plain.PlainMachine, slab: Slab, shape: Shape
    ) -> None:
        super().__init__(intake, machine, slab)
        self.shape = shape
        self.capacity, self.most_rows = shape.capacity, shape.read_bound()
        #: Chunks in memory, and the state of the stages before each; None where they have none.
        self.held: dict[int, tuple[Chunk, Stages]] = {}
        self._known_fields: Mapping[str, Field] | None = None  # valid up to the next chunk

    @property
    def properties(self) -> State:
        """Description of the feed for trainers, beside its schema."""
        resized = self.machine.shaper.resized or self.machine.will_resize()
        return RESIZED if resized else {}

    @property
    def schema(self) -> Mapping[str, Field]:
        """The schema of a batch, with the declared batch size."""
        return self.shape.schema(self._fields)

    @property
    def _fields(self) -> Mapping[str, Field]:
        """Fields of one row of a batch, facts included."""
        if self._known_fields is None:
            known = self.intake.fields
            if known is None:
                return {}
            facts = self.shape.fact_fields(self.intake.stages.fact_fields)
            named = {RESERVED + name: field for name, field in facts.items()}
            self._known_fields = {**known, **named}
        return self._known_fields

    # Chunks

    def _hold(self, read: Read, before: Stages, chunk: Chunk) -> tuple[Chunk, Facts]:
        self._known_fields = None
        chunk, facts = self.shape.facts(chunk, self.intake.bad)
        columns = {name: measured(column) for name, column in chunk.columns.items()}
        chunk = with_facts(chunk.with_columns(columns))
        if len(chunk):
            self.held[read.chunk] = chunk, before
        return chunk, dict(facts)

    # Batches

    def _begin(self, plan: Plan) -> tuple[Assembly, None]:
        parts = [(self.held[part.chunk][0], part.rows) for part in plan.draft.parts]
        return self.shape.assembly(parts, self._fields, plan.draft), None

    def status(self) -> dict[str, Any]:
        counts = self.machine.shaper.padding.items()
        padding = {str(bucket): list(of_bucket) for bucket, of_bucket in counts}
        status = {**super().status(), "padding": padding}
        balance = self.machine.balance()
        return {**status, "balance": balance} if balance["rounds"] else status

    def sizes_checked(self, batch_sizes: Sequence[int]) -> Sequence[int]:
        return self.shape.sizes_checked(batch_sizes)

    # Commits

    def commit(self, batch: Batch, token: Token, payload: Payload | None) -> tuple[str, str] | None:
        if payload is not None:
            return "state", "this feed has no states"
        return self.machine.commit(batch, token, payload)

    def _mark_here(self) -> None:
        needed, held = self.machine.input.chunks(), self.held.items()
        cursor = {
            "machine": self.machine.cursor(),
            "dropped": self.intake.dropped,
            "stages": self.intake.stages.state(),
            "before": [
                (n, before) for n, (_, before) in held if n in needed and before is not None
            ],
        }
        self.machine.mark(pack(cursor))

    def take_records(self) -> list[Change]:
        change = Change()
        for kind, *what in self.machine.take_records():
            if kind == "done":
                change.done += what
            elif kind == "mark":
                change.base, change.meta["cursor"] = what
                if self.intake.bound:
                    at = _unpacked(change.meta["cursor"])["machine"]
                    self.needs = [at["position"], *(position for _, _, position, _ in at["reads"])]
            elif kind == "after":
                deals, rank, turn = what
                change.meta[f"{_AFTER}{rank}"] = pack([deals, *turn])
            else:
                change.meta[kind] = pack(what)
        return [change] if change else []

    def apply(self, order: Order) -> None:
        super().apply(order)
        self.most_rows = self.shape.read_bound(self.machine.shaper.batch_sizes)

    def resume(self, saved: Saved) -> None:
        stored, meta = plain.Stored(done={*saved.done}), saved.meta
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
        reads = self.machine.resume(stored)
        self.most_rows = self.shape.read_bound(self.machine.shaper.batch_sizes)
        if cursor is None:
            return
        before = dict(cursor["before"])
        for read in reads:
            stages = before.get(read.chunk)
            if stages is not None:
                self.intake.stages.restore(stages)
            self._hold(read, stages, self.intake.chunk(read)[0])
        self.intake.stages.restore(cursor["stages"])
        at = cursor["machine"]
        self.intake.resume(at["epoch"], at["position"], cursor["dropped"])


def _unpacked(packed: bytes) -> Any:
    return msgpack.unpackb(packed, strict_map_key=False)
