"""The copy of remote files on a disk: what it gives back, and what it survives."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headrace_server.files import ranges
from headrace_server.files.local_copy import LocalCopy
from headrace_server.files.manifest import DataFile, resolve
from headrace_server.files.ranges import BLOCK
from tests.range_server import RangeServer
from tests.shortage import small_disk

CONTENT = np.random.default_rng(0).bytes(130 * BLOCK + 100)
FILE = DataFile("s3://bucket/a", len(CONTENT), '"1"')
ALL = range(131)


def copy_in(directory: Path, most: int = 1 << 30, sharers: int = 1) -> LocalCopy:
    return LocalCopy(str(directory), most, sharers, BLOCK)


def filled(copy: LocalCopy, file: DataFile = FILE, content: bytes = CONTENT) -> None:
    for start in range(0, len(content), 16 * BLOCK):
        copy.write(file, start // BLOCK, content[start : start + 16 * BLOCK])


def sound(found: dict[int, bytes], content: bytes = CONTENT) -> set[int]:
    """Return the numbers of blocks, which have the bytes of the file."""
    assert all(data == content[k * BLOCK : (k + 1) * BLOCK] for k, data in found.items())
    return {*found}


def test_a_copy_gives_back_the_blocks_of_a_version_to_any_process(tmp_path):
    filled(copy_in(tmp_path / "copy"))
    copy = copy_in(tmp_path / "copy")
    assert sound(copy.read(FILE, ALL)) == {*ALL}
    assert sound(copy.read(FILE, [3, 63, 64, 130])) == {3, 63, 64, 130}
    for other in ("s3://bucket/b", FILE.size, '"1"'), (FILE.path, FILE.size, '"2"'):
        assert not copy.read(DataFile(*other), ALL)
    none = DataFile(FILE.path, FILE.size, "")
    filled(copy, none)
    assert not copy.read(none, ALL)


def test_a_process_that_is_killed_while_it_writes_leaves_no_wrong_block(tmp_path, monkeypatch):
    """A child writes twice as far as the one before, half a piece further, and kills itself."""
    pwrite = os.pwrite
    for more in range(8):
        if not (child := os.fork()):
            left = [more]

            def torn(descriptor: int, data: bytes, at: int, left: list[int] = left) -> int:
                if not left[0]:
                    pwrite(descriptor, bytes(data)[: len(data) // 2 + 4], at)
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return pwrite(descriptor, data, at)

            os.pwrite = torn
            filled(copy_in(tmp_path))
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        there = sound(copy_in(tmp_path).read(FILE, ALL))
        assert there >= {*range(16 * (more // 2))}
    filled(copy_in(tmp_path))
    assert sound(copy_in(tmp_path).read(FILE, ALL)) == {*ALL}


def flipped(data: bytearray) -> None:
    data[5000] ^= 4


def cut(data: bytearray) -> None:
    del data[BLOCK:]


def no_entries(data: bytearray) -> None:
    data[:512] = bytes(512)


def false_entries(data: bytearray) -> None:
    data[:512] = b"\xff" * 512


@pytest.mark.parametrize("damage", [flipped, cut, no_entries, false_entries])
def test_damaged_blocks_are_fetched_again(store, tmp_path, damage):
    (file,) = resolve([f"{store.url}/a"])
    begun(tmp_path / "copy")
    assert read(file) == CONTENT
    for path in (tmp_path / "copy").iterdir():
        data = bytearray(path.read_bytes())
        damage(data)
        path.write_bytes(data)
    for sent in (True, False):
        begun(tmp_path / "copy")
        before = store.sent.total()
        assert read(file) == CONTENT
        assert (store.sent.total() > before) == sent
        came = ranges.came()
        assert came == {"store": store.sent.total() - before, "disk": len(CONTENT) - came["store"]}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    monkeypatch.setattr(ranges, "_cache", ranges._cache)  # that of before comes back
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(CONTENT)
    with RangeServer(tmp_path / "data") as server:
        yield server


def begun(directory: Path) -> None:
    """Begin as a process does that has nothing in memory."""
    ranges._cache = ranges._Cache()
    ranges.copy_to(str(directory), 1 << 30, 1)


def read(file: DataFile) -> bytes:
    blocks = ranges.load([(file, 0, file.size)])
    return b"".join(blocks[file, number] for number in ALL)


def test_a_file_that_was_replaced_is_fetched_anew(store, tmp_path):
    begun(tmp_path / "copy")
    assert read(*resolve([f"{store.url}/a"])) == CONTENT
    (store.directory / "a").write_bytes(CONTENT[::-1])
    begun(tmp_path / "copy")
    assert read(*resolve([f"{store.url}/a"])) == CONTENT[::-1]
    assert ranges.came() == {"store": len(CONTENT), "disk": 0}


def test_a_copy_is_bounded_and_loses_what_was_used_least_lately(tmp_path):
    most = 32 * BLOCK
    sharers = [copy_in(tmp_path, most, 2) for _ in range(2)]
    files = [DataFile(f"s3://bucket/{k}", 2 * BLOCK, '"1"') for k in range(60)]
    for k, file in enumerate(files):
        sharers[k % 2].write(file, 0, CONTENT[: 2 * BLOCK])
        (written,) = [path for path in tmp_path.glob("*.blocks") if path.stat().st_mtime > 10**9]
        os.utime(written, (0, k))  # a time that the clock of files tells apart
        assert sum(path.stat().st_blocks for path in tmp_path.iterdir()) * 512 <= most
        assert sound(sharers[0].read(files[0], [0]))
        os.utime(sorted(tmp_path.iterdir(), key=last_used)[-1], (0, k))
    there = [k for k, file in enumerate(files) if sharers[0].read(file, [0])]
    assert there == [0, *range(there[1], 60)] and len(there) > 8


def last_used(path: Path) -> int:
    return path.stat().st_mtime_ns


def in_a_file(place: Path) -> None:
    place.touch()


def on_a_full_disk(place: Path) -> None:
    with open(place / "ballast", "wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(4096))


def on_a_disk_that_fills_up(place: Path) -> None:
    """Nothing: it has room for one of three files."""


def on_a_disk_that_can_only_be_read(place: Path) -> None:
    filled(copy_in(place / "copy"))
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)


@pytest.mark.parametrize(
    ("at", "there", "words"),
    [
        (in_a_file, 0, "Not a directory"),
        (on_a_full_disk, 0, "set a smaller cache_bytes"),
        (on_a_disk_that_fills_up, 1, "set a smaller cache_bytes"),
        (on_a_disk_that_can_only_be_read, 1, "Read-only file system"),
    ],
)
def test_a_disk_that_takes_nothing_is_told_once_and_does_without(
    tmp_path, caplog, at, there, words
):
    files = [FILE, *(DataFile(f"s3://bucket/{k}", FILE.size, '"1"') for k in range(2))]
    with contextlib.ExitStack() as stack:
        place = tmp_path / "place"
        if at is not in_a_file:
            stack.enter_context(small_disk(place, "10m"))
        at(place)
        copy = copy_in(place / "copy")
        with caplog.at_level(logging.WARNING, "headrace.data"):
            for file in files:
                filled(copy, file)
                assert len(sound(copy.read(file, ALL))) >= 131 * there * (file is FILE)
                copy._rests_until = 0.0  # a minute has passed
        (told,) = caplog.messages
        assert told.startswith("cache_dir: remote files are fetched without a copy: ")
        assert words in told and str(place) in told, told
