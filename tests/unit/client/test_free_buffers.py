"""A trainer has a buffer as long as a save refers to it, and does without where there is none."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from headrace.state_block import FreeBuffers
from headrace_proto.state_buffers import file_bytes, mapped


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trainer-1"
    with path.open("wb") as file:
        file.truncate(file_bytes(2, 64))
    return path


def test_a_buffer_is_free_again_when_nothing_refers_to_it(file: Path):
    buffers = FreeBuffers(str(file), 64, bytes(16))
    first, second = buffers.take(64), buffers.take(1)
    assert first is not None and second is not None
    assert {first.number, second.number} == {0, 1} and first.owner is buffers
    assert buffers.take(64) is None
    number = second.number
    del second
    again = buffers.take(64)
    assert again is not None and again.number == number


def test_a_buffer_is_the_memory_of_the_file(file: Path):
    buffer = FreeBuffers(str(file), 64, bytes(16)).take(64)
    assert buffer is not None
    buffer.array[:] = 7
    with file.open("rb") as opened:
        assert mapped(opened.fileno(), 64)[buffer.number].tolist() == [7] * 64


def test_there_is_none_for_more_bytes_than_a_buffer_has(file: Path):
    assert FreeBuffers(str(file), 64, bytes(16)).take(65) is None


def test_there_is_none_where_the_file_is_gone_did_not_grow_or_can_not_be_written(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    short = tmp_path / "trainer-2"
    short.write_bytes(bytes(16))
    for path in (short, tmp_path / "trainer-3"):
        buffers = FreeBuffers(str(path), 64, bytes(16))
        assert buffers.take(64) is None and buffers.take(64) is None

    def refused(path: str, flags: int) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refused)
    assert FreeBuffers(str(file), 64, bytes(16)).take(64) is None


def test_there_is_none_where_another_session_has_taken_the_name_of_the_file(file: Path):
    """As after the death of an owner, whose next life numbers its sessions anew."""
    buffers = FreeBuffers(str(file), 64, bytes(16))
    file.unlink()
    file.write_bytes(b"16 other bytes.." + bytes(file_bytes(2, 64) - 16))
    assert buffers.take(64) is None
    assert FreeBuffers(str(file), 64, b"16 other bytes..").take(64) is not None


def test_threads_that_take_their_first_buffer_at_once_get_different_ones(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    """1. Two threads map the file at the same time.  2. Neither adds buffers that the other has."""
    both = threading.Barrier(2)
    buffers, taken = FreeBuffers(str(file), 64, bytes(16)), []
    first_map = FreeBuffers._map

    def late(self: FreeBuffers) -> object:
        both.wait(30)
        return first_map(self)

    monkeypatch.setattr(FreeBuffers, "_map", late)
    threads = [threading.Thread(target=lambda: taken.append(buffers.take(8))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {buffer.number for buffer in taken} == {0, 1} and buffers.take(8) is None
