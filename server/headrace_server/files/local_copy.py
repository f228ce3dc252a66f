"""A copy of fetched blocks of remote files on a disk, which all workers of a host share.

    <directory>/<digest of URL, size and version>-<segment>.blocks      a sparse file
        checksum and size of each block │ 64 blocks

A block is written before its entry, so one that a killed process has begun is not there.  What a
disk or a power cut did to it shows in its checksum, which is that of the file's name, too.  Another
version of a file has other names; one whose store names no version is not copied.

No process waits for another.  Each counts what it writes, and once that is more than its part of an
eighth of the bound, it removes the files used least lately until seven eighths are left.  Where the
disk is full or refuses, the feed goes on without a copy.
"""

from __future__ import annotations

import errno
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from .durable_file import opened, writing
from .extras import require
from .manifest import DataFile

logger = logging.getLogger("headrace.data")

#: Part of the names: files of another format are not found.
_FORMAT = "HRBLOCKS1"
_SUFFIX = ".blocks"
#: Blocks of a segment.
_BLOCKS: Final = 64
#: Checksum of a block, and its size, which is 0 where it is not there.
_ENTRY = struct.Struct("<2I")
#: Bytes before the first block: the entries, and a page so that blocks are aligned.
_HEAD: Final = 4096
#: Seconds without an attempt to write after one has failed.
_REST_S = 60.0


class LocalCopy:
    """The copy in a directory, at most ``most_bytes`` large, as one of ``sharers`` processes sees
    it; blocks have ``size`` bytes, but for the last of a file."""

    def __init__(self, directory: str, most_bytes: int, sharers: int, size: int) -> None:
        self._directory, self._size = Path(directory), size
        self._left, self._part = most_bytes - most_bytes // 8, most_bytes // 8 // sharers
        self._lock = threading.Lock()
        self._written = self._part  # since the last look at all files
        self._told, self._rests_until = False, 0.0
        self._crc32c = require("google_crc32c", "server", "cache_dir")

    def read(self, file: DataFile, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return those of some blocks, in order, that are there."""
        found: dict[int, bytes] = {}
        for path, own in self._paths(file, numbers):
            with suppress(FileNotFoundError):
                try:
                    with opened(path, os.O_RDONLY | os.O_NOFOLLOW) as descriptor:
                        self._read(path, descriptor, own, found)
                except FileNotFoundError:
                    raise
                except OSError as error:
                    self._tell(error)
        return found

    def _read(
        self, path: Path, descriptor: int, numbers: Sequence[int], found: dict[int, bytes]
    ) -> None:
        head, before = os.pread(descriptor, _HEAD, 0), len(found)
        for number in numbers:
            at = number % _BLOCKS
            if len(head) < (at + 1) * _ENTRY.size:
                break
            wanted, size = _ENTRY.unpack_from(head, at * _ENTRY.size)
            if not size:
                continue
            data = os.pread(descriptor, min(size, self._size), _HEAD + at * self._size)
            if self._checksum(path, number, data) == wanted and len(data) == size:
                found[number] = data
            else:
                logger.warning("%s: block %d is damaged, and is fetched again", path, number)
        if len(found) > before:
            with suppress(OSError):  # a disk that can only be read
                os.utime(descriptor)

    def write(self, file: DataFile, first: int, data: bytes | memoryview) -> None:
        """Keep adjacent blocks, as far as the disk takes them."""
        if not file.stamp or time.monotonic() < self._rests_until:
            return
        view = memoryview(data)
        try:
            with self._lock, writing(self._directory, len(data), "set a smaller cache_bytes"):
                self._make_room(len(data))
                for path, own in self._paths(file, range(first, first - -len(data) // self._size)):
                    part, view = view[: len(own) * self._size], view[len(own) * self._size :]
                    self._write(path, own, part)
        except OSError as error:
            self._rests_until = time.monotonic() + _REST_S
            self._written = self._part  # the next look makes the directory, too
            self._tell(error)

    def _write(self, path: Path, numbers: Sequence[int], data: memoryview) -> None:
        blocks = [bytes(data[i : i + self._size]) for i in range(0, len(data), self._size)]
        entries = b"".join(
            _ENTRY.pack(self._checksum(path, number, block), len(block))
            for number, block in zip(numbers, blocks, strict=True)
        )
        at = numbers[0] % _BLOCKS
        with opened(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW) as descriptor:
            for piece, place in ((data, _HEAD + at * self._size), (entries, at * _ENTRY.size)):
                if os.pwrite(descriptor, piece, place) != len(piece):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _make_room(self, size: int) -> None:
        self._written += size
        if self._written <= self._part:
            return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = []
        for entry in os.scandir(self._directory):
            with suppress(FileNotFoundError):
                if entry.name.endswith(_SUFFIX):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime_ns, entry.path, status.st_blocks * 512))
        total = sum(nbytes for _, _, nbytes in files)
        for _, path, nbytes in sorted(files):
            if total <= self._left:
                break
            with suppress(FileNotFoundError):  # another process removes the same
                os.unlink(path)
            total -= nbytes
        self._written = size

    def _paths(
        self, file: DataFile, numbers: Sequence[int]
    ) -> Iterator[tuple[Path, Sequence[int]]]:
        """Yield the path of each segment that has some of the blocks, with these."""
        name, begin = file.digest(_FORMAT), 0
        for i in range(1, len(numbers) + 1):
            segment = numbers[begin] // _BLOCKS
            if i == len(numbers) or numbers[i] // _BLOCKS != segment:
                yield self._directory / f"{name}-{segment}{_SUFFIX}", numbers[begin:i]
                begin = i

    def _tell(self, error: OSError) -> None:
        if not self._told:
            self._told = True
            logger.warning("cache_dir: remote files are fetched without a copy: %s", error)

    def _checksum(self, path: Path, number: int, data: bytes) -> int:
        seed = self._crc32c.value(f"{path.name} {number}".encode())
        return int(self._crc32c.extend(seed, data))
