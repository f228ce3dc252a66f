"""A worker's slab: shared memory in which batches are assembled.

    slab-W-L    [ blocks of any batches | those that are needed first ]
                0                  slab_bytes                 eight times that

A trainer may need a batch before it can free those that fill the slab, since they come after it.
Such a batch may lie beyond ``slab_bytes``: the file is longer for as long as it needs that.

The arena decides where a block lies; the slab takes the pages of the file, some MiB at once, before
anything is written to them: so a full /dev/shm is an error, and not a SIGBUS later.  Where there is
no room it tries again when a block needs it.

One thread allocates and lends.  Any thread may free what is not lent.  Freed blocks are *spare*:
the next ones mostly have the size of the last of them, and take it as it is.  The arena gets all of
them back where the next one does not.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
from collections.abc import Mapping
from math import prod
from pathlib import Path

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import LimitExceeded
from headrace_proto.schema import OFFSETS, Field

from ..files.durable_file import FULL, opened, room
from .arena import PAGE, Arena, Block

logger = logging.getLogger("headrace.worker")

#: Maximum length of a slab's file, in ``slab_bytes``.
_LENGTH = 8
#: Bytes that a slab takes from the system at once.
_STEP = 16 * 1024**2
#: Fraction of the slab in use above which it lends no block, since it would soon take it back …
_LENDING_ENDS = 0.5
#: … and above which trainers copy batches out instead of holding them.
_CROWDED = 0.5


def least_bytes(schema: Mapping[str, Field]) -> int:
    """Return bytes of a row of these columns, without strings and lengths that vary."""
    return sum(
        numpy_dtype(field.dtype).itemsize * prod(n or 0 for n in field.shape[1:])
        for name, field in schema.items()
        if field.dtype != BYTES and OFFSETS + name not in schema
    )


class Slab:
    """The slab of one life of a worker, in a directory."""

    def __init__(
        self, directory: Path, worker: int, life: int, slab_bytes: int, step_bytes: int = _STEP
    ) -> None:
        """``step_bytes``: by how much it grows at least, within ``slab_bytes``."""
        name = f"slab-{worker}-{life}"
        self.name = name.encode()  # as messages have it
        self._path = directory / name
        #: Maximum bytes of a block, and of all together but those that are needed first.
        self.budget_bytes = slab_bytes // PAGE * PAGE
        self._step_bytes = _whole_pages(step_bytes)
        self._arena = Arena()
        self._lock = threading.Lock()  # of the arena
        self._memory: np.ndarray | None = None
        self._lent: dict[int, Block] = {}  # by id: an equal block may be lent again later
        self._lent_bytes = 0
        #: By id, the last one freed at the end: blocks that are free, though the arena does not
        #: know it.
        self._spare: dict[int, Block] = {}
        self.used_bytes = 0  # of all blocks that are neither lent nor spare
        self._largest = 0  # bytes of the largest block so far
        self._short = False  # whether the file system had no room for more
        self._logged_full = self._logged_beyond = False

    @property
    def crowded(self) -> bool:
        """Whether trainers must copy batches, since there could be no room for the next one."""
        if self._short or self.used_bytes > _CROWDED * self.budget_bytes:
            return True
        largest, budget, lacks = self._largest, self.budget_bytes, self._arena.lacks
        if budget - self._arena.size >= largest:
            return False
        with self._lock:
            if lacks(largest, budget) is not None:
                return False
            self._free_spare()
            return lacks(largest, budget) is None

    def allocate(self, nbytes: int, beyond: bool = False) -> Block | None:
        """Return a block, or None if there is no room until others are freed.

        ``beyond``: no other is freed before this one is there, so it may lie beyond the budget.

        LimitExceeded if it can never fit, if others that are needed first fill the room for such,
        or if the machine has no more shared memory and no block is in use that could be freed.
        """
        with self._lock:
            if (spare := self._fitting_spare(nbytes)) is not None:
                self.used_bytes += spare.nbytes
                return spare
        size = _whole_pages(nbytes)
        if size > self.budget_bytes:
            raise LimitExceeded(
                f"a block of {nbytes} bytes does not fit into a slab of {self.budget_bytes} bytes; "
                f"raise slab_bytes to {size} or more, or make batches smaller"
            )
        self._largest = max(self._largest, size)
        block = self._allocated(size, self.budget_bytes)
        if block is None and self._lent:
            for lent in list(self._lent.values()):
                self.give_back(lent)
            block = self._allocated(size, self.budget_bytes)
        return self._allocated_beyond(size) if block is None and beyond else block

    def _allocated(self, size: int, limit: int) -> Block | None:
        with self._lock:
            self._free_spare()
            lacking, rest = self._arena.lacks(size, limit), self.budget_bytes - self._arena.size
            if lacking is None:
                return None
            if not self._grows(lacking, max(lacking, min(self._step_bytes, rest))):
                return None
            if (block := self._arena.allocate(size, limit)) is not None:
                self.used_bytes += size
            return block

    def _allocated_beyond(self, size: int) -> Block | None:
        """Return a block that may lie beyond the budget; None where the system has no room."""
        in_use, enough = self._arena.used_bytes, self._arena.used_bytes + size
        block = self._allocated(size, _LENGTH * self.budget_bytes)
        if block is None and not self._short:
            raise LimitExceeded(
                f"a slab of {self.budget_bytes} bytes is too small for so many trainers: they hold "
                f"{in_use} bytes, and one needs a batch of {size} bytes before it can free "
                f"another; set slab_bytes to {enough} or more, or make batches smaller"
            )
        if block is not None and not self._logged_beyond:
            self._logged_beyond = True
            logger.warning(
                "a batch of %d bytes is written beyond the slab of %d bytes, since trainers "
                "need it before they can free another; set slab_bytes to %d or more",
                size, self.budget_bytes, enough,
            )  # fmt: skip
        return block

    def _grows(self, lacking: int, step: int) -> bool:
        """Take ``step`` more bytes from the system if some are lacking; return whether it did."""
        if not lacking:
            return True
        try:
            if self._memory is None:
                self._create()
            self._take(self._arena.size, step)
            self._short = False
        except OSError as error:
            if not self._arena.size:
                self._remove()
            if error.errno not in FULL:
                raise
            if lacking < step:
                return self._grows(lacking, lacking)
            self._short = True
            self._complain(lacking)
            return False
        self._arena.grow(step)
        return True

    def _complain(self, lacking: int) -> None:
        """Log that the system has no room; raise LimitExceeded where no block could be freed."""
        remedy = f"no room for {lacking} more bytes in {self._path.parent}: " + room(
            self._path.parent,
            "make it larger (in a container: --shm-size), or set slab_bytes lower",
        )
        if not self._arena.used_bytes:
            raise LimitExceeded(remedy) from None
        if not self._logged_full:
            self._logged_full = True
            logger.warning("%s. Until then work waits for blocks that are freed", remedy)

    def lend(self, nbytes: int) -> Block | None:
        """Return a block that the slab takes back if it needs the room; None if little is free."""
        if self.used_bytes + self._lent_bytes > _LENDING_ENDS * self.budget_bytes:
            return None
        with self._lock:
            block = self._fitting_spare(nbytes)
            if block is None:
                self._free_spare()
                block = self._arena.allocate(_whole_pages(nbytes), self.budget_bytes)
        if block is not None:
            self._lent[id(block)] = block
            self._lent_bytes += block.nbytes
        return block

    def lends(self, block: Block) -> bool:
        """Return whether a block is lent and was not taken back."""
        return id(block) in self._lent

    def use(self, block: Block) -> bool:
        """Put a lent block to use for good; False if it was taken back."""
        if self._lent.pop(id(block), None) is None:
            return False
        self._lent_bytes -= block.nbytes
        with self._lock:
            self.used_bytes += block.nbytes
        return True

    def give_back(self, block: Block) -> None:
        """Return a lent block."""
        if self.use(block):
            self.free(block)

    def memory(self, block: Block) -> np.ndarray:
        """Return the memory of a block, writable."""
        assert self._memory is not None  # once there is a block
        return self._memory[block.offset : block.offset + block.nbytes]

    def free(self, block: Block) -> None:
        with self._lock:
            if id(block) in self._spare:
                raise ValueError(f"{block} is freed twice")
            self._spare[id(block)] = block
            self.used_bytes -= block.nbytes

    def _fitting_spare(self, nbytes: int) -> Block | None:
        """Return the block that was freed last, if it has the pages for so many bytes."""
        if self._spare:
            number, spare = self._spare.popitem()
            nearly = spare.nbytes - PAGE < nbytes <= spare.nbytes
            if nearly and spare.offset + nbytes <= self.budget_bytes:
                return spare
            self._spare[number] = spare
        return None

    def _free_spare(self) -> None:
        """Have the arena know which blocks are free, and give up pages beyond the budget."""
        while self._spare:
            self._arena.free(self._spare.popitem()[1])
        if self._arena.shrink(self.budget_bytes):
            os.truncate(self._path, self._arena.size)

    # The file

    def _create(self) -> None:
        """Make the file, which has no pages yet, and map it as long as it may become."""
        most = _LENGTH * self.budget_bytes
        with opened(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR) as fd:
            os.ftruncate(fd, most)
            self._memory = np.frombuffer(mmap.mmap(fd, most), np.uint8)
            os.ftruncate(fd, self.budget_bytes)

    def _take(self, offset: int, nbytes: int) -> None:
        """Have the system give the file these pages."""
        with opened(self._path, os.O_RDWR) as fd:
            os.posix_fallocate(fd, offset, nbytes)

    def _remove(self) -> None:
        self._memory = None
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()


def _whole_pages(nbytes: int) -> int:
    return max(1, -(-nbytes // PAGE)) * PAGE
