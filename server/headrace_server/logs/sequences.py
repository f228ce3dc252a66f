"""Sequences in memory, and where their steps lie: columns of numbers, and no object for either.

    sequence   its opening's position, producer, steps, close, clock; first and last extent
    extent     up to which step, position, file, place, bytes, version, time; the next extent

Of 100,000 open keys most are idle, so their bytes count.  The context of a sequence is its first
extent, up to step 0, and stays as long as the sequence.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import chain, compress
from typing import Any

import numpy as np

from ..shaping.positions import Positions
from .records import NEVER, Close
from .words import FREE, RECALLED, Extent

#: The file of an extent that is free.
NO_FILE = 2**32 - 1
#: Types of the columns that are packed.
_SEQUENCE, EXTENT = "qqqqdB", "IIqIIIqd"


class _Rows:
    """Columns of numbers.  A row that is freed is used again."""

    def __init__(self, types: str) -> None:
        self.columns: list[array[Any]] = [array(code) for code in types]
        self._appends = [column.append for column in self.columns]
        self.free = array("i")

    def add(self, *values: float) -> int:
        if self.free:
            row = self.free.pop()
            for column, value in zip(self.columns, values, strict=True):
                column[row] = value
            return row
        for append, value in zip(self._appends, values, strict=True):
            append(value)
        return len(self.columns[0]) - 1


class Sequences:
    def __init__(self) -> None:
        self._sequences, self._extents = _Rows(f"{_SEQUENCE}ii"), _Rows(f"{EXTENT}ii")
        self.id, self.owner, self.steps, self.closed_at = self._sequences.columns[:4]
        self.touched, self.state, self._head, self._tail = self._sequences.columns[4:]
        self.upto, self.first, self.at, self.file, self.place = self._extents.columns[:5]
        self.nbytes, self.version, self.time, self._next, self.of = self._extents.columns[5:]
        self.keys: list[bytes] = []
        self.row = Positions()  # by sequence
        self.open: dict[bytes, int] = {}  # rows by key
        self.live: dict[int, int] = {}  # bytes of extents by file
        self.living = 0  # bytes of all extents

    def begin(self, of: int, key: bytes, owner: int) -> int:
        """Return the row of a new sequence, which passes for one that is brought back."""
        row = self._sequences.add(of, owner, 0, NEVER, 0.0, RECALLED, -1, -1)
        self.row[of] = row
        self.keys[row : row + 1] = [key]
        return row

    def settle(self, row: int, state: int) -> None:
        """Set the state of a sequence."""
        self.state[row] = state
        if state == Close.GOING:
            self.open[self.keys[row]] = row
        elif self.open.get(self.keys[row]) == row:
            del self.open[self.keys[row]]

    def add(self, row: int, extent: Extent) -> None:
        """Add steps to a sequence, or its context."""
        at, tail = self._extents.add(*extent, -1, row), self._tail[row]
        if tail < 0:
            self._head[row] = at
        else:
            self._next[tail] = at
        self._tail[row] = at
        self.steps[row] = extent.upto
        self._count(extent.file, extent.nbytes)

    def _count(self, file: int, nbytes: int) -> None:
        self.live[file] = self.live.get(file, 0) + nbytes
        self.living += nbytes

    def move(self, extent: int, file: int, place: int) -> None:
        """Note that the bytes of an extent were carried."""
        self._count(self.file[extent], -self.nbytes[extent])
        self._count(file, self.nbytes[extent])
        self.file[extent], self.place[extent] = file, place

    def trim(self, row: int, floor: int) -> None:
        """Forget the steps before ``floor``, by whole extents."""
        before, extent = -1, self._head[row]
        if extent >= 0 and not self.upto[extent] and floor < NEVER:
            before, extent = extent, self._next[extent]
        while extent >= 0 and self.upto[extent] <= floor:
            self._count(self.file[extent], -self.nbytes[extent])
            self.file[extent] = NO_FILE
            self._extents.free.append(extent)
            extent = self._next[extent]
        if before < 0:
            self._head[row] = extent
        else:
            self._next[before] = extent
        if extent < 0:
            self._tail[row] = before

    def drop(self, row: int) -> None:
        """Forget a sequence."""
        self.trim(row, NEVER)
        self.settle(row, FREE)
        del self.row[self.id[row]]
        self.owner[row], self.keys[row] = -1, b""
        self._sequences.free.append(row)

    def chain(self, row: int) -> Iterator[int]:
        """Yield the rows of a sequence's extents; -1 is the row of none."""
        extent = self._head[row] if row >= 0 else -1
        while extent >= 0:
            yield extent
            extent = self._next[extent]

    def extent(self, at: int) -> Extent:
        return Extent._make([column[at] for column in self._extents.columns[:8]])

    def packed(self, rows: list[int], chains: list[list[int]]) -> tuple[list[bytes], list[bytes]]:
        """Return the keys of sequences, and the columns of all, with these extents of each."""
        counts, extents = list(map(len, chains)), list(chain.from_iterable(chains))
        columns = [np.asarray(column)[rows] for column in self._sequences.columns[:6]]
        columns += [np.asarray(column)[extents] for column in self._extents.columns[:8]]
        found = [np.array(counts, np.uint32), *columns]
        return [self.keys[row] for row in rows], [column.tobytes() for column in found]

    @staticmethod
    def joined(parts: list[list[bytes]]) -> list[bytes]:
        """Return the columns of one sequence, of which each part has some extents."""
        counts = sum(np.frombuffer(part[0], np.uint32) for part in parts)
        extents = [b"".join(of) for of in zip(*(part[7:] for part in parts), strict=True)]
        return [np.asarray(counts, np.uint32).tobytes(), *parts[0][1:7], *extents]

    def unknown(self, keys: list[bytes], columns: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """Return those of packed sequences that are not here."""
        new = self.row.find(np.frombuffer(columns[1], np.int64)) < 0
        of = np.repeat(new, np.frombuffer(columns[0], np.uint32))
        masks = zip(columns, "I" + _SEQUENCE + EXTENT, [new] * 7 + [of] * 8, strict=True)
        kept = [np.frombuffer(data, code)[mask].tobytes() for data, code, mask in masks]
        return [*compress(keys, new.tolist())], kept

    def enter(self, keys: list[bytes], columns: list[bytes]) -> None:
        """Add new sequences, as they were packed."""
        first = len(self.id)
        for column, data in zip(self._sequences.columns[:6], columns[1:7], strict=True):
            column.frombytes(data)
        for column in self._head, self._tail:
            column.extend([-1] * len(keys))
        self.keys += keys
        for row, (of, key) in enumerate(zip(self.id[first:], keys, strict=True), first):
            self.row[of] = row
            if self.state[row] == Close.GOING:
                self.open[key] = row
        rows = np.arange(first, len(self.id), dtype=np.int32)
        self.extend(np.repeat(rows, np.frombuffer(columns[0], np.uint32)), columns[7:])

    def extend(self, of: np.ndarray, columns: Iterable[bytes]) -> None:
        """Add extents; ``of``: their rows of sequences, each of which has its own together."""
        begin, firsts = len(self.upto), np.flatnonzero(np.diff(of, prepend=-1))
        lasts = np.flatnonzero(np.diff(of, append=-1))
        following = np.arange(begin + 1, begin + len(of) + 1, dtype=np.int32)
        following[lasts] = -1
        data = *columns, following.tobytes(), of.astype(np.int32).tobytes()
        for column, values in zip(self._extents.columns, data, strict=True):
            column.frombytes(values)
        rows, firsts, tail = of[lasts], firsts + begin, np.asarray(self._tail)
        begun = tail[rows] >= 0
        np.asarray(self._next)[tail[rows[begun]]] = firsts[begun]
        np.asarray(self._head)[rows[~begun]] = firsts[~begun]
        tail[rows] = lasts + begin
        files, sizes = np.asarray(self.file)[begin:], np.asarray(self.nbytes)[begin:]
        for file in np.unique(files).tolist():
            self._count(file, int(sizes[files == file].sum(dtype=np.int64)))

    def due(self, floors: np.ndarray) -> list[int]:
        """Return the rows that have ended, or have steps before their floor."""
        head = np.asarray(self._head)
        if not len(self.upto):
            numbers: list[int] = self.row.numbers.tolist()
            return numbers
        context = (head >= 0) & (np.asarray(self.upto)[head] == 0)
        head = np.where(context, np.asarray(self._next)[head], head)
        past = (head >= 0) & (np.asarray(self.upto)[head] <= floors)
        state = np.asarray(self.state)
        rows: list[int] = np.flatnonzero((past | (state != Close.GOING)) & (state != FREE)).tolist()
        return rows
