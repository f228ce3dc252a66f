"""Buckets with boundaries from a sample of lengths, by real servers and trainers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace_server as hs

from .serving import connect, serving

COUNT = 240
LENGTHS = np.random.default_rng(5).geometric(0.05, COUNT)
#: After the stages, which drop each third row and leave out a step of the others.
LEFT = np.sort(LENGTHS[np.arange(COUNT) % 3 > 0] - 1)
BOUNDARIES = LEFT[np.arange(1, 4) * len(LEFT) // 4]


def keeps(row: dict[str, Any]) -> bool:
    return bool(row["i"] % 3 > 0)


def shorter(row: dict[str, Any]) -> dict[str, Any]:
    return {"i": row["i"], "x": row["x"][1:]}


def bucketed(source: hs.Pipeline) -> hs.Pipeline:
    here = __name__
    rows = source.filter(f"{here}:keeps").map(f"{here}:shorter").shuffle(seed=3).repeat(2)
    return rows.bucket_by_sequence_length(
        "x", 4, num_buckets=4, dynamic_pad=True, allow_smaller_final_batch=True
    )


def source_of(kind: str, directory: Path) -> hs.Pipeline:
    """Declare the same examples in memory, or in lines of a file."""
    rows = [{"i": i, "x": [float(i)] * n} for i, n in enumerate(LENGTHS.tolist())]
    features = {"i": hs.scalar("int64"), "x": hs.sequence("float32")}
    if kind == "examples":
        return hs.from_examples(rows, features)
    path = directory / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return hs.read_jsonl(str(path), features)


Seen = list[tuple[int, int, list[int]]]


def train(server: hs.Server, most: int | None, world: int, rank: int) -> Seen:
    """Take batches, which are in the buckets of their lengths."""
    place = {"rank": rank, "world_size": world} if world else {}
    seen: Seen = []
    with connect(server, prefetch=0, **place) as feed:
        for batch in islice(feed, most):
            assert (np.digitize(batch.length, BOUNDARIES) == batch.bucket).all()
            seen.append((batch.partition, batch.bucket, batch["i"].tolist()))
    return seen


@pytest.mark.parametrize("kind", ["examples", "jsonl"])
@pytest.mark.parametrize("world", [0, 2])
def test_a_sample_of_what_the_stages_leave_gives_boundaries_also_to_ranks(tmp_path, kind, world):
    with serving(bucketed(source_of(kind, tmp_path)), partitions=3, workers=2) as server:
        with ThreadPoolExecutor(2) as pool:
            seen = [*pool.map(partial(train, server, None, world), range(max(1, world)))]
    assert {bucket for batches in seen for _, bucket, _ in batches} == {0, 1, 2, 3}
    for together in zip(*seen, strict=True):
        assert len({bucket for _, bucket, _ in together}) == 1, "a round is of one bucket"
    if not world:
        rows = [i for _, _, some in seen[0] for i in some]
        assert sorted(rows) == sorted([i for i in range(COUNT) if i % 3 > 0] * 2)


def test_a_server_that_goes_on_has_the_same_boundaries(tmp_path):
    pipeline = bucketed(source_of("jsonl", tmp_path))
    options = {"partitions": 2, "state_dir": tmp_path / "state", "durability": "power"}
    with serving(pipeline, partitions=2) as server:
        whole = train(server, None, 0, 0)
    with serving(pipeline, **options) as server:
        first = train(server, 25, 0, 0)
    with serving(pipeline, workers=2, **options) as server:
        assert first + train(server, None, 0, 0) == whole
