"""All files of a source as one read-only buffer, so that a column can point into any of them.

    reserved address range   |  file 0 ..|  file 1      ..|  file 2 .|
                             each mapped at its base, a page boundary

Rows taken in shuffled order come from many files at once.  A column has one buffer; with this one
such rows are, too, some integers and no copy of payload.  Files are mapped when the buffer
is made, and need no descriptor after that: local ones as they are, remote ones (of the formats that
are not read by ranges) from a copy in an unlinked temporary file.

The range lives as long as any array on it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import Final

import numpy as np

from headrace_proto.errors import FilesMissing, LimitExceeded

from .durable_file import opening, writing
from .manifest import DataFile, is_remote
from .ranges import open_stream

#: Flags from the Linux headers; the module mmap does not name them in all versions.
_MAP_FIXED: Final = 0x10
_MAP_NORESERVE: Final = 0x4000
_MAP_FAILED: Final = c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = c_void_p
_libc.mmap.argtypes = [c_void_p, c_size_t, c_int, c_int, c_int, c_long]
_libc.munmap.argtypes = [c_void_p, c_size_t]


def _mmap(address: int | None, size: int, flags: int, descriptor: int) -> int:
    got = _libc.mmap(address, size, mmap.PROT_READ, flags, descriptor, 0)
    if got == _MAP_FAILED:
        code = ctypes.get_errno()
        if code == errno.ENOMEM:
            raise LimitExceeded(
                "the kernel maps no more files into this process: raise vm.max_map_count or "
                "ulimit -v, or use fewer and larger files"
            )
        raise OSError(code, os.strerror(code))
    return int(got)


class _Range:
    """A reserved address range; it goes back when nothing refers to it any more."""

    def __init__(self, size: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
        self.address = _mmap(None, size, flags, -1)
        # numpy makes an array of this memory from it, and that array refers to this object.
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (size,),
            "data": (self.address, True),
        }
        weakref.finalize(self, _libc.munmap, self.address, size).atexit = False

    def place(self, base: int, size: int, descriptor: int) -> None:
        _mmap(self.address + base, size, mmap.MAP_SHARED | _MAP_FIXED, descriptor)


def mapped(file: DataFile) -> np.ndarray:
    """Return the bytes of one file, read-only."""
    return MappedFiles((file,)).file_data(0)


def mapped_path(path: str | os.PathLike[str]) -> np.ndarray:
    """Return the bytes of a file, read-only; ValueError where it is empty.

    ``np.memmap`` would keep a descriptor as long as they are used.
    """
    with opening(path), open(path, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not size:
            raise ValueError("it is empty")
        reserved = _Range(size)
        reserved.place(0, size, stream.fileno())
    return np.asarray(reserved)


class MappedFiles:
    """``data`` holds file i from byte ``bases[i]`` on."""

    def __init__(self, files: Sequence[DataFile]) -> None:
        self.files = tuple(files)
        sizes = np.array([file.size for file in files], np.int64)
        rounded = -(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.bases = np.cumsum(rounded) - rounded
        total = int(rounded.sum())
        self._range = _Range(total) if total else None
        self.data = np.asarray(self._range) if self._range else np.empty(0, np.uint8)
        for i in range(len(files)):
            self._load(i)

    def bytes_at(self, starts: np.ndarray, stops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a buffer that has these ranges, and where each begins in it."""
        return self.data, starts

    def file_data(self, i: int) -> np.ndarray:
        """Return the bytes of one file."""
        base = int(self.bases[i])
        return self.data[base : base + self.files[i].size]

    def _load(self, i: int) -> None:
        file = self.files[i]
        with open_stream(file) as stream:
            if self._range is None or file.size == 0:
                return
            if not is_remote(file.path):
                self._range.place(int(self.bases[i]), file.size, stream.fileno())
                return
            remedy = f"make room there for a copy of {file.path}, or set TMPDIR elsewhere"
            with (
                opening(tempfile.gettempdir()),
                writing(tempfile.gettempdir(), file.size, remedy),
                tempfile.TemporaryFile() as copy,
            ):
                shutil.copyfileobj(stream, copy, 1 << 20)
                if copy.tell() != file.size:
                    raise FilesMissing(f"{file.path} gives {copy.tell()} of {file.size} bytes now")
                copy.flush()
                self._range.place(int(self.bases[i]), file.size, copy.fileno())
