"""Memory of batches, and when it can be released.

    Holder ── arrays ── views, tensors, slices …        the last of them goes ──► released(token)

A Holder exposes a stretch of memory by numpy's array interface.  Arrays made from it keep it
alive, and so does every view and every tensor imported from them.  So it is released when the last
reader is gone, whatever library that is in.

    a reference ──► view of a mapped segment ─────────┐
         └── the slab runs low: copied, released ──┐  ├──► block
    a frame ───────────────────────────── copied ──┴──┘

A page of a private mapping that was only read is the page of the file, which shows what others
write to it; one that was written to is a page of this process alone, which hides that.  The kernel
tells them apart (``/proc/self/pagemap``).  That costs a tenth of dropping pages to which nobody has
written, and mapping them again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import resource
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from headrace_proto.errors import LimitExceeded, ProtocolError
from headrace_proto.layout import aligned_bytes, copy_bytes
from headrace_proto.state_buffers import PROOF_BYTES

from ..machine.trainer import Held

#: A slab is mapped as long as it may grow, and a page takes memory of its own only if the trainer
#: writes it: so none is reserved (MAP_NORESERVE, which not all versions of the module mmap name).
_UNSHARED = mmap.MAP_PRIVATE | 0x4000
_SEGMENT = re.compile(r"slab-[0-9]+-[0-9]+")
#: Bits of the last byte of a page's entry: it is in memory, is swapped out, belongs to a file.
_PRESENT, _SWAPPED, _IN_FILE = 0x80, 0x40, 0x20
_ENTRY, _PAGE = 8, mmap.PAGESIZE
#: Those bytes for pages of which this process has no copy.
_NOT_WRITTEN = bytes(
    byte for byte in range(256) if byte & _IN_FILE or not byte & (_PRESENT | _SWAPPED)
)
#: Buffers that are kept for the next batch: fresh memory costs a page fault every 4 kB.
_POOLED = 4


@contextlib.contextmanager
def opening_files(need: str) -> Iterator[None]:
    """Turn an OSError for lack of descriptors into a LimitExceeded that names the limit."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise LimitExceeded(
            f"{need}, and this process can not open so many more: {os.strerror(error.errno)}.  "
            f"Its limit is {soft} (RLIMIT_NOFILE; the hard limit is {hard}): close files, or raise "
            "it (ulimit -n, resource.setrlimit)"
        ) from None


class BatchGone(Exception):
    """A batch that waited here can not be used: its rows go out again."""


class Holder:
    """A stretch of memory that calls back when its last reader is gone."""

    __slots__ = ("__array_interface__", "_on_release", "_owner")

    def __init__(
        self, address: int, nbytes: int, owner: Any, on_release: Callable[[], None]
    ) -> None:
        self.__array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
        self._owner, self._on_release = owner, on_release

    def __del__(self) -> None:
        if hasattr(self, "_on_release"):  # else Ctrl-C came while it was made
            self._on_release()


def _address(memory: np.ndarray) -> int:
    return int(memory.__array_interface__["data"][0])


