"""A trainer has a buffer as long as a save refers to it, and does without where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.state_block import FreeBuffers
from headrace_proto.state_buffers import file_bytes


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


def test_there_is_none_where_another_session_has_taken_the_name_of_the_file(file: Path):
    """As after the death of an owner, whose next life numbers its sessions anew."""
    buffers = FreeBuffers(str(file), 64, bytes(16))
    file.unlink()
    file.write_bytes(b"16 other bytes.." + bytes(file_bytes(2, 64) - 16))
    assert buffers.take(64) is None
    assert FreeBuffers(str(file), 64, b"16 other bytes..").take(64) is not None
