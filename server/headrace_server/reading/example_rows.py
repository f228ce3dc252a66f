"""Converts examples that come one by one as mappings (JSON, CSV, tar, Python) to columns.

    rows ──► names and missing values ──► columns, whole ──► chunk
                                              └─ where one does not fit: row by row ─► reports

The schema is the declared one, or inferred from the first examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from headrace_proto.errors import DataError, brief, near
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.pipeline.examples import Misfit, infer_field
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import Column, Rows, numbers_of, row_of
from headrace_server.reading.declared_types import defaults_of
from headrace_server.reading.parts_reader import PartsReader
from headrace_server.reading.reader import BadRecords, Faults, without
from headrace_server.reading.source import IndexedSource
from headrace_server.reading.user_columns import collect

#: Number of examples for inference: enough to see which dimensions vary, and soon read.
PROBED = 64
_REMEDY = "declare the features of the source"
_GIVE = "; give the feature a default"

Row = Mapping[str, Any]
#: The place of an example in words, and its row, or the error of a bad one.
Shown = tuple[str, Row | DataError]


@dataclass(frozen=True)
class Schema:
    """The columns that examples have, and the defaults of missing values, of one row each."""

    fields: Mapping[str, Field]
    defaults: Mapping[str, Column] = field(default_factory=dict)
    declared: bool = False

    def chunk(
        self, rows: Sequence[Row], ordinals: np.ndarray, origin: Origin, bad: BadRecords
    ) -> Chunk:
        """Return the rows that fit; the others are reported."""
        faults: Faults = {}
        remedy = "" if self.declared else f"; {_REMEDY}"
        give = _GIVE if self.declared else f"{remedy}, with a default"
        for i, row in enumerate(() if self.declared else rows):
            for name in row.keys() - self.fields.keys():
                text = f"column {name!r}: the first examples have no such column{remedy}"
                faults[i] = "wrong_type", text
        given = {name: [row.get(name) for row in rows] for name in self.fields}
        for name, values in given.items():
            for i in (i for i, value in enumerate(values) if value is None):
                if name in self.defaults:
                    values[i] = row_of(self.defaults[name], 0)
                else:
                    others = rows[i].keys() - self.fields.keys()
                    text = f"column {name!r}: it is missing{give}{near(name, others)}"
                    faults.setdefault(i, ("missing_feature", text))
        columns = collect(given, self.fields, len(rows), faults, "", remedy)
        chunk = without(Chunk({}, ordinals, origin), faults, bad, ", ")
        return chunk.with_columns(columns)


def schema_of(features: Mapping[str, Feature] | None, examples: Iterable[Shown] = ()) -> Schema:
    """Return the declared schema, or that of the first sound examples."""
    if features is None:
        return Schema(infer_fields(_first_rows(examples)))
    fields = {name: feature.field for name, feature in features.items()}
    return Schema(fields, defaults_of(features), declared=True)


def _first_rows(examples: Iterable[Shown]) -> list[tuple[str, Row]]:
    """Return the first sound rows.  Others are reported when they are read."""
    rows: list[tuple[str, Row]] = []
    wrong: DataError | None = None
    for where, example in examples:
        if isinstance(example, DataError):
            wrong = wrong or example
            continue
        rows.append((where, example))
        if len(rows) == PROBED:
            break
    if wrong is not None and not rows:
        raise DataError(f"{wrong}; no record shows the columns: declare the features") from wrong
    return rows


def infer_fields(rows: Iterable[tuple[str, Mapping[Any, Any]]]) -> dict[str, Field]:
    """Infer the fields of all rows together, in the order of their first appearance.

    Each comes with its place.  DataError has that, and the column, of a value that does not fit
    earlier ones.
    """
    seen: dict[str, tuple[list[str], list[Any]]] = {}
    for where, row in rows:
        for name, value in row.items():
            if not isinstance(name, str) or not name:
                raise DataError(f"{where}: {name!r:.80} is no name of a column")
            if value is not None:
                places, values = seen.setdefault(name, ([], []))
                places.append(where)
                values.append(value)
    fields = {}
    for name, (places, values) in seen.items():
        try:
            field = infer_field(values)
        except Misfit as misfit:
            value, why = brief(values[misfit.row]), str(misfit)
            fault = why if why.startswith(value) else f"{value} {why}"
            raise DataError(
                f"{places[misfit.row]}, column {name!r}: {fault}; declare the features of the "
                "source"
            ) from None
        # A length of 0 does not show that the dimension is fixed.
        fields[name] = Field(field.dtype, tuple(d or None for d in field.shape))
    return fields


class RowSource:
    """A file, or what a function gives, whose examples are read one by one."""

    #: Set before chunks are read.
    schema: Schema

    def __init__(self, name: str, bad: BadRecords, offsets: bool = True) -> None:
        """``name`` stands in origins and errors, with the bytes of records if ``offsets``."""
        self.name, self.bad, self._offsets = name, bad, offsets

    def where(self, record: int, byte: int) -> str:
        """Return the place of a record, for errors."""
        text = f"{self.name}, record {record}"
        return f"{text}, byte {byte}" if self._offsets else text

    def chunk(self, rows: Sequence[Row], records: Sequence[int], offsets: Any) -> Chunk:
        """Return the rows that fit, which are those of some records; the others are reported."""
        numbers = np.array(records, np.int64)
        at = np.array(offsets, np.int64) if self._offsets else None
        return self.schema.chunk(rows, numbers, Origin.single(self.name, numbers, at), self.bad)


class RowPart(RowSource, IndexedSource):
    """A part whose examples are read one by one.

    ``get`` returns the row of a number; ValueError describes its fault.
    """

    def __init__(
        self,
        name: str,
        length: int,
        get: Callable[[int], Row],
        bad: BadRecords,
        offsets: np.ndarray | None = None,
    ) -> None:
        super().__init__(name, bad, offsets is not None)
        self.length, self._get = length, get
        # Without offsets a view of a single 0: a sequence may be longer than any memory, even
        # than an array of larger numbers may seem.
        self._bytes = np.broadcast_to(np.int8(0), length) if offsets is None else offsets

    def examples(self) -> Iterator[Shown]:
        for number in range(self.length):
            yield self.where(number, int(self._bytes[number])), self._row(number)

    def _row(self, number: int) -> Row | DataError:
        """Return the row of a number, or an error that names the record."""
        try:
            return self._get(number)
        except ValueError as error:
            fault = DataError(f"{self.where(number, int(self._bytes[number]))}: {error}")
            fault.__cause__ = error.__cause__
            return fault

    def take(self, rows: Rows) -> Chunk:
        found: list[Row] = []
        sound: list[int] = []
        for number in numbers_of(rows).tolist():
            row = self._row(number)
            if isinstance(row, DataError):
                self.bad.report(row, "corrupt_record")
            else:
                found.append(row)
                sound.append(number)
        return self.chunk(found, sound, self._bytes[sound])

    def close(self) -> None:
        self._get = _closed  # so that its file can be unmapped


def _closed(number: int) -> Row:
    raise ValueError(f"example {number}: the reader is closed")


def reader_of_rows(parts: Sequence[RowPart], features: Mapping[str, Feature] | None) -> PartsReader:
    """Return the reader of parts whose examples are read one by one."""
    schema = schema_of(features, chain.from_iterable(part.examples() for part in parts))
    for part in parts:
        part.schema = schema
    return PartsReader(schema.fields, parts)
