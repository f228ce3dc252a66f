"""The cache of a pipeline: the first epoch is written as Arrow files, and later ones read them.

    source ─► stages before .cache() ─┬─► stages after it         while examples are missing
                                      └─► part-….arrow, those that no part has yet
    complete.json ─► cached rows ──────► stages after it          once all examples are there

    directory/KEY/    KEY    digest of the source, its files, the stages before, and their functions

Examples are known by their ordinals, so order, partitions and workers do not matter: each worker
writes the examples that it reads and that no finished part has, and the worker that finishes the
last part writes the index and the mark.  An unfinished part does not count.  A pipeline gives the
same stream with a cache and without.

A reader whose cache is complete gives chunks of ordinals alone, which the stages fill with the
cached rows: so a window or a group has the same examples either way.  A position in a stream counts
the examples before it, and so holds in both.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field, schema_to_wire

from ..files.checksums import sealed
from ..files.durable_file import locked, put_in_place, write_durably
from ..files.extras import require
from ..files.manifest import DataFile
from ..pipeline.declaration import Declaration, Shape, jsonable
from ..pipeline.fingerprint import PYTHON, fingerprints
from ..pipeline.function_names import stable_name
from .cached_rows import (
    COMPLETE,
    NO_NUMBERS,
    OWN_FIELDS,
    CachedRows,
    Covered,
    complete,
    naming_damage,
    noted,
    notes_in,
    saved,
)
from .chunk import Chunk, Origin
from .columns import Rows, numbers_of
from .reader import IndexedReader, Reader, StreamReader, read_on

if TYPE_CHECKING:
    from .arrow_part import ArrowPart

logger = logging.getLogger("headrace.data")

#: Bytes and rows at which a part is finished; a worker that dies loses at most as much.
_PART_BYTES: Final = 1 << 28
_PART_ROWS: Final = 1 << 18
#: Bytes of a record batch, which is verified when the first of its rows is read.
_BATCH_BYTES: Final = 1 << 23
#: Changes with the form of the files, so that none of another form is read.
_FORM: Final = 3
#: Seconds between two looks for parts that other workers have finished, or a complete cache.
_LOOK_S: Final = 1.0
#: A position in a stream: the examples before it, then the reader's own position.
_PASSED: Final = struct.Struct("<q")


def cached(
    reader: Reader,
    declaration: Declaration,
    files: tuple[DataFile, ...],
    progress: Callable[[], None] = lambda: None,
) -> Reader:
    """Return the reader, behind the pipeline's cache where it has one.

    ``progress`` is called now and then while the cache is completed, which may take long.
    """
    kinds = [stage.kind for stage in declaration.stages]
    if "cache" not in kinds:
        return reader
    require("pyarrow", "arrow", "cache(directory)")
    at = kinds.index("cache")
    directory = Path(declaration.stages[at].options["directory"])
    before = replace(declaration, stages=declaration.stages[:at], shape=Shape("", {}))
    plain = before.to_plain()
    del plain["order"], plain["shape"]
    of = [_FORM, plain, [file.to_plain() for file in files], PYTHON, fingerprints(before)]
    text = stable_name(json.dumps(of, sort_keys=True, default=jsonable))
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    try:
        if isinstance(reader, IndexedReader):
            return _Indexed(reader, Cache(directory / key, [reader.length], progress))
        return _Streamed(reader, Cache(directory / key, [None] * reader.streams, progress))
    except OSError as error:
        raise ValueError(f"cache(directory={str(directory)!r}): {error}") from error


@dataclass(frozen=True, slots=True, eq=False)
class CachedRead:
    """The read of a chunk: from a cache, which has its columns, or to fill the cache."""

    cache: Cache
    from_cache: bool
    bad: np.ndarray = field(default_factory=lambda: NO_NUMBERS)  # examples of an IndexedReader

    @staticmethod
    def joined(parts: list[CachedRead]) -> CachedRead:
        """Return the read of joined chunks, which are all from a cache or all not."""
        return replace(parts[0], bad=np.concatenate([part.bad for part in parts]))


def _refuse() -> None:
    """Raise for a lock that another process has."""
    raise BlockingIOError


class _Indexed:
    """An IndexedReader, or the examples that its cache has."""

    def __init__(self, reader: IndexedReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache
        self.fields, self.length = reader.fields, reader.length

    def take(self, rows: Rows) -> Chunk:
        ordinals = numbers_of(rows)
        if self._cache.rows is not None:
            return self._cache.chunk(self._cache.rows.good(ordinals))
        chunk = self._reader.take(rows)
        bad = NO_NUMBERS if len(chunk) == len(ordinals) else np.setdiff1d(ordinals, chunk.ordinals)
        return replace(chunk, read=CachedRead(self._cache, False, bad))

    def close(self) -> None:
        self._reader.close()
        self._cache.close()


class _Streamed:
    """A StreamReader, or the examples that its cache has.

    Only at the end it gives fewer than asked.
    """

    def __init__(self, reader: StreamReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache
        self.fields, self.streams = reader.fields, reader.streams

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        passed = _PASSED.unpack_from(position)[0] if position else 0
        if self._cache.rows is not None:
            records, more = self._cache.rows.stream(stream, passed, limit)
            return self._cache.chunk(records), _PASSED.pack(passed + limit) if more else None
        own: bytes | None = position[_PASSED.size :]
        if passed and not own:  # it was read from a cache that has been removed
            own = read_on(self._reader, stream, b"", passed)[1]
        if own is None:
            raise DataError(
                f"stream {stream} has ended before the {passed} examples that were read"
            )
        chunk, own = read_on(self._reader, stream, own, limit)
        passed += len(chunk)
        if own is None:
            self._cache.ended(stream, passed)
        read = CachedRead(self._cache, False)
        return replace(chunk, read=read), None if own is None else _PASSED.pack(passed) + own

    def close(self) -> None:
        self._reader.close()
        self._cache.close()


class Cache:
    """One cache, as one process writes and reads it.

    ``counts`` are the examples of each stream, None where only its end shows them; a reader by
    number is one stream.
    """

    def __init__(
        self, directory: Path, counts: Sequence[int | None], progress: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._progress = progress
        self._name = f"part-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._covered = Covered(counts)  # by finished parts and by its own part
        self._noted: set[str] = set()
        self._looked = 0.0
        self._writing = True
        self._fields: dict[str, Field] = {}
        self._begin()
        #: The rows, once all examples are there.
        self.rows: CachedRows | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self._look()

    def _begin(self) -> None:
        self._part: ArrowPart | None = None
        self._asked: list[np.ndarray] = []
        self._bad: list[np.ndarray] = []
        self._sources: list[np.ndarray] = []
        self._ends: list[tuple[int, int]] = []
        self._files: dict[str, int] = {}

    def chunk(self, ordinals: np.ndarray) -> Chunk:
        """Return examples whose columns the cache has."""
        origin = Origin.single(str(self._directory), ordinals)
        return Chunk({}, ordinals, origin, read=CachedRead(self, True))

    def ended(self, stream: int, count: int) -> None:
        """Note how many examples a stream has."""
        if self._covered.counts[stream] is None:
            self._covered.counts[stream] = count
            self._ends.append((stream, count))

    def add(
        self,
        chunk: Chunk,
        sources: np.ndarray,
        asked: np.ndarray,
        bad: np.ndarray,
        fields: Mapping[str, Field],
    ) -> None:
        """Write rows that are not in the cache; ``sources`` are the examples that they come from.

        ``asked`` are all examples, with and without rows, and ``bad`` those that can not be read.
        """
        if self.rows is not None or (time.monotonic() - self._looked > _LOOK_S and self._look()):
            return
        if not self._writing:
            return
        self._fields = dict(fields)
        asked, bad = (one[self._covered.lacks(one)] for one in (asked, bad))
        if not len(asked) + len(bad):
            return
        keep = self._covered.lacks(sources)
        try:
            self._write(chunk if keep.all() else chunk.take(np.flatnonzero(keep)), fields)
            self._sources.append(sources[keep])
            self._asked += [asked, bad]
            self._bad.append(bad)
            self._covered.add(asked)
            self._covered.add(bad)
            part = self._part
            heavy = part is not None and (part.nbytes >= _PART_BYTES or part.rows >= _PART_ROWS)
            if heavy or self._covered.whole:
                self.flush()
        except OSError as error:
            self._give_up(error)

    def _write(self, chunk: Chunk, fields: Mapping[str, Field]) -> None:
        if not len(chunk):
            return
        from .arrow_part import ArrowPart

        if self._part is None:
            file = self._directory / f"{self._name}-{self._number:05}.arrow"
            self._part = ArrowPart(file, {**fields, **OWN_FIELDS}, _BATCH_BYTES)
        origin = chunk.origin
        numbers = [self._files.setdefault(name, len(self._files)) for name in origin.files]
        offset = np.full(len(chunk), -1) if origin.offset is None else origin.offset
        own = {
            "@ordinal": chunk.ordinals,
            "@file": np.array(numbers, np.int32)[origin.file],
            "@record": origin.record.astype(np.int64),
            "@offset": offset.astype(np.int64),
        }
        self._part.add(chunk.with_columns({**chunk.columns, **own}))

    def flush(self) -> None:
        """Finish the current part, for example at the end of an epoch."""
        if not (self._asked or self._ends) or not self._writing:
            return
        name = f"{self._name}-{self._number:05}"
        try:
            note: dict[str, Any] = {"files": list(self._files), "ends": self._ends}
            note |= {"rows": 0, "fields": schema_to_wire(self._fields)}
            if self._part is not None:
                self._part.finish()
                note |= noted(self._part)
                put_in_place(self._part.path, self._part.file)
            lists = (self._asked, self._sources, self._bad)
            arrays = (np.concatenate([NO_NUMBERS, *one]) for one in lists)
            note["lists"] = saved(self._directory / f"{name}.npy", *arrays)
            write_durably(self._directory / f"{name}.json", sealed(note))
        except OSError as error:
            self._give_up(error)
            return
        self._noted.add(name)
        self._number += 1
        self._begin()
        self._look()

    def _look(self) -> bool:
        """Look for finished parts of all workers; return whether the cache is complete."""
        self._looked = time.monotonic()
        with naming_damage(self._directory):
            return self._is_complete()

    def _is_complete(self) -> bool:
        directory = self._directory
        if not (directory / COMPLETE).exists():
            for name in set(notes_in(directory)) - self._noted:
                # another worker completed it, and removed the file
                with suppress(FileNotFoundError):
                    self._covered.add_part(directory, name)
                self._noted.add(name)
            if self._asked or self._ends or not self._covered.whole or not self._completed():
                return False
        self.rows = CachedRows(directory, self._progress)
        self._drop_part()
        return True

    def _completed(self) -> bool:
        """Complete the cache, unless another process does so; return whether it is complete."""
        with suppress(BlockingIOError), locked(self._directory / "lock", _refuse):
            if (self._directory / COMPLETE).exists():
                return True
            return complete(self._directory, self._covered.counts, self._progress)
        return False

    def _give_up(self, error: OSError) -> None:
        """Stop writing: a full disk must not stop the feed."""
        self._drop_part()
        if self._look():  # others completed it, and removed what they did not need
            return
        self._writing = False
        logger.warning("the cache %s is not written any more: %s", self._directory, error)

    def _drop_part(self) -> None:
        part = self._part
        self._begin()
        if part is not None:
            with suppress(OSError):
                part.drop()

    def close(self) -> None:
        """Drop the unfinished part."""
        self._drop_part()
        if self.rows is not None:
            self.rows.close()
