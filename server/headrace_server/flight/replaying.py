"""Replay: makes batches again from the record of how their rows were read.

    Script: which batches, in which order ─► Made ─► its chunks, read again ─► the same block
                                                          └ examples compared with the record

A chunk is read again from its position and with the memory of the stages before it, so no other
batch has to be made first.  One partition of the replay makes all batches of the script.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.layout import Slot, array_at, strings_at

from ..core.changes import ROW, SEGMENT, Change, Saved
from ..core.partition import Partition, Rest
from ..core.plan import RESIZED, Plan, Read
from ..core.slots import RoundMember, Segments
from ..making.assemble import Parts
from ..making.compose import segmented
from ..making.line_record import LineRecord
from ..making.member_block import whole_states
from ..making.partition_memory import Memory
from ..making.plain_maker import PlainMaker
from ..making.plain_memory import PlainMemory
from ..making.run import Run
from ..making.segment_block import SegmentBlock
from ..making.segment_maker import SegmentMaker
from ..making.segment_memory import closing
from ..making.sequencing import Cutting, Offer, StateSource
from ..making.slab import Slab
from ..pipeline.declaration import Declaration, Shape
from ..reading.chunk import Chunk, Origin
from ..reading.intake import Intake
from ..reading.reader import BadRecords, Reader
from ..reading.trace import ChunkTrace
from .rows import RecordedBatch
from .script import Replay, Script, epoch_of

#: Maximum number of chunks in memory, for batches that share them.
_CHUNKS = 64

T = TypeVar("T")


class _Chunks(Generic[T]):
    """Chunks that were read again, each with its part of the shape; the oldest are dropped."""

    def __init__(
        self, intakes: Mapping[int, Intake], shaped: Callable[[Read, Chunk], tuple[Chunk, T]]
    ) -> None:
        self._intakes = intakes
        self._shaped = shaped
        self._held: dict[tuple[int, ChunkTrace], tuple[Chunk, T, np.ndarray]] = {}

    def get(self, partition: int, source: ChunkTrace) -> tuple[Chunk, T, np.ndarray]:
        """Return the chunk, the shape's part of it, and the places of the recorded rows."""
        name = partition, source
        if name not in self._held:
            if len(self._held) >= _CHUNKS:
                del self._held[next(iter(self._held))]
            intake = self._intakes[partition]
            if source.stages is not None:
                intake.stages.restore(source.stages)
            chunk, part = self._shaped(source.read, intake.chunk(source.read)[0])
            self._held[name] = chunk, part, _places(source, chunk)
        return self._held[name]


def replayed(
    reader: Reader, declaration: Declaration, slab: Slab, bad: BadRecords, replay: Replay
) -> Run:
    """Return the run that makes the batches of a replay."""
    intakes = {
        partition: Intake(reader, declaration, partition, replay.partitions, bad)
        for partition in {0, *(batch.partition for batch in replay.script)}
    }
    intake, shape = intakes[0], declaration.shape
    script = Script(replay)
    machine = Partition(script, None, epochs=0)
    if segmented(declaration):
        cutting = Cutting(shape, intake.fields, 0)
        segments = _Segments(script, intakes, cutting, slab, initial=replay.states == "initial")
        return Run(intake, machine, segments, _SegmentMemory(machine, script), slab)
    script.want(len(replay.script))
    rows = _Rows(script, intakes, shape)
    return Run(intake, machine, rows, _RowMemory(intake, machine, rows, script), slab)


class _RowMemory(PlainMemory):
    """Which batches of a replay are done; a restart goes on after them."""

    def __init__(
        self, intake: Intake, machine: Partition, maker: PlainMaker, script: Script
    ) -> None:
        super().__init__(intake, machine, maker)
        self._script = script

    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        return self._script.epoch_of(self._numbers.first_open)

    def close(self, cancel: bool) -> None:
        super().close(True)

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        raise ValueError("a replay makes the batches that were recorded, of their sizes")

    def lacks(self) -> tuple[str, int]:
        return "", -1


