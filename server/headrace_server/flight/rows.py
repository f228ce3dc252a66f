"""Frames of batches, read: where each row of a batch came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..core.plan import Part, Read
from ..core.slots import Segments
from ..reading.chunk import Origin
from ..reading.trace import ChunkTrace, Trace
from .flight_file import unpacked


class BatchId(NamedTuple):
    """The name of a batch: with segments, numbers restart with each life of a server."""

    life: int
    partition: int
    number: int

    def __str__(self) -> str:
        return f"{self.life}/{self.partition}:{self.number}"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch.  ``segment`` is -1 where there are none."""

    example: int
    epoch: int
    file: str
    record: int
    offset: int | None
    key: bytes | None = None
    segment: int = -1
    segments: int = 0

    @property
    def place(self) -> str:
        """The file, record and byte, as errors name them."""
        text = f"{self.file}, record {self.record}"
        return text if self.offset is None else f"{text}, byte {self.offset}"


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """One batch that was made."""

    id: BatchId
    trace: Trace

    def places(self) -> list[tuple[ChunkTrace, int]]:
        """Return the chunk of each row, and which row of it."""
        sources, batch = self.trace.sources, self.trace.segments
        if batch is None:
            parts = [(sources[part.chunk], np.r_[part.rows]) for part in self.trace.parts]
            return [(source, row) for source, rows in parts for row in rows.tolist()]
        places = zip(batch.chunks.tolist(), batch.rows.tolist(), strict=True)
        return [(sources[chunk], row) for chunk, row in places]

    def listed(self) -> list[Row]:
        """Return its rows, in order."""
        places, batch = self.places(), self.trace.segments
        if batch is None:
            return [_row(source, at) for source, at in places]
        numbers = zip(places, batch.segments.tolist(), batch.counts.tolist(), strict=True)
        return [_row(source, at, segment, count) for (source, at), segment, count in numbers]

    def has_key(self, key: bytes) -> bool:
        return any(source.keys and source.keys[at] == key for source, at in self.places())


def _row(source: ChunkTrace, at: int, segment: int = -1, segments: int = 0) -> Row:
    origin = source.origin
    return Row(
        example=int(source.ordinals[at]),
        epoch=source.read.epoch,
        file=origin.files[int(origin.file[at])],
        record=int(origin.record[at]),
        offset=None if origin.offset is None else int(origin.offset[at]),
        key=source.keys[at] if source.keys else None,
        segment=segment,
        segments=segments,
    )


def recorded_trace(frame: Sequence[Any], sources: Mapping[int, ChunkTrace]) -> Trace:
    """Return the trace in a batch's frame, with these sources."""
    *_, states, _, _, parts, plain, meta = frame
    segments = None
    if plain is not None:
        columns, stripe, lanes, starts = plain
        known = [*map(unpacked, columns)]
        slots, lines = np.arange(len(known[0])), np.zeros_like(known[0])
        numbers = np.array([lines, *known])
        segments = Segments(slots, numbers, stripe, unpacked(lanes), unpacked(starts))
    read_parts = [Part(chunk, unpacked(rows)) for chunk, rows in parts]
    return Trace(sources, read_parts, segments, meta, states)


def recorded_sources(frame: Sequence[Any], lists: Sequence[Sequence[str]]) -> dict[int, ChunkTrace]:
    """Return the sources that are new in a batch's frame; ``lists`` are those of its file."""
    *_, new, _, _, _ = frame
    sources = {}
    for chunk, (read, stages, ordinals, (files, file, record, offset), keys) in new.items():
        offset = None if offset is None else unpacked(offset)
        origin = Origin(tuple(lists[files]), unpacked(file), unpacked(record), offset)
        sources[chunk] = ChunkTrace(Read(*read), stages, unpacked(ordinals), origin, keys)
    return sources
