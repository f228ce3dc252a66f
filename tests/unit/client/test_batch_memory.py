"""Memory is released once, with its last reader, and writes to it reach no other process."""

import fcntl
import gc
import mmap
import os

import numpy as np
import pytest

from headrace.connection.batch_memory import Attachment, BufferPool, Holder

PAGE = mmap.PAGESIZE
SEGMENT = "slab-0-0"


@pytest.fixture
def directory(tmp_path):
    """A server's shared memory: a segment of four pages, and a session's file."""
    (tmp_path / SEGMENT).write_bytes(bytes(range(256)) * (4 * PAGE // 256))
    (tmp_path / "trainer-1").write_bytes(b"proof of 16 byte")
    return tmp_path


def attach(directory):
    return Attachment(str(directory), str(directory / "trainer-1"))


def locked(directory):
    """Return whether a process holds the session's lock."""
    fd = os.open(directory / "trainer-1", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class Releases:
    def __init__(self):
        self.count = 0

    def __call__(self):
        self.count += 1


# hold


VIEWS = {
    "itself": lambda a: a,
    "a slice": lambda a: a[8:16],
    "a slice of a slice": lambda a: a[8:32][4:],
    "another dtype": lambda a: a[:32].view(np.float32),
    "another shape": lambda a: a.reshape(8, 8).T,
    "an array on the buffer": lambda a: np.ndarray((4,), np.int64, a, 16),
    "a memoryview": memoryview,
    "a slice of a memoryview": lambda a: memoryview(a)[3:9],
    "an array on a memoryview": lambda a: np.frombuffer(memoryview(a), np.uint8),
    "an iterator": lambda a: a.flat,
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_memory_is_released_once_when_its_last_view_of_any_kind_is_gone(view):
    released = Releases()
    memory = np.zeros(64, np.uint8)
    held = np.asarray(Holder(memory.ctypes.data, 64, memory, released))
    last = view(held)
    del held
    assert released.count == 0
    del last
    assert released.count == 1
    gc.collect()
    assert released.count == 1


# Attachment


def test_a_write_is_seen_by_nobody_else_and_gone_when_the_block_is_used_again(directory):
    """1 a trainer writes to a batch, 2 drops it, 3 the server writes the next one to the block."""
    attachment = attach(directory)
    first = attachment.block(SEGMENT, PAGE, 2 * PAGE, lambda: None)
    other = attachment.block(SEGMENT, 3 * PAGE, 100, lambda: None)
    first[:] = 255
    other[:] = 254
    file = directory / SEGMENT
    assert file.read_bytes() == bytes(range(256)) * (4 * PAGE // 256)
    del first
    with open(file, "r+b") as server:
        server.seek(PAGE)
        server.write(b"n" * 2 * PAGE)
    again = attachment.block(SEGMENT, PAGE, 2 * PAGE, lambda: None)
    assert bytes(again) == b"n" * 2 * PAGE
    assert (other == 254).all()  # a neighbour keeps what was written to it


def test_memory_is_reported_after_its_private_pages_are_dropped(directory):
    """After the report the server may write; a read must then see the bytes of the file."""
    attachment = attach(directory)
    seen = []

    def report():
        seen.append(attachment.block(SEGMENT, 0, 1, lambda: None)[0])

    block = attachment.block(SEGMENT, 0, PAGE, report)
    block[0] = 200
    del block
    assert seen == [0]


def test_the_lock_is_held_while_an_attachment_or_any_view_lives(directory):
    assert not locked(directory)
    attachment = attach(directory)
    assert locked(directory)
    view = attachment.block(SEGMENT, 0, 64, lambda: None)[8:16].view(np.int64)
    del attachment
    gc.collect()
    assert locked(directory) and view.tolist() == [int.from_bytes(range(8, 16), "little")]
    del view
    assert not locked(directory)


def test_a_segment_that_has_grown_is_mapped_anew_and_earlier_views_stay(directory):
    attachment = attach(directory)
    before = attachment.block(SEGMENT, 0, 64, lambda: None)
    values = before.tolist()
    size = (directory / SEGMENT).stat().st_size
    with (directory / SEGMENT).open("ab") as file:
        file.write(bytes([7]) * PAGE)
    beyond = attachment.block(SEGMENT, size, PAGE, lambda: None)
    assert beyond.tolist() == [7] * PAGE and before.tolist() == values


# BufferPool


def test_a_buffer_is_used_again_when_its_last_view_is_gone():
    pool = BufferPool()
    first = pool.buffer(10_000)
    address, view = first.ctypes.data, first[100:]
    del first
    second = pool.buffer(10_000)
    assert second.ctypes.data != address
    del view
    third = pool.buffer(9_000)
    assert third.ctypes.data == address and third.shape == (9_000,)
