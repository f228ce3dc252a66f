"""Examples of any source into Arrow files, which are mapped and not parsed.

    source ─► stages without chance ─► rows ─► part-00000.arrow.part, part-00001.arrow.part, …
                                               └─ all are there ─► renamed to part-….arrow

The order is that of the source.  A part is a file of ``rows_per_file`` rows, or of fewer where they
reach a gigabyte.  Existing files are not overwritten: a directory with others is refused and left
unchanged.  No part has its name before the last one is written, so a killed conversion leaves no
file that looks finished; the next one removes what it left, and begins anew.

A column of a fixed shape is a fixed_size_list of … of numbers or binary, a dimension that varies a
list: ``sources/arrow`` reads such columns back without a copy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ..files.durable_file import opened, sync_directory, writing
from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..pipeline.declaration import Declaration, ReadingOrder, Stage
from ..shaping.plan import Position, Read
from .chunk import BadRecords, Chunk
from .columns import Column, Ragged, Strings
from .intake import Intake
from .source import IndexedSource
from .sources import open_reader

#: Maximum bytes of a part, whatever its number of rows.
_PART_BYTES: Final = 1 << 30
#: Bytes of a record batch: large, so that few reads cross from one to the next.
_BATCH_BYTES: Final = 1 << 26
_BATCH_ROWS: Final = 65_536
_MOST_OFFSET: Final = 2**31 - 1
#: Advice in the error of a full disk.
_REMEDY: Final = "make room there and run the conversion again"
_UNFINISHED: Final = "part-*.arrow.part"
_NOTHING: Final = "the source has no example that comes through its stages"


class Conversion:
    """One conversion into one directory."""

    def __init__(
        self,
        declaration: Declaration,
        stages: tuple[Stage, ...],
        files: tuple[DataFile, ...],
        directory: Path,
        rows_per_file: int,
        cache: IndexCache,
    ) -> None:
        """``stages``: the declaration's stages to apply; ``convertible`` returns those
        that can be.  ValueError where the directory holds other files."""
        whole = replace(declaration, order=ReadingOrder(), stages=stages)
        self._directory, self._rows_per_file = directory, rows_per_file
        self.parts: list[ArrowPart] = []
        _clear(directory)
        bad = BadRecords(declaration.policy.on_bad_example == "skip")
        self._reader = reader = open_reader(declaration.source, files, bad, cache)
        self._intake = Intake(reader, whole, 0, 1, bad)
        if self._intake.fields is None:
            raise DataError(_NOTHING)
        self.fields: Mapping[str, Field] = self._intake.fields
        #: Number of examples of the source, where it is known before all are read.
        self.length = reader.length if isinstance(reader, IndexedSource) else None

    @property
    def dropped(self) -> dict[str, int]:
        """Rows left out, by reason."""
        return dict(self._intake.dropped)

    def steps(self) -> Iterator[int]:
        """Convert all examples; yield how many were read, after each read."""
        try:
            yield from self._written()
            if not self.parts:
                raise DataError(_NOTHING)
        except BaseException:
            for part in self.parts:
                part.drop()
            raise
        finally:
            self._reader.close()
        for part in self.parts:
            os.replace(part.path, part.file)
        sync_directory(self._directory)

    def _written(self) -> Iterator[int]:
        part, intake = None, self._intake
        position: Position | None = intake.start
        while position is not None:
            room = self._rows_per_file - (part.rows if part else 0)
            intake.begin()
            chunk, position = intake.chunk(Read(0, 0, position, intake.limit(room)))
            if len(chunk):
                if part is None:
                    file = self._directory / f"part-{len(self.parts):05d}.arrow"
                    part = ArrowPart(file, self.fields)
                    self.parts.append(part)
                part.add(chunk)
            intake.end()  # the time of writing bounds the next read, too
            if part and (part.rows >= self._rows_per_file or part.nbytes >= _PART_BYTES):
                part.finish()
                part = None
            yield intake.rows_read
        if part:
            part.finish()


def _clear(directory: Path) -> None:
    """Make a directory, cleared of what a killed run has left; ValueError where it holds others."""
    directory.mkdir(parents=True, exist_ok=True)
    left = set(directory.glob(_UNFINISHED))
    if strange := sorted(path.name for path in set(directory.iterdir()) - left):
        raise ValueError(
            f"{directory} holds {', '.join(strange[:3])}, and nothing is overwritten: "
            "give another directory"
        )
    for path in left:
        path.unlink()


class ArrowPart:
    """A file at ``path`` until ``drop`` removes it; ``file`` is the name that it is to have."""

    def __init__(self, file: Path, fields: Mapping[str, Field]) -> None:
        self.file, self.path = file, file.with_name(f"{file.name}.part")
        self.rows = self.nbytes = 0
        self._fields = fields
        self._schema = arrow_schema(fields)
        self._gathered: list[pa.RecordBatch] = []
        self._weight = 0  # bytes of gathered rows
        with writing(self.path, remedy=_REMEDY):
            self._sink = pa.OSFile(str(self.path), "wb")
            self._out = pa.ipc.new_file(self._sink, self._schema)

    def add(self, chunk: Chunk) -> None:
        """Append rows."""
        arrays = [arrow_array(n, field, chunk.columns[n]) for n, field in self._fields.items()]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._gathered.append(batch)
        self._weight += batch.nbytes
        self.rows += len(chunk)
        self.nbytes += batch.nbytes
        if sum(map(len, self._gathered)) >= _BATCH_ROWS or self._weight >= _BATCH_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered).combine_chunks()
            with writing(self.path, table.nbytes, _REMEDY):
                self._out.write_table(table)
        self._gathered.clear()
        self._weight = 0

    def finish(self) -> None:
        """Write the rest of the file to the disk, and close it."""
        self._flush()
        with writing(self.path, remedy=_REMEDY):
            self._out.close()
            self._sink.close()
            with opened(self.path) as written:
                os.fsync(written)

    def drop(self) -> None:
        """Remove the file."""
        if not self._sink.closed:
            with contextlib.suppress(OSError), self._sink:
                self._out.close()  # it writes, and the disk may be full
        self.path.unlink(missing_ok=True)


def arrow_schema(fields: Mapping[str, Field]) -> pa.Schema:
    """Return the Arrow schema of an example; DataError names a column without an Arrow type."""
    return pa.schema([pa.field(name, _type(name, field)) for name, field in fields.items()])


def _type(name: str, field: Field) -> pa.DataType:
    try:
        kind = (
            pa.binary() if field.dtype == BYTES else pa.from_numpy_dtype(numpy_dtype(field.dtype))
        )
    except (pa.ArrowException, TypeError):
        raise DataError(
            f"column {name!r} is {field}, and Arrow files have no {field.dtype}: map it to a type "
            "that they have, or leave it out by select"
        ) from None
    for extent in reversed(field.shape):
        kind = pa.list_(kind, -1 if extent is None else extent)
    return kind


def arrow_array(name: str, field: Field, column: Column) -> pa.Array:
    """Return the rows of a column."""
    if isinstance(column, Ragged):
        values, extents, dims = column.values(), column.extents, column.inner
    else:
        values, extents, dims = column, np.empty((len(column), 0), np.int64), column.shape[1:]
    flat = values.reshape(-1)
    if isinstance(flat, Strings):
        data = pa.py_buffer(np.ascontiguousarray(flat.joined()))
        buffers = [None, pa.py_buffer(_offsets(name, flat.lengths)), data]
        array = pa.Array.from_buffers(pa.binary(), len(flat), buffers)
    else:
        array = pa.array(flat)
    inner = np.broadcast_to(np.array(dims, np.int64), (len(column), len(dims)))
    shapes = np.concatenate([extents, inner], axis=1)
    for depth in range(len(field.shape) - 1, -1, -1):
        per_row = np.prod(shapes[:, :depth], axis=1, dtype=np.int64)
        extent = field.shape[depth]
        buffers = [None]
        if extent is None:
            buffers.append(pa.py_buffer(_offsets(name, np.repeat(shapes[:, depth], per_row))))
        kind = pa.list_(array.type, -1 if extent is None else extent)
        array = pa.Array.from_buffers(kind, int(per_row.sum()), buffers, children=[array])
    return array


def _offsets(name: str, lengths: np.ndarray) -> np.ndarray:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > _MOST_OFFSET:
        raise DataError(
            f"column {name!r}: {len(lengths)} rows have {offsets[-1]} elements; Arrow lists hold "
            f"{_MOST_OFFSET}"
        )
    return offsets.astype(np.int32)
