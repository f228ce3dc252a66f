"""All files of a source as one read-only buffer, so that a column can point into any of them.

    reserved address range   |  file 0 ..|  file 1      ..|  file 2 .|
                             each mapped at its base, a page boundary

Rows taken in shuffled order come from many files at once.  A column has one buffer; with this one
such rows are, too, some integers and no copy of payload.  Local files are mapped when the buffer
is made, and need no descriptor after that.  Remote ones are copied when they are first used, into a
directory that workers share or else into an unlinked temporary file, and mapped from there, so that
their pages can leave memory again.

The range lives as long as any array on it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Sequence
from ctypes import c_int, c_long, c_size_t, c_void_p
from typing import Final

import numpy as np

from headrace_proto.errors import LimitExceeded

from .durable_file import writing
from .manifest import DataFile, copy_whole, is_remote, open_stream
from .remote_copies import RemoteCopies

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


def mapped(file: DataFile, copies: RemoteCopies | None = None) -> np.ndarray:
    """Return the bytes of one file, read-only."""
    return MappedFiles((file,), copies=copies).file_data(0)


class MappedFiles:
    """``data`` holds file i from byte ``bases[i]`` on, once it is loaded."""

    def __init__(
        self,
        files: Sequence[DataFile],
        spool: str | None = None,
        copies: RemoteCopies | None = None,
    ) -> None:
        """``copies`` are those of remote files that workers share.

        Without them a copy of its own lies in ``spool`` (None: the system's directory).
        """
        self.files = tuple(files)
        sizes = np.array([file.size for file in files], np.int64)
        rounded = -(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.bases = np.cumsum(rounded) - rounded
        total = int(rounded.sum())
        self._spool, self._copies = spool, copies
        self._range = _Range(total) if total else None
        self.data = np.asarray(self._range) if self._range else np.empty(0, np.uint8)
        self._waiting = {i for i, file in enumerate(files) if is_remote(file.path)}
        for i in range(len(files)):
            if i not in self._waiting:
                self._load(i)

    @property
    def local(self) -> bool:
        """Whether the content of all files is here."""
        return not self._waiting

    def load(self, numbers: np.ndarray) -> None:
        """Make sure that the content of these files is here."""
        if self._waiting:
            for i in self._waiting.intersection(np.unique(numbers).tolist()):
                self._load(i)
                self._waiting.discard(i)

    def file_data(self, i: int) -> np.ndarray:
        """Return the bytes of one file, loaded."""
        self.load(np.array([i]))
        base = int(self.bases[i])
        return self.data[base : base + self.files[i].size]

    def _load(self, i: int) -> None:
        file = self.files[i]
        if self._copies is not None and self._range is not None and is_remote(file.path):
            if file.size:
                with self._copies.opened(file) as descriptor:
                    self._range.place(int(self.bases[i]), file.size, descriptor)
            return
        with open_stream(file) as stream:
            if self._range is None or file.size == 0:
                return
            if not is_remote(file.path):
                self._range.place(int(self.bases[i]), file.size, stream.fileno())
                return
            spool = self._spool or tempfile.gettempdir()
            remedy = f"make room there for a copy of {file.path}, or set TMPDIR elsewhere"
            with writing(spool, file.size, remedy), tempfile.TemporaryFile(dir=spool) as copy:
                copy_whole(file, stream, copy)
                self._range.place(int(self.bases[i]), file.size, copy.fileno())
