"""Rows of unequal length reach every framework unpadded; all else is equal to padded feeds."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace
import headrace_server as hs
from headrace.framework import RaggedRows
from tests.patience import PATIENCE_S

from .serving import connect, serving
from .streams import NUMERIC, values_of

LENGTHS = [i * 5 % 7 for i in range(22)]
EXAMPLES = [
    {
        "i": i,
        "x": np.arange(n, dtype=np.float32) + i,
        "m": np.full((n, 2), i, np.int16),
        "w": [f"{i}/{k}" for k in range(i % 3)],
        "bits": [k % 2 == 0 for k in range(i % 4)],
    }
    for i, n in enumerate(LENGTHS)
]


def plain(**options: Any) -> hs.Pipeline:
    return hs.from_examples(EXAMPLES).batch(4, ragged=True, **options)


def bucketed(**options: Any) -> hs.Pipeline:
    return hs.from_examples(EXAMPLES).bucket_by_sequence_length(
        "x", options.pop("batch_size", 3), [3], ragged=True, **options
    )


@contextmanager
def fed(
    pipeline: hs.Pipeline, framework: str = "numpy", partitions: int = 1, **options: Any
) -> Iterator[headrace.Feed]:
    with (
        serving(pipeline, partitions=partitions) as server,
        headrace.connect(
            server.address, framework=framework, timeout=PATIENCE_S, **options
        ) as feed,
    ):
        yield feed


def rows_of(ragged: Any) -> list[Any]:
    """Return the rows of a ragged column of any framework as lists."""
    if isinstance(ragged, RaggedRows):
        values, ends = np.asarray(ragged.values).tolist(), np.asarray(ragged.offsets).tolist()
        return [values[a:b] for a, b in pairwise(ends)]
    if hasattr(ragged, "to_list"):
        return list(ragged.to_list())
    return [row.tolist() for row in ragged.unbind()]


def wanted(batch: Any, name: str) -> list[Any]:
    rows = [EXAMPLES[int(i)][name] for i in np.asarray(batch["i"])]
    if name == "w":
        return [[text.encode() for text in row] for row in rows]  # type: ignore[union-attr]
    return [np.asarray(row).tolist() for row in rows]


def is_right(batch: Any) -> None:
    for name in ("x", "m", "w", "bits"):
        assert rows_of(batch[name]) == wanted(batch, name), name


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_rows_come_as_they_are(framework: str, way: str) -> None:
    pytest.importorskip(framework)
    with fed(plain(allow_smaller_final_batch=True), framework) as feed:
        assert str(feed.schema["x"]) == "ragged float32[?, ?]" and feed.schema["m"].ragged
        assert not feed.schema["i"].ragged and dict(feed.facts) == {}
        rows = 0
        for batch in feed:
            rows += batch.rows
            is_right(batch)
            is_right(batch.to("cpu"))
            is_right(copy.copy(batch))
            is_right(dict(batch))
            is_right(pickle.loads(pickle.dumps(batch)))  # noqa: S301
        assert rows == len(EXAMPLES)


def test_arrays_are_views_that_outlive_their_batch() -> None:
    with fed(plain()) as feed:
        kept = [(batch["i"].tolist(), batch["x"]) for batch in feed]
    for indices, (values, offsets) in kept:
        assert values.base is not None and values.flags.writeable and offsets.dtype == np.int64
        assert rows_of(RaggedRows(values, offsets)) == [EXAMPLES[i]["x"].tolist() for i in indices]


def test_columns_of_equal_lengths_compute_together_in_torch() -> None:
    torch = pytest.importorskip("torch")
    with fed(plain(), "torch") as feed:
        for batch in feed:
            for one in (batch, batch.to("cpu")):
                x, m = one["x"], one["m"]
                assert x.is_nested and x.layout == torch.jagged
                product = x.unsqueeze(-1) * m
                for row, a, b in zip(product.unbind(), x.unbind(), m.unbind(), strict=True):
                    assert torch.equal(row, a[:, None] * b)
            assert x.values().data_ptr() == batch.array("x").ctypes.data or not x.numel()


def test_jax_takes_a_batch_for_a_tree() -> None:
    jax = pytest.importorskip("jax")
    from headrace.jax import global_arrays

    with fed(hs.from_examples(EXAMPLES).select(["i", "x"]).batch(4, ragged=True), "jax") as feed:
        batch = next(feed)
        doubled = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree))(batch)
        assert type(doubled) is dict and isinstance(doubled["x"], RaggedRows)
        assert doubled["x"].values.tolist() == [2 * v for row in wanted(batch, "x") for v in row]
        with pytest.raises(ValueError, match="a ragged column has other offsets in each process"):
            global_arrays({"x": batch["x"]}, None)


@pytest.mark.tf
def test_tensorflow_has_ragged_tensors_in_loops_functions_and_datasets(tf: Any) -> None:
    traces = []

    @tf.function(reduce_retracing=True)  # type: ignore[untyped-decorator]
    def sums(batch: Any) -> Any:
        traces.append(1)
        return tf.reduce_sum(batch["x"], axis=1)

    want = [float(example["x"].sum()) for example in EXAMPLES]
    with fed(plain(), "tf") as feed:
        for batch in feed:
            is_right(batch)
            is_right(batch.to("CPU:0"))
            is_right(pickle.loads(pickle.dumps(batch)))  # noqa: S301
            assert isinstance(batch["w"], tf.RaggedTensor) and batch["x"].shape[0] == 4
            indices = batch["i"].numpy().tolist()
            assert sums(dict(batch)).numpy().tolist() == [want[i] for i in indices]
    assert len(traces) <= 2
    with fed(bucketed(), "tf") as feed:
        dataset = feed.as_dataset(facts=["length"], tokens=True)
        spec = dataset.element_spec
        assert spec["x"] == tf.RaggedTensorSpec((3, None), tf.float32, 1, tf.int64)
        assert spec["m"] == tf.RaggedTensorSpec((3, None, 2), tf.int16, 1, tf.int64)
        assert spec["w"] == tf.RaggedTensorSpec((3, None), tf.string, 1, tf.int64)
        assert list(spec) == ["i", "x", "m", "w", "bits", "length", "token"]
        count = 0
        for element in dataset:
            is_right(element)
            assert element["x"].row_lengths().numpy().tolist() == element["length"].numpy().tolist()
            sums(element)
            count += 1
        assert count == 7
    with fed(plain(), "tf", prefetch=4) as feed:  # batches that are not pulled are not taken
        iterator = iter(feed.as_dataset())
        pulled = [next(iterator)["i"].numpy().tolist() for _ in range(2)]
        del iterator
        assert [*pulled, *(batch["i"].numpy().tolist() for batch in feed)] == [
            list(range(k, k + 4)) for k in range(0, 20, 4)
        ]


@pytest.mark.tf
def test_every_type_comes_in_a_dataset_but_the_smallest_floats(tf: Any) -> None:
    def typed(names: list[str]) -> hs.Pipeline:
        examples = [{name: values_of(name, i)[: i % 4] for name in names} for i in range(4)]
        return hs.from_examples(examples).batch(4, ragged=True)

    names = [name for name in NUMERIC if not name.startswith("float8")]
    with fed(typed(names), "tf") as feed:
        (element,) = feed.as_dataset()
        for name in names:
            values = np.concatenate([values_of(name, i)[: i % 4] for i in range(4)])
            assert element[name].flat_values.numpy().tobytes() == values.tobytes(), name
            assert element[name].row_splits.numpy().tolist() == [0, 0, 1, 3, 6]
    with fed(typed(["float8_e5m2"]), "tf") as feed:
        with pytest.raises(ValueError, match=r"is ragged float8_e5m2\[4, \?\], and"):
            feed.as_dataset()
        assert next(feed)["float8_e5m2"].flat_values.dtype == tf.dtypes.as_dtype("float8_e5m2")


def test_a_budget_counts_the_real_elements() -> None:
    pipeline = bucketed(batch_size=None, max_padded_elements=12, allow_smaller_final_batch=True)
    with serving(pipeline, partitions=1) as server:
        with connect(server) as feed:
            sizes = []
            for batch in feed:
                is_right(batch)
                assert batch.length.tolist() == np.diff(batch["x"].offsets).tolist()
                sizes.append((batch.bucket, len(batch["x"].values)))
        assert server.wait(PATIENCE_S)
        stats = server.stats()["default"]
    assert max(size for _, size in sizes) <= 12 and len(sizes) < len(EXAMPLES) / 2
    for bucket, (padded, real) in stats["padding"].items():
        assert padded == real == sum(size for b, size in sizes if str(b) == bucket)


def test_classes_are_ragged_too() -> None:
    pipeline = hs.from_examples(EXAMPLES).map(_labelled, vectorized=False)
    ragged = pipeline.stratified_sample_unknown_dist("c", [0.5, 0.5], 4, ragged=True)
    with fed(ragged) as feed:
        assert sum(1 for batch in feed if is_right(batch) is None) > 2


def _labelled(example: dict[str, Any]) -> dict[str, Any]:
    return {**example, "c": int(example["i"]) % 2}


def seen(batch: Any) -> list[Any]:
    return [batch["i"].tolist(), *(rows_of(batch[name]) for name in ("x", "m", "w", "bits"))]


def test_a_feed_goes_on_where_it_was(tmp_path: Path) -> None:
    def budgeted() -> hs.Pipeline:
        return bucketed(batch_size=None, max_padded_elements=12)

    with fed(budgeted(), partitions=2) as feed:
        want = [seen(batch) for batch in feed]
    got, state = [], None
    with serving(budgeted(), partitions=2, state_dir=tmp_path) as server:
        with connect(server) as feed:
            for batch in feed:
                got.append(seen(batch))
                if len(got) == 3:
                    state = feed.snapshot()
        assert got == want
        with connect(server, resume=state) as feed:
            assert [seen(batch) for batch in feed] == want[3:]


def test_other_batch_sizes_leave_the_rows_open() -> None:
    with fed(hs.from_examples(EXAMPLES).repeat().batch(4, ragged=True)) as feed:
        assert next(feed).rows == 4 and feed.schema["x"].shape == (4, None)
        feed.set_batch_size(6)
        assert feed.schema["x"].shape == (None, None)
        rows = []
        for batch in islice(feed, 200):
            is_right(batch)
            rows.append(batch.rows)
            if rows[-1] == 6:
                break
        assert rows[-1] == 6


def test_a_dimension_that_turns_out_to_vary_is_a_data_error(tmp_path: Path) -> None:
    table = pa.table({"g": [[[1.0], [2.0]], [[3.0, 4.0]], [[5.0]]]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    pipeline = hs.read_arrow(tmp_path / "a.arrow").batch(2, ragged=True)
    with pytest.raises(headrace.DataError, match=r"column 'g' is .* only the first dim"):
        with fed(pipeline) as feed:
            next(feed)
