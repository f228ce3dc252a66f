"""Streams over files keep few files open, and close them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

from tests.unit.readers import opened


def open_in(directory: Path) -> int:
    """Return how many files of a directory this process has open."""
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return sum(link.startswith(f"{directory.resolve()}/") for link in links)


def test_few_files_are_open_at_once_and_none_after_close(tmp_path):
    for i in range(9):
        (tmp_path / f"{i}.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 3))
    reader = opened("jsonl", tmp_path / "*.gz")
    positions = [reader.read(i, b"", 1)[1] for i in range(9)]
    assert open_in(tmp_path) == 4
    for i, position in enumerate(positions):
        chunk, end = reader.read(i, position, 9)
        assert chunk.ordinals.tolist() == [1, 2]
        assert end is None
    assert open_in(tmp_path) < 4
    reader.read(0, b"", 1)
    reader.close()
    assert open_in(tmp_path) == 0