class _SegmentMemory(Memory):
    """Takes saves and stores nothing of them: a restart begins a replay of segments anew."""

    def __init__(self, machine: Partition, script: Script) -> None:
        self._machine = machine
        self._script = script
        self._changes: list[Change] = []
        self._first = 0  # number of the batch after the last one that is saved

    def next_step(self, limit: int) -> Read | Plan | type[Rest] | None:
        return self._machine.next_step(limit)

    def want(self, upto: int, stripe: int) -> None:
        self._script.want(upto)

    def saved(self, number: int, block: Any = b"", columns: Any = ()) -> tuple[str, str]:
        self._first = max(self._first, number + 1)
        return "", ""

    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        return self._script.epoch_of(self._first)

    def claim(self, number: int, segments: bytes) -> None:
        return None

    def close(self, cancel: bool) -> None:
        self._machine.close(cancel=True)
        self._changes.append(closing(cancel))

    def take_changes(self) -> list[Change]:
        changes, self._changes = self._changes, []
        return changes

    def resume(self, saved: Saved) -> None:
        if "closing" in saved.meta:
            self._machine.close(cancel=True)


class _Rows(PlainMaker):
    """The maker of recorded batches of rows."""

    def __init__(self, script: Script, intakes: Mapping[int, Intake], shape: Shape) -> None:
        super().__init__(intakes[0], shape, 0)
        self._script = script
        self._chunks = _Chunks(intakes, lambda read, chunk: self.shaped(chunk))

    def parts(self, plan: Plan) -> Parts:
        made, parts = self._script.made(plan.number), []
        for part in made.trace.parts:
            source = made.trace.sources[part.chunk]
            chunk, _, where = self._chunks.get(made.id.partition, source)
            listed = np.arange(len(where))[part.rows]
            parts.append((chunk, _found(source, chunk, where, listed)))
        return parts

    def epoch_of(self, plan: Plan) -> int:
        return epoch_of(self._script.made(plan.number)) or 0

    def made(self, plan: Plan, written: Any, memory: np.ndarray) -> tuple[Mapping[str, Any], None]:
        self.count(plan.draft.meta)
        return _marked(self._script.made(plan.number)), None


class _Segments(SegmentMaker):
    """The maker of recorded batches of segments."""

    def __init__(
        self,
        script: Script,
        intakes: Mapping[int, Intake],
        cutting: Cutting,
        slab: Slab,
        initial: bool,
    ) -> None:
        super().__init__(intakes[0], cutting, LineRecord(), slab)
        self._script = script
        self.properties = cutting.properties()
        if not cutting.small and script.differ_from(cutting.batch_size):
            self.properties |= RESIZED
        bad = intakes[0].bad
        self._chunks = _Chunks(intakes, lambda read, rows: cutting.offer(rows, bad, read.epoch))
        self._initial = initial

    def prepare(self) -> bool:
        return False

    def begin(self, plan: Plan) -> tuple[SegmentBlock, None]:
        made = self._script.made(plan.number)
        batch = made.trace.segments
        assert batch is not None
        offers: dict[int, Offer] = {}
        numbers = batch.numbers.copy()
        rows = numbers[ROW]
        for number, source in made.trace.sources.items():
            chunk, offers[number], where = self._chunks.get(made.id.partition, source)
            here = np.flatnonzero(batch.chunks == number)
            rows[here] = _found(source, chunk, where, rows[here])
        member = None
        meta = made.trace.meta
        if "round" in meta:
            member = RoundMember(meta["round"], meta["rank"], self.cutting.batch_size)
        batch = replace(batch, numbers=numbers, member=member)
        if self._initial:
            batch, extra, states = self._begun(batch, offers)
        else:
            extra, states = _brought(self.cutting.states, made)
        if member is not None:
            return self.member_block(batch, offers, extra, states), None
        return SegmentBlock(self.layout, batch, offers, extra, states), None

    def _begun(
        self, batch: Segments, offers: Mapping[int, Offer]
    ) -> tuple[Segments, dict[str, Any], int]:
        """Return the batch with the initial states of all rows, as columns and their number."""
        if self.cutting.at_trainer:
            batch = replace(batch, starts=np.arange(len(batch), dtype=np.int64))
        numbers = batch.numbers.copy()
        numbers[SEGMENT] = 0
        fresh = replace(batch, numbers=numbers)
        self.states.grow(len(batch))
        self.states.begin(fresh, offers)
        extra, states = self.states.columns(fresh, offers)
        if batch.member is None:
            return batch, extra, states
        states = states if self.cutting.at_trainer else batch.member.size
        return batch, whole_states(fresh, extra), states

    def epoch_of(self, plan: Plan) -> int:
        epoch = epoch_of(self._script.made(plan.number))
        if epoch is not None:
            self._epoch = epoch
        return self._epoch

    def made(self, plan: Plan, written: Any, memory: np.ndarray) -> tuple[Mapping[str, Any], None]:
        return _marked(self._script.made(plan.number)), None


