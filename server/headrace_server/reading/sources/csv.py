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
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any

from headrace_proto import dtypes
from headrace_proto.errors import DataError, FilesMissing, rewording
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Feature, Source
from headrace_server.reading.reader import BadRecords, Opening, StreamReader

from .record_streams import (
    DAMAGE,
    Damaged,
    FileRecords,
    Place,
    StreamRecord,
    file_streams,
    open_plain,
)

_PROBED_ROWS = 1000
#: Maximum size of a cell; the csv module's own limit is 128 KiB.
_MAX_CELL = 1 << 28
_INTEGER = re.compile(r"\s*[+-]?[0-9]+\s*", re.ASCII)
#: Number of characters from which on a cell is no integer; Python converts at most 4,300 digits.
_LONG = 1000
_TRUTH = {"true": True, "1": True, "false": False, "0": False}

Cells = list[str]


def open_reader(opening: Opening) -> StreamReader:
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL))
    table = _Table(opening.source)
    features = opening.source.features or table.probed(opening.files)
    table.prepare(features)
    return file_streams(opening, partial(_Rows, table), features)


class _Table:
    """How to read the files: names, dtypes and delimiter."""

    def __init__(self, source: Source) -> None:
        options = source.options
        self.delimiter: str = options.get("delimiter", ",")
        self.group_by: str | None = options.get("group_by")
        self.names: list[str] | None = None  # None: in the first row of each file
        header = options.get("header", True)
        if header is not True:
            self.names = list(header or source.features or ())
        self.kinds: dict[str, Callable[[str], Any]] = {}
        self.scalars: set[str] = set()
        self.texts: set[str] = set()
        self._headers: dict[str, tuple[list[str], Place]] = {}

    def prepare(self, features: Mapping[str, Feature]) -> None:
        self.kinds = {name: _parser(feature.dtype) for name, feature in features.items()}
        self.scalars = {name for name, feature in features.items() if feature.kind == "scalar"}
        self.texts = {name for name, f in features.items() if f.dtype == dtypes.BYTES}

    def cells(self, text: _Text) -> Iterator[Cells]:
        return csv.reader(text, delimiter=self.delimiter, strict=True)

    def header(self, file: DataFile) -> tuple[list[str], Place]:
        """Return names of the columns, and where the first row of cells is."""
        if file.path not in self._headers:
            cells: Cells | None
            cells, place = self.names, Place()
            if cells is None:
                with closing(_Text(file, 0)) as text:
                    cells = next(self.cells(text), [])
                    place = Place(text.byte, 0, 1)
            twice = {name for name in cells if cells.count(name) > 1}
            if twice:
                raise DataError(f"{file.path}: two columns are named {min(twice)!r}; rename one")
            grouped = [] if self.group_by is None else [self.group_by]
            for name in (*self.kinds, *grouped) if cells else ():
                if name not in cells:
                    raise DataError(
                        f"{file.path}: there is no column {name!r}; it has "
                        f"{', '.join(map(repr, cells))}"
                    )
            self._headers[file.path] = cells, place
        return self._headers[file.path]

    def probed(self, files: Sequence[DataFile]) -> dict[str, Feature]:
        """Infer the features from the first rows."""
        columns: dict[str, list[str]] = {}
        wrong: DataError | None = None
        for file in files:
            rows: list[Cells] = []
            names: list[str] = []
            try:
                names, place = self.header(file)
                with closing(_Text(file, place.byte)) as text:
                    rows.extend(islice(self.cells(text), _PROBED_ROWS))
            except FilesMissing:
                raise
            except (csv.Error, DataError, *DAMAGE) as error:  # reported when it is read
                if not isinstance(error, DataError):
                    error = DataError(f"{file.path}: {error}; declare the features")
                wrong = wrong or error
            rows = [row for row in rows if len(row) == len(names)]
            for i, name in enumerate(names):
                columns.setdefault(name, []).extend(row[i] for row in rows)
            if rows:
                break
        if wrong is not None and not columns:
            raise wrong
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
            _real(cell)
    except ValueError:
        return dtypes.BYTES
    return "float64" if filled else dtypes.BYTES


def _integer(cell: str) -> int:
    if not _INTEGER.fullmatch(cell):
        raise ValueError("it is no integer")
    return int(cell)


def _real(cell: str) -> float:
    if "_" in cell:  # Python's own spelling
        raise ValueError("it is no number")
    return float(cell)


def _parser(dtype: str) -> Callable[[str], Any]:
    """Return the function that converts a cell to a value; it raises ValueError for others."""
    if dtype == dtypes.BYTES:
        return lambda cell: cell.encode(errors="surrogateescape")
    if dtype == "bool":
        return lambda cell: _TRUTH[cell.strip().lower()]
    kind = dtypes.numpy_dtype(dtype).kind
    if kind in "iu":
        return _integer
    return complex if kind == "c" else _real


