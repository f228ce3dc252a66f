"""Row stages do to whole chunks what plain Python would do to each row.

Functions that fail are in tests/unit/refusals.
"""

import numpy as np
import pytest

from headrace_proto.schema import Field
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.columns import Ragged, Strings
from tests.unit.readers import chunk_of, examples, stages_of

FIELDS = {"x": Field("int64"), "v": Field("float32", (None,)), "t": Field("bytes")}


def numbered(count):
    return chunk_of([{"x": i, "v": [0.5] * i, "t": b"t%d" % i} for i in range(count)], FIELDS)


def ramp(e):
    return {"n": e["x"], "r": np.zeros((int(e["x"]), 2)), "w": [e["t"]] * 2, "v": e["v"]}


def ramps(c):
    return {
        "n": c["x"],
        "r": [np.zeros((int(x), 2)) for x in c["x"]],
        "w": [[t, t] for t in c["t"]],
        "v": c["v"],
    }


@pytest.mark.parametrize(("fn", "vectorized"), [(ramp, False), (ramps, True)])
def test_a_schema_is_learnt_from_the_first_rows(fn, vectorized):
    run = stages_of(lambda p: p.map(fn, vectorized=vectorized), FIELDS)
    assert run.fields is None
    out = run.apply(numbered(3), BadRecords())
    assert run.fields == {
        "n": Field("int64"),
        "r": Field("float64", (None, 2)),
        "w": Field("bytes", (2,)),
        "v": Field("float32", (None,)),
    }
    assert isinstance(out.columns["w"], Strings)
    assert isinstance(out.columns["r"], Ragged)
    assert [row["r"] for row in examples(out)] == [[], [[0, 0]], [[0, 0], [0, 0]]]
