"""Memory is released once, with its last reader, and writes to it reach no other process."""

import fcntl
import gc
import mmap
import os
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batch_memory import Attachment, BufferPool, WrittenPages, hold, only_read
from headrace_proto.errors import LimitExceeded, ProtocolError
from tests.footprint import entries
from tests.shortage import no_descriptors

PAGE = mmap.PAGESIZE
SEGMENT = "slab-0-0-0"


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


def test_a_held_array_is_the_same_memory_and_can_be_written():
    memory = np.arange(64, dtype=np.uint8)
    held = hold(memory, lambda: None)
    held[3] = 99
    assert memory[3] == 99 and held.flags.writeable and held.dtype == np.uint8
    assert held.__array_interface__["data"][0] == memory.__array_interface__["data"][0]


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
    held = hold(np.zeros(64, np.uint8), released)
    last = view(held)
    del held
    assert released.count == 0
    del last
    assert released.count == 1
    gc.collect()
    assert released.count == 1


def test_a_copy_is_no_reader():
    released = Releases()
    held = hold(np.arange(8, dtype=np.uint8), released)
    copy = held.copy()
    del held
    assert released.count == 1 and copy.tolist() == list(range(8))


@given(st.data())
def test_views_may_go_in_any_order(data):
    released = Releases()
    views = [hold(np.zeros(64, np.uint8), released)]
    for view in data.draw(st.lists(st.sampled_from(list(VIEWS.values())[:6]), max_size=6)):
        views.append(view(views[0]))
    for left in range(len(views) - 1, -1, -1):
        assert released.count == 0
        views.pop(data.draw(st.integers(0, left)))
    assert released.count == 1


def test_the_memory_and_its_owner_live_until_the_release():
    class Owner:
        pass

    owner, memory = Owner(), np.full(64, 7, np.uint8)
    kept = [weakref.ref(owner), weakref.ref(memory)]
    there = []
    held = hold(memory, lambda: there.extend(ref() is not None for ref in kept), owner)
    del owner, memory
    gc.collect()
    assert held.sum() == 7 * 64
    del held
    assert there == [True, True] and [ref() for ref in kept] == [None, None]


def test_a_cycle_of_readers_is_released_by_the_collector_in_any_thread():
    released = Releases()
    cycle = [hold(np.zeros(8, np.uint8), released)]
    cycle.append(cycle)
    del cycle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert released.count == 1


def test_no_bytes_at_all_are_held_like_any():
    released = Releases()
    held = hold(np.zeros(0, np.uint8), released)
    assert held.shape == (0,)
    del held
    assert released.count == 1


# Attachment


def test_a_block_shows_the_bytes_of_its_segment(directory):
    block = attach(directory).block(SEGMENT, PAGE, 300, lambda: None)
    assert block.tobytes() == (bytes(range(256)) * 2)[:300]
    assert block.ctypes.data % PAGE == 0 and block.flags.writeable


def test_the_proof_is_what_is_in_the_session_file(directory):
    assert attach(directory).proof == b"proof of 16 byte"


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


def test_writes_are_discarded_also_where_a_block_ends_within_a_page(directory):
    attachment = attach(directory)
    block = attachment.block(SEGMENT, 0, PAGE + 1, lambda: None)
    block[PAGE] = 77
    del block
    assert attachment.block(SEGMENT, PAGE, 1, lambda: None)[0] == 0


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


def test_pages_of_a_block_that_was_only_read_are_not_looked_at(directory, monkeypatch):
    attachment, looks, released = attach(directory), [], Releases()
    monkeypatch.setattr(WrittenPages, "any_in", lambda *of: looks.append(of))
    read, written = (attachment.block(SEGMENT, at, PAGE, released) for at in (0, PAGE))
    only_read(read)
    only_read(np.zeros(1))  # of no server
    del read
    assert (released.count, len(looks)) == (1, 0)
    del written
    assert (released.count, len(looks)) == (2, 1)


def test_each_block_is_released_once_and_by_itself(directory):
    attachment = attach(directory)
    first, second = Releases(), Releases()
    a = attachment.block(SEGMENT, 0, 10, first)
    b = attachment.block(SEGMENT, PAGE, 0, second)
    view = memoryview(a)[2:4]
    del a, b
    assert (first.count, second.count) == (0, 1)
    del view
    assert (first.count, second.count) == (1, 1)


def test_the_lock_is_held_while_an_attachment_or_any_view_lives(directory):
    assert not locked(directory)
    attachment = attach(directory)
    assert locked(directory)
    view = attachment.block(SEGMENT, 0, 64, lambda: None)[8:16].view(np.int64)
    attachment.forget(SEGMENT)
    del attachment
    gc.collect()
    assert locked(directory) and view.tolist() == [int.from_bytes(range(8, 16), "little")]
    del view
    assert not locked(directory)


