"""Batches that are made once more, from the record of how their rows were read.

    script: which batches, in which order ─► Made ─► its chunks, read again ─► the same block
                                                          └ examples compared with the record

A chunk is read as it was, from its position and with what the stages remembered, so a batch needs
no other batch to be made before it.  One partition of the replay gives all batches of the script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgpack
import numpy as np

from headrace_proto.codec import pack
from headrace_proto.errors import DataError
from headrace_proto.layout import Slot, array_at, strings_at

from ..core.changes import Saved
from ..core.slots import Segments
from ..making.assemble import Assembly
from ..making.partition_feed import Blocked, Busy, Done, MadeBatch, PartitionFeed
from ..making.segment_block import SegmentBlock
from ..making.sequence_feed import Resting, SequenceFeed
from ..making.sequencing import Offer, State
from ..making.slab import Slab
from ..making.state_table import KeptStates, StateTable
from ..pipeline.declaration import Declaration
from ..reading.chunk import Chunk
from ..reading.reader import BadRecords, Reader
from .recorder import flight_directory
from .rows import BatchId, Made, Recorded, StoredSource

__all__ = ["Replay", "ReplayedBatches", "ReplayedSegments"]

#: Chunks that are held, as others may need them again.
_CHUNKS = 64

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replay:
    """What is served again: batches of a feed's record, in order."""

    state: str
    feed: str
    partitions: int  # of the feed when it was recorded
    script: tuple[BatchId, ...]
    states: str = "recorded"

    def to_plain(self) -> list[Any]:
        script = [[batch.life, batch.partition, batch.number] for batch in self.script]
        return [self.state, self.feed, self.partitions, script, self.states]

    @classmethod
    def from_plain(cls, plain: Any) -> Replay:
        state, feed, partitions, script, states = plain
        return cls(state, feed, partitions, tuple(BatchId(*one) for one in script), states)

    def recorded(self) -> Recorded:
        lives = {batch.life for batch in self.script}
        return Recorded(flight_directory(Path(self.state), self.feed), lives)


class _Chunks(Generic[T]):
    """Chunks that were read again; the oldest are let go."""

    def __init__(self, read: Callable[[int, StoredSource], T]) -> None:
        self._read = read
        self._held: dict[tuple[int, StoredSource], T] = {}

    def get(self, partition: int, source: StoredSource) -> T:
        name = partition, source
        if name not in self._held:
            if len(self._held) >= _CHUNKS:
                del self._held[next(iter(self._held))]
            self._held[name] = self._read(partition, source)
        return self._held[name]


class ReplayedBatches(PartitionFeed):
    """Batches without states.  A later life goes on after those that are done."""

    def __init__(
        self, reader: Reader, declaration: Declaration, slab: Slab, bad: BadRecords, replay: Replay
    ) -> None:
        about = reader, declaration
        super().__init__(*about, 0, replay.partitions, slab, bad)
        self._readers = {
            partition: PartitionFeed(*about, partition, replay.partitions, slab, bad)
            for partition in {batch.partition for batch in replay.script}
        }
        self._script = _Script(replay)
        self._read_again = _Chunks(self._chunk_of)
        self._waiting: tuple[Made, Assembly] | None = None

    @property
    def next_number(self) -> int:
        return self._script.at

    def restore(self, cursor: Any) -> None:
        """Go on after the batch that the cursor came with."""
        self._script.at = int(cursor)

    def committed(self, number: int) -> None:
        pass

    def close(self, cancel: bool) -> None:
        self._script.end()
        self._change.meta["end"] = pack(self._script.at)

    def resume(self, saved: Saved) -> None:
        super().resume(saved)
        if "end" in saved.meta:
            self._script.end(msgpack.unpackb(saved.meta["end"]))

    def waits_for(self) -> str:
        return ""

    def _chunk_of(self, partition: int, source: StoredSource) -> tuple[Chunk, np.ndarray]:
        chunk = self._readers[partition].read_again(source.read, source.stages)
        return chunk, _places(source, chunk)

    def advance(self) -> MadeBatch | type[Busy] | type[Blocked] | type[Done]:
        """One step of work."""
        if self._waiting is None:
            made = self._script.next()
            if made is None:
                return Done
            if self._numbers.is_done(self._script.at):
                self._count_padding(made.meta)
                self._script.passed()
                return Busy
            parts = []
            for part in made.parts:
                source = made.sources[part.chunk]
                chunk, where = self._read_again.get(made.id.partition, source)
                listed = np.arange(len(where))[part.rows]
                parts.append((chunk, _found(source, chunk, where, listed)))
            self._waiting = made, Assembly(parts, self._fields, self._shaping.dynamic_pad)
        made, assembly = self._waiting
        block = self._slab.allocate(assembly.nbytes)
        if block is None:
            return Blocked
        self._waiting = None
        self._count_padding(made.meta)
        assembly.fill(self._slab.memory(block))
        number = self._script.passed()
        about = number, assembly.rows, block, assembly.nbytes, assembly.slots
        return MadeBatch(*about, _marked(made))

    def cursor(self) -> bytes:
        return pack(self._script.at)