def _marked(made: RecordedBatch) -> dict[str, Any]:
    """Return the description of a batch, marked as a replay."""
    batch = made.id
    return {**made.trace.meta, "replayed": [batch.life, batch.partition, batch.number]}


def _places(source: ChunkTrace, chunk: Chunk) -> np.ndarray:
    """Return the place of each recorded row in the chunk as read now; -1 for a missing row."""
    now = {ordinal: place for place, ordinal in enumerate(chunk.ordinals.tolist())}
    if np.array_equal(source.ordinals, chunk.ordinals):
        return np.arange(len(chunk))
    if len(now) < len(chunk):  # copies of an example can not be told apart
        now = {}
    return np.array([now.get(ordinal, -1) for ordinal in source.ordinals.tolist()], np.int64)


def _found(source: ChunkTrace, chunk: Chunk, where: np.ndarray, recorded: np.ndarray) -> np.ndarray:
    """Return rows of a chunk by their recorded places; DataError if they have changed."""
    rows: np.ndarray = where[recorded]
    was, examples = source.origin.take(recorded), source.ordinals[recorded]
    if (gone := rows < 0).any():
        at = int(np.argmax(gone))
        raise DataError(
            f"example {examples[at]} ({was.describe(at)}) was in the batch and is not read any "
            "more: it was put in quarantine, or the source or its stages have changed"
        )
    now = chunk.origin.take(rows)
    if (moved := (was.record != now.record) | (_files(was) != _files(now))).any():
        at = int(np.argmax(moved))
        raise DataError(
            f"example {examples[at]} was {was.describe(at)} and is {now.describe(at)}: the source "
            "has changed since"
        )
    return rows


def _files(origin: Origin) -> np.ndarray:
    """Return the name of each row's file."""
    files: np.ndarray = np.array(origin.files, object)[origin.file]
    return files


def _brought(states: list[StateSource], made: RecordedBatch) -> tuple[dict[str, Any], int]:
    """Return the recorded states of a batch, as columns and their number."""
    if not states:
        return {}, 0
    if made.trace.states is None:
        raise DataError(f"the states of batch {made.id} were not recorded (record='states')")
    kinds = {"state:" + state.name: state.field.dtype for state in states} | {"@state_of": "int32"}
    columns: dict[str, Any] = {}
    count = 0
    for name, (shape, data) in made.trace.states.items():
        slot = Slot(kinds[name], tuple(shape), 0, len(data))
        memory = np.frombuffer(data, np.uint8)
        texts = slot.dtype == "bytes"
        columns[name] = strings_at(memory, slot) if texts else array_at(memory, slot)
        if name != "@state_of":
            count = shape[0]
    return columns, count
