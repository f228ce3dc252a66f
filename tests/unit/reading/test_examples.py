"""Examples in memory come back as they were given."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given

from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.pipeline.examples import pack_examples
from headrace_server.reading.source import IndexedSource
from tests.unit.readers import all_of, examples, opened
from tests.unit.reading.test_columns import columns


def test_examples_are_read_in_every_order() -> None:
    rows = [
        {"n": i, "x": np.full((i % 3, 2), i, np.float16), "s": "é" * i, "t": ["a"] * (i % 2)}
        for i in range(9)
    ]
    reader = opened("examples", **pack_examples(rows))
    assert isinstance(reader, IndexedSource)
    assert reader.fields == {
        "n": Field("int64"),
        "x": Field("float16", (None, 2)),
        "s": Field("bytes"),
        "t": Field("bytes", (None,)),
    }
    assert all_of(reader) == [
        {
            "n": i,
            "x": [[float(i)] * 2] * (i % 3),
            "s": ("é" * i).encode(),
            "t": [b"a"] * (i % 2),
        }
        for i in range(9)
    ]
    assert reader.take(slice(2, 3)).origin.describe(0) == "examples, record 2"


@given(columns())
def test_any_column_comes_back(made: tuple[Field, list[Any]]) -> None:
    field, rows = made
    if field.dtype == "uint64":
        return  # numpy takes lists of large and small ones for floats
    dims = [d for d in field.shape if d is not None]
    if len(dims) < len(field.shape) - 1 or (field.shape and None in field.shape[1:]):
        return  # features have one varying dimension, the first
    kind: Any = "sequence" if None in field.shape else "fixed" if field.shape else "scalar"
    features = {"c": Feature(kind, field.dtype, tuple(dims))}
    reader = opened("examples", **pack_examples([{"c": row} for row in rows], features))
    assert reader.fields == {"c": field}
    assert [row["c"] for row in all_of(reader)] == rows


def test_no_examples_are_a_source_of_none() -> None:
    features = {"x": Feature("sequence", "bytes", (2,))}
    reader = opened("examples", **pack_examples([], features))
    assert all_of(reader) == []
    assert examples(reader.take(slice(0, 0))) == []
