"""Rows that fit make a chunk; each that does not is reported once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_server.pipeline.declaration import Feature
from headrace_server.reading.chunk import BadRecords, Origin
from headrace_server.reading.example_rows import schema_of
from tests.unit.readers import examples

FEATURES = {
    "n": Feature("scalar", "int8"),
    "x": Feature("sequence", "float32"),
    "d": Feature("fixed", "bytes", (2,), [b"-", b"-"], True),
}
GOOD: dict[str, list[Any]] = {"n": [1, -5], "x": [[], [1.0]], "d": [[b"a", b"b"], None]}
BAD: dict[str, list[Any]] = {"n": [300, None, "a"], "x": [None, 3, [[1]]], "d": [[b"a"], 1]}


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                name: st.one_of(
                    *(st.tuples(st.just(True), st.just(v)) for v in GOOD[name]),
                    *(st.tuples(st.just(False), st.just(v)) for v in BAD[name]),
                )
                for name in FEATURES
            }
        ),
        max_size=6,
    )
)
def test_exactly_the_rows_that_fit_are_kept(made: list[dict[str, tuple[bool, Any]]]) -> None:
    rows = [{name: value for name, (_, value) in row.items()} for row in made]
    fits = [i for i, row in enumerate(made) if all(ok for ok, _ in row.values())]
    numbers = np.arange(len(rows))
    bad = BadRecords(skip=True)
    schema = schema_of(FEATURES)
    chunk = schema.chunk(rows, numbers + 10, Origin.single("f", numbers), bad)
    want = [{**rows[i], "d": rows[i]["d"] or [b"-", b"-"]} for i in fits]
    assert examples(chunk) == want
    assert chunk.ordinals.tolist() == [i + 10 for i in fits]
    assert chunk.origin.record.tolist() == fits
    assert sum(bad.counts.values()) == len(rows) - len(fits)


def test_a_default_that_does_not_fit_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="int8"):
        schema_of({"n": Feature("scalar", "int8", (), 300, True)})
