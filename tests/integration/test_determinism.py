"""The stream depends on the pipeline and its partitions alone."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import headrace_server as hs
from tests.patience import PATIENCE_S

from . import user_functions
from .serving import connect, serving
from .streams import Frozen, every_dtype, frozen


def read(
    pipelines: hs.Pipeline | dict[str, hs.Pipeline], workers: int, partitions: int
) -> dict[str, list[Frozen]]:
    """Return all batches of each feed, as one trainer gets them."""
    named = pipelines if isinstance(pipelines, dict) else {"default": pipelines}
    streams = {}
    with hs.run(named, workers=workers, partitions=partitions) as server:
        for name in named:
            with connect(server, feed=name) as feed:
                streams[name] = [frozen(batch) for batch in feed]
    return streams


def numbers(stream: list[Frozen], column: str = "i") -> list[int]:
    """Return one integer column of a whole stream."""
    return [
        number
        for _, _, columns in stream
        for name, dtype, _, data in columns
        if name == column
        for number in np.frombuffer(data, dtype).tolist()
    ]


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, hs.Pipeline]:
    """Pipelines over each kind of source."""
    for part in range(3):
        first = 30 * part
        i = np.arange(first, first + 30)
        np.savez(tmp_path / f"part-{part}.npz", i=i, x=np.outer(i, np.arange(5.0)))
        lines = [json.dumps({"i": k, "t": "ab" * (k % 7)}) + "\n" for k in i.tolist()]
        (tmp_path / f"part-{part}.jsonl").write_text("".join(lines))
    npz, jsonl = str(tmp_path / "*.npz"), str(tmp_path / "*.jsonl")
    return {
        "examples": hs.from_examples(every_dtype(50)).batch(4, True, dynamic_pad=True),
        "npz": hs.read_npz(npz).batch(7, allow_smaller_final_batch=True),
        "jsonl": hs.read_jsonl(jsonl).filter(user_functions.is_even).batch(5),
        "shuffled": hs.read_npz(npz).shuffle(seed=3).repeat(4).map(user_functions.triple).batch(8),
        "window": hs.read_jsonl(jsonl).shuffle(seed=3, window=16).repeat(2).batch(8),
    }


@pytest.mark.parametrize(("partitions", "others"), [(3, (2, 3)), (6, (3,))])
def test_any_number_of_workers_gives_the_same_batches_in_the_same_order(
    sources: dict[str, hs.Pipeline], partitions: int, others: tuple[int, ...]
) -> None:
    one = read(sources, 1, partitions)
    assert all(len(stream) >= partitions for stream in one.values())
    for workers in others:
        other = read(sources, workers, partitions)
        for name, stream in one.items():
            assert other[name] == stream, f"{name} differs with {workers} workers"


def test_the_order_is_by_number_of_the_batch_and_then_by_partition() -> None:
    examples = [{"i": i} for i in range(40)]
    stream = read(hs.from_examples(examples).batch(5, True), 2, 3)["default"]
    order = [(number, partition) for partition, number, _ in stream]
    assert order == sorted(order)
    assert sorted(numbers(stream)) == list(range(40))


def test_an_exact_shuffle_has_every_example_once_in_each_epoch_and_another_order_each_time() -> (
    None
):
    examples = [{"i": i} for i in range(60)]
    pipeline = hs.from_examples(examples).shuffle(seed=5).repeat(3).batch(4)
    alone = numbers(read(pipeline, 1, 1)["default"])
    epochs = [alone[k : k + 60] for k in (0, 60, 120)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != list(range(60))
    parted = numbers(read(pipeline, 2, 3)["default"])
    assert Counter(parted) == dict.fromkeys(range(60), 3)


def test_a_window_mixes_neighbours_only() -> None:
    examples = [{"i": i} for i in range(200)]
    order = numbers(
        read(hs.from_examples(examples).shuffle(seed=2, window=10).batch(10), 1, 1)["default"]
    )
    assert sorted(order) == list(range(200)) and order != sorted(order)
    assert max(abs(i - place) for place, i in enumerate(order)) < 20


def test_map_and_filter_run_functions_that_workers_import() -> None:
    examples = [{"i": i} for i in range(40)]
    source = hs.from_examples(examples)
    here = "tests.integration.user_functions"
    pipelines = {
        "by object": source.map(user_functions.triple).filter(user_functions.is_even).batch(5),
        "by name": source.map(f"{here}:triple").filter(f"{here}:is_even").batch(5),
        "whole": source.map(f"{here}:triples", vectorized=True)
        .filter(user_functions.is_even)
        .batch(5),
    }
    pipelines = {name.replace(" ", "-"): pipeline for name, pipeline in pipelines.items()}
    streams = read(pipelines, 2, 2)
    assert streams["by-object"] == streams["by-name"] == streams["whole"]
    stream = streams["whole"]
    assert sorted(numbers(stream)) == list(range(0, 40, 2))
    assert numbers(stream, "triple") == [3 * i for i in numbers(stream)]


def test_rows_that_a_filter_dropped_are_counted() -> None:
    examples = [{"i": i} for i in range(40)]
    pipeline = hs.from_examples(examples).filter(user_functions.is_even).batch(5)
    with serving(pipeline, partitions=2) as server:
        with connect(server) as feed:
            assert sum(batch.rows for batch in feed) == 20
        assert server.wait(PATIENCE_S)
        assert server.dropped["default"]["filtered"] == 20
