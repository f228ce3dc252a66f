"""Replay: makes batches again from the record of how their rows were read.

    _Script: the next batch ─► _Rows, _Segments: its chunks, read again ─► the same block
                                                   └ examples compared with the record

A chunk is read again from its position and with the state of the stages before it, so no other
batch has to be made first.  One partition of the replay makes all batches; its machine decides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.layout import Slot, array_at, strings_at

from ..core.partition import Partition, Rest
from ..core.plan import RESIZED, Draft, Part, Plan, Read, Shaper
from ..core.slots import RoundMember, Segments
from ..core.stored_progress import Numbers
from ..core.stored_state import ROW, SEGMENT, Saved
from ..making.compose import segmented
from ..making.partition_commits import Target
from ..making.partition_run import Run
from ..making.plain_commits import NumberedCommits
from ..making.plain_maker import HeldChunk, PlainMaker
from ..making.segment_cutting import Cutting, StateSource
from ..making.segment_maker import SegmentMaker
from ..making.slab import Slab
from ..making.stored_examples import StoredExamples
from ..pipeline.declaration import Declaration, Shape
from ..reading.chunk import Chunk, Origin
from ..reading.intake import Intake
from ..reading.reader import BadRecords, Reader
from ..reading.trace import ChunkTrace
from .feed_record import FeedRecord, Replay
from .rows import BatchId, RecordedBatch

#: Maximum number of chunks in memory, for batches that share them.
_CHUNKS = 64


def replayed(
    reader: Reader, declaration: Declaration, slab: Slab, bad: BadRecords, replay: Replay
) -> Run:
    """Return the run that makes the batches of a replay."""
    record, batches = replay.record(), [BatchId(*batch) for batch in replay.script]
    intakes = {
        partition: Intake(reader, declaration, partition, replay.partitions, bad)
        for partition in {0, *(batch.partition for batch in batches)}
    }
    maker: _Rows | _Segments
    if segmented(declaration):
        cutting = Cutting(declaration.shape, intakes[0].fields, 0)
        maker = segments = _Segments(intakes, cutting, slab, replay.states == "initial")
        sizes = {place.rows for place in map(record.place, batches) if place is not None}
        if not cutting.small and sizes - {cutting.batch_size}:
            segments.properties = {**segments.properties, **RESIZED}
        shaper: Shaper = cutting.machine
    else:
        maker = _Rows(intakes, declaration.shape)
        shaper = maker.shaping.machine
    machine = Partition(shaper, None, epochs=0)
    return Run(intakes[0], machine, maker, _Script(record, batches, machine, maker), slab)


class _Script(NumberedCommits):
    """The batches to make, in order, and which are done: a restart makes the others again.

    States that come with commits are ignored.
    """

    def __init__(
        self,
        record: FeedRecord,
        batches: Sequence[BatchId],
        machine: Partition,
        maker: _Rows | _Segments,
    ) -> None:
        super().__init__(machine)
        self._record = record
        self._batches = batches
        self._maker = maker
        self._made = lru_cache(maxsize=2)(self._read)
        self._stop = len(batches)
        self._closed = False
        self._wanted = self._stop if maker.made_ahead else 0  # number of batches, not made yet

    def _read(self, number: int) -> RecordedBatch:
        """Return the record of a batch; DataError if it was deleted."""
        batch = self._batches[number]
        made = self._record.get(batch)
        if made is None:
            raise DataError(f"the record of batch {batch} is gone: the oldest are deleted first")
        return made

    def next_step(self, limit: int) -> Plan | type[Rest] | None:
        machine = self._machine
        while self._numbers.is_done(machine.next_number):
            machine.take_number()
        if machine.next_number >= self._stop:
            return None
        if not self._wanted:
            return Rest
        self._wanted -= 1
        plan = Plan(machine.next_number, self._maker.draft(self._made(machine.next_number)))
        self._numbers.made(machine.take_number(), b"%d" % machine.next_number)
        return plan

    def want(self, more: int, stripe: int) -> None:
        self._wanted += more

    def close(self, cancel: bool) -> None:
        if not self._closed:  # else it is repeated after a restart
            self._closed = True
            # Batches that trainers hold are made again.
            self._stop = min(self._stop, max(self._machine.next_number, self._claimed))
            self._change.meta["stop"] = b"%d" % self._stop

    def resume(self, saved: Saved) -> None:
        self._closed = "stop" in saved.meta
        self._stop = int(saved.meta.get("stop", self._stop))
        self._machine.next_number = int(saved.meta.get("cursor", 0))
        self._numbers = Numbers(self._machine.next_number, saved.done)

    def epoch_due(self, ended: bool, begun: Iterable[tuple[int, int]]) -> int | None:
        due = self._numbers.first_open
        try:
            return _epoch(self._made(due)) if due < self._stop else None
        except DataError:
            return None

    def set_target(self, target: Target, probs: list[float]) -> int:
        return int(target.set_target(probs, self._machine.next_number))

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> int:
        raise ValueError("a replay makes the batches that were recorded, of their sizes")


class _Chunks:
    """Chunks that were read again, each with what the shape made of it; the oldest are dropped."""

    def __init__(
        self, intakes: Mapping[int, Intake], shaped: Callable[[Read, Chunk], tuple[Chunk, Any]]
    ) -> None:
        self._intakes = intakes
        self._shaped = shaped
        self._get = lru_cache(_CHUNKS)(self._read)

    def _read(self, partition: int, source: ChunkTrace) -> tuple[Chunk, Any]:
        intake = self._intakes[partition]
        intake.stages.restore(source.stages)
        return self._shaped(source.read, intake.chunk(source.read)[0])

    def rows(
        self, made: RecordedBatch, number: int, recorded: np.ndarray
    ) -> tuple[Chunk, Any, np.ndarray]:
        """Return a chunk of a batch, the shape's part of it, and the present places of rows."""
        source = made.trace.sources[number]
        chunk, part = self._get(made.id.partition, source)
        return chunk, part, _found(source, chunk, recorded)


