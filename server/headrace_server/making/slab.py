"""A worker's slab: shared memory in which batches are assembled.

    slab-W-L-0    a file as long as the slab may be, of which the first pages are taken
    slab-W-L-n    one block beyond that, and gone once it is free

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
from functools import lru_cache
from math import prod
from pathlib import Path

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import LimitExceeded
from headrace_proto.schema import OFFSETS, Field

from ..files.durable_file import FULL, opened, room
from .arena import PAGE, Arena, Block

logger = logging.getLogger("headrace.worker")

#: Bytes that a slab takes from the system at once.
_STEP = 16 * 1024**2
#: Fraction of the slab in use above which it lends no block, since it would soon take it back …
_LENDING_ENDS = 0.5
#: … and above which trainers copy batches out instead of holding them.
_CROWDED = 0.5


@lru_cache(maxsize=1024)
def segment_name(worker: int, life: int, number: int) -> str:
    return f"slab-{worker}-{life}-{number}"


def map_segment(path: Path) -> np.ndarray:
    """Return an existing segment, read-only, as uint8."""
    with opened(path) as fd:
        return np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), np.uint8)


def least_bytes(schema: Mapping[str, Field]) -> int:
    """Return bytes of a row of these columns, without strings and lengths that vary."""
    return sum(
        numpy_dtype(field.dtype).itemsize * prod(n or 0 for n in field.shape[1:])
        for name, field in schema.items()
        if field.dtype != BYTES and OFFSETS + name not in schema
    )


class Slab:
    """The segments of one life of a worker, in a directory."""

    def __init__(
        self, directory: Path, worker: int, life: int, slab_bytes: int, step_bytes: int = _STEP
    ) -> None:
        """``step_bytes``: by how much it grows at least, within ``slab_bytes``."""
        self._directory = directory
        self._worker = worker
        self._life = life
        #: Maximum bytes of all blocks together, and so of one.
        self.budget_bytes = slab_bytes // PAGE * PAGE
        self._step_bytes = _whole_pages(step_bytes)
        self._arena = Arena()
        self._lock = threading.Lock()  # of the arena
        self._memory: dict[int, np.ndarray] = {}  # by segment
        self._last_segment = 0
        self._beyond_bytes = 0  # of blocks beyond the slab
        self._lent: dict[int, Block] = {}  # by id: an equal block may be lent again later
        self._lent_bytes = 0
        #: By id, the last one freed at the end: blocks that are free, though the arena does not
        #: know it.
        self._spare: dict[int, Block] = {}
        self.used_bytes = 0  # of all blocks that are neither lent nor spare
        self._largest = 0  # bytes of the largest block so far
        self._short = False  # whether the file system had no room for more
        self._logged_full = self._logged_beyond = False
        self.removed: list[str] = []  # names of segments that others may unmap
        #: Returns the name of a segment, as messages have it.
        self.name_in_messages = lru_cache(1024)(self._encoded_name)

    @property
    def crowded(self) -> bool:
        """Whether trainers must copy batches, since there could be no room for the next one."""
        if self._short or self.used_bytes > _CROWDED * self.budget_bytes:
            return True
        rest = self.budget_bytes - self._arena.size
        if rest >= self._largest:
            return False
        with self._lock:
            if self._arena.lacks(self._largest) <= rest:
                return False
            self._free_spare()
            return self._arena.lacks(self._largest) > rest

    def allocate(self, nbytes: int, beyond: bool = False) -> Block | None:
        """Return a block, or None if there is no room until others are freed.

        ``beyond``: no other is freed before this one is there, so it may exceed the budget.

        LimitExceeded if it can never fit, or if the machine has no more shared memory and no
        block is in use that could be freed.
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
        block = self._allocated(size)
        if block is None and self._lent:
            for lent in list(self._lent.values()):
                self.give_back(lent)
            block = self._allocated(size)
        return self._block_beyond(size) if block is None and beyond else block

    def _allocated(self, size: int) -> Block | None:
        with self._lock:
            self._free_spare()
            lacking, rest = self._arena.lacks(size), self.budget_bytes - self._arena.size
            if lacking <= rest and self._grows(lacking, min(max(lacking, self._step_bytes), rest)):
                if (block := self._arena.allocate(size)) is not None:
                    self.used_bytes += size
                return block
        return None

    def _grows(self, lacking: int, step: int) -> bool:
        """Take ``step`` more bytes from the system if some are lacking; return whether it did."""
        if not lacking:
            return True
        try:
            if not self._memory:
                self._create(0, self.budget_bytes)
            self._take(0, self._arena.size, step)
            self._short = False
        except OSError as error:
            if not self._arena.size:
                self._remove(0)
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
        remedy = f"no room for {lacking} more bytes in {self._directory}: " + room(
            self._directory,
            "make it larger (in a container: --shm-size), or set slab_bytes lower",
        )
        if not self._arena.used_bytes:
            raise LimitExceeded(remedy) from None
        if not self._logged_full:
            self._logged_full = True
            logger.warning("%s. Until then work waits for blocks that are freed", remedy)

    def _block_beyond(self, size: int) -> Block | None:
        """Return a block that has a segment of its own; None where the system has no room."""
        number = self._last_segment + 1
        try:
            self._create(number, size)
            self._take(number, 0, size)
        except OSError as error:
            self._remove(number)
            if error.errno not in FULL:
                raise
            return None
        self._last_segment = number
        self._beyond_bytes += size
        with self._lock:
            self.used_bytes += size
        if not self._logged_beyond:
            self._logged_beyond = True
            logger.warning(
                "a batch of %d bytes is written beyond the slab of %d bytes, since trainers "
                "need it before they can free another; set slab_bytes to %d or more",
                size, self.budget_bytes, self._arena.used_bytes + self._beyond_bytes,
            )  # fmt: skip
        return Block(number, 0, size)

    def lend(self, nbytes: int) -> Block | None:
        """Return a block that the slab takes back if it needs the room; None if little is free."""
        if self.used_bytes + self._lent_bytes > _LENDING_ENDS * self.budget_bytes:
            return None
        with self._lock:
            block = self._fitting_spare(nbytes)
            if block is None:
                self._free_spare()
                block = self._arena.allocate(_whole_pages(nbytes))
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
        return self._memory[block.segment][block.offset : block.offset + block.nbytes]

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
            if spare.nbytes - PAGE < nbytes <= spare.nbytes:
                return spare
            self._spare[number] = spare
        return None

    def _free_spare(self) -> None:
        """Have the arena know which blocks are free, and remove those beyond it."""
        while self._spare:
            block = self._spare.popitem()[1]
            if block.segment:
                self._beyond_bytes -= block.nbytes
                self._remove(block.segment)
                self.removed.append(segment_name(self._worker, self._life, block.segment))
            else:
                self._arena.free(block)

    # Files

    def _encoded_name(self, number: int) -> bytes:
        return segment_name(self._worker, self._life, number).encode()

    def _path(self, number: int) -> Path:
        return self._directory / segment_name(self._worker, self._life, number)

    def _create(self, number: int, size: int) -> None:
        """Make and map the file of a segment, which has no pages yet."""
        with opened(self._path(number), os.O_CREAT | os.O_EXCL | os.O_RDWR) as fd:
            os.ftruncate(fd, size)
            self._memory[number] = np.frombuffer(mmap.mmap(fd, size), np.uint8)

    def _take(self, number: int, offset: int, nbytes: int) -> None:
        """Have the system give the file these pages."""
        with opened(self._path(number), os.O_RDWR) as fd:
            os.posix_fallocate(fd, offset, nbytes)

    def _remove(self, number: int) -> None:
        self._memory.pop(number, None)
        with contextlib.suppress(FileNotFoundError):
            self._path(number).unlink()


def _whole_pages(nbytes: int) -> int:
    return max(1, -(-nbytes // PAGE)) * PAGE
