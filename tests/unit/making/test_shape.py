"""A declared shape becomes its machine, and a chunk becomes facts for the machine."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.reading.chunk import BadRecords
from headrace_server.reading.columns import column_from_rows
from tests.unit.readers import of_columns

INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)


def shaping(declare, partition=0):
    made = declare(hs.read_npz("a.npz")).declaration().shape.made()
    made.open(partition)
    return made


def by_length(boundaries, what="n", **more):
    return shaping(lambda s: s.bucket_by_sequence_length(what, 2, boundaries, **more))


@pytest.mark.parametrize("boundary", [INT64.min, -5, 0, INT32.max, INT64.max])
def test_a_boundary_belongs_to_the_bucket_above(boundary):
    near = [boundary + d for d in (-1, 0, 1) if INT64.min <= boundary + d <= INT64.max]
    chunk, facts = by_length([int(boundary)]).facts(of_columns(n=np.array(near)), BadRecords())
    assert facts["bucket"].tolist() == [int(length >= boundary) for length in near]
    assert chunk.facts["length"].tolist() == np.clip(near, INT32.min, INT32.max).tolist()


def test_a_length_that_is_no_integer_is_a_bad_example():
    for value in (1.5, float("nan"), float("inf")):
        with pytest.raises(
            DataError, match=r"record 1: bucket: input_length .* a length is an int"
        ):
            by_length([3]).facts(of_columns(n=[1.0, value]), BadRecords())


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_a_bucket_out_of_range_is_a_bad_example(dtype):
    limits = np.iinfo(dtype)
    values = np.array([0, 3, limits.max, limits.min, 2], dtype)
    bucket = shaping(lambda s: s.bucket("n", 2, 3, input_length="n"))
    with pytest.raises(
        DataError,
        match=r"a.npz, record 1: bucket: which_bucket \(column 'n'\) is 3; it must be an integer "
        r"between 0 and 2",
    ):
        bucket.facts(of_columns(n=values), BadRecords())
    bad = BadRecords(skip=True)
    chunk, facts = bucket.facts(of_columns(n=values), bad)
    kept = [0, 2] if limits.min else [0, 0, 2]
    assert facts["bucket"].tolist() == facts["length"].tolist() == kept
    assert chunk.columns["n"].tolist() == chunk.facts["length"].tolist() == kept
    assert set(chunk.facts) == {"length"}
    assert bad.counts == {"bucket_out_of_range": 5 - len(kept)}


def test_a_class_out_of_range_is_a_bad_example():
    classes = shaping(lambda s: s.stratified_sample_unknown_dist("n", [0.5, 0.5], 2))
    with pytest.raises(
        DataError, match=r"record 1: .*labels .*is 7; it must be an integer between 0 and 1"
    ):
        classes.facts(of_columns(n=[1, 7, -1]), BadRecords())
    bad = BadRecords(skip=True)
    chunk, facts = classes.facts(of_columns(n=[1, 7, -1]), bad)
    assert chunk.ordinals.tolist() == [0] and facts["label"].tolist() == [1]
    assert bad.counts == {"label_out_of_range": 2}


# Static shapes and costs


def of_lengths(lengths):
    rows = [np.zeros(n, np.int64) for n in lengths]
    return of_columns(x=column_from_rows(rows, Field("int64", (None,))))


def test_an_example_longer_than_its_static_size_is_bad():
    shape = shaping(lambda s: s.batch(2, dynamic_pad=True, pad_to={"x": 4}))
    chunk, _ = shape.facts(of_lengths([4, 0, 3]), BadRecords())
    assert len(chunk) == 3
    with pytest.raises(DataError, match=r"record 1, column 'x': .* shape \[5\]; pad_to gives room"):
        shape.facts(of_lengths([4, 5, 3]), BadRecords())
    bad = BadRecords(skip=True)
    chunk, _ = shape.facts(of_lengths([4, 5, 3]), bad)
    assert chunk.ordinals.tolist() == [0, 2] and bad.counts == {"too_long": 1}


def test_a_static_size_of_a_column_that_is_not_there_or_does_not_vary_is_refused():
    shape = shaping(lambda s: s.batch(2, dynamic_pad=True, pad_to={"x": 4}))
    with pytest.raises(DataError, match=r"batch: pad_to\['x'\]: there is no such column, only n"):
        shape.facts(of_columns(n=[1]), BadRecords())
    with pytest.raises(DataError, match=r"int64.*, which does not vary"):
        shape.facts(of_columns(x=[1]), BadRecords())
