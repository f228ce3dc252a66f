"""A declared shape becomes its machine, and a chunk becomes facts for the machine."""

import numpy as np
import pytest

import headrace_server as hs
from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.core.bucket import Buckets, PlainBatches
from headrace_server.core.class_queues import ClassQueues
from headrace_server.making.shaping import Shaping, with_facts
from headrace_server.pipeline.declaration import Shape
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import column_from_rows
from headrace_server.reading.reader import BadRecords
from tests.unit.core.drafts import size_of

INT32 = np.iinfo(np.int32)
INT64 = np.iinfo(np.int64)


def chunk_of(**columns):
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    numbers = np.arange(len(next(iter(arrays.values()))), dtype=np.int64)
    return Chunk(arrays, numbers, Origin.single("a.npz", numbers))


def shaping(declare, partition=0):
    return Shaping(declare(hs.read_npz("a.npz")).declaration().shape, partition)


def by_length(boundaries, what="n", **more):
    return shaping(lambda s: s.bucket_by_sequence_length(what, 2, boundaries, **more))


def doubled(columns):
    return columns["n"] * 2


def test_each_shape_has_its_machine():
    assert isinstance(shaping(lambda s: s.batch(3)).machine, PlainBatches)
    assert isinstance(by_length([3]).machine, Buckets)
    unknown = shaping(lambda s: s.stratified_sample_unknown_dist("y", [0.5, 0.5], 4))
    assert isinstance(unknown.machine, ClassQueues)
    with pytest.raises(ValueError, match=r"unknown shape 'ring'"):
        Shaping(Shape("ring", {}), 0)


def test_lengths_fall_into_the_bucket_of_their_boundaries():
    lengths = np.array([2, 3, 4, 5, 9, 10, 0, -1, INT32.max, INT64.min, INT64.max])
    chunk, facts = by_length([3, 4, 5, 10]).facts(chunk_of(n=lengths), BadRecords())
    assert facts["bucket"].tolist() == [0, 1, 2, 3, 3, 4, 0, 0, 4, 0, 4]
    assert facts["length"].tolist() == lengths.tolist()
    want = np.clip(lengths, INT32.min, INT32.max)
    assert chunk.facts["length"].dtype == np.int32 and (chunk.facts["length"] == want).all()


@pytest.mark.parametrize("boundary", [INT64.min, -5, 0, INT32.max, INT64.max])
def test_a_boundary_belongs_to_the_bucket_above(boundary):
    near = [boundary + d for d in (-1, 0, 1) if INT64.min <= boundary + d <= INT64.max]
    _, facts = by_length([int(boundary)]).facts(chunk_of(n=np.array(near)), BadRecords())
    assert facts["bucket"].tolist() == [int(length >= boundary) for length in near]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint16", "uint64", "float32"])
def test_lengths_of_any_dtype_that_holds_whole_numbers(dtype):
    highest = {"uint64": 2**64 - 1, "float32": 2.0**100}.get(dtype, 1)
    values = np.array([0, 1, highest], dtype)
    chunk, facts = by_length([1, 2]).facts(chunk_of(n=values), BadRecords())
    assert facts["bucket"].tolist() == [0, 1, 1 if highest == 1 else 2]
    assert chunk.facts["length"].tolist() == [0, 1, min(highest, INT32.max)]


def test_a_length_that_is_no_integer_is_a_bad_example():
    for value in (1.5, float("nan"), float("inf")):
        with pytest.raises(
            DataError, match=r"record 1: bucket: input_length .* a length is an int"
        ):
            by_length([3]).facts(chunk_of(n=[1.0, value]), BadRecords())


