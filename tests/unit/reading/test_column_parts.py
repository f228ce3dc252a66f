"""Stored columns: bad rows are left out of all columns, defaults stand in for missing values."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.schema import Field
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.column_parts import ColumnPart, StoredRows, Whole, origin_in
from headrace_server.reading.columns import Rows, column_from_rows, row_of, take
from headrace_server.reading.example_rows import Schema
from tests.unit.readers import plain


class Holed:
    """A column with missing and unsound rows."""

    def __init__(self, values: list[int], missing: list[bool], unsound: list[bool]) -> None:
        self.field = Field("int64", (None,))
        self._column = column_from_rows([[v] * (v % 3) for v in values], self.field)
        self._missing, self._unsound = np.array(missing, bool), np.array(unsound, bool)

    def read(self, rows: Rows) -> StoredRows:
        column = take(self._column, rows)
        return StoredRows(column, self._missing[rows], ((self._unsound[rows], "it is unsound"),))


@given(
    st.lists(st.tuples(st.integers(0, 300), *[st.booleans()] * 3), min_size=1, max_size=8),
    st.booleans(),
    st.data(),
)
def test_rows_that_are_sound_everywhere_are_kept(
    rows: list[tuple[int, bool, bool, bool]], has_default: bool, data: st.DataObject
) -> None:
    values, missing, unsound, plain_missing = map(list, zip(*rows, strict=True))
    columns = {
        "a": Holed(values, missing, unsound),  # type: ignore[arg-type]
        "b": Whole(np.array(values), Field("int64")),
        "c": Holed(values, plain_missing, [False] * len(rows)),  # type: ignore[arg-type]
    }
    fields = {
        "a": Field("float32", (None,)),
        "b": Field("uint8"),
        "c": Field("int64", (None,)),
        "d": Field("bytes"),
    }
    given: dict[str, Any] = {"a": [0.5, 0.5], "d": b"?"} | ({"c": [-1]} if has_default else {})
    defaults = {name: column_from_rows([value], fields[name]) for name, value in given.items()}
    schema = Schema(fields, defaults, declared=True)
    bad = BadRecords(skip=True)
    part = ColumnPart(len(rows), lambda: columns, schema, origin_in("f", 100), bad)
    index: Any = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=9))
    want, kept = [], []
    for at, i in enumerate(index):
        value, a_missing, a_unsound, c_missing = rows[i]
        if (a_unsound and not a_missing) or value > 255 or (c_missing and not has_default):
            continue
        kept.append(at)
        a = [0.5, 0.5] if a_missing else [float(value)] * (value % 3)
        c = [-1] if c_missing else [value] * (value % 3)
        want.append({"a": a, "b": value, "c": c, "d": b"?"})
    got = part.take(np.array(index))
    assert got.ordinals.tolist() == [index[at] for at in kept]
    assert got.origin.record.tolist() == [100 + index[at] for at in kept]
    assert [
        {name: plain(row_of(column, i)) for name, column in got.columns.items()}
        for i in range(len(kept))
    ] == want
    assert sum(bad.counts.values()) == len(index) - len(kept)
