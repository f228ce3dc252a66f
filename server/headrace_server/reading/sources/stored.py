"""Parts of sources that hold whole columns: Arrow, Parquet, numpy files, examples in memory.

    stored column ──read──► rows, and which of them are missing or unsound
                  ──fit───► the declared field, defaults in place of missing values

A row that is wrong in any column is reported once and left out of all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading.chunk import Origin
from headrace_server.reading.columns import Column, column_from_rows, concatenate, take
from headrace_server.reading.reader import BadRecords

from .fit import clash, fitted
from .parts import Kept, Rows, empty_columns
from .rows import Layout

__all__ = [
    "Held",
    "Recent",
    "StoredColumn",
    "StoredPart",
    "Whole",
    "columns_serve",
    "count_of",
    "origin_in",
]

#: Row within a read -> reason and text.
Wrong = dict[int, tuple[str, str]]


class Held(NamedTuple):
    """Rows of a column as stored.  What missing and unsound rows hold is void, yet readable."""

    column: Column
    missing: np.ndarray | None = None  # bool [n]
    unsound: tuple[tuple[np.ndarray, str], ...] = ()  # bool [n], and the rule that is broken


class StoredColumn(Protocol):
    @property
    def field(self) -> Field: ...

    def read(self, rows: Rows) -> Held: ...


class Whole:
    """A column that is there as one."""

    def __init__(self, column: Column, field: Field) -> None:
        self.column, self.field = column, field

    def read(self, rows: Rows) -> Held:
        return Held(take(self.column, rows))


def origin_in(file: str, first: int) -> Callable[[Rows], Origin]:
    """The origin of rows that lie one after the other in a file, from record ``first`` on."""

    def origin(rows: Rows) -> Origin:
        if isinstance(rows, slice):
            return Origin.single(file, np.arange(first + rows.start, first + rows.stop))
        return Origin.single(file, first + rows)

    return origin


def count_of(rows: Rows) -> int:
    return int(rows.stop - rows.start) if isinstance(rows, slice) else len(rows)


def columns_serve(file: str, have: Mapping[str, Field], layout: Layout, bad: BadRecords) -> bool:
    """Whether a file can give the columns of the layout; False when that was reported."""
    for name, want in layout.fields.items():
        field = have.get(name)
        if field is None:
            if name not in layout.defaults:
                text = (
                    f"{file}, column {name!r}: the file has no such column (it has "
                    f"{', '.join(map(repr, have))}); give the feature a default, or leave it out"
                )
                bad.report(DataError(text), "missing_feature")
                return False
            continue
        reason = clash(field, want)
        if reason is None and not layout.declared and field != want:
            reason = f"is {field} here and {want} in the first file; declare the features"
        if reason is not None:
            bad.report(DataError(f"{file}, column {name!r}: it {reason}"), "wrong_type")
            return False
    if not layout.declared:
        for name in have.keys() - layout.fields.keys():
            text = "the first file has no such column; declare the features"
            bad.report(DataError(f"{file}, column {name!r}: {text}"), "wrong_type")
            return False
    return True


class Recent:
    """The columns of the parts that were read last."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._columns: OrderedDict[object, Mapping[str, StoredColumn]] = OrderedDict()

    def get(
        self, key: object, load: Callable[[], Mapping[str, StoredColumn]]
    ) -> Mapping[str, StoredColumn]:
        if key in self._columns:
            self._columns.move_to_end(key)
        else:
            while len(self._columns) >= self._kept:
                self._columns.popitem(last=False)
            self._columns[key] = load()
        return self._columns[key]


class StoredPart:
    """A Part over stored columns.  ``columns`` may load them, and raise DataError."""

    def __init__(
        self,
        rows: int,
        columns: Callable[[], Mapping[str, StoredColumn]],
        layout: Layout,
        origin: Callable[[Rows], Origin],
        bad: BadRecords,
    ) -> None:
        self.rows = rows
        self._columns, self._layout, self._origin, self._bad = columns, layout, origin, bad

    def read(self, rows: Rows) -> Kept:
        try:
            held = self._columns()
        except DataError as error:
            self._bad.report(error, "corrupt_file", count_of(rows))
            nothing = np.empty(0, np.int64)
            return Kept(empty_columns(self._layout.fields), self._origin(nothing), nothing)
        wrong: Wrong = {}
        columns = {}
        for name, want in self._layout.fields.items():
            column = self._column(name, held.get(name), want, rows, wrong)
            if column is not None:
                columns[name] = column
        origin = self._origin(rows)
        if not wrong:
            return Kept(columns, origin)
        for i in sorted(wrong):
            reason, text = wrong[i]
            self._bad.report(DataError(f"{origin.describe(i)}, {text}"), reason)
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        which = np.setdiff1d(np.arange(len(index)), np.fromiter(wrong, np.int64, len(wrong)))
        kept = self.read(index[which])
        return Kept(kept.columns, kept.origin, which if kept.which is None else which[kept.which])

    def close(self) -> None:
        """Nothing is held that outlives the reader."""

    def _column(
        self, name: str, stored: StoredColumn | None, want: Field, rows: Rows, wrong: Wrong
    ) -> Column | None:
        if stored is None:
            return take(self._default(name, want), np.zeros(count_of(rows), np.int64))
        held = stored.read(rows)
        if held.missing is not None and held.missing.any():
            return self._with_defaults(name, stored, want, rows, held.missing, wrong)
        for mask, rule in held.unsound:
            for i in np.flatnonzero(mask).tolist():
                wrong.setdefault(i, ("corrupt_record", f"column {name!r}: {rule}"))
        if wrong:
            return None
        if stored.field == want:
            return held.column
        column, misfits = fitted(held.column, want)
        for i, rule in misfits:
            wrong.setdefault(i, ("wrong_type", f"column {name!r}: {rule}"))
        return column

    def _with_defaults(
        self,
        name: str,
        stored: StoredColumn,
        want: Field,
        rows: Rows,
        missing: np.ndarray,
        wrong: Wrong,
    ) -> Column | None:
        if name not in self._layout.defaults:
            for i in np.flatnonzero(missing).tolist():
                text = f"column {name!r}: it is null; give the feature a default"
                wrong.setdefault(i, ("missing_feature", text))
            return None
        index = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        present = np.flatnonzero(~missing)
        among: Wrong = {}
        column = self._column(name, stored, want, index[present], among)
        for i, why in among.items():
            wrong.setdefault(int(present[i]), why)
        if wrong or column is None:
            return None
        both = concatenate([column, self._default(name, want)])
        return take(both, np.where(missing, len(present), np.cumsum(~missing) - 1))

    def _default(self, name: str, want: Field) -> Column:
        return column_from_rows([self._layout.defaults[name]], want)
