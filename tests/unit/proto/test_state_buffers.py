"""Both ends find the same buffers in a session's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace_proto import limits
from headrace_proto.state_buffers import FIRST_BUFFER, MOST, file_bytes, mapped


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "trainer-1", os.O_CREAT | os.O_RDWR)
    yield fd
    os.close(fd)


def test_what_one_end_writes_to_a_buffer_the_other_reads_from_it_alone(file: int):
    os.pwrite(file, b"proof", 0)
    os.ftruncate(file, file_bytes(3, 64))
    written, read = mapped(file, 64, writable=True), mapped(file, 64)
    assert [len(buffer) for buffer in read] == [64] * 3
    for number, buffer in enumerate(written):
        buffer[:] = number + 1
    assert [set(buffer.tolist()) for buffer in read] == [{1}, {2}, {3}]
    assert os.pread(file, 5, 0) == b"proof"
    with pytest.raises(ValueError, match="read-only"):
        read[0][0] = 9


@pytest.mark.parametrize("count", [0, 1, MOST, MOST + 5])
def test_a_file_has_as_many_buffers_as_its_length_says_up_to_a_bound(file: int, count: int):
    os.ftruncate(file, file_bytes(count, 128))
    assert len(mapped(file, 128)) == min(count, MOST)


def test_no_frame_has_the_number_of_a_buffer_and_a_packed_save_holds_the_last_buffer():
    assert limits.MAX_FRAMES < FIRST_BUFFER and FIRST_BUFFER + MOST < 1 << 16
