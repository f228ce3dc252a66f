"""The schema of examples is inferred from all of them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading import example_rows


def infer_fields(rows: list[dict]) -> dict[str, Field]:
    """Infer fields of rows that are named by their numbers."""
    return example_rows.infer_fields((f"example {i}", row) for i, row in enumerate(rows))


def test_dimensions_that_differ_vary_and_numbers_widen() -> None:
    rows = [
        {"a": 1, "b": [1, 2], "c": "x", "d": [[1.0, 2.0]], "e": np.float32(1)},
        {"a": 2.5, "b": [3, 4], "c": b"y", "d": [[1.0, 2.0]] * 3, "f": True},
        {"a": 3, "b": [5, 6], "c": None, "d": [], "f": None},
    ]
    assert infer_fields(rows) == {
        "a": Field("float64"),
        "b": Field("int64", (2,)),
        "c": Field("bytes"),
        "d": Field("float64", (None, 2)),
        "e": Field("float32"),
        "f": Field("bool"),
    }


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([{"a": 1}, {}, {"a": "x"}], "example 2, column 'a': 'x'"),
        ([{"a": [1]}, {"a": 1}], "example 1, column 'a'"),
        ([{"a": True}, {"a": 1}], "example 1, column 'a'"),
        ([{"a": {"b": 1}}], "example 0, column 'a'"),
        ([{"a": [[1], [1, 2]]}], "example 0, column 'a'.*declare the features"),
        ([{"a": np.array("2020", "M8[D]")}], "example 0, column 'a'"),
        ([{"": 1}], "example 0: '' is no name of a column"),
        ([{3: 1}], "example 0: 3 is no name of a column"),
    ],
)
def test_values_that_do_not_go_together_are_named(rows: list[dict], text: str) -> None:
    with pytest.raises(DataError, match=text):
        infer_fields(rows)
