"""A worker's diary: a file of shared memory that shows the worker's activity, and outlives it.

    worker ──writes──► beats | entry: doing, feed, partition, where, rows in hand ◄── supervisor
                             | report: counts and progress
                               each: length, checksum | msgpack

A worker adds a beat at least every second between two steps of work, and notes before each step and
read what it begins.  So missing beats show a worker that loops, is stopped or waits for a
file, and the diary of a dead one shows what it was reading.

Writing is a copy of some bytes: no message, no lock, no thread that user code could hold up.  A
reader that comes amid the writing finds the checksum wrong: it takes the report before, and no
rows of an entry.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from headrace_proto.errors import ServerError

from ..files.durable_file import writing
from .counts import added
from .rundir import MORE_SHARED_MEMORY

STARTING, IDLE, OPENING, STEP = range(4)

_MOST_ROWS = 16_384  # four of the largest chunks; of more rows only the first are noted
_MOST_TEXT = 3072
_HEAD = struct.Struct("<II")
_ENTRY_AT = 8
_REPORT_AT = _ENTRY_AT + 8 * _MOST_ROWS + 2 * _MOST_TEXT
_FIXED_BYTES = 4096
#: Room in the report for a partition, which needs less unless feeds have long names.
_BYTES_PER_PARTITION = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The last entry of a worker."""

    doing: int = STARTING
    feed: str = ""
    partition: int = 0
    where: str = ""
    rows: tuple[int, ...] = ()  # numbers of examples in hand; below 0: a stream by -1 - its number
    alone: bool = False  # whether this is one suspected row, taken alone
    needed: bool = False  # whether other rows depend on these being there
    upto: int = 0  # number of rows up to which the current stream is read

    def describe(self) -> str:
        """Describe the entry in words, for a log and an error."""
        if self.doing == STARTING:
            return "it was starting"
        if self.doing == IDLE:
            return "it was between two steps of work"
        place = f"feed {self.feed!r}, partition {self.partition}"
        at = f", at {self.where}" if self.where else ""
        return f"it was {'opening' if self.doing == OPENING else 'working on'} {place}{at}"


class _Slot:
    """A part of the map that holds a value."""

    def __init__(self, map: mmap.mmap, at: int, end: int) -> None:
        self._map, self._at, self._end = map, at, end

    def write(self, value: Any) -> bool:
        """Replace the value; False where there is no room."""
        data = msgpack.packb(value, use_bin_type=True, unicode_errors="backslashreplace")
        begin = self._at + _HEAD.size
        if begin + len(data) > self._end:
            return False
        self._map[begin : begin + len(data)] = data
        _HEAD.pack_into(self._map, self._at, len(data), zlib.crc32(data))
        return True

    def read(self, empty: Any, torn: Any) -> Any:
        """Return the value, or one of these where there is none, or only part of it."""
        length, checksum = _HEAD.unpack_from(self._map, self._at)
        begin = self._at + _HEAD.size
        data = self._map[begin : begin + length]
        if not length:
            return empty
        return msgpack.unpackb(data) if zlib.crc32(data) == checksum else torn

    def clear(self) -> None:
        _HEAD.pack_into(self._map, self._at, 0, 0)


def _slots(map: mmap.mmap) -> tuple[_Slot, _Slot]:
    """Return the entry and the report."""
    return _Slot(map, _ENTRY_AT, _REPORT_AT), _Slot(map, _REPORT_AT, len(map))


class Diary:
    """The worker's end."""

    def __init__(self, path: str) -> None:
        mapped = _mapped(path)
        self._beats = memoryview(mapped)[:_ENTRY_AT].cast("Q")
        self._slot, self._report = _slots(mapped)
        self._entry: tuple[Any, ...] = ()

    def beat(self) -> None:
        """Show that the worker lives and goes on."""
        self._beats[0] += 1

    def idle(self) -> None:
        """Note that the worker is between two steps of work."""
        self._note(IDLE)

    def begin(self, feed: str, partition: int, opening: bool = False) -> None:
        """Note that a step of a partition begins, or its opening."""
        self._note(OPENING if opening else STEP, feed, partition)

    def reading(
        self,
        rows: np.ndarray,
        where: str,
        alone: bool = False,
        needed: bool = False,
        upto: int = 0,
    ) -> None:
        """Note that these rows are in hand from now on."""
        noted = rows[:_MOST_ROWS].astype(np.int64).tobytes()
        self._note(*self._entry[:3], _text(where), noted, alone, needed, upto)

    def at(self, where: str) -> None:
        """Note where the rows in hand come from, now that it is known."""
        self._note(*self._entry[:3], _text(where), *self._entry[4:])

    def report(self, status: Any) -> bool:
        """Replace the report; return False where there is no room."""
        return self._report.write(status)

    def _note(self, *entry: Any) -> None:
        self._entry = entry
        self._slot.write(entry)
        self.beat()


def _text(where: str) -> bytes:
    return where.encode(errors="backslashreplace")[:_MOST_TEXT]


class Notebook:
    """The supervisor's end: the diaries of one worker's lives, one after the other."""

    def __init__(self, path: Path, partitions: int = 1) -> None:
        """``partitions``: maximum number that the worker runs; the report has room for them."""
        self.path = str(path)
        size = _REPORT_AT + _FIXED_BYTES + _BYTES_PER_PARTITION * partitions
        try:
            with writing(self.path, size, MORE_SHARED_MEMORY):
                fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                try:
                    # else a write to a full file system would kill this process
                    os.posix_fallocate(fd, 0, size)
                finally:
                    os.close(fd)
        except OSError as error:
            raise ServerError(error.strerror) from None
        self._map = _mapped(self.path)
        self._entry, self._reported = _slots(self._map)
        self._report: dict[str, Any] = {}
        self._past: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Begin a new life: empty, except for the totals of earlier lives."""
        self._past, self._report = self.totals(), {}
        self._map[:_ENTRY_AT] = bytes(_ENTRY_AT)
        self._entry.clear()
        self._reported.clear()

    def beats(self) -> int:
        return int.from_bytes(self._map[:_ENTRY_AT], "little")

    def read(self) -> Entry:
        """Return the last entry; without rows if it is only half written."""
        doing, *noted = self._entry.read((STARTING,), (IDLE,))
        if len(noted) > 2:
            noted[2] = noted[2].decode(errors="replace")
            noted[3:4] = [tuple(np.frombuffer(rows, np.int64).tolist()) for rows in noted[3:4]]
        return Entry(doing, *noted)

    def report(self) -> dict[str, Any]:
        """Return the last report of this life; empty at first."""
        self._report = self._reported.read(self._report, self._report)
        return self._report

    def totals(self) -> dict[str, dict[str, float]]:
        """Return the sums over all lives, by subject (``rests``, ``feed:NAME``) and by name."""
        return added([self._past, self.report().get("totals", {})])


class Stillness:
    """Measures, by the clock of the observer, how long no beat has come."""

    def __init__(self) -> None:
        self._beats = -1
        self._since = 0.0

    def look(self, beats: int, now: float) -> float:
        """Return the seconds since the look that saw the last beat."""
        if beats != self._beats:
            self._beats, self._since = beats, now
        return now - self._since


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, 0)
    finally:
        os.close(fd)
