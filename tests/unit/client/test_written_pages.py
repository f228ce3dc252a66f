"""Which pages of a private mapping a process has written to."""

import mmap
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connection import batch_memory as module
from headrace.connection.batch_memory import WrittenPages

PAGE = mmap.PAGESIZE
PAGES = 6


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "segment"
    path.write_bytes(bytes(PAGES * PAGE))
    return path


def mapped(path):
    """A private mapping of the file, and its address."""
    fd = os.open(path, os.O_RDONLY)
    mapping = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    os.close(fd)
    memory = np.frombuffer(mapping, np.uint8)
    return mapping, memory, memory.ctypes.data


@settings(max_examples=50, deadline=None)
@given(st.sets(st.integers(0, PAGES - 1)), st.sets(st.integers(0, PAGES - 1)))
def test_pages_that_were_written_are_known_from_those_that_were_read(file, read, written):
    mapping, memory, address = mapped(file)
    for page in read:
        assert memory[page * PAGE] == 0
    for page in written:
        memory[page * PAGE + 7] = 1
    told = WrittenPages()
    for first in range(PAGES):
        for end in range(first + 1, PAGES + 1):
            among = any(first <= page < end for page in written)
            assert told.any_in(address + first * PAGE, end - first) is among
    mapping.madvise(mmap.MADV_DONTNEED)
    assert not told.any_in(address, PAGES)


def test_a_page_that_was_only_read_shows_what_others_write_to_it(file, tmp_path):
    path = tmp_path / "segment"
    path.write_bytes(bytes(PAGE))
    _, memory, address = mapped(path)
    assert memory[0] == 0
    with open(path, "r+b") as other:
        other.write(b"\x05")
    assert memory[0] == 5 and not WrittenPages().any_in(address, 1)


def test_where_the_kernel_shows_nothing_any_page_may_have_been_written(file, monkeypatch):
    def refused(*arguments):
        raise PermissionError

    _, _, address = mapped(file)
    told = WrittenPages()
    assert not told.any_in(address, 1)
    for short in (refused, lambda *arguments: b""):
        monkeypatch.setattr(module.os, "pread", short)
        assert told.any_in(address, 1)
    monkeypatch.undo()
    monkeypatch.setattr(module.os, "open", refused)
    assert WrittenPages().any_in(address, 1)