def test_the_lock_still_stands_when_the_release_is_reported(directory):
    seen = []
    view = attach(directory).block(SEGMENT, 0, 64, lambda: seen.append(locked(directory)))
    del view
    assert seen == [True] and not locked(directory)


def test_a_retired_segment_stays_readable_for_its_views_and_is_unmapped_with_the_last(directory):
    def mapped():
        with open("/proc/self/maps") as maps:
            return sum(str(directory / SEGMENT) in line for line in maps)

    attachment = attach(directory)
    first = attachment.block(SEGMENT, 0, 64, lambda: None)
    second = attachment.block(SEGMENT, PAGE, 64, lambda: None)
    assert mapped() == 1
    (directory / SEGMENT).unlink()
    attachment.forget(SEGMENT)
    attachment.forget("slab-9-9-9")
    del first
    assert mapped() == 1 and second[5] == 5
    del second
    assert mapped() == 0


def test_a_segment_is_mapped_once_and_costs_one_open_file(directory):
    attachment = attach(directory)
    gc.collect()  # files of tests before this one
    before = len(os.listdir("/proc/self/fd"))
    blocks = [attachment.block(SEGMENT, i * PAGE, 64, lambda: None) for i in range(4)]
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    assert blocks[1].ctypes.data - blocks[0].ctypes.data == PAGE


def test_a_process_without_descriptors_gets_an_error_that_names_the_limit(directory):
    memory = attach(directory)
    with no_descriptors(), pytest.raises(LimitExceeded, match=r"shared memory.*RLIMIT_NOFILE"):
        memory.block(SEGMENT, 0, 8, lambda: None)
    assert memory.block(SEGMENT, 0, 8, lambda: None).nbytes == 8


@pytest.mark.parametrize(
    ("segment", "offset", "nbytes", "text"),
    [
        (SEGMENT, 0, 4 * PAGE + 1, f"block 0\\+{4 * PAGE + 1} does not lie in segment"),
        (SEGMENT, 4 * PAGE, 1, "does not lie in segment 'slab-0-0-0'"),
        (SEGMENT, 64, 1, r"block 64\+1 does not lie"),
        ("../../etc/passwd", 0, 1, "'../../etc/passwd' is not the name of a segment"),
        ("slab-0-0-0/../x", 0, 1, "is not the name of a segment"),
        ("trainer-1", 0, 1, "is not the name of a segment"),
        ("", 0, 1, "'' is not the name of a segment"),
    ],
)
def test_a_reference_that_leads_elsewhere_is_refused(directory, segment, offset, nbytes, text):
    released = Releases()
    with pytest.raises(ProtocolError, match=text):
        attach(directory).block(segment, offset, nbytes, released)
    assert released.count == 0


def test_a_trainer_that_can_not_see_the_files_gets_an_oserror(directory):
    with pytest.raises(FileNotFoundError):
        Attachment(str(directory), str(directory / "trainer-2"))
    with pytest.raises(OSError, match=SEGMENT[:-1] + "7"):
        attach(directory).block(SEGMENT[:-1] + "7", 0, 1, lambda: None)


# BufferPool


@given(st.lists(st.integers(0, 100_000), max_size=8))
def test_buffers_are_aligned_and_writable_and_never_shared(sizes):
    pool = BufferPool()
    buffers = [pool.buffer(n) for n in sizes]
    for i, buffer in enumerate(buffers):
        buffer[:] = i
    for i, buffer in enumerate(buffers):
        assert buffer.shape == (sizes[i],) and (not sizes[i] or buffer.ctypes.data % 64 == 0)
        assert (buffer == i).all()


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


def test_a_buffer_that_is_too_small_or_far_too_large_waits_for_another_batch():
    pool = BufferPool()
    small, large = pool.buffer(100), pool.buffer(1_000_000)
    addresses = small.ctypes.data, large.ctypes.data
    del small, large
    middle = pool.buffer(20_000)
    assert middle.ctypes.data not in addresses
    assert pool.buffer(900_000).ctypes.data == addresses[1]
    assert pool.buffer(100).ctypes.data == addresses[0]


def test_a_pool_keeps_a_few_buffers_only():
    pool = BufferPool()
    empty = entries(pool)
    buffers = [pool.buffer(5_000) for _ in range(10)]
    del buffers
    assert entries(pool) == empty + 4


def test_a_buffer_outlives_its_pool():
    buffer = BufferPool().buffer(64)
    buffer[:] = 5
    gc.collect()
    assert buffer.sum() == 5 * 64