def test_the_length_is_that_of_a_sequence_or_the_result_of_a_function():
    rows = [np.zeros(k, np.float32) for k in (4, 0, 2)]
    ragged = column_from_rows(rows, Field("float32", (None,)))
    chunk = Chunk({"n": ragged}, np.arange(3), Origin.single("a.npz", np.arange(3)))
    _, facts = by_length([1, 3]).facts(chunk, BadRecords())
    assert facts["bucket"].tolist() == [2, 0, 1]
    _, facts = by_length([3], f"{__name__}:doubled").facts(chunk_of(n=[1, 2]), BadRecords())
    assert facts["bucket"].tolist() == [0, 1]


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "uint64"])
def test_a_bucket_out_of_range_is_a_bad_example(dtype):
    limits = np.iinfo(dtype)
    values = np.array([0, 3, limits.max, limits.min, 2], dtype)
    bucket = shaping(lambda s: s.bucket("n", 2, 3, input_length="n"))
    with pytest.raises(
        DataError,
        match=r"a.npz, record 1: bucket: which_bucket \(column 'n'\) is 3; it must be an integer "
        r"in 0 … 2",
    ):
        bucket.facts(chunk_of(n=values), BadRecords())
    bad = BadRecords(skip=True)
    chunk, facts = bucket.facts(chunk_of(n=values), bad)
    kept = [0, 2] if limits.min else [0, 0, 2]
    assert facts["bucket"].tolist() == facts["length"].tolist() == kept
    assert chunk.columns["n"].tolist() == chunk.facts["length"].tolist() == kept
    assert set(chunk.facts) == {"length"}
    assert bad.counts == {"bucket_out_of_range": 5 - len(kept)}


@pytest.mark.parametrize("dtype", ["int8", "uint64", "bool", "int32"])
def test_classes_come_as_int32_for_every_dtype_of_the_column(dtype):
    shape = shaping(lambda s: s.stratified_sample_unknown_dist("y", [0.5, 0.5], 4))
    chunk, facts = shape.facts(chunk_of(y=np.array([1, 0, 1], dtype)), BadRecords())
    assert facts["label"].tolist() == chunk.facts["label"].tolist() == [1, 0, 1]
    assert chunk.facts["label"].dtype == np.int32
    assert shape.fields_after({"rate": Field("float32")}) == {
        "rate": Field("float32"),
        "label": Field("int32"),
    }
    bad = BadRecords(skip=True)
    chunk, facts = shape.facts(chunk_of(y=np.array([1, 2, 0, -1])), bad)
    assert facts["label"].tolist() == [1, 0] and bad.counts == {"label_out_of_range": 2}


def test_no_rows_have_no_facts_to_ask_a_function_for():
    shape = shaping(lambda s: s.bucket(f"{__name__}:doubled", 2, 3))
    chunk, facts = shape.facts(chunk_of(n=np.empty(0, int)), BadRecords())
    assert len(chunk) == 0 and facts["bucket"].tolist() == []


def test_the_schema_has_the_batch_size_where_all_batches_have_it():
    assert shaping(lambda s: s.batch(3)).batch_size == 3
    assert shaping(lambda s: s.batch(3, True)).batch_size is None
    assert by_length([3]).batch_size == 2
    assert shaping(lambda s: s.bucket("n", [2, 3], 2)).batch_size is None
    assert by_length([3], max_padded_elements=9).batch_size is None
    assert shaping(lambda s: s.stratified_sample_unknown_dist("y", [1], 4)).batch_size == 4


def test_bounds_on_what_is_held_bound_what_is_read_at_once():
    assert shaping(lambda s: s.batch(3)).most_rows is None
    assert by_length([3]).most_rows is None and by_length([3]).capacity == 32
    assert by_length([3], bucket_capacities=[9, 5], capacity=4).most_rows == 5
    assert by_length([3], capacity=4).capacity == 4
    assert by_length([3], max_examples_in_flight=12).most_rows == 10


def test_partitions_draw_their_classes_apart():
    def draws(partition):
        shape = shaping(
            lambda s: s.stratified_sample_unknown_dist("y", [0.5, 0.5], 8, seed=3), partition
        )
        facts = {"label": np.tile([0, 1], 400)}
        shape.machine.offer(0, 800, facts)
        drafts = iter(shape.machine.next_draft, None)
        return [draft.meta["counts"] for draft in drafts]

    assert draws(0) == draws(0)
    assert draws(0)[:20] != draws(1)[:20]


def test_only_classes_have_targets_and_rows_that_wait():
    assert by_length([3]).machine.targets() == ()
    machine = shaping(lambda s: s.stratified_sample_unknown_dist("y", [0.5, 0.5], 4)).machine
    (target,) = machine.targets()
    assert target is machine
    assert target.stats() == {"waiting": [0, 0], "changes": [[[0, [0.5, 0.5]]]]}
    machine.offer(0, 3, {"label": np.array([1, 1, 1])})
    assert target.set_target([1, 0], 0) == 0
    assert target.set_target([1, 0], 9) == 9  # told again
    assert target.stats() == {"waiting": [0, 0], "changes": [[[0, [1.0, 0.0]]]]}