class ReplayedSegments(SequenceFeed):
    """Batches of segments.  Saves are taken, and change nothing: nothing of them is stored."""

    def __init__(
        self, reader: Reader, declaration: Declaration, slab: Slab, bad: BadRecords, replay: Replay
    ) -> None:
        about = reader, declaration
        super().__init__(*about, 0, replay.partitions, slab, bad)
        self._readers = {
            partition: SequenceFeed(*about, partition, replay.partitions, slab, bad)
            for partition in {batch.partition for batch in replay.script}
        }
        self._script = _Script(replay)
        self._initial = replay.states == "initial"
        self._chunks_again = _Chunks(self._chunk_of)
        self._waiting: tuple[Made, SegmentBlock] | None = None
        self._wanted = 0

    @property
    def next_number(self) -> int:
        return self._script.at

    @property
    def starved(self) -> bool:
        return False

    @property
    def reads_next(self) -> bool:
        return True

    def want(self, upto: int, stripe: int) -> None:
        self._wanted = max(self._wanted, upto)

    def saved(self, number: int, block: Any, columns: Any) -> tuple[str, str]:
        return "", ""

    def flushed(self, number: int, rows: list[int], block: Any, columns: Any) -> None:
        pass

    def leave(self, stripe: int) -> None:
        pass

    def claim(self, segments: bytes) -> int | None:
        return None

    def close(self, cancel: bool) -> None:
        self._script.end()

    def _chunk_of(self, partition: int, source: StoredSource) -> tuple[Chunk, Offer, np.ndarray]:
        chunk, offer = self._readers[partition].read_again(source.read, source.stages)
        return chunk, offer, _places(source, chunk)

    def advance(self) -> MadeBatch | type[Busy] | type[Blocked] | type[Done] | type[Resting]:
        """One step of work."""
        if self._waiting is None:
            if self._script.done:
                return Done
            if self._script.at >= self._wanted:
                return Resting
            made = self._script.next()
            assert made is not None
            self._waiting = made, self._made_again(made)
        made, assembly = self._waiting
        block = self._slab.allocate(assembly.nbytes)
        if block is None:
            return Blocked
        self._waiting = None
        assembly.fill(self._slab.memory(block))
        about = assembly.rows, block, assembly.nbytes, assembly.slots
        return MadeBatch(self._script.passed(), *about, _marked(made))

    def _made_again(self, made: Made) -> SegmentBlock:
        batch = made.segments
        assert batch is not None
        offers: dict[int, Offer] = {}
        rows = batch.rows.copy()
        for number, source in made.sources.items():
            chunk, offers[number], where = self._chunks_again.get(made.id.partition, source)
            here = np.flatnonzero(batch.chunks == number)
            rows[here] = _found(source, chunk, where, rows[here])
        batch = replace(batch, rows=rows)
        if self._initial:
            batch, extra, states = self._begun(batch, offers)
        else:
            extra, states = _brought(self._cutting.states, made)
        return SegmentBlock(self._layout, batch, offers, extra, states)

    def _begun(
        self, batch: Segments, offers: Mapping[int, Offer]
    ) -> tuple[Segments, dict[str, Any], int]:
        """Every row from its initial states."""
        states = self._cutting.states
        if self._cutting.at_trainer:
            batch = replace(batch, starts=np.arange(len(batch), dtype=np.int64))
        fresh = replace(batch, segments=np.zeros_like(batch.segments))
        if self._cutting.at_trainer:
            return batch, *KeptStates(states).columns(fresh, offers)
        table = StateTable(states)
        table.grow(len(batch))
        table.begin(fresh, offers)
        return batch, table.columns(batch.slots), len(batch)

    def take_dry(self) -> list[int]:
        return []

    def waits_for(self) -> str:
        return ""

    def oldest_out(self) -> int | None:
        return None


