"""Columns take on a declared field where their rows allow it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.schema import Field
from headrace_server.reading.columns import (
    Ragged,
    clash,
    column_from_rows,
    field_of,
    fitted,
    misfit,
    row_of,
)
from tests.unit.readers import plain
from tests.unit.reading.test_columns import columns


@given(columns(), st.data())
def test_dimensions_become_fixed_or_varying(made, data):
    have, rows = made
    column = column_from_rows(rows, have)
    dims = [data.draw(st.sampled_from([d, None, 0, 1, 2])) for d in have.shape]
    want = Field(have.dtype, tuple(dims))
    if clash(have, want) is not None:
        fixed = zip(have.shape, want.shape, strict=True)
        assert any(a is not None and b is not None and a != b for a, b in fixed)
        return
    fits = [want.admits(np.shape(row_of(column, i))) for i in range(len(rows))]
    assert [not misfit(row_of(column, i), want) for i in range(len(rows))] == fits
    if not all(fits):
        with pytest.raises(ValueError, match="another shape"):
            fitted(column, want)
    else:
        got = fitted(column, want)
        assert [plain(row_of(got, i)) for i in range(len(rows))] == rows
        assert field_of(got).ragged_dims == want.ragged_dims
        assert type(got) is type(column_from_rows([], want))


def test_a_new_view_copies_no_payload():
    column = column_from_rows([[[1.0, 2.0]], [[3.0, 4.0]] * 2], Field("float32", (None, None)))
    got = fitted(column, Field("float32", (None, 2)))
    assert isinstance(column, Ragged)
    assert isinstance(got, Ragged)
    assert got.raw is column.raw


def test_dtypes_change_where_values_keep_their_meaning():
    ragged = column_from_rows([[1], [2, 300]], Field("int64", (None,)))
    got = fitted(ragged, Field("float32", (None,)))
    assert [plain(row_of(got, i)) for i in range(2)] == [[1.0], [2.0, 300.0]]
    for column, want in (
        (ragged, Field("int8", (None,))),
        (np.array([1, 1e300]), Field("float32")),
    ):
        with pytest.raises(ValueError, match="does not fit"):
            fitted(column, want)
        assert [bool(misfit(row_of(column, i), want)) for i in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("have", "want"),
    [
        (Field("int64"), Field("int64", (1,))),
        (Field("bytes"), Field("int64")),
        (Field("int64"), Field("bytes")),
        (Field("int64", (2,)), Field("int64", (3,))),
    ],
)
def test_fields_that_never_fit_clash(have, want):
    assert str(have) in (clash(have, want) or "")
