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

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from ctypes import c_int, c_long, c_size_t, c_void_p
from pathlib import Path
from typing import Final

import numpy as np

from headrace_proto.errors import LimitExceeded

from .durable_file import locked, opened, writing
from .manifest import DataFile, copy_whole, is_remote
from .ranges import open_stream

# ── Copies of remote files, in one directory that all workers share and that outlives them.
#
#     <directory>/<hash of URL, size, stamp>.copy              a whole file, which workers map
#                                          .<process>.part     locked while it is being copied
#     <directory>/<hash>.lock                                  one worker copies, others wait
#
# Together they weigh no more than a limit: before one is made, those that were not used for the
# longest time are removed.  A file that is mapped stays readable when its copy is removed, and its
# room is free when nothing maps it any more.  A file that was replaced has another name here.


class RemoteCopies:
    """The copies in one directory, of ``most_bytes`` in all (None: any number)."""

    def __init__(self, directory: str, most_bytes: int | None = None) -> None:
        self._directory, self._most = Path(directory), most_bytes

    @contextlib.contextmanager
    def opened(self, file: DataFile) -> Iterator[int]:
        """Yield a descriptor of the whole file, copied here if it was not."""
        name = file.digest()
        path = self._directory / f"{name}.copy"
        descriptor = _open_whole(path, file.size)
        if descriptor is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            with locked(self._directory / f"{name}.lock"):
                descriptor = _open_whole(path, file.size)
                if descriptor is None:  # no other worker has made it meanwhile
                    descriptor = self._copied(file, path)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _copied(self, file: DataFile, path: Path) -> int:
        """Make a copy; return a descriptor of it."""
        part = path.with_suffix(f".{os.getpid()}.part")
        remedy = f"make room there for a copy of {file.path}, or lower remote_cache_bytes"
        with writing(part, file.size, remedy), open(part, "wb") as copy:
            fcntl.flock(copy, fcntl.LOCK_EX)
            try:
                with locked(self._directory / "lock"):
                    self._make_room(file)
                    copy.truncate(file.size)  # so that others count it
                with open_stream(file) as stream:
                    copy_whole(file, stream, copy)
                os.replace(part, path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _make_room(self, file: DataFile) -> None:
        """Remove leftovers of killed workers, and the oldest copies until there is room."""
        for part in self._directory.glob("*.part"):
            with contextlib.suppress(OSError), opened(part) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of its living writer
                part.unlink(missing_ok=True)
        if self._most is None:
            return
        if file.size > self._most:
            raise LimitExceeded(
                f"{file.path} has {file.size} bytes, more than all copies of remote files may: "
                f"raise remote_cache_bytes={self._most}"
            )
        found = []
        for path in (*self._directory.glob("*.copy"), *self._directory.glob("*.part")):
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                found.append((status.st_mtime_ns, path, status.st_size))
        total = sum(size for _, _, size in found)
        for _, path, size in sorted(found):
            if total <= self._most - file.size:
                return
            if path.suffix == ".copy":  # which may be mapped
                path.unlink(missing_ok=True)
                path.with_suffix(".lock").unlink(missing_ok=True)
                total -= size


def _open_whole(path: Path, size: int) -> int | None:
    """Return a descriptor of a copy, which is used now; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    if os.fstat(descriptor).st_size == size:
        with contextlib.suppress(OSError):  # of another user: it only looks older than it is
            os.utime(path)
        return descriptor
    os.close(descriptor)
    return None


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
    """``data`` holds file i from byte ``bases[i]`` on."""

    def __init__(self, files: Sequence[DataFile], copies: RemoteCopies | None = None) -> None:
        """``copies`` are those of remote files that workers share; None: it has its own."""
        self.files = tuple(files)
        sizes = np.array([file.size for file in files], np.int64)
        rounded = -(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.bases = np.cumsum(rounded) - rounded
        total = int(rounded.sum())
        self._copies = copies
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
            remedy = f"make room there for a copy of {file.path}, or set TMPDIR elsewhere"
            with (
                writing(tempfile.gettempdir(), file.size, remedy),
                tempfile.TemporaryFile() as copy,
            ):
                copy_whole(file, stream, copy)
                self._range.place(int(self.bases[i]), file.size, copy.fileno())