class WrittenPages:
    """Finds the pages of privately mapped memory to which this process has written."""

    def __init__(self) -> None:
        self._fd = -1
        try:
            self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not every container shows it
            return
        if not self._has_a_written_page():
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def any_in(self, address: int, pages: int) -> bool:
        """Return whether any of these pages may have been written to."""
        if self._fd < 0:
            return True
        try:
            entries = os.pread(self._fd, pages * _ENTRY, address // _PAGE * _ENTRY)
        except OSError:
            return True
        flags = entries[_ENTRY - 1 :: _ENTRY]
        return len(flags) != pages or bool(flags.translate(None, _NOT_WRITTEN))

    def _has_a_written_page(self) -> bool:
        with mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            page[0] = 1
            address = np.frombuffer(page, np.uint8).__array_interface__["data"][0]
            return self.any_in(address, 1)


class Attachment:
    """The server's shared memory, mapped here.  It lives as long as any mapping.

    Holds a shared flock on the session's file: the server frees what this process may be reading
    only when the lock is gone.
    """

    def __init__(self, directory: str, session_file: str) -> None:
        """OSError where the directory can not be seen from here."""
        self._directory = directory
        self._fd = os.open(session_file, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        self.proof = os.read(self._fd, PROOF_BYTES)
        self._written = WrittenPages()
        self.segments: dict[str, tuple[mmap.mmap, int, np.ndarray]] = {}  # by name

    def __del__(self) -> None:
        fd = getattr(self, "_fd", None)
        if fd is not None:
            os.close(fd)

    def block(
        self, segment: str, offset: int, nbytes: int, on_release: Callable[[], None]
    ) -> np.ndarray:
        """Return a block as a writable array that is private to this process."""
        mapping, address, memory = self.segments.get(segment) or self._map(segment)
        if offset % _PAGE or offset + nbytes > memory.nbytes:
            mapping, address, memory = self._map(segment)  # the file may be longer now
            if offset % _PAGE or offset + nbytes > memory.nbytes:
                text = f"block {offset}+{nbytes} does not lie in segment {segment!r}"
                raise ProtocolError(text)

        address += offset
        written = self._written

        def released() -> None:
            # The trainer's writes stay in private pages, which would hide the next batch.
            pages = -(-nbytes // _PAGE)
            if pages and written.any_in(address, pages):
                mapping.madvise(mmap.MADV_DONTNEED, offset, pages * _PAGE)
            on_release()

        # The holder keeps this object too: the lock stands until its last reader is gone.
        return np.asarray(Holder(address, nbytes, (memory, self), released))

    def keep(self, segment: str) -> None:
        """Map a segment of a batch that comes: its owner may be gone when the batch is used."""
        with contextlib.suppress(FileNotFoundError):
            self._map(segment)

    def _map(self, segment: str) -> tuple[mmap.mmap, int, np.ndarray]:
        """Map a segment; return its address, and its bytes, which keep it mapped."""
        if not _SEGMENT.fullmatch(segment):
            raise ProtocolError(f"{segment!r:.80} is not the name of a segment")
        with opening_files("a batch in shared memory needs 2 open files"):
            fd = os.open(os.path.join(self._directory, segment), os.O_RDONLY | os.O_CLOEXEC)
            try:
                write = mmap.PROT_READ | mmap.PROT_WRITE
                mapping = mmap.mmap(fd, 0, flags=_UNSHARED, prot=write)
            finally:
                os.close(fd)
        memory = np.frombuffer(mapping, np.uint8)
        known = self.segments[segment] = mapping, _address(memory), memory
        return known


class BufferPool:
    """Aligned memory of this process, used again when its last reader is gone."""

    def __init__(self) -> None:
        self._free: deque[tuple[int, np.ndarray]] = deque(maxlen=_POOLED)  # with their addresses

    def buffer(self, nbytes: int) -> np.ndarray:
        """Return a writable, aligned array of ``nbytes`` bytes."""
        address, memory = pooled = self._take(nbytes)
        return np.asarray(Holder(address, nbytes, memory, partial(self._free.append, pooled)))

    def _take(self, nbytes: int) -> tuple[int, np.ndarray]:
        free = self._free
        for _ in range(len(free)):
            try:
                pooled = free.popleft()
            except IndexError:  # another thread was faster
                break
            if nbytes <= pooled[1].nbytes <= 2 * nbytes + 4096:
                return pooled
            # for another batch; the oldest buffer is dropped if there are too many
            free.append(pooled)
        memory = aligned_bytes(nbytes)
        return _address(memory), memory


class Blocks:
    """Makes blocks of what was received, and reports when nobody reads them any more."""

    def __init__(self, on_copied: Callable[[], None]) -> None:
        self._on_copied = on_copied  # reports a batch whose memory was released at once
        self._pool = BufferPool()

    def block(self, held: Held) -> np.ndarray:
        """Return the bytes of a batch; BatchGone where their server is gone."""
        given, source, block = held.given, held.source, held.block
        if block is not None:
            held.block = None
            return block  # type: ignore[no-any-return]
        if not given.segment:
            # from a channel, or from ZeroMQ
            came = np.frombuffer(source if isinstance(source, bytes) else source.buffer, np.uint8)
            if came.nbytes != given.nbytes:
                raise ProtocolError(f"a batch of {given.nbytes} bytes came with {came.nbytes}")
            held.source = None
            return self._copied(came)
        if source is None:
            raise ProtocolError("the server sent a reference to memory that was not attached")
        try:
            block = source.block(given.segment, given.offset, given.nbytes, held.release)
        except FileNotFoundError:
            raise BatchGone from None
        held.source = held.release = None  # the block reports its own release
        if not given.copy_out:
            return block  # type: ignore[no-any-return]
        copied = self._copied(block)
        del block
        self._on_copied()
        return copied

    def _copied(self, source: np.ndarray) -> np.ndarray:
        memory = self._pool.buffer(source.nbytes)
        copy_bytes(memory, source)
        return memory
