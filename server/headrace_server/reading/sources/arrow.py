"""Arrow IPC files and streams (Feather version 2 is the file format), memory-mapped.

    all files ─► one mapped range ─► record batches ─► per column: where its buffers begin

Columns point into the mapped files; rows of any number of batches and files are taken at once and
move no payload but that of dense columns.  Compressed files, dictionaries, nulls within lists,
lists of bool, and files that store a column in different types are decoded batch by batch, and
the last batches are kept; taking scattered rows then decodes many batches for few rows.  A
compressed *stream* is decoded when it is opened and held in memory: the file format is not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile
from headrace_server.files.mapped_files import MappedFiles
from headrace_server.reading.chunk import Origin
from headrace_server.reading.columns import Rows, numbers_of
from headrace_server.reading.reader import BadRecords, IndexedReader, Opening

from .arrow_columns import ArrowColumn, NotMapped, decoded_column, naming, stored_field
from .column_parts import ColumnPart, StoredColumn, files_that_serve, origin_in
from .example_rows import Schema
from .parts_reader import PartsReader

_MAGIC = b"ARROW1"
#: Maximum number of decoded batches in memory.  Writers make batches of some thousand rows.
_KEPT_BATCHES = 16


def fields_of_schema(file: str, schema: Any, names: Collection[str] | None) -> dict[str, Field]:
    """Return fields of an Arrow schema (``names`` None: of all its columns)."""
    fields = {}
    for entry in schema:
        if names is not None and (entry.name not in names or pa.types.is_null(entry.type)):
            continue  # a column of nulls only is ignored
        if entry.name in fields:
            raise DataError(f"{file}: two columns are named {entry.name!r}; rename one")
        try:
            fields[entry.name] = stored_field(entry.type)
        except TypeError as error:
            raise DataError(
                f"{file}, column {entry.name!r}: it {error}; declare the features without it, or "
                "write it otherwise"
            ) from None
    return fields


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    """One opened file: its batches by number, read again at each call."""

    file: DataFile
    fields: Mapping[str, Field]  # the fields that are read
    schema: Any
    batches: int
    get: Callable[[int], Any]


def open_reader(opening: Opening) -> IndexedReader:
    source, files, bad, cache = opening.source, opening.files, opening.bad, opening.cache
    maps = MappedFiles(files, copies=cache.copies)
    number = {file: i for i, file in enumerate(files)}

    def opened(file: DataFile) -> tuple[_File, Mapping[str, Field]]:
        one = _open(file, pa.py_buffer(maps.file_data(number[file])), source.features, bad)
        return one, one.fields

    schema, served = files_that_serve(opening, opened, lambda one: one.schema.names)
    content = [one for _, one, _ in served]
    try:
        return _mapped(maps, content, schema, bad)
    except NotMapped:
        return _decoded(content, schema, bad, cache)


def _open(file: DataFile, data: Any, names: Collection[str] | None, bad: BadRecords) -> _File:
    if data.size == 0:
        raise DataError(f"{file.path} is empty: not even a schema is in it")
    in_file = bytes(data[: len(_MAGIC)]) == _MAGIC
    fault = f"it is no Arrow IPC file or stream, or it is cut off at byte {file.size}"
    with naming(f"{file.path}: {fault}"):
        reader = (pa.ipc.open_file if in_file else pa.ipc.open_stream)(pa.BufferReader(data))
        fields = fields_of_schema(file.path, reader.schema, names)
    if in_file:
        return _File(file, fields, reader.schema, reader.num_record_batches, reader.get_batch)
    batches: list[Any] = []
    try:
        batches.extend(reader)
    except (pa.ArrowException, OSError) as error:
        text = f"{file.path}: the stream breaks off after record batch {len(batches)}: {error}"
        bad.report(DataError(text), "truncated_file")
    return _File(file, fields, reader.schema, len(batches), batches.__getitem__)


def _batch(one: _File, number: int) -> Any:
    """Return a record batch after a check of its buffers' sizes."""
    with naming(_damaged(one, number)):
        batch = one.get(number)
        batch.validate()
        return batch


def _damaged(one: _File, number: int) -> str:
    return f"{one.file.path}, record batch {number}: it is damaged"


def _stored_alike(opened: Sequence[_File], schema: Schema) -> list[str]:
    """Return the columns of the files; NotMapped where files store a column differently."""
    names = [name for name in schema.fields if any(name in one.fields for one in opened)]
    for name in names:
        if len({name in f.fields and f.schema.field(name).type for f in opened}) > 1:
            raise NotMapped
    return names


def _sound_batches(one: _File, damaged: list[DataError]) -> Iterator[tuple[int, Any]]:
    """Yield undamaged record batches with their numbers; append faults to ``damaged``."""
    for number in range(one.batches):
        try:
            batch = _batch(one, number)
        except DataError as error:
            damaged.append(error)
        else:
            yield number, batch


# ── all buffers in the mapped range ──────────────────────────────────────────────────────────────


