"""CSV files, plain or compressed (.gz): a stream per file.

    header     True: the first row names the columns; a list: these are their names, and no row
               is; False: the features name them, in their order
    group_by   None: each row is an example of scalars
               a column: neighbouring rows that agree in it are one example.  That column is a
               scalar, the others are sequences [T]; one declared as scalar must not differ
               within the group.  A value that comes back after others begins a new example.

Quoted cells may hold delimiters, doubled quotes and newlines.  An empty cell is a missing value,
except in columns of bytes, where it is the empty string.  Without features the first thousand
rows show whether a column is int64, float64 or bytes.

The standard library splits rows.  pyarrow's reader does not serve here: it gives neither the byte
of a row, from which a feed resumes, nor the row of a value that does not fit, and it takes a quote
that is not closed for data, and so the rest of the file for one cell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import methodcaller
from typing import Any, NamedTuple

from headrace_proto import dtypes
from headrace_proto.errors import DataError, near, rewording
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.forward_files import Damaged, Lines, open_forward
from headrace_server.reading.record_streams import Place, Record, Records, file_streams
from headrace_server.reading.source import Opening, Source, StreamSource

_PROBED_ROWS = 1000
#: Maximum size of a cell; the csv module's own limit is 128 KiB.
_MAX_CELL = 1 << 28
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
#: Number of characters from which on a cell is no integer; Python converts at most 4,300 digits.
_LONG = 1000
#: Cells hold bytes that are not UTF-8 in a form from which they are restored.
_DECODED = methodcaller("decode", "utf-8", "surrogateescape")
_ENCODED = methodcaller("encode", "utf-8", "surrogateescape")
_TRUTH = {"true": True, "1": True, "false": False, "0": False}

Cells = list[str]
#: A column's name, its place among the cells of a row, and the parser of its cells.
_Column = tuple[str, int, Callable[[str], Any]]


class Csv(Source):
    """A stream per file."""

    @classmethod
    def open(
        cls,
        opening: Opening,
        delimiter: str = ",",
        header: bool | list[str] = True,
        group_by: str | None = None,
    ) -> StreamSource:
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL))
        names = None if header is True else list(header or opening.features or ())
        table = _Table(delimiter, group_by, names)
        table.features = opening.features or table.probed(opening.files)
        return file_streams(opening, table.examples, table.features)


class _Table:
    """How to read the files: names, dtypes and delimiter."""

    def __init__(self, delimiter: str, group_by: str | None, names: list[str] | None) -> None:
        """``names`` None: they are in the first row of each file."""
        self.delimiter, self.group_by, self.names = delimiter, group_by, names
        #: Set before examples are read.
        self.features: Mapping[str, Feature] = {}

    def cells(self, lines: Lines) -> Iterator[Cells]:
        return csv.reader(map(_DECODED, lines), delimiter=self.delimiter, strict=True)

    @contextmanager
    def open(self, file: DataFile, place: Place) -> Iterator[tuple[list[str], Iterator[_Row]]]:
        """Open a file from a place on: the names of its columns, and its rows."""
        names = self.names
        if names is None:
            with open_forward(file) as stream, rewording(Damaged, "", csv.Error):
                lines = Lines(stream)  # empty ones may precede the header
                names = next(filter(None, self.cells(lines)), [])
            place = max(place, Place(lines.byte, 0, 1))
        self.check(names)
        with open_forward(file, place.byte) as stream:
            yield names, self.rows(Lines(stream, place.byte), place.row, len(names))

    def check(self, names: list[str]) -> None:
        """Raise _WrongHeader where a file has not the wanted columns; it may have none at all."""
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise _WrongHeader(f"two columns are named {min(twice)!r}; rename one")
        grouped = [] if self.group_by is None else [self.group_by]
        for name in (*self.features, *grouped) if names else ():
            if name not in names:
                has = ", ".join(map(repr, names))
                raise _WrongHeader(f"there is no column {name!r}; it has {has}{near(name, names)}")

    def examples(self, file: DataFile, walk: Records) -> Iterator[Record]:
        """Yield the examples of a file: rows, or groups of rows."""
        with self.open(file, walk.place) as (names, rows):
            columns = [
                (name, names.index(name), _parser(feature.dtype))
                for name, feature in self.features.items()
                if name in names
            ]
            by = self.group_by
            alone = ([row] for row in rows)
            for group in _grouped(rows, names.index(by)) if by in names else alone:
                begin, end, record_number = group[0], group[-1], walk.place.record
                here = Place(begin.byte, record_number, begin.number)
                walk.place = Place(end.end, record_number + 1, end.number + 1)
                try:
                    record = Record(here, self._example(group, columns))
                except _Fault as fault:
                    record = Record(here, None, *fault.args)
                yield record

    def rows(self, lines: Lines, number: int, columns: int) -> Iterator[_Row]:
        """Yield the rows of lines, from the one of a number on."""
        parsed = self.cells(lines)
        while True:
            byte = lines.byte
            try:
                cells, wrong = next(parsed), ""
            except StopIteration:
                return
            except csv.Error as error:
                cells, wrong = [], f"row {number}: it is no CSV: {error}"
            if not (cells or wrong):
                continue  # an empty line
            if cells and len(cells) != columns:
                wrong = f"row {number} has {len(cells)} cells, and there are {columns} columns"
            yield _Row(byte, lines.byte, number, cells, wrong)
            number += 1

    def _example(self, group: Sequence[_Row], columns: Sequence[_Column]) -> dict[str, Any]:
        """Return the example of neighbouring rows.  _Fault where there is none."""
        for row in group:
            if row.wrong:
                raise _Fault(row.wrong, "corrupt_record")
        if self.group_by is None:
            return self._values(group[0], columns)
        return self._joined(group, [self._values(row, columns) for row in group])

    def _joined(self, group: Sequence[_Row], rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Join the values of rows: those of scalars are alike, the others are sequences."""
        joined: dict[str, Any] = {}
        for name in rows[0]:
            values = joined[name] = [row[name] for row in rows]
            where = f"column {name!r}"
            if self.features[name].kind != "scalar":
                if None in values:
                    text = f"row {group[values.index(None)].number}, {where}: it is empty"
                    raise _Fault(f"{text} within a sequence", "missing_feature")
                continue
            joined[name] = values[0]
            if any(value != values[0] for value in values):
                text = f"row {group[0].number}, {where} is declared as scalar"
                raise _Fault(f"{text} and differs within the group", "wrong_type")
        return joined

    def _values(self, row: _Row, columns: Sequence[_Column]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        cells = row.cells
        for name, i, parse in columns:
            cell = cells[i]
            try:
                values[name] = parse(cell) if cell or parse is _ENCODED else None
            except (ValueError, KeyError):
                dtype = "an integer" if parse is _integer else "a value of its dtype"
                text = f"{cell!r:.60} is not {dtype}"
                raise _Fault(f"row {row.number}, column {name!r}: {text}", "wrong_type") from None
        return values

    def probed(self, files: Sequence[DataFile]) -> dict[str, Feature]:
        """Infer the features from the first rows."""
        columns: dict[str, list[str]] = {}
        wrong = ""
        for file in files:
            sound: list[Cells] = []
            try:
                with self.open(file, Place()) as (names, rows):
                    for name in names:
                        columns.setdefault(name, [])
                    sound.extend(row.cells for row in islice(rows, _PROBED_ROWS) if not row.wrong)
            except Damaged as error:  # reported when it is read
                remedy = "; no row shows the columns: declare the features"
                remedy = "" if isinstance(error, _WrongHeader) else remedy
                wrong = wrong or f"{file.path}: {error}{remedy}"
            for i, name in enumerate(names if sound else ()):
                columns[name].extend(cells[i] for cells in sound)
            if sound:
                break
        if wrong and not columns:
            raise DataError(wrong)
        return {
            name: Feature(
                "scalar" if self.group_by in (None, name) else "sequence", _dtype_of(cells)
            )
            for name, cells in columns.items()
        }


def _dtype_of(cells: Sequence[str]) -> str:
    filled = [cell for cell in cells if cell]
    if filled and all(map(_INTEGER.fullmatch, filled)):
        # A number that is too long is a name, such as an account's: a float would lose digits.
        fits = all(len(cell) < _LONG and -(2**63) <= int(cell) < 2**63 for cell in filled)
        return "int64" if fits else dtypes.BYTES
    try:
        for cell in filled:
            _number(cell)
    except ValueError:
        return dtypes.BYTES
    return "float64" if filled else dtypes.BYTES


def _integer(cell: str) -> int:
    if not _INTEGER.fullmatch(cell):
        raise ValueError("it is no integer")
    return int(cell)


def _number(cell: str, kind: Callable[[str], complex] = float) -> complex:
    if "_" in cell or not cell.isascii():  # Python's own spellings
        raise ValueError("it is no number")
    return kind(cell)


def _truth(cell: str) -> bool:
    return _TRUTH[cell.strip().lower()]


def _parser(dtype: str) -> Callable[[str], Any]:
    """Return the function that converts a cell to a value; ValueError or KeyError for others."""
    if dtype == dtypes.BYTES:
        return _ENCODED
    kind = dtypes.numpy_dtype(dtype).kind
    if kind == "b":
        return _truth
    if kind in "iu":
        return _integer
    return partial(_number, kind=complex) if kind == "c" else _number


class _Row(NamedTuple):
    """A row: the bytes at which it begins and ends, its number, and its cells or its fault."""

    byte: int
    end: int
    number: int
    cells: Cells
    wrong: str


class _WrongHeader(Damaged):
    """The columns of a file are not those that are wanted, or two have one name."""


class _Fault(Exception):
    """An example can not be used: the text, and the reason by its short name."""


def _grouped(rows: Iterable[_Row], key_at: int) -> Iterator[list[_Row]]:
    """Yield neighbouring rows that agree in a cell.

    A row with a fault may belong to the group before it, which is then incomplete.
    """
    group: list[_Row] = []
    for row in rows:
        if row.wrong and not group:
            yield [row]
            continue
        if group and not (row.wrong or row.cells[key_at] == group[0].cells[key_at]):
            yield group
            group = []
        group.append(row)
    if group:
        yield group
