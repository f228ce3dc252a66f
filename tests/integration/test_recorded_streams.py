"""Every feed gives exactly its recorded stream."""

from __future__ import annotations

import json

import pytest

from .recorded import PARTITIONS, PATH, streams


@pytest.mark.parametrize(
    ("partitions", "workers", "servers"), [*((n, n, 1) for n in PARTITIONS), (3, 0, 2)]
)
def test_every_feed_gives_the_recorded_stream(partitions: int, workers: int, servers: int) -> None:
    recorded = json.loads(PATH.read_text())[str(partitions)]
    found = streams(partitions, workers, servers)
    assert sorted(found) == sorted(recorded)
    for name, stream in recorded.items():
        same = [one == other for one, other in zip(found[name], stream, strict=False)]
        assert all(same), f"{name}: batch {same.index(False)} is another one"
        assert len(found[name]) == len(stream), name
