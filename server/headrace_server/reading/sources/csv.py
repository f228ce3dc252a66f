"""CSV files, plain or compressed (.gz): a stream per file, an example of scalars per row.

The first row names the columns.  Quoted cells may hold delimiters, doubled quotes and newlines.  An
empty cell is a missing value, except in columns of bytes, where it is the empty string.  Without
features the first thousand rows show whether a column is int64, float64 or bytes.

The standard library splits rows.  pyarrow's reader does not serve here: it gives neither the byte
of a row, from which a feed resumes, nor the row of a value that does not fit, and it takes a quote
that is not closed for data, and so the rest of the file for one cell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from operator import methodcaller

from headrace_proto import dtypes
from headrace_proto.errors import DataError, near, rewording

from ...files.manifest import DataFile
from ...pipeline.declaration import Feature
from ..example_rows import Place, Record, Records, file_streams
from ..forward_files import Damaged, Lines, open_forward
from ..source import Opening, Source, StreamSource

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
#: A row: the bytes at which it begins and ends, its number, and its cells or its fault.
_Row = tuple[int, int, int, Cells, str]
#: A column's name, its place among the cells of a row, and the parser of its cells.
_Column = tuple[str, int, Callable[[str], object]]


class Csv(Source):
    """A stream per file."""

    @classmethod
    def open(cls, opening: Opening, delimiter: str = ",") -> StreamSource:
        csv.field_size_limit(max(csv.field_size_limit(), _MAX_CELL))
        table = _Table(delimiter)
        table.features = opening.features or table.probed(opening.files)
        return file_streams(opening, table.examples, table.features)


class _Table:
    """How to read the files: their dtypes and the delimiter."""

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        #: Set before examples are read.
        self.features: Mapping[str, Feature] = {}

    def cells(self, lines: Lines) -> Iterator[Cells]:
        return csv.reader(map(_DECODED, lines), delimiter=self.delimiter, strict=True)

    @contextmanager
    def open(self, file: DataFile, place: Place) -> Iterator[tuple[list[str], Iterator[_Row]]]:
        """Open a file from a place on: the names of its columns, and its rows."""
        with open_forward(file) as stream, rewording(Damaged, "", csv.Error):
            lines = Lines(stream)  # empty ones may precede the header
            names = next(filter(None, self.cells(lines)), [])
        place, number = max(place, Place(lines.byte)), place.record + 1
        self.check(names)
        with open_forward(file, place.byte) as stream:
            yield names, self.rows(Lines(stream, place.byte), number, len(names))

    def check(self, names: list[str]) -> None:
        """Raise _WrongHeader where a file has not the wanted columns; it may have none at all."""
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise _WrongHeader(f"two columns are named {min(twice)!r}; rename one")
        for name in self.features if names else ():
            if name not in names:
                has = ", ".join(map(repr, names))
                raise _WrongHeader(f"there is no column {name!r}; it has {has}{near(name, names)}")

    def examples(self, file: DataFile, walk: Records) -> Iterator[Record]:
        """Yield the examples of a file."""
        with self.open(file, walk.place) as (names, rows):
            columns = [
                (name, names.index(name), _parser(feature.dtype))
                for name, feature in self.features.items()
                if name in names
            ]
            for byte, end, number, cells, wrong in rows:
                here = Place(byte, walk.place.record)
                walk.place = Place(end, here.record + 1)
                if wrong:
                    yield Record(here, None, wrong)
                    continue
                values, wrong = _values(cells, columns)
                fault = f"row {number}, {wrong}", "wrong_type"
                yield Record(here, None, *fault) if wrong else Record(here, values)

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
            yield byte, lines.byte, number, cells, wrong
            number += 1

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
                    some = islice(rows, _PROBED_ROWS)
                    sound.extend(cells for *_, cells, wrong_row in some if not wrong_row)
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
        return {name: Feature("scalar", _dtype_of(cells)) for name, cells in columns.items()}


def _values(cells: Cells, columns: Sequence[_Column]) -> tuple[dict[str, object], str]:
    """Return the values of a row, and the fault of one of them, or ""."""
    values: dict[str, object] = {}
    for name, i, parse in columns:
        cell = cells[i]
        try:
            values[name] = parse(cell) if cell or parse is _ENCODED else None
        except (ValueError, KeyError):
            dtype = "an integer" if parse is _integer else "a value of its dtype"
            return {}, f"column {name!r}: {cell!r:.60} is not {dtype}"
    return values, ""


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


def _parser(dtype: str) -> Callable[[str], object]:
    """Return the function that converts a cell to a value; ValueError or KeyError for others."""
    if dtype == dtypes.BYTES:
        return _ENCODED
    kind = dtypes.numpy_dtype(dtype).kind
    if kind == "b":
        return lambda cell: _TRUTH[cell.strip().lower()]
    if kind in "iu":
        return _integer
    return partial(_number, kind=complex) if kind == "c" else _number


class _WrongHeader(Damaged):
    """The columns of a file are not those that are wanted, or two have one name."""
