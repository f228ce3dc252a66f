"""The files of rows, read: every batch that was made, with the chunks that its rows lie in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from headrace_proto.errors import ServerError

from ..core.plan import Part, Read
from ..core.slots import Segments
from ..reading.chunk import Origin
from .files import content, frame_at, recorded_in, unpacked
from .recorder import RowsFrame

#: Sources of one file that are held at a time.
_SOURCES = 256


@dataclass(frozen=True, slots=True, order=True)
class BatchId:
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

    def differs(self, at: np.ndarray, origin: Origin, now: np.ndarray) -> int | None:
        """Return the first of these rows that comes from another place now; None for none."""
        file, record, _ = self._places
        same = record[at] == origin.record[now]
        pairs = zip(file[at].tolist(), origin.file[now].tolist(), strict=True)
        names = [self._names[number] for number in self._rows[1]]
        same &= np.array([names[was] == origin.files[is_] for was, is_ in pairs], bool)
        return None if same.all() else int(np.argmin(same))

    def row(self, at: int, segment: int = -1, segments: int = 0) -> Row:
        """Return one of its rows."""
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
class RecordedBatch:
    """One batch that was made."""

    id: BatchId
    rows: int
    sources: dict[int, StoredSource] = field(default_factory=dict)  # by number of the chunk
    parts: list[Part] = field(default_factory=list)
    segments: Segments | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] | None = None

    def places(self) -> list[tuple[StoredSource, int]]:
        """Return the chunk of each row, and which row of it."""
        batch = self.segments
        if batch is not None:
            pairs = zip(batch.chunks.tolist(), batch.rows.tolist(), strict=True)
            return [(self.sources[chunk], row) for chunk, row in pairs]
        return [(self.sources[p.chunk], row) for p in self.parts for row in _numbers(p.rows)]

    def listed(self) -> list[Row]:
        """Return its rows, in order."""
        places, batch = self.places(), self.segments
        if batch is None:
            return [source.row(at) for source, at in places]
        numbers = zip(places, batch.segments.tolist(), batch.counts.tolist(), strict=True)
        return [source.row(at, segment, count) for (source, at), segment, count in numbers]

    def has_key(self, key: bytes) -> bool:
        return any(source.keys and source.keys[at] == key for source, at in self.places())


class Recorded:
    """The batches that are recorded, of these lives or of all; each is read when it is asked for.

    A worker that died before it announced a batch has recorded it in vain: of several of one
    number the last one counts.
    """

    def __init__(self, *directories: Path, lives: Iterable[int] | None = None) -> None:
        """``directories``: of one server, or of several with shares of the feed."""
        self._places: dict[BatchId, tuple[_RowsFile, int]] = {}
        self._with_states: set[BatchId] = set()
        wanted = None if lives is None else set(lives)
        for server, path in recorded_in(directories, "rows"):
            # Servers number their lives alike.  Here each life has a number of its own.
            life = int(path.name.split("-")[1]) * len(directories) + server
            if wanted is None or life in wanted:
                file = _RowsFile(path, life)
                for at, batch, has_states in file.scan():
                    self._places[batch] = file, at
                    if has_states:
                        self._with_states.add(batch)

    def __iter__(self) -> Iterator[BatchId]:
        return iter(self._places)

    def __contains__(self, batch: BatchId) -> bool:
        return batch in self._places

    def has_states(self, batch: BatchId) -> bool:
        """Return whether the states that went out with it are recorded."""
        return batch in self._with_states

    def get(self, batch: BatchId) -> RecordedBatch | None:
        """Read one of the batches; None where it is not recorded, or no more."""
        file, at = self._places.get(batch, (None, 0))
        return None if file is None else file.made(at)


class _RowsFile:
    """One file: where its sources lie, and the names in it."""

    def __init__(self, path: Path, life: int) -> None:
        self.path = path
        self.life = life
        self._names: list[str] = []
        self._sources: dict[tuple[int, int], int] = {}  # by partition and chunk
        self._read: dict[tuple[int, int], StoredSource] = {}

    def scan(self) -> Iterator[tuple[int, BatchId, bool]]:
        """Find names and sources once; give where batches lie, and whether with states."""
        for at, (kind, *plain) in islice(content(self.path), 1, None):
            if kind == RowsFrame.FILE:
                self._names.append(plain[1])
            elif kind == RowsFrame.SOURCE:
                self._sources[plain[0], plain[1]] = at
            else:
                has_states = kind == RowsFrame.SEGMENTS and plain[5] is not None
                yield at, BatchId(self.life, plain[0], plain[1]), has_states

    def _source(self, partition: int, chunk: int) -> StoredSource:
        name = partition, chunk
        if name not in self._read:
            plain = frame_at(self.path, self._sources[name])
            if plain is None:
                raise ServerError(f"{self.path} is gone: it was the oldest of what is recorded")
            if len(self._read) >= _SOURCES:
                del self._read[next(iter(self._read))]
            self._read[name] = StoredSource(chunk, self._names, plain[3:])
        return self._read[name]

    def made(self, at: int) -> RecordedBatch | None:
        """Read the batch of a frame."""
        frame = frame_at(self.path, at)
        if frame is None:
            return None
        kind, partition, number, rows, plain, meta, *states = frame
        made = RecordedBatch(BatchId(self.life, partition, number), rows, meta=meta)
        if kind == RowsFrame.PARTS:
            made.parts = [_part(*part) for part in plain]
            chunks = {part.chunk for part in made.parts}
        else:
            made.segments, made.states = _segments(plain), states[0]
            chunks = set(made.segments.chunks.tolist())
        made.sources = {chunk: self._source(partition, chunk) for chunk in chunks}
        return made


def _numbers(rows: slice | np.ndarray) -> Iterable[int]:
    return range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()


def _part(chunk: int, *rows: Any) -> Part:
    return Part(chunk, slice(*rows) if len(rows) == 2 else unpacked(rows[0]))


def _segments(plain: list[Any]) -> Segments:
    *columns, stripe = plain
    chunks, rows, segments, counts, indices, lanes, starts = map(unpacked, columns)
    slots = np.arange(len(chunks), dtype=np.int64)
    lines = np.zeros(len(chunks), np.int64)
    numbers = np.array([lines, indices, chunks, rows, segments, counts], np.int64)
    return Segments(slots, numbers, stripe, lanes, starts)
