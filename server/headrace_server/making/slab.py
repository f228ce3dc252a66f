"""A worker's slab: segments of shared memory in which batches are assembled.

The arena decides where a block lies; the slab creates, maps and removes the segments.  It allocates
all pages of a segment at once, so a full /dev/shm is an error before anything is written, and not
a SIGBUS later.  A segment that could not be created is tried again when a block needs it.

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

#: Fraction of the slab in use above which it lends no block, since it would soon take it back …
_LENDING_ENDS = 0.5
#: … and above which trainers copy batches out instead of holding them.
_CROWDED = 0.5


@lru_cache(maxsize=1024)
def segment_name(worker: int, life: int, number: int) -> str:
    return f"slab-{worker}-{life}-{number}"


@lru_cache(maxsize=1024)
def _name_in_messages(worker: int, life: int, number: int) -> bytes:
    return segment_name(worker, life, number).encode()


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
    """Segments in a directory, named by the worker and its life."""

    def __init__(
        self, directory: Path, worker: int, life: int, slab_bytes: int, segment_bytes: int
    ) -> None:
        self._directory = directory
        self._worker = worker
        self._life = life
        self._arena = Arena(slab_bytes, segment_bytes)
        self._lock = threading.Lock()  # of the arena
        self._memory: dict[int, np.ndarray] = {}
        self._lent: dict[int, Block] = {}  # by id: an equal block may be lent again later
        self._lent_bytes = 0
        #: By id, the last one freed at the end: blocks that are free, though the arena does not
        #: know it; and their bytes.
        self._spare: dict[int, Block] = {}
        self._spare_bytes = 0
        self._largest = 0  # bytes of the largest block so far
        self._short = False  # whether the file system had no room for a new segment
        self._logged_full = self._logged_beyond = False
        self.removed: list[str] = []  # names of segments that others may unmap

    @property
    def crowded(self) -> bool:
        """Whether trainers must copy batches, since there could be no room for the next one."""
        if self._short or self.used_bytes > _CROWDED * self.budget_bytes:
            return True
        if self._arena.budget_bytes - self._arena.reserved_bytes >= self._largest + PAGE:
            return False
        with self._lock:
            if self._arena.admits(self._largest):
                return False
            self._free_spare()
            return not self._arena.admits(self._largest)

    @property
    def budget_bytes(self) -> int:
        """Maximum bytes of all blocks together, and so of one."""
        return self._arena.budget_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of all blocks that are not lent."""
        return self._arena.used_bytes - self._lent_bytes - self._spare_bytes

    def name_in_messages(self, block: Block) -> bytes:
        """Return the name of a block's segment, as messages have it."""
        return _name_in_messages(self._worker, self._life, block.segment)

    def allocate(self, nbytes: int, beyond: bool = False) -> Block | None:
        """Return a block, or None if there is no room until others are freed.

        ``beyond``: no other is freed before this one is there, so it may exceed the budget.

        LimitExceeded if it can never fit, or if the machine has no more shared memory and no
        block is in use that could be freed.
        """
        with self._lock:
            if self._spare:
                number, spare = self._spare.popitem()
                if spare.nbytes - PAGE < nbytes <= spare.nbytes:
                    self._spare_bytes -= spare.nbytes
                    return spare
                self._spare[number] = spare
        block = self._allocated(nbytes)
        if block is None and self._lent:
            for lent in list(self._lent.values()):
                self.give_back(lent)
            block = self._allocated(nbytes)
        if block is None and beyond:
            block = self._allocated(nbytes, beyond)
            if block is not None and not self._logged_beyond:
                self._logged_beyond = True
                logger.warning(
                    "a batch of %d bytes is written beyond the slab of %d bytes, since trainers "
                    "need it before they can free another; set slab_bytes to %d or more",
                    nbytes, self.budget_bytes, self._arena.used_bytes,
                )  # fmt: skip
        return block

    def lend(self, nbytes: int) -> Block | None:
        """Return a block that the slab takes back if it needs the room; None if little is free."""
        if self.used_bytes + self._lent_bytes > _LENDING_ENDS * self.budget_bytes:
            return None
        with self._lock:
            self._free_spare()
            block = self._arena.allocate(nbytes, grow=False)
        if block is None:
            return None
        self._lent[id(block)] = block
        self._lent_bytes += block.nbytes
        if block.segment not in self._memory:
            self.give_back(block)
            return None
        return block

    def lends(self, block: Block) -> bool:
        """Return whether a block is lent and was not taken back."""
        return id(block) in self._lent

    def use(self, block: Block) -> bool:
        """Put a lent block to use for good; False if it was taken back."""
        if self._lent.pop(id(block), None) is None:
            return False
        self._lent_bytes -= block.nbytes
        return True

    def give_back(self, block: Block) -> None:
        """Return a lent block."""
        if self.use(block):
            self.free(block)

    def _allocated(self, nbytes: int, beyond: bool = False) -> Block | None:
        with self._lock:
            self._free_spare()
            block = self._arena.allocate(nbytes, beyond=beyond)
        while self._arena.retired:
            self._remove(self._arena.retired.pop(0))
        self._largest = max(self._largest, nbytes)
        if block is None or block.segment in self._memory:
            return block
        size = self._arena.size_of(block.segment)
        try:
            self._create(block.segment, size)
            self._short = False
        except OSError as error:
            self._arena.free(block)
            if error.errno not in FULL:
                raise
            self._short = True
            remedy = f"no room for a segment of {size} bytes in {self._directory}: " + room(
                self._directory,
                "make it larger (in a container: --shm-size), or set slab_bytes lower",
            )
            if not self._arena.used_bytes:
                raise LimitExceeded(remedy) from None
            if not self._logged_full:
                self._logged_full = True
                logger.warning("%s. Until then work waits for blocks that are freed", remedy)
            return None
        return block

    def memory(self, block: Block) -> np.ndarray:
        """Return the memory of a block, writable."""
        return self._memory[block.segment][block.offset : block.offset + block.nbytes]

    def free(self, block: Block) -> None:
        with self._lock:
            if id(block) in self._spare:
                raise ValueError(f"{block} is freed twice")
            self._spare[id(block)] = block
            self._spare_bytes += block.nbytes

    def _free_spare(self) -> None:
        """Have the arena know which blocks are free."""
        while self._spare:
            self._arena.free(self._spare.popitem()[1])
        self._spare_bytes = 0

    def _create(self, number: int, size: int) -> None:
        path = self._directory / segment_name(self._worker, self._life, number)
        with opened(path, os.O_CREAT | os.O_EXCL | os.O_RDWR) as fd:
            try:
                os.posix_fallocate(fd, 0, size)
                self._memory[number] = np.frombuffer(mmap.mmap(fd, size), np.uint8)
            except OSError:
                path.unlink()
                raise

    def _remove(self, number: int) -> None:
        if self._memory.pop(number, None) is None:  # it could not be created
            return
        self.removed.append(segment_name(self._worker, self._life, number))
        with contextlib.suppress(FileNotFoundError):
            (self._directory / segment_name(self._worker, self._life, number)).unlink()
