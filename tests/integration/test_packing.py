"""Packed rows, beyond what the drawn combinations show: all kinds of columns, facts, the borders,
what is refused, and how little is padding."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import headrace
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
def test_each_example_is_found_where_its_segment_is(strategy: Any) -> None:
    given = examples(120, 20)
    shape = hs.from_examples(given).stratified_sample("label", [0.5, 0.5], init_probs=[0.5, 0.5])
    packed = shape.pack(24, 4, strategy=strategy, max_open=8, allow_smaller_final_batch=True)
    steps: dict[int, list[int]] = {}
    with hs.run(packed) as server, connect(server) as feed:
        assert feed.schema["x"].shape == (None, 24, 2) and feed.schema["pair"].shape[2:] == (2,)
        rows = 0
        for batch in feed:
            rows += batch.rows
            ids, positions = batch["segment_ids"], batch["positions"]
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
    assert rows == len(given)
    assert steps == {i: [*range(len(one["tokens"]))] for i, one in enumerate(given)}


def test_best_fit_leaves_little_padding_and_status_counts_it() -> None:
    lengths = np.random.default_rng(3).integers(50, 1001, 2000).tolist()
    source = hs.from_function(numbers, lengths=lengths, features={"x": hs.sequence("int32")})
    packed = source.pack(2000, 8, allow_smaller_final_batch=True)
    with hs.run(packed) as server, connect(server) as feed:
        padded = real = 0
        for batch in feed:
            padded += batch["segment_ids"].size
            real += int((batch["segment_ids"] > 0).sum())
        assert real == sum(lengths) and 1 - real / padded < 0.02
        counted = server.stats()["default"]
        assert counted["padding"]["0"] == [padded, real]


def numbers(lengths: list[int]) -> Any:
    return ({"x": np.zeros(n, "i4")} for n in lengths)


def test_an_example_that_is_too_long_is_bad_cut_or_dropped() -> None:
    source = hs.from_examples([{"x": np.arange(n)} for n in (3, 9, 2)])
    cut = source.pack(4, 1, too_long="cut", allow_smaller_final_batch=True)
    with hs.run(cut) as server, connect(server) as feed:
        assert sorted((b["segment_ids"] > 0).sum() for b in feed) == [2, 3, 4]
    dropped = source.pack(4, 1, too_long="drop", allow_smaller_final_batch=True)
    with hs.run(dropped) as server, connect(server) as feed:
        assert sorted((b["segment_ids"] > 0).sum() for b in feed) == [2, 3]
        counted = server.stats()["default"]
        assert counted["dropped"]["too_long"] == 1
    with pytest.raises(headrace.HeadraceError, match=r"record 1: it has 9 steps, more than leng"):
        with hs.run(source.pack(4, 1)) as server, connect(server) as feed:
            list(feed)


def test_what_can_not_be_packed_is_refused_when_it_is_declared() -> None:
    source = hs.from_examples([{"x": np.zeros((2, 3)), "i": 1, "t": np.zeros(2)}])
    with pytest.raises(ValueError, match="'y' is not one of"):
        source.pack(4, 1, columns=["y"])
    with pytest.raises(ValueError, match=r"'i' is int64.*a packed one has numbers for each step"):
        source.pack(4, 1, columns=["i"])
    with pytest.raises(ValueError, match="length=0"):
        source.pack(0, 1)
    with pytest.raises(ValueError, match="strategy="):
        source.pack(4, 1, strategy="worst_fit")  # type: ignore[arg-type]
    uneven = hs.from_examples([{"x": np.zeros(2), "t": np.zeros(3)}, {"x": [1.0], "t": [1.0]}])
    with pytest.raises(headrace.HeadraceError, match="packed columns differ in their steps: x 2"):
        with hs.run(uneven.pack(4, 1)) as server, connect(server) as feed:
            list(feed)
    with hs.run(source.batch(1)) as server, connect(server) as feed:
        with pytest.raises(AttributeError, match="no packed rows"):
            _ = next(feed).cu_seqlens
