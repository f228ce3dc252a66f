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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, BinaryIO, NamedTuple

from headrace_proto import dtypes
from headrace_proto.errors import DataError, FilesMissing, rewording
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Feature, Source
from headrace_server.reading.reader import Opening, StreamReader

from .record_streams import (
    DAMAGE,
    Damaged,
    Place,
    Records,
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
#: A column's name, its place among the cells of a row, and the parser of its cells.
_Column = tuple[str, int, Callable[[str], Any]]


def open_reader(opening: Opening) -> StreamReader:
    csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL))
    table = _Table(opening.source)
    features = opening.source.features or table.probed(opening.files)
    table.prepare(features)
    return file_streams(opening, table.examples, features)


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

    def prepare(self, features: Mapping[str, Feature]) -> None:
        self.kinds = {name: _parser(feature.dtype) for name, feature in features.items()}
        self.scalars = {name for name, feature in features.items() if feature.kind == "scalar"}
        self.texts = {name for name, f in features.items() if f.dtype == dtypes.BYTES}

    def cells(self, text: _Text) -> Iterator[Cells]:
        return csv.reader(text, delimiter=self.delimiter, strict=True)

    def header(self, file: DataFile) -> tuple[list[str], Place]:
        """Return names of the columns, and where the first row of cells is."""
        names, place = self.names, Place()
        if names is None:
            with open_plain(file, 0) as stream:
                text = _Text(stream, 0)
                names = next(filter(None, self.cells(text)), [])  # empty lines may precede it
                place = Place(text.byte, 0, 1)
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise DataError(f"two columns are named {min(twice)!r}; rename one")
        grouped = [] if self.group_by is None else [self.group_by]
        for name in (*self.kinds, *grouped) if names else ():
            if name not in names:
                has = ", ".join(map(repr, names))
                raise DataError(f"there is no column {name!r}; it has {has}")
        return names, place

    def examples(self, file: DataFile, walk: Records) -> Iterator[StreamRecord]:
        """Yield the examples of a file: rows, or groups of rows."""
        with rewording(Damaged, "", csv.Error, DataError, but=(FilesMissing,)):
            names, first = self.header(file)
        if walk.place == Place():
            walk.place = first
        kinds, by = self.kinds.items(), self.group_by
        columns = [(name, names.index(name), parse) for name, parse in kinds if name in names]
        with open_plain(file, walk.place.byte) as stream:
            rows = self.rows(_Text(stream, walk.place.byte), walk.place.row, len(names))
            alone = ([row] for row in rows)
            for group in _grouped(rows, names.index(by)) if by in names else alone:
                begin, number = group[0], walk.place.record
                here = Place(begin.byte, number, begin.number)
                walk.place = Place(group[-1].end, number + 1, group[-1].number + 1)
                try:
                    record = StreamRecord(here, self._example(group, columns))
                except _Fault as fault:
                    record = StreamRecord(here, None, *fault.args)
                yield record

    def rows(self, text: _Text, number: int, columns: int) -> Iterator[_Row]:
        """Yield the rows of a text, from the one of a number on."""
        parsed = self.cells(text)
        while True:
            byte = text.byte
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
            yield _Row(byte, text.byte, number, cells, wrong)
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
            if name not in self.scalars:
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
        for name, i, parse in columns:
            cell = row.cells[i]
            try:
                values[name] = parse(cell) if cell or name in self.texts else None
            except (ValueError, KeyError):
                dtype = "an integer" if parse is _integer else "a value of its dtype"
                text = f"{cell!r:.60} is not {dtype}"
                raise _Fault(f"row {row.number}, column {name!r}: {text}", "wrong_type") from None
        return values

    def probed(self, files: Sequence[DataFile]) -> dict[str, Feature]:
        """Infer the features from the first rows."""
        columns: dict[str, list[str]] = {}
        wrong: DataError | None = None
        for file in files:
            rows: list[Cells] = []
            names: list[str] = []
            try:
                names, place = self.header(file)
                with open_plain(file, place.byte) as stream:
                    text = _Text(stream, place.byte)
                    rows.extend(islice(self.cells(text), _PROBED_ROWS))
            except FilesMissing:
                raise
            except (csv.Error, DataError, *DAMAGE) as error:  # reported when it is read
                remedy = "" if isinstance(error, DataError) else "; declare the features"
                wrong = wrong or DataError(f"{file.path}: {error}{remedy}")
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
            _number(float, cell)
    except ValueError:
        return dtypes.BYTES
    return "float64" if filled else dtypes.BYTES


def _integer(cell: str) -> int:
    if not _INTEGER.fullmatch(cell):
        raise ValueError("it is no integer")
    return int(cell)


def _number(kind: Callable[[str], complex], cell: str) -> complex:
    if "_" in cell or not cell.isascii():  # Python's own spellings
        raise ValueError("it is no number")
    return kind(cell)


def _parser(dtype: str) -> Callable[[str], Any]:
    """Return the function that converts a cell to a value; it raises ValueError for others."""
    if dtype == dtypes.BYTES:
        return lambda cell: cell.encode(errors="surrogateescape")
    if dtype == "bool":
        return lambda cell: _TRUTH[cell.strip().lower()]
    kind = dtypes.numpy_dtype(dtype).kind
    if kind in "iu":
        return _integer
    return partial(_number, complex if kind == "c" else float)


class _Text(Iterator[str]):
    """Lines of a file as text, and the byte after the last line taken.

    ``_parser`` restores bytes that are not UTF-8.
    """

    def __init__(self, stream: BinaryIO, byte: int) -> None:
        self._stream, self.byte = stream, byte

    def __next__(self) -> str:
        line = self._stream.readline()
        if not line:
            raise StopIteration
        at, self.byte = self.byte, self.byte + len(line)
        if at == 0:
            line = line.removeprefix(b"\xef\xbb\xbf")
        return line.decode(errors="surrogateescape")


class _Row(NamedTuple):
    """A row: the bytes at which it begins and ends, its number, and its cells or its fault."""

    byte: int
    end: int
    number: int
    cells: Cells
    wrong: str


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
