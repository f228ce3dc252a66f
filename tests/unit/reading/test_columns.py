"""Columns keep their values when they are taken, joined and packed."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.schema import Field
from headrace_server.reading.columns import (
    Column,
    column_from_rows,
    concatenate,
    dtype_of,
    field_of,
    row_of,
    take,
)
from tests.unit.readers import plain

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "float32": st.floats(width=32, allow_nan=False),
    "float64": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=100),
}


@st.composite
def columns(draw: st.DrawFn) -> tuple[Field, list[Any]]:
    """A field, and rows as nested lists."""
    dtype = draw(st.sampled_from(sorted(_VALUES)))
    dims = draw(st.lists(st.one_of(st.none(), st.integers(0, 3)), max_size=3))
    field = Field(dtype, tuple(dims))
    rows = []
    for _ in range(draw(st.integers(0, 6))):
        shape = [draw(st.integers(0, 3)) if d is None else d for d in dims]
        count = int(np.prod(shape, dtype=int))
        values = draw(st.lists(_VALUES[dtype], min_size=count, max_size=count))
        array = np.empty(shape, object)
        array.reshape(-1)[:] = values
        rows.append(array.tolist() if shape else values[0])
    return field, rows


def listed(column: Column) -> list[Any]:
    return [plain(row_of(column, i)) for i in range(len(column))]


@given(columns())
def test_a_column_gives_back_the_rows_that_it_was_made_of(made):
    field, rows = made
    column = column_from_rows(rows, field)
    assert listed(column) == rows
    assert dtype_of(column) == field.dtype
    assert field_of(column).ragged_dims == field.ragged_dims
    assert len(field_of(column).shape) == len(field.shape)


@given(columns(), st.data())
def test_taking_gives_those_rows_in_that_order(made, data):
    field, rows = made
    column = column_from_rows(rows, field)
    at = st.integers(0, max(0, len(rows) - 1))
    index = data.draw(st.lists(at, max_size=8)) if rows else []
    assert listed(take(column, np.array(index, np.int64))) == [rows[i] for i in index]
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    assert listed(take(column, slice(start, stop))) == rows[start:stop]


@given(columns(), st.data())
def test_parts_of_columns_join_to_the_rows_of_all(made, data):
    field, rows = made
    parts, want = [], []
    shared = column_from_rows(rows, field)
    for _ in range(data.draw(st.integers(1, 4))):
        own = data.draw(st.booleans())
        column = column_from_rows(rows, field) if own else shared
        at = st.integers(0, max(0, len(rows) - 1))
        index = data.draw(st.lists(at, max_size=6)) if rows else []
        parts.append(take(column, np.array(index, np.int64)))
        want += [rows[i] for i in index]
    joined = concatenate(parts)
    assert listed(joined) == want
    assert listed(take(joined, slice(1, None))) == want[1:]


def test_large_unsigned_numbers_stay_exact_beside_small_ones():
    column = column_from_rows([[0, 2**64 - 1]], Field("uint64", (2,)))
    assert listed(column) == [[0, 2**64 - 1]]
