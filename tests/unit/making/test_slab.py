"""The slab creates and removes segments for the arena, and a full machine is a clear error."""

from __future__ import annotations

import logging
import queue
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace_proto.errors import LimitExceeded
from headrace_server.making.arena import Block
from headrace_server.making.slab import Slab
from tests.patience import PATIENCE_S
from tests.shortage import small_disk

PAGE = 4096


def slab(directory: Path, pages: int = 16, step_pages: int = 4) -> Slab:
    return Slab(directory, 3, 7, pages * PAGE, step_pages * PAGE)


def taken(directory: Path) -> dict[str, int]:
    """Return the pages that each file has."""
    return {path.name: path.stat().st_blocks * 512 // PAGE for path in directory.iterdir()}


def test_a_slab_is_a_private_file_of_the_workers_name_that_takes_pages_as_it_grows(tmp_path):
    s = slab(tmp_path)
    assert taken(tmp_path) == {}
    assert s.allocate(100) is not None and s.name == b"slab-3-7"
    assert taken(tmp_path) == {"slab-3-7": 4}
    status = (tmp_path / "slab-3-7").stat()
    assert (status.st_mode & 0o777, status.st_size) == (0o600, 16 * PAGE)
    assert (s.used_bytes, s.used_bytes / s.budget_bytes) == (PAGE, 1 / 16)
    assert s.allocate(5 * PAGE) is not None
    assert taken(tmp_path) == {"slab-3-7": 8}


def test_a_write_to_a_block_is_seen_through_the_file_and_nowhere_else(tmp_path):
    s = slab(tmp_path)
    blocks = [s.allocate(PAGE) for _ in range(6)]
    for i, block in enumerate(blocks):
        assert block is not None and s.memory(block).nbytes == PAGE
        s.memory(block)[:] = i + 1
    for i, block in enumerate(blocks):
        assert block is not None
        seen = np.memmap(tmp_path / "slab-3-7", mode="r")
        assert set(seen[block.offset : block.offset + PAGE].tolist()) == {i + 1}


def test_without_room_there_is_no_block_until_one_is_freed(tmp_path):
    s = slab(tmp_path, pages=4)
    blocks = [s.allocate(PAGE) for _ in range(4)]
    assert s.allocate(1) is None and s.used_bytes / s.budget_bytes == 1.0
    assert blocks[2] is not None
    s.free(blocks[2])
    assert s.allocate(1) == blocks[2]


def test_a_block_beyond_the_slab_has_pages_that_go_with_it(tmp_path, caplog):
    s = slab(tmp_path, pages=4)
    first = s.allocate(4 * PAGE)
    assert first is not None
    for pages in (2, 3):
        block = s.allocate(pages * PAGE, beyond=True)
        assert block == Block(4 * PAGE, pages * PAGE)
        s.memory(block)[:] = 7
        assert taken(tmp_path) == {"slab-3-7": 4 + pages}
        assert (tmp_path / "slab-3-7").stat().st_size == (4 + pages) * PAGE
        s.free(block)
        assert s.allocate(PAGE) is None, "only a block beyond the slab may have its memory"
        assert taken(tmp_path) == {"slab-3-7": 4} and s.used_bytes / s.budget_bytes == 1.0
    assert caplog.text.count("set slab_bytes to 24576 or more") == 1
    block = s.allocate(PAGE, beyond=True)
    s.free(first)
    assert not s.crowded, "what lies beyond takes no room of others"
    assert s.allocate(4 * PAGE, beyond=True) == first
    s.free(block)
    assert s.allocate(PAGE) is None, "also where it was freed last"


def test_of_so_many_blocks_beyond_the_slab_one_is_refused_with_the_size_that_has_room(tmp_path):
    s = slab(tmp_path, pages=4)
    blocks = [s.allocate(3 * PAGE, beyond=True) for _ in range(10)]
    with pytest.raises(LimitExceeded, match=f"set slab_bytes to {33 * PAGE} or more") as refused:
        s.allocate(3 * PAGE, beyond=True)
    assert f"they hold {30 * PAGE} bytes" in str(refused.value)
    assert blocks[5] is not None
    s.free(blocks[5])
    assert s.allocate(3 * PAGE, beyond=True) == blocks[5]


def test_it_is_crowded_where_the_largest_block_would_find_no_room_beside_those_in_use(tmp_path):
    s = slab(tmp_path, pages=10, step_pages=8)
    small, large = s.allocate(PAGE), s.allocate(5 * PAGE)
    assert small is not None and large is not None and s.crowded
    s.free(large)
    assert not s.crowded
    assert s.allocate(4 * PAGE) is not None and not s.crowded  # 5 pages are left at the end
    assert s.allocate(PAGE) is not None and s.crowded


def test_a_block_larger_than_the_slab_names_the_option(tmp_path):
    s = slab(tmp_path)
    with pytest.raises(LimitExceeded, match="raise slab_bytes to 69632"):
        s.allocate(17 * PAGE)
    assert taken(tmp_path) == {} and s.used_bytes == 0


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of shared memory with room for 8 pages."""
    with small_disk(tmp_path, str(8 * PAGE)) as disk:
        yield disk


def test_a_machine_without_room_is_an_error_that_names_the_remedies(small_tmpfs):
    s = slab(small_tmpfs, step_pages=9)
    for _ in range(2):  # the second finds the slab as the first did
        with pytest.raises(LimitExceeded) as caught:
            s.allocate(9 * PAGE)
        for word in (str(small_tmpfs), str(9 * PAGE), "--shm-size", "slab_bytes"):
            assert word in str(caught.value)
        assert taken(small_tmpfs) == {} and s.used_bytes == 0
    assert s.allocate(8 * PAGE) is not None, "it takes what there is"


def test_while_blocks_are_in_use_a_machine_without_room_is_waited_for(small_tmpfs, caplog):
    s = slab(small_tmpfs)
    blocks = [s.allocate(4 * PAGE) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "headrace.worker"):
        assert s.allocate(PAGE) is None
        assert s.allocate(PAGE) is None
        assert s.allocate(PAGE, beyond=True) is None
    assert [("--shm-size" in r.message) for r in caplog.records] == [True]
    assert s.used_bytes == 8 * PAGE and taken(small_tmpfs) == {"slab-3-7": 8}
    assert blocks[0] is not None and blocks[1] is not None
    s.free(blocks[1])
    assert s.allocate(PAGE) == Block(4 * PAGE, PAGE)


def test_room_that_came_back_is_used(small_tmpfs):
    s = slab(small_tmpfs)
    (small_tmpfs / "other").write_bytes(bytes(4 * PAGE))
    kept = s.allocate(4 * PAGE)
    assert kept is not None and s.allocate(PAGE) is None
    assert s.used_bytes / s.budget_bytes < 0.5 and s.crowded
    (small_tmpfs / "other").unlink()
    block = s.allocate(PAGE)
    assert not s.crowded
    assert block == Block(4 * PAGE, PAGE)
    s.memory(block)[:] = 9
    assert np.memmap(small_tmpfs / "slab-3-7", mode="r")[4 * PAGE] == 9


def test_a_lent_block_takes_no_room_and_goes_to_the_next_allocation_that_needs_it(tmp_path):
    s = slab(tmp_path, pages=4)
    assert s.lend(PAGE) is None, "no memory is taken for it"
    kept = s.allocate(PAGE)
    one, other = s.lend(PAGE), s.lend(1)
    assert kept is not None and one is not None and other is not None
    assert s.used_bytes == PAGE and s.used_bytes / s.budget_bytes == 1 / 4
    assert s.lend(1) is None, "little is free"
    assert s.use(one) and s.used_bytes == 2 * PAGE
    last = s.allocate(2 * PAGE)
    assert last is not None and s.used_bytes / s.budget_bytes == 1.0
    assert not s.use(other) and not s.use(one)
    s.give_back(other)
    for block in (kept, one, last):
        s.free(block)
    assert s.used_bytes == 0


def test_a_block_that_was_taken_back_is_not_the_equal_one_that_is_lent_later(tmp_path):
    s = slab(tmp_path, pages=4)
    kept = s.allocate(PAGE)
    first = s.lend(PAGE)
    assert kept is not None and first is not None
    large = s.allocate(3 * PAGE)
    assert large is not None
    s.free(large)
    second = s.lend(PAGE)
    assert second == first
    assert not s.use(first) and second is not None and s.use(second)


def test_one_thread_may_free_blocks_while_another_allocates(tmp_path):
    s, pages = slab(tmp_path, 64, 64), np.arange(1, 5)
    freed: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
    faults: list[Exception] = []

    def free() -> None:
        try:
            while (block := freed.get()) is not None:
                s.free(block)
        except Exception as error:
            faults.append(error)

    porter, chance, held = threading.Thread(target=free), random.Random(5), []
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    porter.start()
    try:
        for _ in range(20_000):
            block = s.allocate(int(chance.choice(pages)) * PAGE)
            if block is not None:
                held.append(block)
            if held and (block is None or chance.random() < 0.5):
                freed.put(held.pop(chance.randrange(len(held))))
    finally:
        for block in (*held, None):
            freed.put(block)
        porter.join(PATIENCE_S)
        sys.setswitchinterval(before)
    assert not faults
    assert s.used_bytes == 0 and s.allocate(64 * PAGE) == Block(0, 64 * PAGE)