class _Batches:
    """Finds the batch of each row, for all batches of all files.

    ``batches`` are the rows, the file and the first record of each.
    """

    def __init__(self, files: tuple[str, ...], batches: Sequence[tuple[int, int, int]]) -> None:
        self._files = files
        rows, file_numbers, self._first_record = np.array(batches, np.int64).reshape(-1, 3).T.copy()
        self._file = file_numbers.astype(np.int32)
        self._ends = np.cumsum(rows)
        self._starts = self._ends - rows
        self.rows = int(rows.sum())
        self._last: tuple[Rows, tuple[int | np.ndarray, Rows]] | None = None

    def locate(self, rows: Rows) -> tuple[int | np.ndarray, Rows]:
        """Return batch and row within it, once for all columns of a read."""
        if self._last is not None and self._last[0] is rows:
            return self._last[1]
        found = self._located(rows)
        self._last = rows, found
        return found

    def _located(self, rows: Rows) -> tuple[int | np.ndarray, Rows]:
        if isinstance(rows, slice):
            within = int(self._ends.searchsorted(rows.start, side="right"))
            if within < len(self._starts) and rows.stop <= int(self._ends[within]):
                start = int(self._starts[within])
                return within, slice(rows.start - start, rows.stop - start)
        index = numbers_of(rows)
        batch = self._ends.searchsorted(index, side="right")
        return batch, index - self._starts[batch]

    def origin(self, rows: Rows) -> Origin:
        batch, local = self.locate(rows)
        self._last = None
        first = self._first_record[batch]
        if isinstance(local, slice):
            record = np.arange(first + local.start, first + local.stop)
            return Origin(self._files, np.full(len(record), self._file[batch], np.int32), record)
        return Origin(self._files, self._file[batch], first + local)


def _mapped(
    maps: MappedFiles, opened: Sequence[_File], schema: Schema, bad: BadRecords
) -> IndexedReader:
    """Read all files as one mapped range.

    NotMapped where a buffer lies elsewhere, or files differ in how they store a column.
    """
    low = maps.data.ctypes.data
    high = low + maps.data.size

    def place(buffer: Any) -> tuple[np.ndarray, int]:
        if buffer is None or buffer.size == 0:
            return maps.data, 0
        if not low <= buffer.address <= buffer.address + buffer.size <= high:
            raise NotMapped
        return maps.data, buffer.address - low

    names = _stored_alike(opened, schema)
    batches: list[tuple[int, int, int]] = []
    content: list[Any] = []
    damaged: list[DataError] = []
    for i, one in enumerate(opened):
        first = 0
        for number, batch in _sound_batches(one, damaged):
            if number == 0:  # the first batch shows early whether all have to be decoded
                for buffer in (b for name in names for b in batch.column(name).buffers()):
                    place(buffer)
            batches.append((batch.num_rows, i, first))
            first += batch.num_rows
            content.append(batch)
    located = _Batches(tuple(one.file.path for one in opened), batches)
    columns: dict[str, StoredColumn] = {}
    for name in names if content else ():
        arrays = [batch.column(name) for batch in content]
        columns[name] = ArrowColumn(arrays, place, located.locate)
    for damage in damaged:
        bad.report(damage, "corrupt_file")
    part = ColumnPart(located.rows, lambda: columns, schema, located.origin, bad)
    return PartsReader(schema.fields, [part])


# ── decoded batch by batch ───────────────────────────────────────────────────────────────────────


def _decoded(
    opened: Sequence[_File], schema: Schema, bad: BadRecords, cache: IndexCache
) -> IndexedReader:
    load = lru_cache(_KEPT_BATCHES)(_load)
    parts = []
    for one in opened:
        counting = partial(_count, one, cache.progress_of(one.file))
        counts = cache.get(one.file, "arrow-batch-rows", counting)
        first = 0
        for number, rows in enumerate(counts.tolist()):
            if rows < 0:
                try:
                    _batch(one, number)
                except DataError as error:
                    bad.report(error, "corrupt_file")
                continue
            names = tuple(name for name in schema.fields if name in one.fields)
            columns = partial(load, one, number, names)
            parts.append(ColumnPart(rows, columns, schema, origin_in(one.file.path, first), bad))
            first += rows
    return PartsReader(schema.fields, parts)


def _count(one: _File, progress: Callable[[int], None]) -> np.ndarray:
    """Return the number of rows by batch, -1 for damaged ones.  Arrow must decode them for that."""
    counts = np.full(one.batches, -1, np.int64)
    for number, batch in _sound_batches(one, []):
        counts[number] = batch.num_rows
        progress(one.file.size * (number + 1) // one.batches)
    return counts


def _load(one: _File, number: int, names: Sequence[str]) -> Mapping[str, StoredColumn]:
    batch = _batch(one, number)
    with naming(_damaged(one, number)):
        return {name: decoded_column(batch.column(name)) for name in names}