class _Rows(PlainMaker):
    """The maker of recorded batches of rows."""

    def __init__(self, intakes: Mapping[int, Intake], shape: Shape) -> None:
        super().__init__(intakes[0], shape, 0)
        self._chunks = _Chunks(intakes, lambda read, chunk: self.shaped(chunk))

    def draft(self, made: RecordedBatch) -> Draft:
        """Hold the chunks of a batch; return its rows in them."""
        self.held, parts = {}, []
        for part in made.trace.parts:
            chunk, _, rows = self._chunks.rows(made, part.chunk, np.r_[part.rows])
            epoch = made.trace.sources[part.chunk].read.epoch
            self.held[part.chunk] = HeldChunk(chunk, None, [], epoch)
            parts.append(Part(part.chunk, rows))
        return Draft(tuple(parts), _marked(made))


class _Segments(SegmentMaker):
    """The maker of recorded batches of segments."""

    _made: RecordedBatch

    def __init__(
        self, intakes: Mapping[int, Intake], cutting: Cutting, slab: Slab, initial: bool
    ) -> None:
        super().__init__(intakes[0], cutting, StoredExamples(), slab)
        self.properties = cutting.properties()
        bad = intakes[0].bad
        self._chunks = _Chunks(intakes, lambda read, rows: cutting.offer(rows, bad, read.epoch))
        self._initial = initial

    def prepare(self, number: int) -> bool:
        return False

    def draft(self, made: RecordedBatch) -> Segments:
        """Hold the chunks of a batch; return its segments, with their rows in them."""
        batch, meta = made.trace.segments, made.trace.meta
        assert batch is not None
        self._made, self.offers = made, {}
        numbers = batch.numbers.copy()
        for chunk in batch.of_chunks():
            here = np.flatnonzero(batch.chunks == chunk)
            _, self.offers[chunk], rows = self._chunks.rows(made, chunk, batch.rows[here])
            numbers[ROW, here] = rows
        member = None
        if "round" in meta:
            member = RoundMember(meta["round"], meta["rank"], self.cutting.batch_size)
        starts = batch.starts
        if self._initial and self.cutting.at_trainer:
            starts = np.arange(len(batch), dtype=np.int64)
        return replace(batch, numbers=numbers, starts=starts, member=member)

    def states_of(self, batch: Segments) -> tuple[dict[str, Any], int]:
        """Return the recorded states of a batch, or the initial states of all its examples."""
        if not self._initial:
            return _recorded_states(self.cutting.states, self._made)
        numbers = batch.numbers.copy()
        numbers[SEGMENT] = 0
        self.states.grow(len(batch))
        return super().states_of(replace(batch, numbers=numbers))

    def epoch_of(self, plan: Plan) -> int:
        if len(plan.draft):
            self._epoch = _epoch(self._made) or 0
        return self._epoch

    def made(self, plan: Plan, written: Any, memory: np.ndarray) -> Mapping[str, Any]:
        return _marked(self._made)


def _marked(made: RecordedBatch) -> dict[str, Any]:
    """Return the description of a batch, marked as a replay."""
    return {**made.trace.meta, "replayed": [*made.id]}


def _epoch(made: RecordedBatch) -> int | None:
    """Return the epoch of the first row of a batch; None of an empty batch of a rank."""
    places = made.places()
    return int(places[0][0].read.epoch) if places else None


def _found(source: ChunkTrace, chunk: Chunk, recorded: np.ndarray) -> np.ndarray:
    """Return the present places of recorded rows of a chunk; DataError if they have changed."""
    was, examples, rows = source.origin.take(recorded), source.ordinals[recorded], recorded
    if not np.array_equal(source.ordinals, chunk.ordinals):
        places = {ordinal: place for place, ordinal in enumerate(chunk.ordinals.tolist())}
        if len(places) < len(chunk):  # copies of an example can not be told apart
            places = {}
        rows = np.array([places.get(ordinal, -1) for ordinal in examples.tolist()], np.int64)
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


def _recorded_states(states: list[StateSource], made: RecordedBatch) -> tuple[dict[str, Any], int]:
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
        columns[name] = (strings_at if slot.dtype == "bytes" else array_at)(memory, slot)
        if name != "@state_of":
            count = shape[0]
    return columns, count
