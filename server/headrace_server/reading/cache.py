"""The cache of a pipeline: the first epoch is written as Arrow files, and later ones read them.

    source ─► stages before .cache() ─┬─► stages after it         while examples are missing
                                      └─► part-….arrow, those that no part has yet
    complete.json ─► cached rows ──────► stages after it          once all examples are there

    directory/KEY/    KEY    digest of the source, its files, the stages before, and their functions

Examples are known by their number in the source, so order, partitions and workers do not matter:
each worker writes the examples that it reads and that no finished part has, and the one that
finishes the last part writes the index and the mark.  A part that a worker did not finish is none.
A pipeline gives the same stream with a cache and without.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace_proto.schema import Field, schema_to_wire

from ..files.durable_file import put_in_place, write_durably
from ..files.extras import require
from ..files.manifest import DataFile
from ..pipeline.declaration import Declaration, Shape, jsonable
from ..pipeline.fingerprint import PYTHON, fingerprints
from ..pipeline.naming import stable_name
from .cached_rows import COMPLETE, OWN_FIELDS, CachedRows, complete, notes_in
from .chunk import Chunk
from .reader import IndexedReader, Reader

if TYPE_CHECKING:
    from .arrow_part import ArrowPart

__all__ = ["Cache", "CachedRead", "cached"]

logger = logging.getLogger("headrace.data")

#: A part is finished when it weighs so much, or has so many rows: so much is lost with a worker.
_PART_BYTES: Final = 1 << 28
_PART_ROWS: Final = 1 << 18
#: Seconds between two looks at what other workers have finished.
_LOOK_S: Final = 1.0


def cached(reader: Reader, declaration: Declaration, files: tuple[DataFile, ...]) -> Reader:
    """The reader, by way of the pipeline's cache where it has one."""
    kinds = [stage.kind for stage in declaration.stages]
    if "cache" not in kinds:
        return reader
    require("pyarrow", "arrow", "cache(directory)")
    if not isinstance(reader, IndexedReader):
        raise ValueError(
            f"cache(): the source ({declaration.source.kinds}) can only be read forward; headrace "
            "convert makes Arrow files of it"
        )
    at = kinds.index("cache")
    directory = Path(declaration.stages[at].options["directory"])
    before = replace(declaration, stages=declaration.stages[:at], shape=Shape("", {}))
    plain = before.to_plain()
    del plain["order"], plain["shape"]
    of = [plain, [file.to_plain() for file in files], PYTHON, fingerprints(before)]
    text = stable_name(json.dumps(of, sort_keys=True, default=jsonable))
    key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return _CachedReader(reader, Cache(directory / key, reader.length))


@dataclass(frozen=True, slots=True, eq=False)
class CachedRead:
    """How a chunk was read: from a cache, or for it."""

    cache: Cache
    asked: np.ndarray  # the examples that were asked for; some may be bad and not in the chunk
    from_cache: bool

    @staticmethod
    def joined(parts: list[CachedRead]) -> CachedRead:
        """The read of chunks that are joined; between them no cache becomes complete."""
        asked = np.concatenate([part.asked for part in parts])
        return CachedRead(parts[0].cache, asked, parts[0].from_cache)


class _CachedReader:
    """The source, or its cached rows: chunks tell which."""

    def __init__(self, reader: IndexedReader, cache: Cache) -> None:
        self._reader, self._cache = reader, cache
        self.fields, self.length = reader.fields, reader.length

    def slice(self, start: int, stop: int) -> Chunk:
        return self._read(np.arange(start, stop), lambda: self._reader.slice(start, stop))

    def take(self, ordinals: np.ndarray) -> Chunk:
        ordinals = np.asarray(ordinals, np.int64)
        return self._read(ordinals, lambda: self._reader.take(ordinals))

    def _read(self, ordinals: np.ndarray, source: Callable[[], Chunk]) -> Chunk:
        rows = self._cache.rows
        chunk = source() if rows is None else rows.take(ordinals)
        return replace(chunk, read=CachedRead(self._cache, ordinals, rows is not None))

    def close(self) -> None:
        self._reader.close()
        self._cache.close()


