"""Packed rows, beyond what the drawn combinations show: all kinds of columns, facts, the borders,
what is refused, and how little is padding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import connect


def examples(count: int, longest: int, seed: int = 0) -> list[dict[str, Any]]:
    lengths = np.random.default_rng(seed).integers(1, longest + 1, count).tolist()
    return [
        {
            "x": np.stack([np.full(n, i), np.arange(n)], 1).astype("f4"),
            "tokens": np.full(n, i, "i8"),
            "i": i,
            "name": f"number {i}",
            "pair": np.array([i, -i], "i2"),
            "label": i % 2,
        }
        for i, n in enumerate(lengths)
    ]


@pytest.mark.parametrize("strategy", ["best_fit", "first_fit", "concat"])
def test_each_example_is_found_where_its_segment_is(strategy):
    given = examples(120, 20)
    shape = hs.from_examples(given).stratified_sample("label", [0.5, 0.5], init_probs=[0.5, 0.5])
    packed = shape.pack(24, 4, strategy=strategy, max_open=8, allow_smaller_final_batch=True)
    steps: dict[int, list[int]] = {}
    padded = 0
    with hs.run(packed) as server, connect(server) as feed:
        assert feed.schema["x"].shape == (None, 24, 2) and feed.schema["pair"].shape[2:] == (2,)
        rows = 0
        for batch in feed:
            rows += batch.rows
            ids, positions = batch["segment_ids"], batch["positions"]
            padded += ids.size
            assert ids.dtype == positions.dtype == np.int32
            borders = batch.cu_seqlens
            assert borders.dtype == np.int32 and borders[-1] == ids.size
            flat = ids.reshape(-1)
            for begin, end in pairwise(borders.tolist()):
                assert len(set(flat[begin:end].tolist())) == 1 and begin // 24 == (end - 1) // 24
            for r, row in enumerate(ids):
                assert not batch["x"][r][row == 0].any()
                for number in range(1, row.max() + 1):
                    here = row == number
                    i = int(batch["i"][r, number - 1])
                    assert (batch["tokens"][r][here] == i).all()
                    assert (batch["x"][r][here] == [(i, at) for at in positions[r][here]]).all()
                    assert batch["name"][r, number - 1] == b"number %d" % i
                    assert batch["pair"][r, number - 1].tolist() == [i, -i]
                    assert batch.label[r, number - 1] == i % 2
                    steps.setdefault(i, []).extend(positions[r][here].tolist())
        counted = server.stats()["default"]["padding"]["0"]
    assert rows == len(given) and counted == [padded, sum(map(len, steps.values()))]
    assert steps == {i: [*range(len(one["tokens"]))] for i, one in enumerate(given)}


def packed_lanes(source: Any, states: Any, **options: Any) -> Any:
    given = {"num_unroll": 7, "batch_size": 3, **options}
    return source.batch_sequences_with_states(
        *("name", ["tokens", "words"], ["pair", "again"], None, states),
        **{**given, "order": "lanes", "pack": True},
    )


def worded(count: int, longest: int) -> list[dict[str, Any]]:
    """Examples with a sequence of strings, and their name as context."""
    return [
        {**one, "words": [f"{one['i']} {at}" for at in range(len(one["x"]))], "again": one["name"]}
        for one in examples(count, longest)
    ]


@pytest.mark.parametrize("placement", ["server", "trainer"])
def test_packed_lanes_have_strings_and_contexts_of_each_example_and_its_initial_state(placement):
    given = worded(60, 20)
    states = {"sum": np.int64(5), "seen": np.array([b"none"], object)}
    shape = packed_lanes(hs.from_examples(given), states, capacity=3, state_placement=placement)
    came: dict[int, list[bytes]] = {}
    before: dict[int, Any] = {}  # by lane: its last sum, and the text beside that
    with hs.run(shape) as server, connect(server) as feed:
        for batch in feed:
            assert batch.initial_state("sum").tolist() == [5]
            assert batch.initial_state("seen").tolist() == [[b"none"]]
            sums, texts = batch.state("sum").copy(), batch.state("seen").copy()
            for row, lane in enumerate(batch.lane.tolist()):
                state = before.get(lane) if not batch.first[row] else None
                assert (sums[row], texts[row, 0]) == (state or (5, b"none"))
                for step in np.flatnonzero(batch.segment_ids[row]).tolist():
                    number = batch.segment_ids[row, step] - 1
                    i, at = int(batch.sequences["tokens"][row, step]), batch.positions[row, step]
                    assert batch.sequences["words"][row, step] == b"%d %d" % (i, at)
                    assert batch.context["again"][row, number] == b"number %d" % i
                    assert batch.original_key[row, number] == b"number %d" % i
                    assert batch.key[row, number] == batch.original_key[row, number]
                    assert batch.context["pair"][row, number].tolist() == [i, -i]
                    assert batch.resets[row, step] == (at == 0)
                    sums[row] = (5 if at == 0 else sums[row]) + at
                    texts[row, 0] = b"%d" % i
                    came.setdefault(i, []).append(batch.sequences["words"][row, step])
                before[lane] = sums[row], texts[row, 0]
            batch.save_state("sum", sums)
            batch.save_state("seen", texts)
    assert came == {one["i"]: [word.encode() for word in one["words"]] for one in given}


def test_rows_end_early_for_examples_that_a_trainer_has_left_behind():
    """The other trainer's examples always end in the middle of a row of four steps, so a lane of it
    is free at the beginning of a row only where it leaves one open."""
    lengths = [41, 41, 41, 2, 2, 2] + [4] * 300
    given = [
        {"name": f"{i}", "tokens": np.full(n, i), "words": ["w"] * n, "pair": 0, "again": 0}
        for i, n in enumerate(lengths)
    ]
    shape = packed_lanes(hs.from_examples(given), {"s": np.int64(0)}, num_unroll=4)
    with hs.run(shape, partitions=1) as server, connect(server, prefetch=0) as second:
        with connect(server, prefetch=0) as first:
            batch = next(first)
            assert sorted(batch.sequences["tokens"][:, 0].tolist()) == [0, 1, 2]
            batch.save_state("s", batch.state("s"))
            batch = next(second)
            batch.save_state("s", batch.state("s"))
        taken, newest = 0, 0
        for batch in second:
            real = batch.sequences["tokens"][batch.segment_ids > 0]
            taken, newest = taken + int((real < 3).sum()), max(newest, real.max())
            batch.save_state("s", batch.state("s"))
            if taken == 3 * 37:
                break
        assert taken == 3 * 37 and newest < 30


@pytest.mark.tf
def test_packed_lanes_go_into_a_dataset_and_a_function_of_tensorflow():
    import tensorflow as tf

    @tf.function(reduce_retracing=True)
    def steps_of(batch: Any) -> Any:
        batch.save_state("s", batch.state("s") + 1)
        last = tf.reduce_sum(tf.cast(batch.last & batch.valid, tf.int32))
        return tf.reduce_sum(tf.cast(batch.segment_ids > 0, tf.int32)), last, batch.key

    given = worded(20, 9)
    shape = packed_lanes(hs.from_examples(given), {"s": np.int64(0)})
    steps = 0
    with hs.run(shape) as server, connect(server, framework="tf") as feed:
        batch = next(feed)
        count, _, keys = steps_of(batch)
        assert keys.numpy().tolist() == batch.original_key.numpy().tolist()
        steps += int(count)
        for one in feed.as_dataset():
            assert one["initial"]["s"].shape == (1,)
            assert one["key"].shape == one["context"]["pair"].shape[:2]
            steps += int(tf.reduce_sum(tf.cast(one["segment_ids"] > 0, tf.int32)))
            assert int(tf.reduce_sum(one["length"])) == int(np.sum(one["segment_ids"].numpy() > 0))
            feed.save_states(one["token"], {"s": one["state"]["s"]})
    assert steps == sum(len(one["x"]) for one in given)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_packed_lanes_are_tensors_of_the_framework(framework):
    pytest.importorskip(framework)
    shape = packed_lanes(hs.from_examples(worded(20, 9)), {"s": np.float32(2)})
    with hs.run(shape) as server, connect(server, framework=framework) as feed:
        batch = next(feed)
        for name in ("segment_ids", "positions", "resets"):
            assert type(getattr(batch, name)) is type(batch.length)
            assert tuple(getattr(batch, name).shape) == (3, 7)
        assert type(batch.initial_state("s")) is type(batch.state("s"))
        assert batch.key[0][0] == b"number 0"


def test_an_example_that_is_too_long_is_cut_or_dropped():
    source = hs.from_examples([{"x": np.arange(n)} for n in (4, 5, 2)])
    cut = source.pack(4, 1, too_long="cut", allow_smaller_final_batch=True)
    with hs.run(cut) as server, connect(server) as feed:
        assert sorted((b["segment_ids"] > 0).sum() for b in feed) == [2, 4, 4]
    dropped = source.pack(4, 1, too_long="drop", allow_smaller_final_batch=True)
    with hs.run(dropped) as server, connect(server) as feed:
        assert sorted((b["segment_ids"] > 0).sum() for b in feed) == [2, 4]
        counted = server.stats()["default"]
        assert counted["dropped"]["too_long"] == 1
