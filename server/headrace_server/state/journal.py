"""A ring file of records in two halves: no commit makes it longer.

    half 0   [ table, table, …, END ] [ commit ] [ commit ] … | rest of an earlier lap
    half 1   zeros, or an earlier lap; a copy has none, and gets a new file with its next lap

A *lap* begins with a table of the live state and goes on with commits.  When a half is full the
next lap begins in the other one; the earlier lap stays whole until the END of the new table is on
the disk, so at any moment one half holds the whole state.  Both halves were written once before
they are used: an overwrite changes no size, so syncing it needs no second write for the file
system.

Each record names its lap, its place, the opening of the file that wrote it, and the checksum of the
record before it.  So a record of an earlier lap or an earlier opening is never taken for one of
this lap.  With ``durable`` one write is on the disk before the next begins: a crash can tear the
last record only, and a record that is not sound though a later one was begun is damage.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..files.durable_file import FULL, sync_directory
from .journal_file import (
    COMMIT,
    END,
    FILE,
    FILE_MAGIC,
    HEAD,
    MAGIC,
    MARK,
    MARK_AT,
    MARK_MAGIC,
    OPENED,
    RECORD,
    START,
    SUM,
    TABLE,
    VERSION,
    FoundRecord,
    JournalDamaged,
    crc32c,
    look_through,
    padded,
    record_bytes,
    sound,
)

__all__ = ["FoundRecord", "Journal", "JournalDamaged", "Lap", "NoRoom", "create", "record_bytes"]

#: First size of a half, and the size that it grows to; only a larger table needs more.
_LEAST_HALF, _USUAL_HALF = 1 << 20, 32 << 20
#: Number of tables that fit a half: the more, the less is written beside commits.
_TABLES = 4
#: A table beyond this size fits twice only: a new file, which a start has to write and to read
#: whole, is a multiple of it.
_LARGE_TABLE, _TABLES_IF_LARGE = 256 << 20, 2
#: In shared memory room is scarce, and a lap costs no write to a disk: a half begins small, and
#: grows while fewer tables with a commit than this fit it.  For 0.6 ms a lap takes the interpreter
#: from the steps of trainers: where commits carry states of 64 KiB, once in 120 of them.
_LEAST_HALF_IN_MEMORY, _USUAL_HALF_IN_MEMORY, _TABLES_IN_MEMORY = 64 << 10, 16 << 20, 2
_GROWS_BELOW = 48
_ZEROS = bytes(1 << 20)
_MOST_PARTS = 1024  # maximum number of buffers of one write: IOV_MAX
_NEW = ".new"


class NoRoom(Exception):
    """The half is full, so the next lap has to begin."""


class Lap:
    """One lap as it is written: the table that it begins with, and then commits."""

    def __init__(self, fd: int, number: int, start: int, half: int) -> None:
        self._fd = fd
        self.number, self.opening = number, 0
        self.start, self.stop = start, start + half
        self.at, self.last = start, 0  # the place of the next record, the checksum of the last one

    def write(self, parts: Sequence[Any], kind: int = TABLE) -> int:
        """Write one record; return the place of its payload.  NoRoom where it does not fit."""
        nbytes = sum(map(len, parts))
        place, end = self.at, self.at + record_bytes(nbytes)
        if end > self.stop:
            raise NoRoom(f"a record would end at byte {end}, and the half at {self.stop}")
        head = RECORD.pack(MAGIC, kind, self.number, place, nbytes, self.opening, self.last)
        crc = crc32c.value(head)
        for part in parts:
            crc = crc32c.extend(crc, part)
        whole = (head + SUM.pack(crc)).ljust(HEAD, b"\0")
        _write_all(self._fd, place, [whole, *parts, bytes(padded(nbytes) - nbytes)])
        self.at, self.last = end, int(crc)
        return place + HEAD

    def end_table(self) -> None:
        """Complete the table; it is on the disk when this returns."""
        os.fdatasync(self._fd)
        place = self.write((), END) - HEAD
        try:
            os.fdatasync(self._fd)
        except OSError:
            # The next attempt overwrites this table, and an END alone would be taken for damage.
            with contextlib.suppress(OSError):
                _write_all(self._fd, place, [bytes(HEAD)])
            raise

    def go_on(self, fd: int, opening: int) -> None:
        """Write commits by this descriptor from now on."""
        self._fd, self.opening = fd, opening


class Journal:
    """A journal that is open for writing.  One thread uses it."""

    def __init__(self, path: Path, durable: bool, in_memory: bool = False) -> None:
        """Open a journal that ``create`` made; JournalDamaged where it can not be trusted."""
        self._path = path
        self._durable = durable
        self._in_memory = in_memory
        self._usual_half = _USUAL_HALF_IN_MEMORY if in_memory else _USUAL_HALF
        self._tables = _TABLES_IN_MEMORY if in_memory else _TABLES
        self._half, walk, self._laps = look_through(path, durable)
        #: The table and the commits of the valid lap, in their order.
        self.records = [r for r in walk.records if r.kind in (TABLE, COMMIT)]
        self._fd, self._synced = _opened(path, durable)
        self._lap = Lap(self._fd, walk.lap, walk.start, self._half)
        self._lap.at, self._lap.last = walk.end, walk.last
        self._lap.go_on(self._synced, walk.opening + 1)
        self._copy = os.fstat(self._fd).st_size == START + self._half
        self._renamed = False  # whether the new file's name is not yet on the disk
        try:
            self._mark(bytes(MARK.size + SUM.size))
            with contextlib.suppress(NoRoom):  # then the next lap begins before the next commit
                self._lap.write((), OPENED)
        except BaseException:
            self._drop()
            raise

    def read(self, place: int, nbytes: int) -> memoryview:
        """Return a payload of the valid lap; ValueError where its checksum fails."""
        whole = os.pread(self._fd, HEAD + nbytes, place - HEAD)
        found = sound(whole, 0, len(whole), place - HEAD)
        if found is None or (found.lap, found.nbytes) != (self._lap.number, nbytes):
            raise ValueError(f"the record at byte {place - HEAD} fails its checksum")
        return memoryview(whole)[HEAD:]

    def views(self) -> Callable[[int, int], memoryview]:
        """Return a function that reads payloads as parts of the mapped file, without a copy.

        It checks no checksum: call it for the records found when the file was opened.
        """
        data = memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
        return lambda place, nbytes: data[place : place + nbytes]

    def append(self, parts: Sequence[Any]) -> int:
        """Write a commit; return the place of its payload.  NoRoom where a lap has to begin first.

        With ``durable`` it is on the disk.  After an OSError the caller may write it again.
        """
        if self._renamed:
            sync_directory(self._path.parent)
            self._renamed = False
        return self._lap.write(parts, COMMIT)

    @contextlib.contextmanager
    def turn(self, table_bytes: int, next_bytes: int) -> Iterator[Lap]:
        """Begin the next lap; it becomes valid when the block, which writes the table, ends well.

        It has room for a table of ``table_bytes``, with records' headers, and for the next commit.
        """
        self._laps += 1
        needed = table_bytes + padded(next_bytes) + 4 * HEAD
        half = self._half
        if not self._in_memory or half < _GROWS_BELOW * (table_bytes + next_bytes):
            half = min(self._usual_half, 4 * half)
        half = max(self._half_for(table_bytes), half)
        while half < needed:
            half *= 2
        new = self._path.with_name(self._path.name + _NEW)
        fd = -1
        if half > self._half or self._copy:
            try:
                fd = _new_file(new, half, 2)
            except OSError:
                if needed > self._half or self._copy:  # else the present halves still fit
                    raise
        if fd >= 0:
            try:
                lap = Lap(fd, self._laps, START, half)
                yield lap
                lap.end_table()
                opened = _opened(new, self._durable)
                try:
                    os.replace(new, self._path)
                except BaseException:
                    _close(*opened)
                    raise
            finally:
                os.close(fd)
                new.unlink(missing_ok=True)
            self._drop()
            self._fd, self._synced = opened
            self._renamed = True  # from here on nothing fails: the other file is gone
            self._half, self._copy = half, False
        else:
            start = START + self._half * (self._lap.start == START)
            lap = Lap(self._fd, self._laps, start, self._half)
            yield lap
            lap.end_table()
        lap.go_on(self._synced, 1)
        self._lap = lap

    def close(self) -> None:
        """Close the file, and mark its end.

        With the mark, damage to the last commit can not pass for a commit that a crash cut short.
        """
        if self._fd >= 0:
            mark = MARK.pack(MARK_MAGIC, self._lap.number, self._lap.at, self._lap.last)
            with contextlib.suppress(OSError):
                if not self._durable:  # else the mark could outlive the marked data
                    os.fdatasync(self._fd)
                self._mark(mark + SUM.pack(crc32c.value(mark)))
        self._drop()

    def _half_for(self, table_bytes: int) -> int:
        """Return the bytes of a half for such a table: a multiple of a page."""
        tables = self._tables if table_bytes <= _LARGE_TABLE else _TABLES_IF_LARGE
        return -(-tables * table_bytes // START) * START

    def _mark(self, mark: bytes) -> None:
        _write_all(self._synced, MARK_AT, [mark])

    def _drop(self) -> None:
        if self._fd >= 0:
            _close(self._fd, self._synced)
        self._fd = self._synced = -1


def create(
    path: Path, table: Iterable[Sequence[Any]], table_bytes: int = 0, in_memory: bool = False
) -> None:
    """Make a journal that holds a table, whole and on the disk, or not at all.

    With ``table_bytes`` it is a copy, which has room for the table alone.
    """
    new = path.with_name(path.name + _NEW)
    half = _LEAST_HALF_IN_MEMORY if in_memory else _LEAST_HALF
    if table_bytes:
        half = -(-(table_bytes + record_bytes(0)) // START) * START
    fd = _new_file(new, half, 1 if table_bytes else 2)
    try:
        lap = Lap(fd, 1, START, half)
        for parts in table:
            lap.write(parts)
        lap.end_table()
        os.replace(new, path)
        sync_directory(path.parent)
    finally:
        os.close(fd)
        new.unlink(missing_ok=True)


def _opened(path: Path, durable: bool) -> tuple[int, int]:
    """Open one file twice: a durable write by the second descriptor returns when it is on disk."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    if not durable:
        return fd, fd
    try:
        return fd, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_DSYNC)
    except BaseException:
        os.close(fd)
        raise


def _close(*fds: int) -> None:
    for fd in {*fds}:
        os.close(fd)


def _new_file(path: Path, half: int, halves: int) -> int:
    """Create a file of halves of zeros, on the disk; return its descriptor."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    size = START + halves * half
    try:
        head = FILE.pack(FILE_MAGIC, VERSION, half, halves)
        _write_all(fd, 0, [head, SUM.pack(crc32c.value(head))])
        for place in range(START, size, len(_ZEROS)):
            _write_all(fd, place, [_ZEROS[: size - place]])
        os.fsync(fd)
    except BaseException as error:
        os.close(fd)
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL:  # what is free may look like enough
            fault = f"{error.strerror} for a new file of {size} bytes"
            raise OSError(error.errno, fault) from error
        raise
    return fd


def _write_all(fd: int, place: int, parts: list[Any]) -> None:
    left = sum(map(len, parts))
    while left:
        written = os.pwritev(fd, parts[:_MOST_PARTS], place)
        place += written
        left -= written
        while left and written >= len(parts[0]):
            written -= len(parts[0])
            parts = parts[1:]
        if left:
            parts = [parts[0][written:], *parts[1:]]
