"""Examples of any source into Arrow files, which are mapped and not parsed.

    source ─► stages without chance ─► rows ─► part-00000.arrow, part-00001.arrow, …
                                             └─► checksum of each column ─┐
    part-….arrow.part ─► read back as a feed reads it ─► checksums equal ─┴► renamed, noted

The order is that of the source.  A part is a file of ``rows_per_file`` rows, or of fewer where they
reach a gigabyte.  ``conversion.json`` lists the finished parts and the position of reading, so
a killed conversion continues with its unfinished part and gives the same files.
Existing files are not overwritten.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from headrace_proto.errors import DataError
from headrace_proto.schema import Field, schema_to_wire

from ..core.plan import Read
from ..files.durable_file import put_in_place
from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..pipeline.declaration import Declaration, ReadingOrder, Stage, jsonable
from .arrow_part import ArrowPart
from .conversion_notes import Notes, part_name
from .flat_columns import ColumnSum, flattened
from .intake import Intake
from .reader import BadRecords, IndexedReader, Reader
from .sources import open_arrow, open_reader

#: Maximum bytes of a part, whatever its number of rows.
_PART_BYTES: Final = 1 << 30
#: Rows read at once: few at first, then as many as fit these bytes.
_FIRST_READ: Final = 64
_MOST_READ: Final = 4096
_READ_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class Converted:
    """The progress of a conversion: examples read, rows written, parts finished."""

    read: int
    rows: int
    parts: int


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
        self._notes = Notes(directory, self._identity(files))
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
    def done(self) -> Converted:
        return Converted(self._notes.read, self._notes.rows, len(self._notes.parts))

    @property
    def dropped(self) -> dict[str, int]:
        """Number of examples that were not converted, by reason."""
        return dict(self._notes.dropped)

    @property
    def nbytes(self) -> int:
        """Bytes of the converted examples."""
        return sum(part["bytes"] for part in self._notes.parts)

    @property
    def decoded(self) -> list[str]:
        """Columns that can not be mapped as Arrow stores them."""
        return [n for n, f in self.fields.items() if f.dtype == "bool" and f.ragged_dims]

    # Work

    def steps(self) -> Iterator[Converted]:
        """Convert the remaining examples; yield the progress after each read."""
        notes = self._notes
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
                    yield Converted(read, notes.rows + part.rows, len(notes.parts))
                put_in_place(part.path, part.file)
                notes.parts.append(part.noted())
            else:
                part.drop()
            notes.position, notes.read = position, read
            notes.dropped, notes.complete = dict(self._intake.dropped), position is None
            notes.save()
            yield self.done
        if not notes.parts:
            raise DataError("the source has no example that comes through its stages")

    def _filled(self, part: ArrowPart, position: Any) -> Generator[Converted, None, Any]:
        """Write rows until the part is full; return the next position and the rows read."""
        done, limit = self.done, _FIRST_READ
        read = done.read
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
            yield Converted(read, done.rows + part.rows, done.parts)
            position = after
            if position is None:
                break
        return position, read

    def _verified(self, part: ArrowPart) -> Iterator[None]:
        """Read a part back as a feed reads it; DataError if it differs from what was written."""
        reader = open_arrow(str(part.path))
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
        self._notes.close()
