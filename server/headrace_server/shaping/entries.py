"""The table of examples while segments of them are handed out: an *entry* for each.

    reserve(key) ─► enter() ─► an entry, its key in flight ─► land() ─► free()
                                              ▲              │
                                              └── reenter() ◄┘

A key is in flight from before its example has an entry until its last segment is taken.  The entry
is reused when that segment is committed.  Tables only grow, and an example stays in its entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from .spans import NO_NUMBERS, Cut, Spans
from .stored_state import AT, CHUNK, END, INDEX, LINE, OPEN, ROW, VERSION, Examples, Key

_NUMBERS = ("line", "index", "chunk", "row", "at", "end", "version")  # as in Examples
_TABLES = (*_NUMBERS, "done", "kept", "opening", "lane", "available", "rank", "standing", "out")
_DONE, _KEPT, _OPENING, LANE = range(len(_NUMBERS), len(_NUMBERS) + 4)
#: Insertion index of an entry without an example: above all others.
_NONE = 2**63 - 1


class Entries:
    """The tables, indexed by entry, and the keys."""

    chunk: np.ndarray
    row: np.ndarray
    index: np.ndarray
    line: np.ndarray
    end: np.ndarray  # steps, or OPEN
    at: np.ndarray  # first step of the next segment to hand out
    version: np.ndarray  # token of the commit that saved the kept state; 0: none
    done: np.ndarray  # number of committed steps …
    kept: np.ndarray  # … and of steps before the kept state
    opening: np.ndarray  # steps of the first segment, where that is drawn
    lane: np.ndarray  # among those of all ranks, where examples are assigned to lanes
    # Only log_admission.py uses these:
    available: np.ndarray  # steps that are there
    rank: np.ndarray  # of the next segment
    standing: np.ndarray
    out: np.ndarray  # number of its segments that batches have

    def __init__(self, cut: Cut, size: int) -> None:
        self.cut = cut
        self.size = 0  # of the tables
        self.draws = False  # whether first segments have lengths of their own
        self._resumed = False  # whether an earlier process began some examples
        self.keys = np.empty(0, object)  # of examples that have not ended
        self._entry_of: dict[Key, int] = {}  # by key in flight; -1 before it has an entry
        self._free: list[int] = []
        self._expected: Spans | None = None
        self._tables = np.empty((len(_TABLES), 0), np.int64)  # one row for each table
        self._grow(size)

    def _grow(self, size: int) -> None:
        before, self.size = self.size, size
        self._free[:0] = range(size - 1, before - 1, -1)
        grown = np.zeros((len(_TABLES), size), np.int64)
        grown[:, :before], grown[INDEX, before:] = self._tables, _NONE
        self._tables, self._numbers = grown, grown[: len(_NUMBERS)]
        self.keys = np.append(self.keys, np.empty(size - before, object))
        for name, table in zip(_TABLES, grown, strict=True):
            setattr(self, name, table)

    @property
    def live(self) -> int:
        """Number of entries in use."""
        return self.size - len(self._free)

    # Examples come

    def are_new(self, keys: Sequence[Key]) -> bool:
        """Return whether these keys are different ones, none of which is in flight."""
        return self._entry_of.keys().isdisjoint(keys) and len(set(keys)) == len(keys)

    def reserve(self, key: Key, line: int) -> bool:
        """Put a key in flight; return False if an earlier example has it in flight.

        A later example may also have it, if an earlier process began that example.
        """
        entry = self._entry_of.get(key)
        if entry is not None and not (self._resumed and entry >= 0 and self.line[entry] > line):
            return False
        self._entry_of[key] = -1
        return True

    def columns(
        self, chunk: int, steps: np.ndarray, line: int, openings: np.ndarray | None
    ) -> np.ndarray:
        """Return columns for the tables of all examples of a chunk, without their indices."""
        columns = np.zeros((len(_TABLES), len(steps)), np.int64)
        rows = np.arange(len(steps))
        columns[LINE], columns[CHUNK] = rows + line, chunk
        columns[ROW], columns[END] = rows, steps
        if openings is not None:
            self.draws, columns[_OPENING] = True, openings
        return columns

    def enter(self, columns: np.ndarray, keys: Sequence[Key]) -> np.ndarray:
        """Add examples with these columns; return their entries."""
        n = len(keys)
        if len(self._free) < n:
            self._grow(max(self.size * 5 // 4, self.live + n))
        numbers = self._free[: -n - 1 : -1]
        del self._free[len(self._free) - n :]
        self._entry_of.update(zip(keys, numbers, strict=True))
        entries = np.array(numbers, np.int64)
        self.keys[entries] = np.fromiter(keys, object, n)
        self._tables[:, entries] = columns
        return entries

    def resume(self, begun: Examples) -> np.ndarray:
        """Add examples that an earlier process began; return their entries."""
        self._resumed = True
        columns = np.zeros((len(_TABLES), len(begun)), np.int64)
        columns[: len(_NUMBERS)] = begun.numbers
        columns[_DONE] = columns[_KEPT] = columns[AT]
        return self.enter(columns, begun.keys)

    # Examples go

    def land(self, entries: np.ndarray) -> None:
        """End the flight of these examples' keys."""
        entry_of, numbers, keys = self._entry_of, entries.tolist(), self.keys[entries].tolist()
        if [*map(entry_of.get, keys)] == numbers:
            deque(map(entry_of.pop, keys), 0)
            return
        for entry, key in zip(numbers, keys, strict=True):  # another example has one of them
            if entry_of.get(key) == entry:
                del entry_of[key]

    def reenter(self, entries: np.ndarray) -> None:
        """Put the keys of these examples in flight again, if no other example has them."""
        for entry, key in zip(entries.tolist(), self.keys_of(entries), strict=True):
            self._entry_of.setdefault(key, entry)

    def free(self, entries: np.ndarray) -> None:
        """Free the entries of examples that ended or were dropped."""
        self.index[entries], self.keys[entries] = _NONE, None
        self._free += entries.tolist()

    # Segments

    def cut_next(
        self,
        entries: np.ndarray,
        lanes: np.ndarray = NO_NUMBERS,
        starts: np.ndarray = NO_NUMBERS,
        size: int = 0,
    ) -> Spans:
        """Return the next segments of examples, for a batch."""
        numbers = self._numbers.take(entries, 1)
        expected, self._expected = self._expected, None
        if expected is not None and not size and expected.has(numbers, lanes, starts):
            expected.numbers, expected.versions = numbers, numbers[VERSION]
            return expected
        return Spans(entries, numbers, self.cut, lanes, starts, size, self.openings(entries))

    def expect(
        self, entries: np.ndarray, lanes: np.ndarray = NO_NUMBERS, starts: np.ndarray = NO_NUMBERS
    ) -> Spans:
        """Return the batch that is expected next, of the next segments of these examples."""
        numbers = self._numbers.take(entries, 1)
        openings = self.opening.take(entries) if self.draws else None
        self._expected = Spans(entries, numbers, self.cut, lanes, starts, openings=openings)
        return self._expected

    def after(self, entries: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return the steps after the segments of examples that begin at these steps."""
        return self.cut.after(first, self.end[entries], self.openings(entries))

    def left(self, entries: np.ndarray) -> np.ndarray:
        """Return the number of segments of each that were not handed out."""
        at, end = self._tables.take(entries, 1)[[AT, END]]
        end = np.where(end < OPEN, end, self.available[entries])
        return self.cut.left(at, end, self.openings(entries))

    def openings(self, entries: np.ndarray) -> np.ndarray | None:
        """Return the steps of first segments, where these are drawn."""
        return self.opening.take(entries) if self.draws else None

    # Queries

    def numbers_of(self, entries: np.ndarray) -> np.ndarray:
        """Return one row for each of the names in Examples."""
        return self._numbers.take(entries, 1)

    def keys_of(self, entries: np.ndarray) -> list[Key]:
        """Return the keys of examples that have not ended."""
        keys: list[Key] = self.keys[entries].tolist()
        return keys

    def used(self) -> np.ndarray:
        """Return the entries that have an example, in the order of insertion."""
        entries: np.ndarray = self.index.argsort()[: self.live]
        return entries

    def find(self, indices: np.ndarray) -> np.ndarray:
        """Return entries by insertion index; -1 for an example that is not here."""
        entries = np.append(self.used(), -1)
        at = self.index[entries[:-1]].searchsorted(indices)
        return np.where(self.index[entries[at]] == indices, entries[at], -1)