class Cache:
    """One cache, as one process writes and reads it."""

    def __init__(self, directory: Path, length: int) -> None:
        self._directory, self._length = directory, length
        self._name = f"part-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._covered = np.zeros(length, bool)  # examples in finished parts, and in the own one
        self._missing = length
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
        self._sources: list[np.ndarray] = []
        self._files: dict[str, int] = {}

    def add(
        self, chunk: Chunk, sources: np.ndarray, asked: np.ndarray, fields: Mapping[str, Field]
    ) -> None:
        """Write rows that are not in the cache; ``sources`` are the examples that they come from.

        Examples that were asked for and have no row are known to have none.
        """
        if self.rows is not None or (time.monotonic() - self._looked > _LOOK_S and self._look()):
            return
        if not self._writing:
            return
        asked = asked[~self._covered[asked]]
        if not len(asked):
            return
        keep = ~self._covered[sources]
        self._fields = dict(fields)
        try:
            self._write(chunk if keep.all() else chunk.take(np.flatnonzero(keep)), fields)
            self._sources.append(sources[keep])
            self._asked.append(asked)
            self._covered[asked] = True
            self._missing -= len(asked)
            part = self._part
            heavy = part is not None and (part.nbytes >= _PART_BYTES or part.rows >= _PART_ROWS)
            if heavy or not self._missing:
                self.flush()
        except OSError as error:
            self._give_up(error)

    def _write(self, chunk: Chunk, fields: Mapping[str, Field]) -> None:
        if not len(chunk):
            return
        from .arrow_part import ArrowPart

        if self._part is None:
            file = self._directory / f"{self._name}-{self._number:05}.arrow"
            self._part = ArrowPart(file, {**fields, **OWN_FIELDS}).__enter__()
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
        """Finish the part that is written, at the end of an epoch, say."""
        if not self._asked or not self._writing:
            return
        name = f"{self._name}-{self._number:05}"
        try:
            rows = 0
            if self._part is not None:
                self._part.__exit__(None, None, None)
                rows = self._part.rows
                put_in_place(self._part.path, self._part.file)
            for end, arrays in (("asked", self._asked), ("rows", self._sources)):
                np.save(self._directory / f"{name}.{end}.npy", np.concatenate(arrays))
            fields = schema_to_wire(self._fields)
            note = {"rows": rows, "files": list(self._files), "fields": fields}
            write_durably(self._directory / f"{name}.json", json.dumps(note))
        except OSError as error:
            self._give_up(error)
            return
        self._noted.add(name)
        self._number += 1
        self._begin()
        self._look()

    def _look(self) -> bool:
        """Take note of what all workers have finished; whether the cache is complete."""
        self._looked = time.monotonic()
        directory = self._directory
        if not (directory / COMPLETE).exists():
            for name in set(notes_in(directory)) - self._noted:
                with suppress(FileNotFoundError):  # it was completed meanwhile, and tidied
                    self._covered[np.load(directory / f"{name}.asked.npy")] = True
                self._noted.add(name)
            self._missing = self._length - int(np.count_nonzero(self._covered))
            if self._asked or self._missing or not self._completed():
                return False
        self.rows = CachedRows(directory)
        self._drop_part()
        return True

    def _completed(self) -> bool:
        """Complete the cache, or wait for the process that does."""
        with open(self._directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (self._directory / COMPLETE).exists():
                return True
            done = complete(self._directory, self._length)
        if done:
            logger.info("the cache %s is complete", self._directory)
        return done

    def _give_up(self, error: OSError) -> None:
        """Write no more: a full disk is no reason for the feed to stop."""
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
                part.__exit__(OSError, OSError(), None)

    def close(self) -> None:
        """Drop the part that is not finished."""
        self._drop_part()
        if self.rows is not None:
            self.rows.close()
