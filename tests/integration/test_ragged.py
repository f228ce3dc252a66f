"""Rows of unequal length reach every framework unpadded; all else is equal to padded feeds."""

from __future__ import annotations

import copy
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import headrace_server as hs
from headrace.framework import RaggedRows

from .serving import fed

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
def test_rows_come_as_they_are(framework, way):
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


def test_columns_of_equal_lengths_compute_together_in_torch():
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


@pytest.mark.tf
def test_tensorflow_has_ragged_tensors_in_loops_functions_and_datasets(tf):
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
