"""Columns as flat values: equal rows give equal bytes, however they are stored and cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace_proto.schema import Field
from headrace_server.reading.columns import (
    Column,
    ColumnSum,
    column_from_rows,
    concatenate,
    flattened,
    take,
)

COLUMNS: dict[str, tuple[list[Any], Field]] = {
    "scalars": ([1, 2, 3, 4], Field("int32")),
    "arrays": ([np.full((2, 3), i) for i in range(4)], Field("float32", (2, 3))),
    "texts": ([b"a", b"", b"ccc", b"dd"], Field("bytes")),
    "rows of texts": (
        [[b"a", b"b"], [b"", b"cc"], [b"d", b"e"], [b"f", b"g"]],
        Field("bytes", (2,)),
    ),
    "ragged": ([[1.0], [], [2.0, 3.0], [4.0] * 9], Field("float64", (None,))),
    "ragged with inner": ([np.full((i, 2), i) for i in range(4)], Field("int64", (None, 2))),
    "nested": ([np.ones((i, 4 - i), int) for i in range(4)], Field("uint8", (None, None))),
    "ragged texts": ([[b"a"], [], [b"bb", b"c"], [b""] * 3], Field("bytes", (None,))),
}


def column(name: str) -> Column:
    return column_from_rows(*COLUMNS[name])


def sum_of(*parts: Column) -> str:
    total = ColumnSum()
    for part in parts:
        total.add(flattened(part))
    return total.text


@pytest.mark.parametrize("name", COLUMNS)
def test_a_sum_is_the_same_however_the_rows_are_cut_and_stored(name: str):
    whole = column(name)
    expected = sum_of(whole)
    assert sum_of(*(take(whole, slice(i, i + 1)) for i in range(4))) == expected
    assert sum_of(take(whole, slice(0, 3)), take(whole, slice(3, 4))) == expected
    backwards = take(whole, np.array([3, 2, 1, 0]))
    assert sum_of(take(backwards, np.array([3, 2, 1, 0]))) == expected
    assert sum_of(concatenate([take(whole, slice(0, 2)), column_from_rows([], COLUMNS[name][1]),
                               take(whole, slice(2, 4))])) == expected  # fmt: skip


@pytest.mark.parametrize("name", COLUMNS)
def test_another_order_or_number_of_rows_is_another_sum(name: str):
    whole = column(name)
    sums = {
        sum_of(whole),
        sum_of(take(whole, np.array([1, 0, 2, 3]))),
        sum_of(take(whole, slice(0, 3))),
        sum_of(whole, take(whole, slice(0, 1))),
    }
    assert len(sums) == 4
