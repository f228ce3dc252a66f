"""Plain feeds of several owners: one stream, the same rounds for all ranks, and owners that die."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import headrace
import headrace_server as hs
from headrace_server import server as serving
from tests.patience import PATIENCE_S

from .segment_streams import at_once

_OWNERS = 3
#: Bucket and numbers of the rows of a batch.
_Seen = tuple[int, list[int]]


@pytest.fixture(autouse=True)
def owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers have owners, however many workers there are."""
    monkeypatch.setattr(serving, "is_owned", lambda workers: True)


def numbers(count: int) -> hs.Pipeline:
    return hs.from_examples([{"i": k} for k in range(count)]).shuffle(seed=3).batch(4)


def bucketed() -> hs.Pipeline:
    lengths = [1 + i * 7 % 23 for i in range(400)]
    examples = [{"x": [0.0] * n, "n": n, "i": i} for i, n in enumerate(lengths)]
    columns = {"x": hs.sequence("float32"), "n": hs.scalar("int64"), "i": hs.scalar("int64")}
    return (
        hs.from_examples(examples, columns)
        .shuffle(seed=5)
        .bucket_by_sequence_length(
            "n", 4, [6, 12, 18], dynamic_pad=True, allow_smaller_final_batch=True
        )
    )


def read(server: hs.Server, **options: Any) -> list[list[int]]:
    with headrace.connect(server.address, timeout=PATIENCE_S, **options) as feed:
        return [batch["i"].tolist() for batch in feed]


def of_rank(server: hs.Server, rank: int, kills_at: int = -1) -> list[_Seen]:
    """What one of two ranks gets; at one step it kills an owner."""
    seen: list[_Seen] = []
    options = {"rank": rank, "world_size": 2, "prefetch": 1 + 3 * rank}
    with headrace.connect(server.address, timeout=PATIENCE_S, **options) as feed:
        for step, batch in enumerate(feed):
            seen.append((int(batch.bucket), batch["i"].tolist()))
            if step == kills_at:
                os.kill(server.pids["worker-0-0"], signal.SIGKILL)
    return seen


@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_stream_is_the_same_for_any_number_of_owners(prefetch: int):
    streams = []
    for workers in (1, _OWNERS):
        with hs.run(numbers(600), workers=workers, partitions=5) as server:
            streams.append(read(server, prefetch=prefetch))
            assert server.wait(PATIENCE_S)
    assert streams[0] == streams[1]


def test_trainers_share_all_owners():
    with hs.run(numbers(600), workers=_OWNERS, partitions=5) as server:
        got = at_once([lambda: read(server) for _ in range(2)])
        assert server.wait(PATIENCE_S)
    assert sorted(i for batches in got for batch in batches for i in batch) == list(range(600))


def run(pipeline: hs.Pipeline, state: Path | None, workers: int = _OWNERS) -> hs.Server:
    options: dict[str, Any] = {} if state is None else {"state_dir": state}
    return hs.run(pipeline, workers=workers, partitions=5, **options)


@pytest.mark.parametrize("durable", [True, False])
def test_owners_that_die_lose_and_repeat_nothing(tmp_path: Path, durable: bool):
    got: list[int] = []
    with run(numbers(2000), tmp_path if durable else None) as server:
        with headrace.connect(server.address, timeout=PATIENCE_S) as feed:
            for step, batch in enumerate(feed):
                got += batch["i"].tolist()
                if step in (30, 60):
                    os.kill(server.pids[f"worker-{step // 30}-0"], signal.SIGKILL)
        assert server.wait(PATIENCE_S)
    assert sorted(got) == list(range(2000))


def test_ranks_get_the_same_rounds_for_any_number_of_owners():
    streams = []
    for workers in (1, _OWNERS):
        with hs.run(bucketed(), workers=workers, partitions=5) as server:
            ranks = at_once([lambda r=rank: of_rank(server, r) for rank in range(2)])
            assert server.wait(PATIENCE_S)
        assert [bucket for bucket, _ in ranks[0]] == [bucket for bucket, _ in ranks[1]]
        streams.append(ranks)
    assert streams[0] == streams[1]


@pytest.mark.parametrize("durable", [True, False])
def test_ranks_stay_in_step_when_the_owner_of_all_partitions_dies(tmp_path: Path, durable: bool):
    """What one rank has was stored before: also where that takes a thread and a sync."""
    with run(bucketed(), tmp_path if durable else None, workers=1) as server:
        one, two = at_once(
            [lambda r=rank, at=at: of_rank(server, r, at) for rank, at in ((0, 5), (1, -1))]
        )
        assert server.wait(PATIENCE_S)
    assert [bucket for bucket, _ in one] == [bucket for bucket, _ in two]
    rows = [i for seen in (one, two) for _, batch in seen for i in batch]
    assert len(rows) == len(set(rows))
