"""Arrow IPC files and streams (Feather version 2 is the file format), memory-mapped.

    all files ─► one mapped range ─► record batches ─► per column: where its buffers begin

Columns point into the mapped files; rows of any number of batches and files are taken at once and
move no payload but that of dense columns.  Compressed files, dictionaries, nulls within lists,
lists of bool, and files that store a column in different types are decoded batch by batch, and
the last batches are kept; taking scattered rows then decodes many batches for few rows.  A
compressed *stream* is decoded when it is opened and held in memory: the file format is not.

Remote files are read batch by batch, too: of each the columns that are wanted, and of the first
pass over a file its narrowest one, which shows how many rows each batch has.  A stream is read once
as a whole, to find its batches; one with dictionaries is held in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from headrace_proto.errors import DataError, FilesMissing
from headrace_proto.schema import Field

from ....files.extras import require
from ....files.index_cache import IndexCache
from ....files.manifest import DataFile, is_remote
from ....files.mapped_files import MappedFiles
from ....files.ranges import Range, RemoteFile
from ...chunk import BadRecords, Origin
from ...column_parts import (
    BatchNumbers,
    ColumnPart,
    Decoded,
    StoredColumn,
    files_that_serve,
    origin_in,
)
from ...columns import Rows, numbers_of
from ...example_rows import Schema
from ...source import Opening, PartsReader
from .columns import ArrowColumn, NotMapped, decoded_column, fields_of_schema, naming

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
else:
    pa = require("pyarrow", "server", "reading of Arrow and Parquet files")

_MAGIC = b"ARROW1"
#: Maximum number of decoded batches in memory.  Writers make batches of some thousand rows.
_KEPT_BATCHES = 16
#: The rows of each batch, in the index cache.
_COUNTS = "arrow-batch-rows"


class _File:
    """One opened file: its batches by number, read again at each call."""

    def __init__(
        self,
        file: DataFile,
        data: pa.BufferReader | RemoteFile,
        names: Collection[str] | None,
        bad: BadRecords,
        cache: IndexCache,
    ) -> None:
        if file.size == 0:
            raise DataError(f"{file.path} is empty: not even a schema is in it")
        in_file = data.read(len(_MAGIC)) == _MAGIC
        data.seek(0)
        fault = f"it is no Arrow IPC file or stream, or it is cut off at byte {file.size}"
        with naming(f"{file.path}: {fault}"):
            reader = (pa.ipc.open_file if in_file else pa.ipc.open_stream)(data)
            #: The fields that are read.
            self.fields = fields_of_schema(file.path, reader.schema, names)
        self.file, self.schema = file, reader.schema
        #: Whether batches are fetched when they are read, of each the columns of the fields.
        self.fetched = in_file and is_remote(file.path)
        #: Where each batch of a remote file lies.
        self.bounds: list[tuple[int, int]] = []
        #: Where each batch of a remote stream begins, and its rows; see ``_batches_of``.
        self.places: list[list[int]] = []
        if in_file:
            if self.fetched:
                columns = [i for i, name in enumerate(reader.schema.names) if name in self.fields]
                if 0 < len(columns) < len(reader.schema):
                    options = pa.ipc.IpcReadOptions(included_fields=columns)
                    reader = pa.ipc.open_file(data, options=options)
            self.batches, self._get = reader.num_record_batches, reader.get_batch
            if self.fetched and self.batches:
                self.bounds = _bounds_of(data, file.size, self.batches)
            return
        batches: list[pa.RecordBatch] = []
        fault = ""
        if is_remote(file.path) and "dictionary<" not in str(reader.schema):
            found = cache.get(file, "arrow stream", partial(_batches_of, reader, data))
            self.places = found.reshape(-1, 2).tolist()
            self.batches, self._get = len(self.places) - 1, partial(self._batch_at, data)
            fault = "; it is cut off, or damaged" if self.places[-1][1] else ""
        else:
            try:
                batches.extend(reader)
            except (pa.ArrowException, OSError) as error:
                fault = f": {error}"
            self.batches, self._get = len(batches), batches.__getitem__
        if fault:
            text = f"{file.path}: the stream breaks off after record batch {self.batches}{fault}"
            bad.report(DataError(text), "truncated_file")

    def _batch_at(self, data: RemoteFile, number: int) -> pa.RecordBatch:
        """Return a batch of a remote stream."""
        (start, _), (stop, _) = self.places[number : number + 2]
        data.seek(start)
        content = data.read(stop - start)  # at once: what is read on and on is read ahead
        return pa.ipc.read_record_batch(pa.ipc.read_message(content), self.schema)

    def naming(self, number: int) -> AbstractContextManager[None]:
        """Raise a fault as that of a record batch."""
        return naming(f"{self.file.path}, record batch {number}: it is damaged")

    def batch(self, number: int) -> pa.RecordBatch:
        """Return a record batch after a check of its buffers' sizes."""
        with self.naming(number):
            batch = self._get(number)
            batch.validate()
            return batch

    def sound_batches(self, damaged: list[DataError]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield undamaged record batches with their numbers; append faults to ``damaged``."""
        for number in range(self.batches):
            try:
                batch = self.batch(number)
            except DataError as error:
                damaged.append(error)
            else:
                yield number, batch


def _batches_of(reader: pa.RecordBatchReader, data: RemoteFile) -> np.ndarray:
    """Return where each batch of a stream begins, and its rows; then where the last one ends, and
    whether the stream breaks off there."""
    found, at, broken = list[int](), data.tell(), 0
    try:
        for batch in reader:
            found += at, batch.num_rows
            at = data.tell()
    except FilesMissing:  # an OSError, of a file that can not be reached now
        raise
    except (pa.ArrowException, OSError):
        broken = 1
    return np.array([*found, at, broken], np.int64)


#: A batch of a file by its number, and the columns that are wanted.
_Batch = tuple[_File, int, tuple[str, ...]]


class Arrow(PartsReader):
    """All files as one mapped range, or batch by batch where they must be decoded."""

    def __init__(self, opening: Opening) -> None:
        files, bad = opening.files, opening.bad
        far = any(is_remote(file.path) for file in files)
        maps = None if far else MappedFiles(files)
        number = {file: i for i, file in enumerate(files)}

        def opened(file: DataFile) -> tuple[_File, Mapping[str, Field]]:
            data = pa.BufferReader(maps.file_data(number[file])) if maps else RemoteFile(file)
            if not maps:
                self._decoded.files.append(data)
            opened_file = _File(file, data, opening.features, bad, opening.cache)
            return opened_file, opened_file.fields

        self._decoded = Decoded(_load, _KEPT_BATCHES, _ranges)
        schema, served = files_that_serve(
            opening, opened, lambda opened_file: opened_file.schema.names
        )
        content = [content for _, content, _ in served]
        try:
            parts = _mapped(maps, content, schema, bad)
        except NotMapped:
            parts = _batch_by_batch(self._decoded, content, schema, bad, opening.cache)
        super().__init__(schema.fields, parts)
        self.hold = self._decoded.hold  # type: ignore[method-assign]

    def close(self) -> None:
        super().close()
        self._decoded.close()


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
        self.starts = self._starts[rows > 0]

    def locate(self, rows: Rows) -> tuple[BatchNumbers, Rows]:
        """Return batch and row within it."""
        if isinstance(rows, slice):
            within = int(self._ends.searchsorted(rows.start, side="right"))
            if within < len(self._starts) and rows.stop <= int(self._ends[within]):
                start = int(self._starts[within])
                return within, slice(rows.start - start, rows.stop - start)
        index = numbers_of(rows)
        batch = self._ends.searchsorted(index, side="right")
        return batch, index - self._starts[batch]

    def origin(self, batch: BatchNumbers, local: Rows) -> Origin:
        first = self._first_record[batch]
        if isinstance(local, slice):
            record = np.arange(first + local.start, first + local.stop)
            return Origin(self._files, np.full(len(record), self._file[batch], np.int32), record)
        return Origin(self._files, self._file[batch], first + local)


def _mapped(
    maps: MappedFiles | None, opened: Sequence[_File], schema: Schema, bad: BadRecords
) -> list[ColumnPart]:
    """Read all files as one mapped range.

    NotMapped where a buffer lies elsewhere, or files differ in how they store a column.
    """
    if maps is None:  # they are remote
        raise NotMapped
    raw = maps.data
    low = raw.ctypes.data
    high = low + raw.size

    def place(buffer: pa.Buffer | None) -> tuple[np.ndarray, int]:
        if buffer is None or buffer.size == 0:
            return raw, 0
        if not low <= buffer.address <= buffer.address + buffer.size <= high:
            raise NotMapped
        return raw, buffer.address - low

    names = [name for name in schema.fields if any(name in one.fields for one in opened)]
    for name in names:  # which files may store differently, or not have
        if len({name in one.fields and one.schema.field(name).type for one in opened}) > 1:
            raise NotMapped
    batches: list[tuple[int, int, int]] = []
    content: list[pa.RecordBatch] = []
    damaged: list[DataError] = []
    for i, one in enumerate(opened):
        first = 0
        for number, batch in one.sound_batches(damaged):
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
        columns[name] = ArrowColumn(arrays, place, decoded=False)
    for damage in damaged:
        bad.report(damage, "corrupt_file")
    return [
        ColumnPart(
            located.rows,
            lambda: columns,
            schema,
            located.origin,
            bad,
            located.locate,
            located.starts,
        )
    ]


# ── decoded batch by batch ───────────────────────────────────────────────────────────────────────


def _batch_by_batch(
    decoded: Decoded[_Batch],
    opened: Sequence[_File],
    schema: Schema,
    bad: BadRecords,
    cache: IndexCache,
) -> list[ColumnPart]:
    parts = []
    for one in opened:
        counting = partial(_count, one, bad, cache)
        counts = [rows for _, rows in one.places[:-1]]
        first = 0
        for number, rows in enumerate(counts or cache.get(one.file, _COUNTS, counting).tolist()):
            if rows < 0:
                try:
                    one.batch(number)
                except DataError as error:
                    bad.report(error, "corrupt_file")
                continue
            names = tuple(name for name in schema.fields if name in one.fields)
            origin = origin_in(one.file.path, first)
            parts.append(decoded.part((one, number, names), rows, schema, origin, bad))
            first += rows
    return parts


def _count(one: _File, bad: BadRecords, cache: IndexCache) -> np.ndarray:
    """Return the number of rows by batch, -1 for damaged ones.  Arrow must decode them for that."""
    if one.fetched and one.fields:
        narrowest = min(one.fields, key=lambda name: _width(one.schema.field(name).type))
        one = _File(one.file, RemoteFile(one.file), {narrowest}, bad, cache)
    progress = cache.progress_of(one.file)
    counts = np.full(one.batches, -1, np.int64)
    for number, batch in one.sound_batches([]):
        counts[number] = batch.num_rows
        progress(one.file.size * (number + 1) // one.batches)
    return counts


def _width(kind: pa.DataType) -> float:
    """Return the bits of a value; strings and lists have no fixed number."""
    try:
        return int(kind.bit_width)
    except ValueError:
        return inf


def _ranges(stored: _Batch) -> list[Range]:
    """Return where a record batch of a remote file lies, where all of its columns are wanted."""
    one, number, _ = stored
    if one.places:
        (start, _), (stop, _) = one.places[number : number + 2]
    elif one.fetched and len(one.fields) == len(one.schema):
        start, stop = one.bounds[number]
    else:
        return []
    return [(one.file, start, stop)] if 0 <= start <= stop <= one.file.size else []


#: A block of the footer: its first byte, the bytes of its header (and padding), and of its body.
_BLOCK = np.dtype([("at", "<i8"), ("head", "<i4"), ("", "<i4"), ("body", "<i8")])


def _bounds_of(data: RemoteFile, size: int, count: int) -> list[tuple[int, int]]:
    """Return where each batch of a file begins and ends, by its footer, a table of flatbuffers.

    Its fourth field are the blocks of batches.
    """
    tail = len(_MAGIC) + 4
    data.seek(size - tail)
    length = int.from_bytes(data.read(4), "little")
    data.seek(size - tail - length)
    footer = data.read(length)
    table = int.from_bytes(footer[:4], "little")
    fields = table - int.from_bytes(footer[table : table + 4], "little", signed=True)
    at = table + int.from_bytes(footer[fields + 10 : fields + 12], "little")
    at += int.from_bytes(footer[at : at + 4], "little") + 4
    blocks = np.frombuffer(footer, _BLOCK, count, at)
    stops = blocks["at"] + blocks["head"] + blocks["body"]
    return [*zip(blocks["at"].tolist(), stops.tolist(), strict=True)]


def _load(stored: _Batch) -> Mapping[str, StoredColumn]:
    one, number, names = stored
    batch = one.batch(number)
    with one.naming(number):
        return {name: decoded_column(batch.column(name)) for name in names}
