"""Streams over files keep few files open, and close them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headrace_server.reading.sources import record_streams as streams
from headrace_server.reading.sources.record_streams import Place, packed, unpacked
from tests.unit.readers import opened


def test_a_place_travels_as_bytes() -> None:
    place = Place(2**40, 7, 9)
    assert unpacked(Place, packed(place)) == place
    assert unpacked(Place, b"") == Place(0, 0, 0)
    with pytest.raises(ValueError, match="2 bytes are no position"):
        unpacked(Place, b"xx")


def test_few_files_are_open_at_once_and_none_after_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(9):
        (tmp_path / f"{i}.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 3))
    open_files = set()
    opener, closer = streams.open_stream, streams._Unpacked.close

    def count(file: object) -> object:
        stream = opener(file)  # type: ignore[arg-type]
        open_files.add(stream)
        return stream

    def uncount(unpacked: streams._Unpacked) -> None:
        closer(unpacked)
        open_files.difference_update([stream for stream in open_files if stream.closed])

    monkeypatch.setattr(streams, "open_stream", count)
    monkeypatch.setattr(streams._Unpacked, "close", uncount)
    reader = opened("jsonl", tmp_path / "*.gz")
    positions = [reader.read(i, b"", 1)[1] for i in range(9)]
    assert len(open_files) == streams._KEPT_WALKS
    for i, position in enumerate(positions):
        chunk, end = reader.read(i, position, 9)
        assert chunk.ordinals.tolist() == [1, 2]
        assert end is None
    assert len(open_files) < streams._KEPT_WALKS
    reader.read(0, b"", 1)
    reader.close()
    assert open_files == set()
