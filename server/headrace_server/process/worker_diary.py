"""A worker's diary: a file of shared memory that shows the worker's activity, and outlives it.

    worker ──writes──► beats | doing | feed, partition | where | rows at hand ◄──reads── supervisor

A worker adds a beat at least every second between two steps of work, and notes before each step and
each read what it begins.  So missing beats show a worker that loops, is stopped or waits for a
file, and the diary of a dead one shows what it was reading.

Writing is a copy of some bytes: no message, no lock, no thread that user code could hold up.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace_proto.errors import ServerError

from ..files.durable_file import opened, writing
from .rundir import MORE_SHARED_MEMORY

STARTING, IDLE, OPENING, STEP = range(4)
#: doing, rows, bytes of name, bytes of where, epoch
_HEAD = struct.Struct("<4Iq")
#: When a user function was entered, and bytes of its name.
_INSIDE = struct.Struct("<dI")
_INSIDE_AT = 8 + _HEAD.size
_NAME_AT = 64
_WHERE_AT = 1024
_FUNCTION_AT = 3584
_ROWS_AT = 4096
_MOST_ROWS = 16_384  # four of the largest chunks; of more rows only the first are noted
#: Seconds in a user function after which it explains a wait.
_LONG_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """The last entry of a worker."""

    doing: int = STARTING
    feed: str = ""
    partition: int = 0
    where: str = ""
    rows: tuple[int, ...] = ()  # numbers of the examples at hand
    epoch: int = 0  # of these rows
    inside: str = ""  # the user function in which it is …
    since: float = 0.0  # … and since when, by the clock of this machine

    def describe(self) -> str:
        """Describe the entry in words, for a log and an error."""
        if self.doing == STARTING:
            return "it was starting"
        if self.doing == IDLE:
            return "it was between two steps of work"
        place = f"feed {self.feed!r}, partition {self.partition}"
        at = f", at {self.where}" if self.where else ""
        inside = f", in `{self.inside}`" if self.inside else ""
        return f"it was {'opening' if self.doing == OPENING else 'working on'} {place}{at}{inside}"


def long_inside(worker: int, entry: Entry | Diary) -> str:
    """Name the user function in which a worker has been for long; empty where there is none."""
    seconds = time.monotonic() - entry.since
    if not entry.inside or seconds < _LONG_S:
        return ""
    at = f", at {entry.where}" if entry.where else ""
    return f"worker {worker} has been in `{entry.inside}` for {seconds:.0f} s{at}"


class Diary:
    """The worker's end."""

    def __init__(self, path: str) -> None:
        self._map = _mapped(path)
        self._beats = memoryview(self._map)[:8].cast("Q")
        self._head = [STARTING, 0, 0, 0, 0]
        self._names: dict[tuple[str, int], bytes] = {}
        self._name = b""
        self._entered = ""  # import path of the user function …
        self.inside, self.since = "", 0.0  # … its name, and since when
        self.where = ""  # where the rows at hand come from

    def enter(self, function: str) -> None:
        """Note that calls of a user function begin; "": that they have ended."""
        if function != self._entered:
            self._entered, self.inside = function, function.rpartition(":")[2]
            self.since = time.monotonic()
            name = self.inside.encode(errors="backslashreplace")[: _ROWS_AT - _FUNCTION_AT]
            self._map[_FUNCTION_AT : _FUNCTION_AT + len(name)] = name
            _INSIDE.pack_into(self._map, _INSIDE_AT, self.since, len(name))

    def beat(self) -> None:
        """Show that the worker lives and goes on."""
        self._beats[0] += 1

    def idle(self) -> None:
        """Note that the worker is between two steps of work."""
        if self._head[0] != IDLE:
            self.enter("")
            self._write(IDLE, 0, 0, 0, 0)
        else:
            self._beats[0] += 1

    def begin(self, feed: str, partition: int, opening: bool = False) -> None:
        """Note that a step of a partition begins, or its opening."""
        self.enter("")
        name = self._names.get((feed, partition))
        if name is None:
            name = json.dumps([feed, partition]).encode()[: _WHERE_AT - _NAME_AT]
            self._names[feed, partition] = name
        if name is not self._name:
            self._map[_NAME_AT : _NAME_AT + len(name)] = self._name = name
        self._write(OPENING if opening else STEP, 0, len(name), 0, 0)

    def reading(self, rows: np.ndarray, where: str, epoch: int = 0) -> None:
        """Note that these rows are at hand from now on."""
        noted = rows[:_MOST_ROWS].astype(np.int64).tobytes()
        self._head[1] = 0
        self._put()  # should it die amid this, it had none
        self._map[_ROWS_AT : _ROWS_AT + len(noted)] = noted
        text = self._text(where)
        self._write(self._head[0], len(noted) // 8, self._head[2], text, epoch)

    def at(self, where: str) -> None:
        """Note where the rows at hand come from, now that it is known."""
        self._head[3] = self._text(where)
        self._put()

    def _text(self, where: str) -> int:
        self.where = where
        data = where.encode(errors="backslashreplace")[: _FUNCTION_AT - _WHERE_AT]
        self._map[_WHERE_AT : _WHERE_AT + len(data)] = data
        return len(data)

    def _write(self, *head: int) -> None:
        self.where = self.where if head[4] else ""
        self._head[:] = head
        _HEAD.pack_into(self._map, 8, *head)
        self._beats[0] += 1

    def _put(self) -> None:
        _HEAD.pack_into(self._map, 8, *self._head)


class DiaryReader:
    """The diary as another process reads it."""

    def __init__(self, path: str) -> None:
        """OSError where there is none."""
        self._map = _mapped(path)

    def read(self) -> Entry:
        """Return the last entry; of a worker that lives it may be half of two entries."""
        doing, rows, name, where, epoch = _HEAD.unpack_from(self._map, 8)
        if doing in (STARTING, IDLE) or not name:
            return Entry(doing if doing <= STEP else IDLE)
        try:
            feed, partition = json.loads(self._map[_NAME_AT : _NAME_AT + name])
        except ValueError:
            return Entry(doing)
        text = self._map[_WHERE_AT : _WHERE_AT + where].decode(errors="replace")
        numbers = np.frombuffer(self._map[_ROWS_AT : _ROWS_AT + 8 * rows], np.int64)
        listed = tuple(numbers.tolist())
        since, nbytes = _INSIDE.unpack_from(self._map, _INSIDE_AT)
        inside = self._map[_FUNCTION_AT : _FUNCTION_AT + nbytes].decode(errors="replace")
        return Entry(doing, feed, partition, text, listed, epoch, inside, since)


class DiaryFile(DiaryReader):
    """The supervisor's end: it makes the file, which each life of a worker writes anew."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        size = _ROWS_AT + 8 * _MOST_ROWS
        try:
            full = writing(self.path, size, MORE_SHARED_MEMORY)
            with full, opened(self.path, os.O_CREAT | os.O_RDWR) as fd:
                # else a write to a full file system would kill this process
                os.posix_fallocate(fd, 0, size)
        except OSError as error:
            raise ServerError(error.strerror) from None
        super().__init__(self.path)

    def begin(self) -> None:
        """Begin a new life, whose diary is empty."""
        self._map[:_ROWS_AT] = bytes(_ROWS_AT)

    def beats(self) -> int:
        return int.from_bytes(self._map[:8], "little")


def _mapped(path: str) -> mmap.mmap:
    with opened(path, os.O_RDWR) as fd:
        return mmap.mmap(fd, 0)
