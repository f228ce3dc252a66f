"""A journal's file as bytes: its layout, and the scan for its records.

    file    [ header ┄ mark ] [ half 0 ] [ half 1 ]          half    [ record ] [ record ] …
    record  magic, kind, lap, place, bytes, opening, checksum of the one before; checksum; payload

The scan walks the records from the start of a half as long as each is sound and follows the one
before it.  ``journal`` explains why the bytes after that show whether a ``durable`` file is
damaged.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..files.extras import require

crc32c = require("google_crc32c", "server", "a server")

TABLE, END, COMMIT, OPENED = 1, 2, 3, 4

SUM = struct.Struct("<I")  # crc32c of the bytes before it
FILE = struct.Struct("<8sQQQ")  # magic, version, bytes of a half, halves; then the checksum
FILE_MAGIC = b"HRJOURNL"
VERSION = 3
MARK = struct.Struct("<8sQQI")  # magic, lap, end and checksum of its last record; then its own
MARK_MAGIC = b"HRCLOSED"
MARK_AT = 1024  # in the first page, away from the file's head
START = 4096  # where the first half begins: after a page
RECORD = struct.Struct("<4sIQQQII")  # magic, kind, lap, place, bytes, opening, checksum before it
MAGIC = b"HRJR"
HEAD = 64  # bytes of a record's header, and the alignment of records


class JournalDamaged(ValueError):
    """The file can not be trusted."""


@dataclass(frozen=True, slots=True)
class FoundRecord:
    """A record that was found: its payload, and where that lies in the file."""

    kind: int
    place: int
    nbytes: int


@dataclass(slots=True)
class _Walk:
    """All sound records of one half, from its start on."""

    start: int
    lap: int = 0
    records: list[FoundRecord] = field(default_factory=list)
    end: int = 0  # where the next record would begin
    whole: bool = False  # whether the table came to its END
    opening: int = 0
    last: int = 0  # checksum of the last record

    def __post_init__(self) -> None:
        self.end = self.start


def record_bytes(nbytes: int) -> int:
    """Return the bytes of a record with such a payload."""
    return HEAD + padded(nbytes)


def padded(nbytes: int) -> int:
    return -(-nbytes // HEAD) * HEAD


def look_through(path: Path, durable: bool) -> tuple[int, _Walk, int]:
    """Return the bytes of a half, the valid lap, and the number of the last lap that began."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise JournalDamaged("it is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            half = _half_bytes(data)
            walks = [_walk(data, start, half) for start in range(START, len(data), half)]
            whole = [walk for walk in walks if walk.whole]
            if not whole:
                raise JournalDamaged("neither half holds a table that is whole")
            holds = max(whole, key=lambda walk: walk.lap)
            _refuse_unlike_mark(data, holds)
            if durable:
                for walk in walks:
                    _refuse_lost(data, walk, holds, half)
            return half, holds, max(walk.lap for walk in walks)


def _refuse_unlike_mark(data: mmap.mmap, holds: _Walk) -> None:
    """Raise JournalDamaged where the file was closed, and ends otherwise than its mark."""
    mark = data[MARK_AT : MARK_AT + MARK.size]
    magic, *ends = MARK.unpack(mark)
    (crc,) = SUM.unpack_from(data, MARK_AT + MARK.size)
    if magic != MARK_MAGIC or crc != crc32c.value(mark):
        return  # it was not closed
    if ends != [holds.lap, holds.end, holds.last]:
        raise JournalDamaged(
            f"the last sound record ends at byte {holds.end} of lap {holds.lap}, and it was closed "
            f"after one that ended at {ends[1]} of lap {ends[0]}"
        )


def _half_bytes(data: mmap.mmap) -> int:
    if len(data) < START or data[: len(FILE_MAGIC)] != FILE_MAGIC:
        raise JournalDamaged("it is no journal of a headrace server")
    head = data[: FILE.size]
    if SUM.unpack_from(data, FILE.size)[0] != crc32c.value(head):
        raise JournalDamaged("its header fails its checksum")
    _, version, half, halves = FILE.unpack(head)
    if version != VERSION:
        raise JournalDamaged(f"it is of version {version}, and this release reads {VERSION}")
    if len(data) != START + halves * half:
        raise JournalDamaged(f"it has {len(data)} bytes and was made with {START + halves * half}")
    return int(half)


