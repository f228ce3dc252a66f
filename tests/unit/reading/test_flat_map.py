"""One example becomes several rows, which plain Python would make in the same order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading import stage as module
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.stages import flat_map
from tests.unit.readers import chunk_of, examples, stages_of

FIELDS = {
    "i": Field("int64", (None,)),
    "m": Field("float32", (None, 2)),
    "d": Field("int16", (None, 3, None)),
    "t": Field("bytes", (None,)),
    "u": Field("bytes", (None, None, 2)),
}


def ups(example):
    return [{"x": example["x"], "k": k} for k in range(int(example["x"]))]


def endless(example):
    while True:
        yield {"x": 1}


ONE = {"x": Field("int64")}


def numbers(*values):
    return chunk_of([{"x": x} for x in values], ONE)


@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=5), min_size=1, max_size=3))
def test_rows_of_every_kind_of_column_come_out_in_order(counts):
    for numbers_of in counts:
        rows = [
            {
                "i": np.arange(n),
                "m": np.arange(2.0 * n, dtype=np.float32).reshape(n, 2),
                "d": np.arange(3 * n * (k % 3), dtype=np.int16).reshape(n, 3, k % 3),
                "t": np.array([b"t" * j for j in range(n)], object),
                "u": np.full((n, k % 2, 2), b"u%d" % k, object),
            }
            for k, n in enumerate(numbers_of)
        ]
        run = stages_of(lambda p: p.unbatch(), FIELDS)
        out = run.apply(chunk_of(rows, FIELDS), BadRecords())
        want = [
            {name: np.asarray(row[name])[j].tolist() for name in ("i", "m", "d", "u")}
            | {"t": row["t"][j]}
            for row, n in zip(rows, numbers_of, strict=True)
            for j in range(n)
        ]
        got = [{name: row[name] for name in ("i", "m", "d", "u", "t")} for row in examples(out)]
        assert got == want
        assert run.fields == {n: Field(f.dtype, f.shape[1:]) for n, f in FIELDS.items()}
        assert out.origin.record.tolist() == np.repeat(range(len(rows)), numbers_of).tolist()
        assert len(set(out.ordinals.tolist())) == len(out)
        assert run.counts.get("no_output", 0) == numbers_of.count(0)


def test_a_function_without_an_end_and_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr(flat_map, "MAX_OUTPUTS", 10)
    with pytest.raises(DataError, match="gave more than 10 outputs for one example"):
        stages_of(lambda p: p.flat_map(endless), ONE).apply(numbers(1), BadRecords())
    monkeypatch.setattr(module, "_MOST_ROWS", 12)
    with pytest.raises(DataError, match="ups makes 13 rows of 2 examples, and 9 of this"):
        stages_of(lambda p: p.flat_map(ups), ONE).apply(numbers(4, 9), BadRecords())
