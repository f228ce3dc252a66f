"""What the files of rows say: every batch that was made, with the chunks that its rows lie in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..core.plan import Part, Read
from ..core.slots import Segments
from .flight import FILE, PARTS, SEGMENTS, SOURCE
from .flight_files import FORMAT, SUFFIX, frames, unpacked

__all__ = ["BatchId", "Made", "Row", "StoredSource", "made_batches"]


@dataclass(frozen=True, slots=True, order=True)
class BatchId:
    """Numbers begin anew with each life of a server, where batches are of segments."""

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
        """As errors name it."""
        text = f"{self.file}, record {self.record}"
        return text if self.offset is None else f"{text}, byte {self.offset}"


class StoredSource:
    """One chunk: how it was read, and its rows."""

    def __init__(self, chunk: int, names: list[str], plain: list[Any]) -> None:
        (self.epoch, self._position, self._limit, self.stages), self._rows, self.keys = plain
        self.read = Read(chunk, self.epoch, self._position, self._limit)
        self._names = names

    @cached_property
    def ordinals(self) -> np.ndarray:
        return unpacked(self._rows[0])

    @cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        _, _, file, record, offset = self._rows
        return unpacked(file), unpacked(record), None if offset is None else unpacked(offset)

    def row(self, at: int, segment: int = -1, segments: int = 0) -> Row:
        """One of its rows."""
        file, record, offset = self._places
        return Row(
            int(self.ordinals[at]),
            self.epoch,
            self._names[self._rows[1][int(file[at])]],
            int(record[at]),
            None if offset is None else int(offset[at]),
            self.keys[at] if self.keys else None,
            segment,
            segments,
        )


@dataclass(slots=True)
class Made:
    """One batch that was made."""

    id: BatchId
    rows: int
    sources: dict[int, StoredSource]  # of its file: those of its rows, and others
    parts: list[Part] = field(default_factory=list)
    segments: Segments | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] | None = None

    def places(self) -> list[tuple[StoredSource, int]]:
        """The chunk of each row, and which row of it."""
        if self.segments is not None:
            pairs = zip(self.segments.chunks.tolist(), self.segments.rows.tolist(), strict=True)
            return [(self.sources[chunk], row) for chunk, row in pairs]
        found = []
        for part in self.parts:
            rows = part.rows
            at = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
            found += [(self.sources[part.chunk], row) for row in at]
        return found

    def listed(self) -> list[Row]:
        """Its rows, in order."""
        batch = self.segments
        if batch is None:
            return [source.row(at) for source, at in self.places()]
        numbers = zip(batch.segments.tolist(), batch.counts.tolist(), strict=True)
        return [
            source.row(at, segment, count)
            for (source, at), (segment, count) in zip(self.places(), numbers, strict=True)
        ]

    def has_key(self, key: bytes) -> bool:
        return any(source.keys and source.keys[at] == key for source, at in self.places())


def made_batches(directory: Path, lives: Iterable[int] | None = None) -> Iterator[Made]:
    """Every batch that is recorded, of these lives or of all, in the order of each worker.

    A worker that died before it announced a batch has recorded it in vain: of several of one
    number the last one counts.
    """
    wanted = None if lives is None else set(lives)
    for path in sorted(directory.glob(f"rows-*{SUFFIX}")):
        life = int(path.name.split("-")[1])
        if wanted is None or life in wanted:
            yield from _made(path)


def _made(path: Path) -> Iterator[Made]:
    content = frames(path)
    header = next(content, None)
    if header is None or header[0] != FORMAT:
        return
    life = header[3]
    names: list[str] = []
    sources: dict[int, dict[int, StoredSource]] = {}  # by partition and chunk
    for kind, *plain in content:
        if kind == FILE:
            names.append(plain[1])
        elif kind == SOURCE:
            partition, chunk, *about = plain
            sources.setdefault(partition, {})[chunk] = StoredSource(chunk, names, about)
        elif kind == PARTS:
            partition, number, rows, parts, meta = plain
            known = sources[partition]
            listed = [_part(*part) for part in parts]
            yield Made(BatchId(life, partition, number), rows, known, listed, meta=meta)
        elif kind == SEGMENTS:
            partition, number, rows, packed, meta, states = plain
            batch = _segments(packed)
            about = BatchId(life, partition, number), rows, sources[partition]
            yield Made(*about, segments=batch, meta=meta, states=states)


def _part(chunk: int, *rows: Any) -> Part:
    return Part(chunk, slice(*rows) if len(rows) == 2 else unpacked(rows[0]))


def _segments(plain: list[Any]) -> Segments:
    *columns, stripe = plain
    chunks, rows, segments, counts, indices, lanes, starts = map(unpacked, columns)
    slots = np.arange(len(chunks), dtype=np.int64)
    lines = np.zeros(len(chunks), np.int64)
    return Segments(
        slots, chunks, rows, segments, counts, indices, lines, stripe, lanes, starts
    )
