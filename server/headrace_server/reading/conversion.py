"""Examples of any source into Arrow files, which are mapped and not parsed.

    source ─► stages without chance ─► rows ─► part-00000.arrow, part-00001.arrow, …
                                             └─► checksum of each column ─┐
    part-….arrow.part ─► read back as a feed reads it ─► checksums equal ─┴► renamed, noted

The order is that of the source.  A part is a file of ``rows_per_file`` rows, or of fewer where they
reach a gigabyte.  ``conversion.json`` lists what is converted, the finished parts and the position
of reading, so a killed conversion continues with its unfinished part and gives the same files.
Existing files are not overwritten: a directory with others is refused and left unchanged.

A column of a fixed shape is a fixed_size_list of … of numbers or binary, a dimension that varies a
list: ``sources/arrow_columns`` reads such columns back without a copy.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgpack
import numpy as np
import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError
from headrace_proto.schema import Field, schema_to_wire

from ..core.plan import Read
from ..files.durable_file import held, put_in_place, whole, write_durably, writing
from ..files.index_cache import IndexCache
from ..files.manifest import DataFile, resolve
from ..pipeline.declaration import Declaration, ReadingOrder, Source, Stage, jsonable
from .chunk import Chunk
from .flat_columns import ColumnSum, Flat, flattened
from .intake import Intake
from .reader import BadRecords, IndexedReader, Reader
from .sources import open_reader

#: Maximum bytes of a part, whatever its number of rows.
_PART_BYTES: Final = 1 << 30
#: Rows read at once: few at first, then as many as fit these bytes.
_FIRST_READ: Final = 64
_MOST_READ: Final = 4096
_READ_BYTES: Final = 1 << 22
#: Bytes of a record batch: large, so that few reads cross from one to the next.
_BATCH_BYTES: Final = 1 << 26
_BATCH_ROWS: Final = 65_536
_MOST_OFFSET: Final = 2**31 - 1
#: Advice in the error of a full disk.
_REMEDY: Final = "make room there and run the conversion again: it goes on after the parts it has"
_NAME: Final = "conversion.json"
_FORMAT: Final = 1


class Conversion:
    """One conversion into one directory, which it holds until ``close``."""

    def __init__(
        self,
        declaration: Declaration,
        stages: tuple[Stage, ...],
        files: tuple[DataFile, ...],
        directory: Path,
        rows_per_file: int = 100_000,
        verify: bool = True,
        cache: IndexCache | None = None,
    ) -> None:
        """``stages``: the declaration's stages to apply; ``convertible`` returns those
        that can be.  ValueError where the directory holds something else."""
        self._declaration = replace(declaration, order=ReadingOrder(), stages=stages)
        self._directory, self._rows_per_file, self._verify = directory, rows_per_file, verify
        self.notes = Notes(directory, self._identity(files))
        self._reader: Reader | None = None
        try:
            self._bad = BadRecords(declaration.policy.on_bad_example == "skip")
            self._reader = open_reader(
                declaration.source, files, self._bad, cache or IndexCache(None)
            )
            self._intake = Intake(self._reader, self._declaration, 0, 1, self._bad)
            fields = self._intake.fields
            if fields is None:
                raise DataError("the source has no example that comes through its stages")
            self.fields: Mapping[str, Field] = fields
        except BaseException:
            self.close()
            raise

    def _identity(self, files: tuple[DataFile, ...]) -> Any:
        """Return the declaration of the files, as it comes back from JSON."""
        plain = self._declaration.to_plain()
        del plain["shape"], plain["order"]
        of = {
            **plain,
            "files": [file.to_plain() for file in files],
            "rows_per_file": self._rows_per_file,
        }
        return json.loads(json.dumps(of, default=jsonable))

    # Progress

    @property
    def length(self) -> int | None:
        """Number of examples of the source, where it is known before all are read."""
        return self._reader.length if isinstance(self._reader, IndexedReader) else None

    @property
    def decoded(self) -> list[str]:
        """Columns that can not be mapped as Arrow stores them."""
        return [n for n, f in self.fields.items() if f.dtype == "bool" and f.ragged_dims]

    # Work

    def steps(self) -> Iterator[int]:
        """Convert the remaining examples; yield how many were read, after each read."""
        notes = self.notes
        position: Any = self._intake.start()
        if notes.parts:
            position = notes.position
            self._intake.resume(0, position, notes.dropped)
        while not notes.complete:
            part = ArrowPart(self._directory / part_name(len(notes.parts)), self.fields)
            try:
                position, read = yield from self._filled(part, position)
                part.finish()
            except BaseException:
                part.drop()
                raise
            if part.rows:
                for _ in self._verified(part) if self._verify else ():
                    yield read
                put_in_place(part.path, part.file)
                notes.parts.append(part.noted())
            else:
                part.drop()
            notes.position, notes.read = position, read
            notes.dropped, notes.complete = dict(self._intake.dropped), position is None
            notes.save()
            yield read
        if not notes.parts:
            raise DataError("the source has no example that comes through its stages")

    def _filled(self, part: ArrowPart, position: Any) -> Generator[int, None, Any]:
        """Write rows until the part is full; return the next position and the rows read."""
        read, limit = self.notes.read, _FIRST_READ
        while part.rows < self._rows_per_file and part.nbytes < _PART_BYTES:
            asked = min(limit, self._rows_per_file - part.rows)
            self._intake.begin()
            chunk, after = self._intake.chunk(Read(0, 0, position, asked))
            self._intake.end()
            weight = part.add(chunk)
            known = self.length if after is None else after
            read += len(chunk) if self.length is None else known - position
            if weight > 2 * _READ_BYTES:
                limit = max(1, limit // 2)
            elif weight < _READ_BYTES // 2:
                limit = min(_MOST_READ, 2 * limit)
            yield read
            position = after
            if position is None:
                break
        return position, read

    def _verified(self, part: ArrowPart) -> Iterator[None]:
        """Read a part back as a feed reads it; DataError if it differs from what was written."""
        source = Source("arrow", (str(part.path),))
        files = resolve(source.paths)
        reader = open_reader(source, files, BadRecords(), IndexCache(None))
        assert isinstance(reader, IndexedReader)
        if schema_to_wire(reader.fields) != schema_to_wire(self.fields):
            raise DataError(f"{part.path} was read back with other columns than were written")
        sums = {name: ColumnSum() for name in self.fields}
        for start in range(0, reader.length, _MOST_READ):
            chunk = reader.take(slice(start, min(start + _MOST_READ, reader.length)))
            for name, column in chunk.columns.items():
                sums[name].add(flattened(column))
            yield
        reader.close()
        for name, found in sums.items():
            if found.text != part.sums[name].text:
                raise DataError(
                    f"{part.path}, column {name!r}: the values read back have the checksum "
                    f"{found.text}, and the original {part.sums[name].text}: disk or memory is "
                    "at fault; run the conversion again"
                )

    def close(self) -> None:
        """Release the directory and the source."""
        if self._reader is not None:
            self._reader.close()
        self.notes.close()


def part_name(number: int) -> str:
    return f"part-{number:05d}.arrow"


class Notes:
    """The notes of a directory, which is reserved until ``close``."""

    def __init__(self, directory: Path, of: dict[str, Any]) -> None:
        """``of`` is plain data that identifies what is converted.  ValueError where the directory
        holds the conversion of something else, or other files, or is held."""
        self.directory = directory
        self.parts: list[dict[str, Any]] = []
        self.position: Any = None  # where reading resumes, once there is a part
        self.read = 0
        self.dropped: dict[str, int] = {}
        self.complete = False
        self._of = of
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = held(directory, os.O_DIRECTORY)
        except BlockingIOError:
            raise ValueError(f"{directory}: another conversion is at work there") from None
        try:
            self._load()
            self._clear()
        except BaseException:
            self.close()
            raise

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part["rows"] for part in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows of all parts."""
        return sum(part["bytes"] for part in self.parts)

    def _load(self) -> None:
        path = self.directory / _NAME
        try:
            noted = json.loads(path.read_text())
            if noted["format"] != _FORMAT:
                raise ValueError(f"its format is {noted['format']!r}")
            if not noted["parts"]:
                return
            changed = [key for key, value in self._of.items() if noted["of"][key] != value]
            self.parts = list(noted["parts"])
            for part in self.parts:
                part.update(rows=whole(part["rows"]), bytes=whole(part["bytes"]))
            self.position = msgpack.unpackb(base64.b64decode(noted["position"]))
            self.read = whole(noted["read"])
            self.dropped = {str(why): whole(rows) for why, rows in noted["dropped"].items()}
            self.complete = bool(noted["complete"])
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is damaged ({error}): give another directory") from None
        if changed:
            raise ValueError(
                f"{self.directory} holds the conversion of something else ({', '.join(changed)} "
                "differ), and nothing is overwritten: give another directory"
            )

    def _clear(self) -> None:
        """Remove the unfinished file of a killed run; refuse files that no run has written."""
        ours = {part["name"] for part in self.parts}
        if (self.directory / _NAME).exists():
            ours |= {_NAME, part_name(len(ours))}
        unfinished = {f"{name}.part" for name in (_NAME, *ours)}
        here = {entry.name for entry in self.directory.iterdir()}
        if strange := sorted(here - ours - unfinished):
            raise ValueError(
                f"{self.directory} holds {', '.join(strange[:3])}, and nothing is overwritten: "
                "give another directory"
            )
        for name in here & unfinished:
            (self.directory / name).unlink()
        if not self.parts:
            self.save()

    def save(self) -> None:
        """Write the notes to disk."""
        position = msgpack.packb(self.position)
        assert isinstance(position, bytes)
        notes = {
            "format": _FORMAT,
            "of": self._of,
            "parts": self.parts,
            "position": base64.b64encode(position).decode(),
            "read": self.read,
            "dropped": self.dropped,
            "complete": self.complete,
        }
        write_durably(self.directory / _NAME, json.dumps(notes, indent=1))

    def close(self) -> None:
        """Release the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class ArrowPart:
    """A file at ``path`` until ``finish`` has completed it, or ``drop`` removed it; ``file`` is
    the name that it is to have."""

    def __init__(self, file: Path, fields: Mapping[str, Field]) -> None:
        self.file, self.path = file, file.with_name(f"{file.name}.part")
        self.rows = self.nbytes = 0
        self.sums = {name: ColumnSum() for name in fields}
        self._fields = fields
        self._schema = arrow_schema(fields)
        self._gathered: list[Any] = []
        self._weight = 0  # bytes of gathered rows
        with writing(self.path, remedy=_REMEDY):
            self._sink = pa.OSFile(str(self.path), "wb")
            self._out = pa.ipc.new_file(self._sink, self._schema)

    def add(self, chunk: Chunk) -> int:
        """Append rows; return their bytes."""
        if not len(chunk):
            return 0
        arrays, weight = [], 0
        for name, field in self._fields.items():
            flat = flattened(chunk.columns[name])
            self.sums[name].add(flat)
            weight += flat.nbytes
            arrays.append(arrow_array(name, field, flat))
        self._gathered.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._weight += weight
        self.rows += len(chunk)
        self.nbytes += weight
        if sum(map(len, self._gathered)) >= _BATCH_ROWS or self._weight >= _BATCH_BYTES:
            self._flush()
        return weight

    def _flush(self) -> None:
        if self._gathered:
            table = pa.Table.from_batches(self._gathered).combine_chunks()
            with writing(self.path, table.nbytes, _REMEDY):
                self._out.write_table(table)
        self._gathered.clear()
        self._weight = 0

    def finish(self) -> None:
        """Write the rest of the file, and close it."""
        self._flush()
        with writing(self.path, remedy=_REMEDY):
            self._out.close()
            self._sink.close()

    def drop(self) -> None:
        """Remove the file."""
        if not self._sink.closed:
            with contextlib.suppress(OSError), self._sink:
                self._out.close()  # it writes, and the disk may be full
        self.path.unlink(missing_ok=True)

    def noted(self) -> dict[str, Any]:
        """Return the entry of the file in the notes, as plain data."""
        sums = {name: total.text for name, total in self.sums.items()}
        return {"name": self.file.name, "rows": self.rows, "bytes": self.nbytes, "sums": sums}


def arrow_schema(fields: Mapping[str, Field]) -> Any:
    """Return the Arrow schema of an example; DataError names a column without an Arrow type."""
    return pa.schema([pa.field(name, _type(name, field)) for name, field in fields.items()])


def _type(name: str, field: Field) -> Any:
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


def arrow_array(name: str, field: Field, flat: Flat) -> Any:
    """Return the rows of a column."""
    if flat.lengths is None:
        array = pa.array(flat.values)
    else:
        offsets = _offsets(name, flat.lengths)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(flat.values))]
        array = pa.Array.from_buffers(pa.binary(), len(flat.lengths), buffers)
    for depth in range(len(field.shape) - 1, -1, -1):
        per_row = np.prod(flat.shapes[:, :depth], axis=1, dtype=np.int64)
        extent = field.shape[depth]
        buffers = [None]
        if extent is None:
            buffers.append(pa.py_buffer(_offsets(name, np.repeat(flat.shapes[:, depth], per_row))))
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
