"""The schema of examples is inferred from all of them."""

from __future__ import annotations

import numpy as np

from headrace_proto.schema import Field
from headrace_server.reading import example_rows


def infer_fields(rows: list[dict]) -> dict[str, Field]:
    """Infer fields of rows that are named by their numbers."""
    return example_rows.infer_fields((f"example {i}", row) for i, row in enumerate(rows))


def test_dimensions_that_differ_vary_and_numbers_widen():
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