@dataclass(slots=True)
class _Script:
    """Where a replay is."""

    replay: Replay
    at: int = 0
    _recorded: Recorded = field(init=False)
    _stop: int = field(init=False)

    def __post_init__(self) -> None:
        self._recorded = self.replay.recorded()
        self._stop = len(self.replay.script)

    @property
    def done(self) -> bool:
        return self.at >= self._stop

    def next(self) -> Made | None:
        """The batch that is next; None at the end.  DataError where it is recorded no more."""
        if self.done:
            return None
        batch = self.replay.script[self.at]
        made = self._recorded.get(batch)
        if made is None:
            raise DataError(f"the rows of batch {batch} are recorded no more: the oldest go")
        return made

    def passed(self) -> int:
        """It was made; the number that it has in the replay."""
        self.at += 1
        return self.at - 1

    def end(self, at: int | None = None) -> None:
        """Nothing more is wanted from this batch on, which is the next one if none is named."""
        self._stop = min(self._stop, self.at if at is None else at)


def _marked(made: Made) -> dict[str, Any]:
    """What a batch tells of itself, and that it is a replay."""
    batch = made.id
    return {**made.meta, "replayed": [batch.life, batch.partition, batch.number]}


def _places(source: StoredSource, chunk: Chunk) -> np.ndarray:
    """Where each recorded row of a chunk is in what was read now; -1 where it is not."""
    was, now = source.ordinals, chunk.ordinals
    if np.array_equal(was, now):
        return np.arange(len(was))
    order = np.argsort(now, kind="stable")
    if len(np.unique(now)) < len(now) or not len(now):
        return np.full(len(was), -1)
    found = order[np.minimum(np.searchsorted(now, was, sorter=order), len(now) - 1)]
    return np.where(now[found] == was, found, -1)


def _found(
    source: StoredSource, chunk: Chunk, where: np.ndarray, recorded: np.ndarray
) -> np.ndarray:
    """Rows of a chunk by their recorded places; DataError where they are not the same now."""
    rows: np.ndarray = where[recorded]
    if (rows < 0).any():
        gone = source.row(int(recorded[int(np.argmax(rows < 0))]))
        raise DataError(
            f"example {gone.example} ({gone.place}) was in the batch and is not read any more: it "
            "is in quarantine by now, or the source or its stages have changed"
        )
    other = source.differs(recorded, chunk.origin, rows)
    if other is not None:
        known = source.row(int(recorded[other]))
        raise DataError(
            f"example {known.example} was {known.place} and is "
            f"{chunk.origin.describe(int(rows[other]))}: the source has changed since"
        )
    return rows


def _brought(states: list[State], made: Made) -> tuple[dict[str, Any], int]:
    """The states that went out with a batch, as columns of it."""
    if made.states is None:
        raise DataError(f"the states of batch {made.id} were not recorded (record='states')")
    kinds = {"state:" + state.name: state.field.dtype for state in states} | {"@state_of": "int32"}
    columns: dict[str, Any] = {}
    count = 0
    for name, (shape, data) in made.states.items():
        slot = Slot(kinds[name], tuple(shape), 0, len(data))
        memory = np.frombuffer(data, np.uint8)
        texts = slot.dtype == "bytes"
        columns[name] = strings_at(memory, slot) if texts else array_at(memory, slot)
        if name != "@state_of":
            count = shape[0]
    return columns, count