@dataclass(frozen=True, slots=True)
class _Header:
    kind: int
    lap: int
    nbytes: int
    opening: int
    before: int
    crc: int


def _header(
    data: mmap.mmap | bytes, place: int, stop: int, named: int | None = None
) -> _Header | None:
    """Return the header of a record that names its place and fits; None where there is none."""
    start = place + HEAD
    if start > stop or data[place : place + len(MAGIC)] != MAGIC:
        return None
    _, kind, lap, of, nbytes, opening, before = RECORD.unpack_from(data, place)
    if of != (place if named is None else named) or start + nbytes > stop:
        return None
    (crc,) = SUM.unpack_from(data, place + RECORD.size)
    return _Header(kind, lap, nbytes, opening, before, crc)


def sound(
    data: mmap.mmap | bytes, place: int, stop: int, named: int | None = None
) -> _Header | None:
    """Return the header of a sound record that names its place; None where there is none."""
    header = _header(data, place, stop, named)
    if header is None:
        return None
    crc = crc32c.value(data[place : place + RECORD.size])
    if header.nbytes:  # by an array: a slice would be a copy
        payload = np.frombuffer(data, np.uint8, header.nbytes, place + HEAD)
        crc = crc32c.extend(crc, payload)
    return header if crc == header.crc else None


def _walk(data: mmap.mmap, start: int, half: int) -> _Walk:
    """Return the records of a half, as far as each follows the one before it."""
    walk = _Walk(start)
    while (found := sound(data, walk.end, start + half)) is not None:
        if not walk.records:
            walk.lap = found.lap
        if (found.lap, found.before) != (walk.lap, walk.last) or found.opening < walk.opening:
            break
        walk.opening, walk.last = found.opening, found.crc
        walk.whole |= found.kind == END
        walk.records.append(FoundRecord(found.kind, walk.end + HEAD, found.nbytes))
        walk.end += record_bytes(found.nbytes)
    return walk


def _refuse_lost(data: mmap.mmap, walk: _Walk, holds: _Walk, half: int) -> None:
    """Raise JournalDamaged where a record fails although a later one was written.

    The records of a table may reach the disk in any order, but commits begin only when its END is
    on the disk.  A commit begins when the one before is on the disk: the header of a later record
    proves that the failed one was there, whether or not the later one has failed, too.
    """
    stop = walk.start + half
    lost = _has_follower(data, walk, holds, stop)
    place = data.find(MAGIC, walk.end, stop)
    while place >= 0 and not lost:
        found = _header(data, place, stop) if place % HEAD == 0 else None
        if found is not None and found.kind != TABLE:
            begun = place > walk.end and found.kind in (COMMIT, OPENED)
            newer = found.lap > holds.lap or _is_later(found, walk, holds)
            lost = newer and (begun or sound(data, place, stop) is not None)
        place = data.find(MAGIC, place + 1, stop)
    if lost:
        raise JournalDamaged(
            f"the record at byte {walk.end} fails its checksum, and later records are there (a "
            "loss of power can leave that where durability was 'process': start with that once to "
            "go on from the moment before)"
        )


def _is_later(found: _Header, walk: _Walk, holds: _Walk) -> bool:
    """Return whether a record was written after those of the walk, in the valid lap."""
    return found.lap == walk.lap == holds.lap and found.opening >= walk.opening


def _has_follower(data: mmap.mmap, walk: _Walk, holds: _Walk, stop: int) -> bool:
    """Return whether the record after a failed one names its checksum."""
    failed = _header(data, walk.end, stop)
    if failed is None or not failed.crc or not _is_later(failed, walk, holds):
        return False
    after = walk.end + record_bytes(failed.nbytes)
    return after + HEAD <= stop and RECORD.unpack_from(data, after)[-1] == failed.crc
