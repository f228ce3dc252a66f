"""What a worker is at, in a file of shared memory that outlives it however it dies.

    worker ──writes──► beats | doing | feed, partition | where | rows in hand ◄──reads── supervisor

A worker adds a beat at least every second between two steps of work, and notes before each step and
each read what it begins.  So a worker that loops, is stopped or waits for a file shows by beats
that do not come, and one that is dead has told what it was reading.  Writing is a copy of some
bytes: no message, no lock, no thread that user code could hold up.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace_proto.errors import ServerError

from ..files.durable_file import writing
from .rundir import MORE_SHARED_MEMORY

__all__ = ["IDLE", "OPENING", "STARTING", "STEP", "Diary", "Entry", "Notebook", "Stillness"]

STARTING, IDLE, OPENING, STEP = range(4)

#: doing, alone, needed, rows, bytes of name, bytes of where, rows of a stream
_HEAD = struct.Struct("<6IQ")
_NAME_AT = 64
_WHERE_AT = 1024
_ROWS_AT = 4096
_MOST_ROWS = 16_384  # four of the largest chunks; of more the first are noted
_SIZE = _ROWS_AT + 8 * _MOST_ROWS


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """What a worker has written last."""

    doing: int = STARTING
    feed: str = ""
    partition: int = 0
    where: str = ""
    rows: tuple[int, ...] = ()  # numbers of examples in hand; below 0: a stream by -1 - its number
    alone: bool = False  # whether this is one row, taken alone because it is under suspicion
    needed: bool = False  # whether other rows depend on these being there
    upto: int = 0  # the number of its rows up to which the stream in hand is read

    def describe(self) -> str:
        """In words, for a log and an error."""
        if self.doing == STARTING:
            return "it was starting"
        if self.doing == IDLE:
            return "it was between two steps of work"
        place = f"feed {self.feed!r}, partition {self.partition}"
        at = f", at {self.where}" if self.where else ""
        return f"it was {'opening' if self.doing == OPENING else 'working on'} {place}{at}"


class Diary:
    """The worker's end."""

    def __init__(self, path: str) -> None:
        self._map = _mapped(path)
        self._beats = memoryview(self._map)[:8].cast("Q")
        self._head = [IDLE, 0, 0, 0, 0, 0, 0]
        self._names: dict[tuple[str, int], bytes] = {}
        self._name = b""

    def beat(self) -> None:
        """It lives, and goes on."""
        self._beats[0] += 1

    def idle(self) -> None:
        """Between two steps of work."""
        self._write(IDLE, 0, 0, 0, 0, 0, 0)

    def begin(self, feed: str, partition: int, opening: bool = False) -> None:
        """A step of a partition, or the opening of it."""
        name = self._names.get((feed, partition))
        if name is None:
            name = json.dumps([feed, partition]).encode()[: _WHERE_AT - _NAME_AT]
            self._names[feed, partition] = name
        if name is not self._name:
            self._map[_NAME_AT : _NAME_AT + len(name)] = self._name = name
        self._write(OPENING if opening else STEP, 0, 0, 0, len(name), 0, 0)

    def reading(
        self,
        rows: np.ndarray,
        where: str,
        alone: bool = False,
        needed: bool = False,
        upto: int = 0,
    ) -> None:
        """These rows are in hand from now on."""
        noted = rows[:_MOST_ROWS].astype(np.int64).tobytes()
        self._head[3] = 0
        self._put()  # should it die amid this, it had none
        self._map[_ROWS_AT : _ROWS_AT + len(noted)] = noted
        text = self._text(where)
        head = self._head[0], alone, needed, len(noted) // 8, self._head[4], text, upto
        self._write(*head)

    def at(self, where: str) -> None:
        """More is known of where the rows in hand come from."""
        self._head[5] = self._text(where)
        self._put()

    def _text(self, where: str) -> int:
        data = where.encode(errors="backslashreplace")[: _ROWS_AT - _WHERE_AT]
        self._map[_WHERE_AT : _WHERE_AT + len(data)] = data
        return len(data)

    def _write(self, *head: int) -> None:
        self._head[:] = head
        _HEAD.pack_into(self._map, 8, *head)
        self._beats[0] += 1

    def _put(self) -> None:
        _HEAD.pack_into(self._map, 8, *self._head)


class Notebook:
    """The supervisor's end: the diaries of one worker's lives, one after the other."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        try:
            with writing(self.path, _SIZE, MORE_SHARED_MEMORY):
                fd = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                try:
                    os.posix_fallocate(fd, 0, _SIZE)  # or a write to a full file system would kill
                finally:
                    os.close(fd)
        except OSError as error:
            raise ServerError(error.strerror) from None
        self._map = _mapped(self.path)

    def clear(self) -> None:
        """A new life begins."""
        self._map[:_ROWS_AT] = bytes(_ROWS_AT)

    def beats(self) -> int:
        return int.from_bytes(self._map[:8], "little")

    def read(self) -> Entry:
        """What was written last; of a worker that lives it may be half of two entries."""
        doing, alone, needed, rows, name, where, upto = _HEAD.unpack_from(self._map, 8)
        if doing in (STARTING, IDLE) or not name:
            return Entry(doing if doing <= STEP else IDLE)
        try:
            feed, partition = json.loads(self._map[_NAME_AT : _NAME_AT + name])
        except ValueError:
            return Entry(doing)
        text = self._map[_WHERE_AT : _WHERE_AT + where].decode(errors="replace")
        numbers = np.frombuffer(self._map[_ROWS_AT : _ROWS_AT + 8 * rows], np.int64)
        listed = tuple(numbers.tolist())
        return Entry(doing, feed, partition, text, listed, bool(alone), bool(needed), upto)


class Stillness:
    """How long no beat has come, by the clock of the observer."""

    def __init__(self) -> None:
        self._beats = -1
        self._since = 0.0

    def look(self, beats: int, now: float) -> float:
        """Seconds without a beat, since the look that saw the last one."""
        if beats != self._beats:
            self._beats, self._since = beats, now
        return now - self._since


def _mapped(path: str) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(fd, _SIZE)
    finally:
        os.close(fd)
