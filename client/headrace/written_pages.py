"""Finds the pages of privately mapped memory to which this process has written.

    read only     the page of the file itself, which shows what others write to it
    written to    a page of this process alone, which hides that

The kernel shows which (``/proc/self/pagemap``).  That costs a tenth of dropping pages to which
nobody has written, and mapping them again.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

#: Bits of the last byte of a page's entry: it is in memory, is swapped out, belongs to a file.
_PRESENT, _SWAPPED, _OF_A_FILE = 0x80, 0x40, 0x20
_ENTRY = 8
#: Those bytes for pages of which this process has no copy.
_NOT_WRITTEN = bytes(
    byte for byte in range(256) if byte & _OF_A_FILE or not byte & (_PRESENT | _SWAPPED)
)


class WrittenPages:
    """Asks the kernel about this process's pages."""

    def __init__(self) -> None:
        self._fd = -1
        try:
            self._fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # not every container shows it
            return
        if not self._tells_of_a_written_page():
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def any_in(self, address: int, nbytes: int) -> bool:
        """Return whether any of these whole pages may have been written to."""
        if self._fd < 0:
            return True
        pages = nbytes // mmap.PAGESIZE
        try:
            entries = os.pread(self._fd, pages * _ENTRY, address // mmap.PAGESIZE * _ENTRY)
        except OSError:
            return True
        flags = entries[_ENTRY - 1 :: _ENTRY]
        return len(flags) != pages or bool(flags.translate(None, _NOT_WRITTEN))

    def _tells_of_a_written_page(self) -> bool:
        with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            page[0] = 1
            address = np.frombuffer(page, np.uint8).__array_interface__["data"][0]
            return self.any_in(address, mmap.PAGESIZE)
