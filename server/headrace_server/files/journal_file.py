"""The file of a journal: records are appended to it, and when it is full a new one replaces it.

    file    [ header ┄ mark ] [ record ] [ record ] …  zeros, or the rest of an earlier file
                              └─ live table ─┘└ commits
    header  magic, version, number of the file, its bytes, end of its table, its owner; checksum
    record  magic, number of the file, place, bytes, checksums of the payload and of the header
            before it; checksum of all that; payload

A file is whole before it has its name: it has its live table, and all its room.  So no commit makes
it longer, and syncing a commit needs no second write for the file system.  The file that it
replaces becomes the room of the next one, since writing zeros would cost as much as the commits do.

Each record names the number of its file, which is drawn, its place, and the checksum of the header
before it.  So no other bytes are taken for a record of this file.  The owner is the partition whose
journal it is, as text: under the name of another one the file is refused.

With ``durable`` one write is on the disk before the next begins: a crash can tear the last record
only, and a record that is not sound though a later one was begun is damage.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .durable_file import FULL, opened_within, sync_directory
from .extras import require

crc32c = require("google_crc32c", "server", "a server")

#: Suffixes of a file that is being written, and of one whose room the next file takes.
NEW, SPARE = ".new", ".spare"
START = 4096  # place of the first record: after a page
HEAD = 64  # bytes of a record's header, and the alignment of records
VERSION = 6
#: At the start of the file: magic, version, number, bytes of the file, end of its table, owner.
_FILE, _FILE_MAGIC = struct.Struct("<8sQQQQ160s"), b"HRJOURNL"
#: Where the file was closed: magic, number, end and checksum of its last record.
MARK, _MARK_MAGIC = struct.Struct("<8sQQI"), b"HRCLOSED"
MARK_AT = 1024  # away from the file's header, in the same page
_RECORD, _MAGIC = struct.Struct("<4s4xQQQII"), b"HRJR"
_NUMBERED = 16  # bytes of a header with magic and number
_SUM = struct.Struct("<I")  # crc32c of the bytes before it: it follows each of the three
_ZEROS = bytes(1 << 20)
_MOST_PARTS = 1024  # maximum number of buffers of one write: IOV_MAX

Data = mmap.mmap | bytes
#: A buffer of bytes, of which a record is written.
Buffer = bytes | memoryview | np.ndarray


class NoRoom(Exception):
    """The file is full, so the next one has to begin."""


@dataclass(frozen=True, slots=True)
class Record:
    """A record of a file: where its payload lies, and the checksums."""

    place: int
    nbytes: int
    payload: int  # checksum of that
    before: int  # checksum of the header before it
    crc: int  # of its header


class JournalFile:
    """A file that is open for writing.  One thread uses it."""

    def __init__(self, path: Path, fd: int, owner: str) -> None:
        self.path, self._fd, self._owner = path, fd, owner
        self._number = secrets.randbits(63)  # no other bytes of the disk have it
        self.at, self._last = START, 0  # place of the next record, checksum of the last one
        self.size = sys.maxsize  # only the disk bounds a table
        self._synced = True  # whether its name is on the disk

    @classmethod
    @contextlib.contextmanager
    def new(cls, path: Path, owner: str = "") -> Iterator[JournalFile]:
        """Begin the file that is to be at ``path``: the block writes its table and publishes it."""
        new, spare = _beside(path, NEW), _beside(path, SPARE)
        with contextlib.suppress(FileNotFoundError):
            if not os.path.samefile(spare, path):  # else a crash came amid ``publish``
                os.rename(spare, new)
        file = cls(path, opened_within(new, os.O_RDWR | os.O_CREAT), owner)
        try:
            yield file
        except BaseException:
            file.close()
            raise
        finally:
            new.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path, durable: bool, owner: str = "") -> tuple[JournalFile, list[Record]]:
        """Open a file, and return its records; ValueError where it can not be trusted."""
        _beside(path, NEW).unlink(missing_ok=True)  # of an earlier life
        file = cls(path, _opened(path, durable), owner)
        try:
            return file, file._scan(durable)
        except BaseException:
            file.close()
            raise

    def write(self, parts: Sequence[Buffer]) -> int:
        """Write a record; return the place of its payload.  NoRoom where it does not fit.

        With ``durable`` it is on the disk.  After an OSError the caller may write it again.
        """
        self.sync_name()
        nbytes = sum(map(len, parts))
        place, end = self.at, self.at + record_bytes(nbytes)
        if end > self.size:
            raise NoRoom(f"a record would end at byte {end} of {self.size}")
        crc = 0
        for part in parts:
            crc = crc32c.extend(crc, np.asarray(part) if isinstance(part, memoryview) else part)
        head = _RECORD.pack(_MAGIC, self._number, place, nbytes, crc, self._last)
        crc = crc32c.value(head)
        whole = (head + _SUM.pack(crc)).ljust(HEAD, b"\0")
        _write_all(self._fd, place, [whole, *parts, bytes(end - place - HEAD - nbytes)])
        self.at, self._last = end, crc
        return place + HEAD

    def publish(self, size: int, least: int, durable: bool) -> None:
        """Give the file its room and its name; an OSError means that it has none.

        It gets ``size`` bytes, or on a full disk what there is, if that is ``least`` or more.
        """
        self._allocate(size, least, durable)
        size = os.fstat(self._fd).st_size
        owner = self._owner.encode()
        head = _FILE.pack(_FILE_MAGIC, VERSION, self._number, size, self.at, owner)
        page = (head + _SUM.pack(crc32c.value(head))).ljust(START, b"\0")
        _write_all(self._fd, 0, [page])
        os.fsync(self._fd)
        new, spare = _beside(self.path, NEW), _beside(self.path, SPARE)
        fd = _opened(new, durable)
        try:
            spare.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # the first file, or no links here: then no spare
                os.link(self.path, spare)
            os.replace(new, self.path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self.size, self._synced = fd, size, False

    def _allocate(self, size: int, least: int, durable: bool) -> None:
        if not durable:  # nobody waits until its blocks are written
            with contextlib.suppress(OSError):
                os.posix_fallocate(self._fd, 0, size)
        try:
            while (there := os.fstat(self._fd).st_size) < size:
                _write_all(self._fd, there, [_ZEROS[: size - there]])
        except OSError as error:
            if there < least:
                if error.errno in FULL:  # the free space alone may look like enough
                    fault = f"{error.strerror} for a new file of {size} bytes"
                    raise OSError(error.errno, fault) from error
                raise

    def sync_name(self) -> None:
        """Have the name on the disk: the file that had it before is about to be overwritten."""
        if not self._synced:
            sync_directory(self.path.parent)
            self._synced = True

    def close(self, mark: bool = False) -> None:
        """Close the file; with ``mark`` it says where it ends.

        Then damage to the last commit can not pass for a commit that a crash cut short.
        """
        fd, self._fd = self._fd, -1
        if fd >= 0 and mark:
            end = MARK.pack(_MARK_MAGIC, self._number, self.at, self._last)
            with contextlib.suppress(OSError):
                os.fdatasync(fd)  # else the mark could outlive what it marks
                _write_all(fd, MARK_AT, [end + _SUM.pack(crc32c.value(end))])
        if fd >= 0:
            os.close(fd)

    # Reading

    def read(self, place: int, nbytes: int) -> memoryview:
        """Return a payload; ValueError where its checksum fails."""
        whole = os.pread(self._fd, HEAD + nbytes, place - HEAD)
        found = _sound(whole, 0, self._number, place - HEAD)
        if found is None or found.nbytes != nbytes:
            raise ValueError(f"the record at byte {place - HEAD} fails its checksum")
        return memoryview(whole)[HEAD:]

    def views(self) -> Callable[[int, int], memoryview]:
        """Return a function that reads payloads as parts of the mapped file, without a copy.

        It checks no checksum: call it for the records found when the file was opened.
        """
        data = memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))
        return lambda place, nbytes: data[place : place + nbytes]

    def _scan(self, durable: bool) -> list[Record]:
        """Return all records, as far as each is sound and follows the one before it."""
        if not os.fstat(self._fd).st_size:
            raise ValueError("it is empty")
        with mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) as data:
            self._number, self.size, table_end, owner = _header(data)
            if owner != self._owner:
                raise ValueError(
                    f"it is the journal of {owner}, under the name of that of {self._owner}: give "
                    "the files of this directory their names again"
                )
            mark = _mark(data, self._number)
            reached = mark in (None, (START, 0))
            records = list[Record]()
            while (found := _sound(data, self.at, self._number)) and found.before == self._last:
                records.append(found)
                self.at += record_bytes(found.nbytes)
                self._last = found.crc
                reached = reached or (self.at, self._last) == mark
            ends = f"the last sound record ends at byte {self.at}"
            if self.at < table_end:
                raise ValueError(f"{ends}, and its table at {table_end}")
            if mark is not None and not reached:
                raise ValueError(f"{ends}, and it was closed after one that ended at {mark[0]}")
            if _has_later(data, self.at, self._number):
                if durable:
                    raise ValueError(
                        f"the record at byte {self.at} fails its checksum, and later records are "
                        "there (a loss of power can leave that where durability was 'process': "
                        "start with that once to go on from the moment before)"
                    )
                self.size = self.at  # the next commit begins a file without the later ones
        return records


def record_bytes(nbytes: int) -> int:
    """Return the bytes of a record with such a payload."""
    return HEAD - (-nbytes // HEAD) * HEAD


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _opened(path: Path, durable: bool) -> int:
    """Open a file; a ``durable`` write returns when it is on the disk."""
    return opened_within(path, os.O_RDWR | (os.O_DSYNC if durable else 0))


def _header(data: Data) -> tuple[int, int, int, str]:
    """Return number, bytes, the end of the table, and the owner of a file."""
    if len(data) < START or data[: len(_FILE_MAGIC)] != _FILE_MAGIC:
        raise ValueError("it is no journal of a headrace server")
    _, version, number, size, table_end, owner = _FILE.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"it is of version {version}, and this release reads {VERSION}")
    if _SUM.unpack_from(data, _FILE.size)[0] != crc32c.value(data[: _FILE.size]):
        raise ValueError("its header fails its checksum")
    if len(data) != size:
        raise ValueError(f"it has {len(data)} bytes and was made with {size}")
    return number, size, table_end, owner.rstrip(b"\0").decode()


def _mark(data: Data, number: int) -> tuple[int, int] | None:
    """Return end and checksum of the last record when the file was closed last, if it ever was."""
    mark = data[MARK_AT : MARK_AT + MARK.size]
    magic, of, *last = MARK.unpack(mark)
    (crc,) = _SUM.unpack_from(data, MARK_AT + MARK.size)
    if (magic, of) != (_MARK_MAGIC, number) or crc != crc32c.value(mark):
        return None
    return last[0], last[1]


def _names(data: Data, at: int, number: int, place: int) -> bool:
    """Return whether a header at ``at`` names this file and place; it may be damaged."""
    if at + HEAD > len(data) or data[at : at + len(_MAGIC)] != _MAGIC:
        return False
    return _RECORD.unpack_from(data, at)[1:3] == (number, place)


def _header_of(data: Data, at: int, number: int, place: int) -> Record | None:
    """Return the record with a sound header at ``at``, which names this file and place."""
    if not _names(data, at, number, place):
        return None
    *_, nbytes, payload, before = _RECORD.unpack_from(data, at)
    (crc,) = _SUM.unpack_from(data, at + _RECORD.size)
    sound = crc == crc32c.value(data[at : at + _RECORD.size])
    return Record(at + HEAD, nbytes, payload, before, crc) if sound else None


def _sound(data: Data, at: int, number: int, place: int | None = None) -> Record | None:
    """Return the sound record at ``at``, which names its place; None where there is none."""
    found = _header_of(data, at, number, at if place is None else place)
    if found is None or found.place + found.nbytes > len(data):
        return None
    crc = 0
    if found.nbytes:  # by an array: a slice would be a copy
        crc = crc32c.value(np.frombuffer(data, np.uint8, found.nbytes, found.place))
    return found if crc == found.payload else None


def _has_later(data: Data, end: int, number: int) -> bool:
    """Return whether a record was begun after the one at ``end``, which is not sound.

    The header of a later one proves that the one at ``end`` was on the disk, whether or not the
    later one is damaged, too.
    """
    failed = _header_of(data, end, number, end)
    if failed is not None:
        after = end + record_bytes(failed.nbytes)
        if after + HEAD <= len(data) and _RECORD.unpack_from(data, after)[-1] == failed.crc:
            return True
    begin = _RECORD.pack(_MAGIC, number, 0, 0, 0, 0)[:_NUMBERED]
    at = data.find(begin, end + 1)
    while at >= 0 and (at % HEAD or not _names(data, at, number, at)):
        at = data.find(begin, at + 1)
    return at >= 0


def _write_all(fd: int, place: int, parts: list[Buffer]) -> None:
    left = sum(map(len, parts))
    while left:
        written = os.pwritev(fd, parts[:_MOST_PARTS], place)  # type: ignore[arg-type]
        place += written
        left -= written
        while left and written >= len(parts[0]):
            written -= len(parts[0])
            parts = parts[1:]
        if left:
            parts = [parts[0][written:], *parts[1:]]
