"""A chunk becomes facts for the machine of a shape."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_server.reading.chunk import BadRecords
from tests.unit.readers import of_columns

INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)


@pytest.mark.parametrize("boundary", [INT64.min, -5, 0, INT32.max, INT64.max])
def test_a_boundary_belongs_to_the_bucket_above(boundary):
    near = [boundary + d for d in (-1, 0, 1) if INT64.min <= boundary + d <= INT64.max]
    lengths = hs.read_npz("a.npz").bucket_by_sequence_length("n", 2, [int(boundary)])
    shape = lengths.declaration().shape.made()
    shape.open(0)
    chunk, facts = shape.facts(of_columns(n=np.array(near)), BadRecords())
    assert facts["bucket"].tolist() == [int(length >= boundary) for length in near]
    assert chunk.facts["length"].tolist() == np.clip(near, INT32.min, INT32.max).tolist()
