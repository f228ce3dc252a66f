"""What a worker tells of itself, on a sheet of shared memory for whoever looks.

    worker ──write()──► [ version | length, checksum | msgpack ] ◄──read()── supervisor

Writing asks nobody and waits for nobody.  Who reads amid a write finds the checksum wrong and takes
what was read before.  Totals of a life that is over are added to those of the lives before it.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack

from headrace_proto.errors import ServerError

from ..files.durable_file import writing
from .rundir import MORE_SHARED_MEMORY

__all__ = ["Sheet", "SheetReader", "sheet_bytes"]

_HEAD = struct.Struct("<II")
_FIXED_BYTES = 4096
#: What a partition needs at most, but for long names of feeds.
_BYTES_PER_PARTITION = 1024


def sheet_bytes(partitions: int) -> int:
    """How large the sheet of a worker is that may run so many partitions."""
    return _FIXED_BYTES + _BYTES_PER_PARTITION * partitions


class Sheet:
    """The worker's end."""

    def __init__(self, path: str) -> None:
        self._map = _mapped(path)

    def write(self, told: Any) -> bool:
        """Tell all of it in place of what was told before; False where there is no room."""
        data = msgpack.packb(told, use_bin_type=True, unicode_errors="backslashreplace")
        if _HEAD.size + len(data) > len(self._map):
            return False
        _HEAD.pack_into(self._map, 0, 0, 0)
        self._map[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._map, 0, len(data), zlib.crc32(data))
        return True


class SheetReader:
    """The supervisor's end: the sheets of one worker's lives, one after the other."""

    def __init__(self, path: Path, nbytes: int) -> None:
        self.path = str(path)
        try:
            with writing(self.path, nbytes, MORE_SHARED_MEMORY):
                fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(fd, 0, nbytes)  # or a write to a full file system would kill
                finally:
                    os.close(fd)
        except OSError as error:
            raise ServerError(error.strerror) from None
        self._map = _mapped(self.path)
        self._last: dict[str, Any] = {}
        self._past: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """A new life begins: the totals of the one before stay."""
        self._past = self.totals()
        self._last = {}
        self._map[: _HEAD.size] = bytes(_HEAD.size)

    def read(self) -> dict[str, Any]:
        """What this life told last; nothing at first."""
        length, checksum = _HEAD.unpack_from(self._map, 0)
        data = self._map[_HEAD.size : _HEAD.size + length]
        if length and zlib.crc32(data) == checksum:
            self._last = msgpack.unpackb(data)
        return self._last

    def totals(self) -> dict[str, dict[str, float]]:
        """Sums over all lives: by what they are of (``rests``, ``read:FEED`` …) and by name."""
        total = {of: dict(counts) for of, counts in self._past.items()}
        for of, counts in self.read().get("totals", {}).items():
            sums = total.setdefault(of, {})
            for name, n in counts.items():
                sums[name] = sums.get(name, 0) + n
        return total


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)
