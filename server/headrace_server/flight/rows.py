"""A file of the record, read: the batches that were made, with the chunks that their rows lie in.

The scan finds where batches and sources lie; a batch is read when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace_proto.errors import ServerError

from ..core.plan import Part, Read
from ..core.slots import Segments
from ..reading.chunk import Origin
from ..reading.trace import ChunkTrace, Trace
from .files import FORMAT, frame_at, frames, unpacked
from .recorder import NAME, SOURCE

#: Maximum number of sources of one file in memory.
_SOURCES = 256


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
    rows: int
    trace: Trace

    def places(self) -> list[tuple[ChunkTrace, int]]:
        """Return the chunk of each row, and which row of it."""
        trace, batch = self.trace, self.trace.segments
        if batch is not None:
            chunks, rows = batch.chunks.tolist(), batch.rows.tolist()
        else:
            listed = [(p.chunk, np.r_[p.rows].tolist()) for p in trace.parts]
            chunks = [chunk for chunk, rows in listed for _ in rows]
            rows = [row for _, rows in listed for row in rows]
        return [(trace.sources[chunk], row) for chunk, row in zip(chunks, rows, strict=True)]

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


class RecordFile:
    """One file: where its sources lie, and the names in it."""

    def __init__(self, path: Path, life: int) -> None:
        self.life = life
        self._path = path
        self._names: list[str] = []
        self._sources: dict[tuple[int, int], int] = {}  # by partition and chunk
        self._source = lru_cache(_SOURCES)(self._read_source)

    def scan(self) -> Iterator[tuple[int, list[Any]]]:
        """Give its header, batches and rounds, each with its place; note names and sources.

        ServerError where another release has written the file.
        """
        found = frames(self._path)
        for at, header in islice(found, 1):
            if header[0] != FORMAT:
                raise ServerError(
                    f"{self._path} was written by another release of headrace (format "
                    f"{header[0]!r:.40}, this one reads {FORMAT}): move it elsewhere, and read it "
                    "by that release"
                )
            yield at, header
        for at, plain in found:
            if plain[0] == NAME:
                self._names.append(plain[1])
            elif plain[0] == SOURCE:
                self._sources[plain[1], plain[2]] = at
            else:
                yield at, plain

    def batch(self, at: int) -> RecordedBatch | None:
        """Read the batch of a frame; None where the file is gone."""
        frame = frame_at(self._path, at)
        if frame is None:
            return None
        _, partition, number, rows, parts, plain, meta, states = frame
        listed = [_part(*part) for part in parts]
        segments = None if plain is None else _segments(plain)
        chunks = {p.chunk for p in listed} if segments is None else segments.of_chunks()
        sources = {chunk: self._source(partition, chunk) for chunk in chunks}
        trace = Trace(sources, listed, segments, meta, states)
        return RecordedBatch(BatchId(self.life, partition, number), rows, trace)

    def _read_source(self, partition: int, chunk: int) -> ChunkTrace:
        plain = frame_at(self._path, self._sources[partition, chunk])
        if plain is None:
            raise ServerError(f"{self._path} is gone: it was the oldest of what is recorded")
        _, _, _, how, stages, (ordinals, files, file, record, offset), keys = plain
        origin = Origin(
            tuple(self._names[number] for number in files),
            unpacked(file),
            unpacked(record),
            None if offset is None else unpacked(offset),
        )
        return ChunkTrace(Read(chunk, *how), stages, unpacked(ordinals), origin, keys)


def _part(chunk: int, *rows: Any) -> Part:
    return Part(chunk, slice(*rows) if len(rows) == 2 else unpacked(rows[0]))


def _segments(plain: list[Any]) -> Segments:
    *columns, stripe = plain
    chunks, rows, segments, counts, indices, lanes, starts = map(unpacked, columns)
    slots = np.arange(len(chunks), dtype=np.int64)
    lines = np.zeros(len(chunks), np.int64)
    numbers = np.array([lines, indices, chunks, rows, segments, counts], np.int64)
    return Segments(slots, numbers, stripe, lanes, starts)
