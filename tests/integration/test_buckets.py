"""Buckets through the whole line: exact order, padding, budgets, and nothing lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from tests.patience import PATIENCE_S

from . import user_functions_sampling as functions
from .serving import connect, drained, serving
from .streams import NUMERIC, every_dtype, frozen_array, padded


def lengths_of(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 40, n).tolist()


def sequences(lengths: list[int]) -> hs.Pipeline:
    """Return examples with a number and a sequence of that length."""
    rows = [{"i": i, "x": np.full(t, i + 1, np.int16)} for i, t in enumerate(lengths)]
    return hs.from_examples(rows)


Seen = tuple[list[tuple[int, list[int]]], dict[str, Any]]


def seen_of(server: hs.Server, feed: str = "default") -> Seen:
    """Return (bucket, numbers) of each batch, and the server's counts."""
    batches = [(batch.bucket, batch["i"].tolist()) for batch in drained(server, feed)]
    return batches, server.stats()[feed]


def read_all(pipelines: dict[str, hs.Pipeline]) -> dict[str, Seen]:
    """Return ``seen_of`` for each feed of one server."""
    with serving(pipelines) as server:
        return {name: seen_of(server, name) for name in pipelines}


def read(pipeline: hs.Pipeline) -> Seen:
    return read_all({"only": pipeline})["only"]


def model(
    buckets: list[int], sizes: list[int], smaller: bool
) -> tuple[list[tuple[int, list[int]]], int]:
    """Return the batches of the contract, made row by row, and the number of rows left."""
    waiting: list[list[int]] = [[] for _ in sizes]
    batches = []
    for i, bucket in enumerate(buckets):
        waiting[bucket].append(i)
        if len(waiting[bucket]) == sizes[bucket]:
            batches.append((bucket, waiting[bucket]))
            waiting[bucket] = []
    left = [(bucket, rows) for bucket, rows in enumerate(waiting) if rows]
    if smaller:
        return batches + left, 0
    return batches, sum(len(rows) for _, rows in left)


def test_lengths_padding_and_waste_are_told() -> None:
    lengths = lengths_of(400)
    pipeline = sequences(lengths).bucket_by_sequence_length(
        "x", 7, [10, 30], dynamic_pad=True, allow_smaller_final_batch=True
    )
    waste: dict[str, list[int]] = {}
    with serving(pipeline) as server, connect(server) as feed:
        assert list(feed.schema) == ["i", "x"]
        for batch in feed:
            numbers = batch["i"].tolist()
            assert batch.length.dtype == np.int32
            assert batch.length.tolist() == [lengths[i] for i in numbers]
            want = np.zeros((len(numbers), max(batch.length)), np.int16)
            for row, i in enumerate(numbers):
                want[row, : lengths[i]] = i + 1
            assert (batch["x"] == want).all() and batch["x"].shape == want.shape
            counts = waste.setdefault(str(batch.bucket), [0, 0])
            counts[0] += want.size
            counts[1] += int(batch.length.sum())
            assert list(batch) == ["i", "x"]
            for name in ("label", "rate"):
                with pytest.raises(AttributeError, match=f"batch.{name}: this feed has none"):
                    getattr(batch, name)
        assert server.stats()["default"]["padding"] == waste


