"""Stores of partitions go to the servers of another number, each once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace_server.journal.snapshots import redivide

_PARTITIONS = 7


def taken(path: Path, servers: int) -> list[Path]:
    """The snapshots of so many servers."""
    parts = []
    for index in range(servers):
        part = path / f"{index}-of-{servers}"
        part.mkdir(parents=True)
        noted: dict[str, Any] = {"format": 1, "partitions": _PARTITIONS}
        if servers > 1:
            noted["share"] = [index, servers]
        (part / "feed.json").write_text(json.dumps(noted))
        (part / "functions.json").write_text("{}")
        for partition in range(index, _PARTITIONS, servers):
            (part / f"{partition}.journal").write_bytes(b"store %d" % partition)
        parts.append(part)
    return parts


@pytest.mark.parametrize(("before", "now"), [(3, 2), (2, 3), (1, 2), (4, 1)])
def test_every_store_goes_to_the_server_that_owns_it(tmp_path, before, now):
    for index in range(now):
        into = tmp_path / "into" / str(index)
        into.mkdir(parents=True)
        redivide(taken(tmp_path / str(index), before), (index, now), into)
        stores = {int(path.stem): path.read_bytes() for path in into.glob("*.journal")}
        assert stores == {p: b"store %d" % p for p in range(index, _PARTITIONS, now)}
        noted = json.loads((into / "feed.json").read_text())
        assert noted.get("share", [0, 1]) == [index, now]
        assert noted["partitions"] == _PARTITIONS and (now > 1) == ("share" in noted)
        assert (into / "functions.json").exists()
