"""Batches of a pipeline in this process are those that a server gives."""

from __future__ import annotations

import random
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import headrace
import headrace_server as hs
from headrace_server.cli import main
from headrace_server.cli.local import LocalFeed
from headrace_server.files.index_cache import IndexCache
from headrace_server.reading.chunk import BadRecords
from tests.patience import PATIENCE_S

EXAMPLES = [
    {"k": f"key {i}", "x": np.full((i % 7 + 1, 2), i, np.float32), "y": i % 3} for i in range(60)
]


def feed_of(pipeline: hs.Pipeline, partitions: int = 1) -> LocalFeed:
    return LocalFeed(pipeline.declaration(), (), BadRecords(), IndexCache(None), partitions)


def segments(reader: hs.Pipeline | None = None, **options: Any) -> hs.Pipeline:
    given: dict[str, Any] = {
        "input_key": "k",
        "input_sequences": ["x"],
        "input_context": ["y"],
        "initial_states": {"h": hs.zeros((2,), "float32"), "name": hs.zeros((), "bytes")},
        "num_unroll": 2,
        "batch_size": 4,
        "capacity": 8,
    }
    reader = reader or hs.from_examples(EXAMPLES)
    return reader.batch_sequences_with_states(**{**given, **options})


DRAWN = (
    hs.from_examples([{"i": i, "c": i % 3, "w": float(i % 5)} for i in range(400)])
    .shuffle(seed=5)
    .repeat(2, across_batches=False)
    .weighted_resample("w", 1.0, seed=3)
    .stratified_sample("c", [0.2, 0.3, 0.5], seed=4)
    .bucket("c", 4, 3, allow_smaller_final_batch=True)
)


def test_any_batch_of_any_partition_is_made_again(tmp_path, capsys):
    with hs.run(DRAWN, workers=2, partitions=3) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            seen = {(b.partition, b.number): (b["i"].tolist(), b.bucket) for b in feed}
    drawn = random.Random(2).sample(sorted(seen), 6)
    for partition, number in [*drawn, max(seen)]:
        with LocalFeed(
            DRAWN.declaration(), (), BadRecords(), IndexCache(None), 3, partition
        ) as here:
            sample = next(here.batches(number))
            assert (sample.made.number, sample.made.bucket) == (number, seen[partition, number][1])
            assert sample.columns["i"].tolist() == seen[partition, number][0]
            assert sample.made.nbytes > 0 and sample.seconds > 0
    (tmp_path / "feeds.py").write_text("from tests.unit.cli.test_local import DRAWN as drawn")
    asked = ["preview", f"{tmp_path}/feeds.py:drawn", "--partitions", "3"]
    assert main([*asked, "--partition", "2", "--batch", "7"]) == 0
    shown = capsys.readouterr().out
    first = ", ".join(map(str, seen[2, 7][0][:3]))
    assert "batch 7: 4 rows" in shown and re.search(rf"^  i +int64 +4 +{first}$", shown, re.M)
    assert main([*asked, "--partition", "3", "--batch", "7"]) == 2
    assert "--partition 3: with --partitions 3 the last one is 2" in capsys.readouterr().err
    assert main([*asked, "--world-size", "2"]) == 2
    assert "ranks do not change these batches" in capsys.readouterr().err
    (tmp_path / "cut.py").write_text("from tests.unit.cli.test_local import segments")
    assert main(["preview", f"{tmp_path}/cut.py:segments", "--batch", "7"]) == 2
    assert "depend on when trainers save states" in capsys.readouterr().err


@pytest.mark.parametrize(("options", "world"), [
    ({"order": "lanes"}, 0), ({"order": "lanes", "phase": "random", "phase_seed": 4}, 2),
    ({"order": "lanes", "state_placement": "trainer"}, 2), ({}, 2),
    ({"order": "lanes", "initial_states": {}, "pack": True}, 0),
])  # fmt: skip
def test_any_batch_of_lanes_and_of_ranks_is_made_again(options, world):
    pipeline = segments(
        hs.from_examples(EXAMPLES).shuffle(5).repeat(2, across_batches=False),
        **{**options, "allow_small_batch": True},
    )
    seen: dict[tuple[int, int], list[np.ndarray]] = {}

    def train(rank: int) -> None:
        place = {"rank": rank, "world_size": world} if world else {}
        with headrace.connect(server.address, timeout=PATIENCE_S, **place) as feed:
            for _, batches in feed.epochs():
                for batch in batches:
                    found = [np.array(batch.sequences["x"]), np.array(batch.insertion_index)]
                    seen[batch.partition, batch.number] = found
                    for state in feed.states:
                        batch.save_state(state, batch.state(state))

    with hs.run(pipeline, partitions=2) as server, ThreadPoolExecutor(2) as pool:
        list(pool.map(train, range(max(1, world))))
    for partition, number in [*random.Random(3).sample(sorted(seen), 5), max(seen)]:
        declared = pipeline.declaration()
        with LocalFeed(declared, (), BadRecords(), IndexCache(None), 2, partition) as here:
            sample = next(here.batches(number, world))
            assert sample.made.number == number
            again = sample.columns["sequences:x"], sample.columns["@insertion_index"]
            for one, other in zip(seen[partition, number], again, strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("options", [{}, {"order": "lanes"},
                                     {"order": "lanes", "state_placement": "trainer"}])  # fmt: skip
def test_all_segments_come_when_states_come_back_as_they_were(options):
    steps: dict[bytes, int] = {}
    with feed_of(segments(**options)) as here:
        for sample in here.batches():
            lengths = sample.columns["@length"].tolist()
            for key, length in zip(sample.columns["@key"].tolist(), lengths, strict=True):
                name = key.partition(b":")[2] or key
                steps[name] = steps.get(name, 0) + length
    assert steps == {e["k"].encode(): len(e["x"]) for e in EXAMPLES}