def test_a_bucket_out_of_range_stops_the_feed_and_names_the_record(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", i=np.arange(40), b=np.r_[np.arange(37) % 3, 3, -1, 2**40])
    pipeline = hs.read_npz(str(tmp_path / "a.npz")).bucket("b", 4, 3)
    skips = {f"skips_{n}": n for n in (2, 3)}
    feeds = {
        name: pipeline.options(on_bad_example="skip", max_bad_examples=n)
        for name, n in skips.items()
    }
    with serving({"stops": pipeline, **feeds}) as server:
        with pytest.raises(
            headrace.DataError,
            match=r"a.npz, record 37: bucket: which_bucket \(column 'b'\) is 3; it must be an "
            r"integer in 0 … 2",
        ):
            drained(server, "stops")
        with pytest.raises(headrace.DataError, match=r"more than max_bad_examples=2"):
            drained(server, "skips_2")
        got, stats = seen_of(server, "skips_3")
    assert got == model([i % 3 for i in range(37)], [4] * 3, False)[0]
    assert stats["dropped"] == {"bad:bucket_out_of_range": 3, "remainder": 1}


def test_every_dtype_and_any_number_of_ragged_dimensions_is_padded() -> None:
    examples = [
        {**example, "cube": np.full((i % 2, (i + 1) % 3, 2 + i % 2), i, np.float16)}
        for i, example in enumerate(every_dtype(24))
    ]
    for example in examples:
        for dtype in NUMERIC:
            example[f"ragged {dtype}"] = example[dtype][: int(example["i"]) % 4]
    pipeline = hs.from_examples(examples).bucket(functions.thirds, 4, 3, dynamic_pad=True)
    with serving(pipeline) as server, connect(server) as feed:
        batches = list(feed)
        assert len(batches) == 6
        for batch in batches:
            rows = [examples[i] for i in batch["i"].tolist()]
            assert list(batch) == list(examples[0])
            for name in batch:
                assert frozen_array(batch[name]) == frozen_array(padded(rows, name)), name


def test_without_padding_rows_of_unequal_shapes_are_named() -> None:
    pipeline = sequences([3, 3, 3, 4]).bucket_by_sequence_length("x", 2, [10])
    with (
        serving(pipeline) as server,
        pytest.raises(
            headrace.DataError,
            match=r"\[3\] \(examples, record 2\) and \[4\] \(examples, record 3\)",
        ),
    ):
        drained(server)


def test_a_budget_is_kept_to_and_filled() -> None:
    lengths = [*lengths_of(2000), 500, 3]
    pipeline = sequences(lengths).bucket_by_sequence_length(
        "x",
        None,
        [10, 20, 30],
        dynamic_pad=True,
        allow_smaller_final_batch=True,
        max_padded_elements=120,
    )
    with serving(pipeline) as server, connect(server) as feed:
        seen = []
        sizes: dict[int, list[int]] = {}
        for batch in feed:
            seen += batch["i"].tolist()
            sizes.setdefault(batch.bucket, []).append(batch["x"].shape)
            assert batch["x"].size <= 120 or batch.rows == 1
    assert sorted(seen) == list(range(2002))
    assert (1, 500) in sizes[3]
    for bucket in (1, 2):  # all but the last are full: the bucket has rows that do not fit beside
        longest = 10 * (bucket + 1) - 1
        assert all((rows + 1) * longest > 120 for rows, _ in sizes[bucket][:-1])


def test_a_bucket_that_never_fills_stops_none_and_the_bound_is_kept() -> None:
    buckets = [1 if i % 500 == 0 else 0 for i in range(4000)]
    rows = [{"i": i, "b": b} for i, b in enumerate(buckets)]
    pipeline = hs.from_examples(rows).bucket(
        "b", [4, 50], 2, capacity=2, bucket_capacities=[8, 8], max_examples_in_flight=60
    )
    got, stats = read(pipeline)
    assert got == model(buckets, [4, 50], False)[0]
    assert stats["dropped"] == {"remainder": 8}


def test_ranks_get_the_same_bucket_in_every_round() -> None:
    lengths = lengths_of(1000)
    pipeline = sequences(lengths).bucket_by_sequence_length("x", 4, [10, 20, 30], dynamic_pad=True)
    told: list[list[tuple[int, list[int]]]] = [[], []]

    with serving(pipeline) as server:

        def train(rank: int) -> None:
            with headrace.connect(
                server.address, rank=rank, world_size=2, timeout=PATIENCE_S
            ) as feed:
                told[rank] = [(batch.bucket, batch["i"].tolist()) for batch in feed]

        threads = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(told[0]) == len(told[1]) > 100
    assert [bucket for bucket, _ in told[0]] == [bucket for bucket, _ in told[1]]
    rows = [i for rank in told for _, batch in rank for i in batch]
    assert len(rows) == len(set(rows))


@pytest.mark.tf
def test_tensorflow_gets_tensors_of_lengths_and_a_dataset(tf: Any) -> None:
    lengths = lengths_of(80)
    pipeline = sequences(lengths).bucket_by_sequence_length("x", 4, [20], dynamic_pad=True)
    with serving(pipeline) as server, connect(server, framework="tf") as feed:
        batch = next(feed)
        assert isinstance(batch.length, tf.Tensor) and batch.length.dtype == tf.int32
        assert batch.length.numpy().tolist() == [lengths[i] for i in batch["i"].numpy()]
        dataset = feed.as_dataset()
        assert set(dataset.element_spec) == {"i", "x"}
        assert dataset.element_spec["x"].shape.as_list() == [4, None]
        rows = [(b["i"].numpy().tolist(), b["x"].shape[1]) for b in dataset]
    assert len(rows) > 15
    assert all(width == max(lengths[i] for i in numbers) for numbers, width in rows)