class _Text(Iterator[str]):
    """Lines of a file as text, and the byte after the last line taken.

    ``_parser`` restores bytes that are not UTF-8.
    """

    def __init__(self, file: DataFile, byte: int) -> None:
        self._stream = open_plain(file, byte)
        self.byte = byte

    def __next__(self) -> str:
        line = self._stream.readline()
        if not line:
            raise StopIteration
        at, self.byte = self.byte, self.byte + len(line)
        if at == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line.decode(errors="surrogateescape")

    def close(self) -> None:
        self._stream.close()


class _Rows(FileRecords):
    """A walk over the examples of a file.

    With ``group_by`` a group ends when the row after it is read: that row waits here.
    """

    def __init__(self, table: _Table, file: DataFile, place: Place, bad: BadRecords) -> None:
        super().__init__(file, place, bad)
        self._table = table
        self._waiting: tuple[Place, Cells | str] | None = None

    def _open(self) -> None:
        self._names, first = self._table.header(self._file)
        if self.place == Place():
            self.place = first
        self._opened = _Text(self._file, self.place.byte)
        self._cells = self._table.cells(self._opened)
        self._row = self.place.row
        read = self._table.kinds.items()
        self._columns = [
            (name, self._names.index(name), parse) for name, parse in read if name in self._names
        ]

    def next(self) -> StreamRecord | None:
        if self._opened is None:
            with rewording(Damaged, "", csv.Error, DataError, but=(FilesMissing,)):
                self._open()
        return self._example()

    def _take(self) -> tuple[Place, Cells | str] | None:
        """Return the next row: where it begins, and its cells or its fault."""
        if self._waiting is not None:
            taken, self._waiting = self._waiting, None
            return taken
        while True:
            place = Place(self._opened.byte, 0, self._row)
            try:
                cells = next(self._cells)
            except StopIteration:
                return None
            except csv.Error as error:
                self._row += 1
                return place, f"row {place.row}: it is no CSV: {error}"
            if not cells:
                continue  # an empty line
            self._row += 1
            if len(cells) != len(self._names):
                return place, (
                    f"row {place.row} has {len(cells)} cells, and there are "
                    f"{len(self._names)} columns"
                )
            return place, cells

    def _after(self, record: int) -> Place:
        """Return the place of the next row, which begins the next record."""
        if self._waiting is not None:
            at = self._waiting[0]
            return Place(at.byte, record, at.row)
        return Place(self._opened.byte, record, self._row)

    def _example(self) -> StreamRecord | None:
        """Read one row, or neighbouring rows that agree in ``group_by``."""
        number = self.place.record
        taken = self._take()
        if taken is None:
            return None
        at, cells = taken
        here = Place(at.byte, number, at.row)
        row: dict[str, Any] = {}
        wrong, reason = "", "corrupt_record"
        if isinstance(cells, str):
            wrong = cells
        elif self._table.group_by is None:
            wrong, reason = self._values(at.row, cells, row), "wrong_type"
        else:
            group = [(at.row, cells)]
            wrong = self._rest_of(group, self._names.index(self._table.group_by))
            if not wrong:
                row, wrong, reason = self._joined(group)
        self.place = self._after(number + 1)
        return StreamRecord(here, None, wrong, reason) if wrong else StreamRecord(here, row)

    def _rest_of(self, group: list[tuple[int, Cells]], key_at: int) -> str:
        """Take the rows that agree with the first; return a fault of one of them, or ""."""
        key, broken = group[0][1][key_at], ""
        while (taken := self._take()) is not None:
            at, cells = taken
            if isinstance(cells, str):
                broken = broken or cells  # it may belong to this group, which is then incomplete
            elif cells[key_at] != key:
                self._waiting = taken
                break
            else:
                group.append((at.row, cells))
        return broken

    def _joined(self, group: Sequence[tuple[int, Cells]]) -> tuple[dict[str, Any], str, str]:
        """Join the rows of an example to one, or return its fault."""
        lists: dict[str, list[Any]] = {name: [] for name, _, _ in self._columns}
        for row, cells in group:
            values: dict[str, Any] = {}
            if wrong := self._values(row, cells, values):
                return {}, wrong, "wrong_type"
            for name, value in values.items():
                if value is None and name not in self._table.scalars:
                    text = f"row {row}, column {name!r}: it is empty within a sequence"
                    return {}, text, "missing_feature"
                lists[name].append(value)
        joined: dict[str, Any] = {}
        for name, listed in lists.items():
            joined[name] = listed[0] if name in self._table.scalars else listed
            if name in self._table.scalars and any(value != listed[0] for value in listed[1:]):
                text = f"column {name!r} is declared as scalar and differs within the group"
                return {}, f"row {group[0][0]}, {text}", "wrong_type"
        return joined, "", ""

    def _values(self, row: int, cells: Cells, into: dict[str, Any]) -> str:
        """Read the values of a row; return the text of a fault, or ""."""
        for name, i, parse in self._columns:
            cell = cells[i]
            try:
                into[name] = parse(cell) if cell or name in self._table.texts else None
            except (ValueError, KeyError):
                dtype = "an integer" if parse is _integer else "a value of its dtype"
                return f"row {row}, column {name!r}: {cell!r:.60} is not {dtype}"
        return ""