def test_facts_travel_as_columns_of_reserved_names():
    chunk = chunk_of(n=[1, 2])
    assert with_facts(chunk) is chunk
    told = with_facts(chunk.with_fact("label", np.array([5, 6])))
    assert list(told.columns) == ["n", "@label"] and told.columns["@label"].tolist() == [5, 6]


# Static shapes and costs


def ragged(lengths):
    return column_from_rows([np.zeros(n, np.int64) for n in lengths], Field("int64", (None,)))


def of_lengths(lengths):
    numbers = np.arange(len(lengths), dtype=np.int64)
    return Chunk({"x": ragged(lengths)}, numbers, Origin.single("a.npz", numbers))


def squared(columns):
    return columns["x"].lengths.astype(np.float64) ** 2 - 0.5


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
        shape.facts(chunk_of(n=[1]), BadRecords())
    with pytest.raises(DataError, match=r"int64.*, which does not vary"):
        shape.facts(chunk_of(x=[1]), BadRecords())


def test_a_batch_has_the_static_sizes_in_its_schema():
    shape = shaping(lambda s: s.batch(2, dynamic_pad=True, pad_to={"x": 4, "y": [None, 7]}))
    fields = {"x": Field("int64", (None, 2)), "y": Field("int64", (None, None)), "z": Field("bool")}
    assert shape.padded_fields(fields) == {
        "x": Field("int64", (4, 2)),
        "y": Field("int64", (None, 7)),
        "z": Field("bool"),
    }


def test_columns_of_which_more_than_the_first_dimension_varies_are_not_ragged():
    shape = shaping(lambda s: s.batch(2, ragged=True))
    assert shape.ragged and not shaping(lambda s: s.batch(2)).ragged
    assert len(shape.facts(of_lengths([4, 0, 3]), BadRecords())[0]) == 3
    grid = column_from_rows([np.ones((1, 2))], Field("float64", (None, None)))
    with pytest.raises(DataError, match=r"ragged=True: column 'x' is float64\[\?, \?\]: only"):
        shape.facts(chunk_of(n=[1]).with_columns({"x": grid}), BadRecords())
    with pytest.raises(DataError, match="ragged=True: no column varies, of n; leave it out"):
        shape.facts(chunk_of(n=[1]), BadRecords())


def test_a_cost_takes_the_place_of_the_length_in_a_budget_and_nowhere_else():
    shape = by_length([4], "x", cost=squared, max_padded_elements=50, dynamic_pad=True)
    chunk, facts = shape.facts(of_lengths([1, 4, 5]), BadRecords())
    assert facts["length"].tolist() == [1, 16, 25]
    assert facts["bucket"].tolist() == [0, 1, 1]
    assert chunk.facts["length"].tolist() == [1, 4, 5]
    with pytest.raises(DataError, match=r"record 0.*cost .* is -0\.5; a cost is finite and 0 or"):
        shape.facts(of_lengths([0]), BadRecords())


def test_sizes_are_one_for_all_or_one_for_each_bucket():
    shape = by_length([3])
    assert shape.sizes_checked([7]) == [7, 7] and shape.sizes_checked([1, 2]) == [1, 2]
    for sizes, text in [
        ([1, 2, 3], "there are 3 sizes; the feed has 2 buckets"),
        ([2**20 + 1], "batch_size=1048577 is too large: the most is 1048576"),
        ([1, 0], r"batch_size\[1\]=0 is too small"),
    ]:
        with pytest.raises(ValueError, match=text):
            shape.sizes_checked(sizes)
    assert shape.set_batch_sizes([2, 9], 5) == 5 and shape.resized


def test_the_first_batch_of_another_size_may_be_of_rows_that_wait():
    shape = shaping(lambda s: s.stratified_sample_unknown_dist("y", [1.0], 8))
    shape.machine.offer(0, 13, {"label": np.zeros(13, np.int64)})
    assert shape.set_batch_sizes([2], 0) == 1, "one batch is formed, and then two of the five rows"
    rows = [size_of(draft) for draft in iter(shape.machine.next_draft, None)]
    assert rows == [8, 2, 2] and shape.set_batch_sizes([2], 3) == 3
