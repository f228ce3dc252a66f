"""Streams over files keep few files open, and close them."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import pytest

from headrace_server.reading.example_rows import Place, place_at
from tests.unit.readers import opened


def test_a_place_travels_as_bytes() -> None:
    place = Place(2**40, 7)
    assert place_at(struct.pack("<2Q", *place)) == place
    assert place_at(b"") == Place(0, 0)
    with pytest.raises(ValueError, match="2 bytes are no position"):
        place_at(b"xx")


def open_in(directory: Path) -> int:
    """Return how many files of a directory this process has open."""
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return sum(link.startswith(f"{directory.resolve()}/") for link in links)


def test_few_files_are_open_at_once_and_none_after_close(tmp_path: Path) -> None:
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
