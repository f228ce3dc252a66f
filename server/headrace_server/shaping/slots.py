"""Slots of examples: their rows in all tables while segments of them are handed out.

    reserve(key) ─► enter(), resume() ─► a slot, its key in flight ─► land() ─► free()
                                                         ▲              │
                                                         └── reenter() ◄┘

A key is in flight from before its example has a slot until its last segment is taken.  The slot is
reused when that segment is committed.  Tables only grow, and an example stays in its slot.

(The slot of a batch is another thing: it says which trainer may have the batch.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .stored_state import CHUNK, COUNT, LINE, ROW, VERSION, Examples, Key

NO_NUMBERS = np.empty(0, np.int64)
_NUMBERS = ("line", "index", "chunk", "row", "segment", "count", "version")  # as in Examples
_TABLES = (*_NUMBERS, "done", "kept")
#: A row of ``Batch.place``: the lane (or row), the example, the segment, and the token of the
#: commit that saved the state from which it starts; 0 where no state is kept.
SEGMENT_PLACE = np.dtype(
    [("lane", "<i4"), ("index", "<i8"), ("segment", "<i4"), ("version", "<u8")]
)
#: In a packed batch, an example that begins in a row after its first one: its lane, and its index
#: after that of the batch's first example.
FILL_PLACE = np.dtype([("lane", "<i4"), ("after", "<i4")])
_COUNT = np.dtype("<i8")  # of the SEGMENT_PLACEs of a packed batch, which come first


@dataclass(slots=True, eq=False)
class Rows:
    """The rows of a batch: one segment of each of some examples.

    Nothing of it changes, but a commit saves states after it and so gives it other versions.

    With ``unroll`` rows are packed, and what is counted in segments elsewhere is counted in steps:

        lane 0 │ a a a a │ b b │ c c c     an entry for each of a, b, c, d; the lanes ascend
        lane 1 │ d d d d   d d   d d d     heads: a, d    tails: c, d    begins: 0, 4, 6, 0
    """

    slots: np.ndarray
    numbers: np.ndarray  # one row for each of the names in Examples
    lanes: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    #: Rows of the batch whose lanes have new examples.
    starts: np.ndarray = field(default_factory=lambda: NO_NUMBERS)
    #: Rows of its block, with ranks: then ``lanes`` are the places of its rows there.  0: its own.
    size: int = 0
    unroll: int = 0
    lines: np.ndarray = field(init=False)  # number of the example as it was read
    indices: np.ndarray = field(init=False)  # insertion index
    chunks: np.ndarray = field(init=False)
    rows: np.ndarray = field(init=False)  # in their chunks
    segments: np.ndarray = field(init=False)  # number of the segment in its example
    counts: np.ndarray = field(init=False)  # number of segments of the example
    versions: np.ndarray = field(init=False)  # tokens of the commits that saved their states
    after: np.ndarray = field(init=False)  # number of the segment after this one
    heads: Any = field(init=False)  # the first example of each row …
    tails: Any = field(init=False)  # … and the last
    row_of: Any = field(init=False)  # its row, of those that hold an example
    at: Any = field(init=False)  # row of the block in which each example is
    begins: np.ndarray = field(init=False)  # of packed rows: the first step of each there
    last: np.ndarray = field(init=False)  # mask of the last segments of their examples …
    ended: np.ndarray = field(init=False)  # … and the slots of these

    def __post_init__(self) -> None:
        self.lines, self.indices, self.chunks, self.rows, *rest = self.numbers
        self.segments, self.counts, self.versions = rest
        self.heads = self.tails = self.row_of = slice(None)
        if self.unroll:
            whole = self.counts - self.segments
            self.heads, self.row_of, self.begins = laid_out(self.lanes, whole)
            self.tails = np.append(self.heads[1:], len(self.slots))[: len(self.heads)] - 1
            self.after = self.segments + np.minimum(whole, self.unroll - self.begins)
        else:
            self.after = self.segments + 1
        self.at = self.lanes if self.size else self.row_of
        self.last = self.after == self.counts
        self.ended = self.slots[self.last]

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def height(self) -> int:
        """Number of rows that hold an example."""
        return len(self.slots[self.heads])

    def of_chunks(self) -> Iterable[int]:
        """Return the numbers of the chunks from which the rows come."""
        return set(self.chunks.tolist())

    def place(self) -> bytes:
        """Return what a later life needs to know the batch again."""
        place = np.empty(len(self), SEGMENT_PLACE)
        place["lane"] = self.lanes if len(self.lanes) else np.arange(len(place))
        place["index"], place["segment"] = self.indices, self.segments
        place["version"] = self.versions
        if not self.unroll:
            return place.tobytes()
        heads, others = place[self.heads], place[self.begins > 0]
        fills = np.empty(len(others), FILL_PLACE)
        fills["lane"], fills["after"] = others["lane"], others["index"] - heads["index"][:1]
        parts = np.array(len(heads), _COUNT), heads, fills
        return b"".join([part.tobytes() for part in parts])

    def has(self, numbers: np.ndarray, lanes: np.ndarray, starts: np.ndarray) -> bool:
        """Return whether this batch has the same segments in the same places.

        Versions may differ: this batch was expected before its states were there.
        """
        return (
            self.numbers[:VERSION].tobytes() == numbers[:VERSION].tobytes()
            and self.lanes.tobytes() == lanes.tobytes()
            and self.starts.tobytes() == starts.tobytes()
        )


def laid_out(lanes: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first example of each packed row, and by example its row and its first step there.

    Examples of a lane stand together, with these ``steps`` left.
    """
    new = np.ones(len(lanes), bool)
    new[1:] = lanes[1:] != lanes[:-1]
    heads, rows = new.nonzero()[0], new.cumsum() - 1
    before = steps.cumsum() - steps
    return heads, rows, before - before[heads][rows]


def read_place(data: bytes, unroll: int) -> np.ndarray | None:
    """Return the ``Rows.place`` of a batch as SEGMENT_PLACE; None where it can not be one."""
    if not unroll:
        fits = len(data) % SEGMENT_PLACE.itemsize == 0
        return np.frombuffer(data, SEGMENT_PLACE) if fits else None
    count = int(np.frombuffer(data, _COUNT, 1)[0]) if len(data) >= _COUNT.itemsize else -1
    at = _COUNT.itemsize + count * SEGMENT_PLACE.itemsize
    if not 0 <= count <= len(data) or at > len(data) or (len(data) - at) % FILL_PLACE.itemsize:
        return None
    heads = np.frombuffer(data, SEGMENT_PLACE, count, _COUNT.itemsize)
    fills = np.frombuffer(data, FILL_PLACE, offset=at)
    lanes = np.unique(heads["lane"])
    if len(lanes) < count or not np.isin(fills["lane"], lanes).all():
        return None
    place = np.zeros(count + len(fills), SEGMENT_PLACE)
    place[:count], place["lane"][count:] = heads, fills["lane"]
    if len(fills):
        place["index"][count:] = heads["index"][0] + fills["after"].astype(np.int64)
    return place[place["lane"].argsort(kind="stable")]


class Slots:
    """The tables, indexed by slot, and the keys."""

    chunk: np.ndarray
    row: np.ndarray
    count: np.ndarray
    index: np.ndarray
    line: np.ndarray
    segment: np.ndarray  # number of the next segment to hand out
    version: np.ndarray  # token of the commit that saved the kept state; 0: none
    done: np.ndarray  # number of committed segments …
    kept: np.ndarray  # … and of segments before the kept state

    def __init__(self, size: int, unroll: int = 0) -> None:
        """``unroll``: steps of a row, where rows are packed; 0: they are not."""
        self.unroll = unroll
        self.live = 0  # number of slots in use
        self.size = 0  # of the tables
        self._resumed = False  # whether an earlier process began some examples
        self._key_of: dict[int, Key] = {}
        self._slot_of: dict[Key, int] = {}  # by key in flight; -1 before it has a slot
        self._free: list[int] = []
        self._expected: Rows | None = None
        self._tables = np.empty((len(_TABLES), 0), np.int64)  # one row for each table
        self._grow(size)

    def _grow(self, size: int) -> None:
        before, self.size = self.size, size
        self._free[:0] = range(size - 1, before - 1, -1)
        grown = np.zeros((len(_TABLES), size), np.int64)
        grown[:, :before] = self._tables
        self._tables, self._numbers = grown, grown[: len(_NUMBERS)]
        for name, table in zip(_TABLES, grown, strict=True):
            setattr(self, name, table)

    # Examples come

    def numbers_of(self, slots: np.ndarray) -> np.ndarray:
        """Return one row for each of the names in Examples."""
        return self._numbers.take(slots, 1)

    def are_new(self, keys: Sequence[Key]) -> bool:
        """Return whether these keys are different ones, none of which is in flight."""
        return self._slot_of.keys().isdisjoint(keys) and len(set(keys)) == len(keys)

    def reserve(self, key: Key, line: int) -> bool:
        """Put a key in flight; return False if an earlier example has it in flight.

        A later example may also have it, if an earlier process began that example.
        """
        slot = self._slot_of.get(key)
        if slot is not None and not (self._resumed and slot >= 0 and self.line[slot] > line):
            return False
        self._slot_of[key] = -1
        return True

    def columns(self, chunk: int, counts: np.ndarray, line: int) -> np.ndarray:
        """Return columns for the tables of all examples of a chunk, without their indices."""
        columns = np.zeros((len(_TABLES), len(counts)), np.int64)
        rows = np.arange(len(counts))
        columns[LINE], columns[CHUNK] = rows + line, chunk
        columns[ROW], columns[COUNT] = rows, counts
        return columns

    def enter(self, columns: np.ndarray, keys: Sequence[Key]) -> np.ndarray:
        """Add examples of one chunk whose keys are reserved; return their slots."""
        slots = self._take(keys)
        self._tables[:, slots] = columns
        return slots

    def resume(self, begun: Examples) -> np.ndarray:
        """Add examples that an earlier process began; return their slots."""
        self._resumed = True
        slots = self._take(begun.keys)
        self._numbers[:, slots] = begun.numbers
        self.done[slots] = self.kept[slots] = self.segment[slots]
        return slots

    def _take(self, keys: Sequence[Key]) -> np.ndarray:
        n = len(keys)
        if len(self._free) < n:
            self._grow(max(2 * self.size, self.live + n))
        numbers = self._free[: -n - 1 : -1]
        del self._free[len(self._free) - n :]
        self.live += n
        self._key_of.update(zip(numbers, keys, strict=True))
        self._slot_of.update(zip(keys, numbers, strict=True))
        return np.array(numbers, np.int64)

    # Examples go

    def land(self, slots: np.ndarray) -> None:
        """End the flight of these examples' keys."""
        key_of, slot_of = self._key_of, self._slot_of
        for slot in slots.tolist():
            key = key_of[slot]
            if slot_of.get(key) == slot:
                del slot_of[key]

    def reenter(self, slots: np.ndarray) -> None:
        """Put the keys of these examples in flight again, if no other example has them."""
        for slot in slots.tolist():
            self._slot_of.setdefault(self._key_of[slot], slot)

    def free(self, slots: np.ndarray) -> None:
        """Free the slots of examples that ended or were dropped."""
        numbers = slots.tolist()
        for slot in numbers:
            del self._key_of[slot]
        self.index[slots] = -1  # no example is there
        self._free.extend(numbers)
        self.live -= len(numbers)

    # Queries

    def left(self) -> int:
        """Return the number of segments that were not handed out."""
        slots = np.fromiter(self._key_of, np.int64, len(self._key_of))
        return int((self.count[slots] - self.segment[slots]).sum())

    def all_keys(self) -> Iterable[Key]:
        """Return the keys of all examples that have not ended."""
        return self._key_of.values()

    def key_of(self, slot: int) -> Key:
        """Return the key of an example that has not ended."""
        return self._key_of[slot]

    def keys_of(self, slots: np.ndarray) -> list[Key]:
        """Return the keys of examples that have not ended."""
        return list(map(self._key_of.__getitem__, slots.tolist()))

    def of_name(self, name: bytes) -> list[tuple[int, int]]:
        """Return slot and epoch of each example whose key is (epoch, name)."""
        return [(slot, epoch) for slot, (epoch, key) in self._key_of.items() if key == name]

    def find(self, indices: np.ndarray) -> np.ndarray:
        """Return slots by insertion index; -1 for an example that is not here."""
        there = {int(self.index[slot]): slot for slot in self._key_of}
        return np.array([there.get(index, -1) for index in indices.tolist()], np.int64)

    def rows(
        self,
        slots: np.ndarray,
        lanes: np.ndarray = NO_NUMBERS,
        starts: np.ndarray = NO_NUMBERS,
        size: int = 0,
    ) -> Rows:
        """Return the next segments of examples as the rows of a batch."""
        numbers = self._numbers.take(slots, 1)
        expected, self._expected = self._expected, None
        if expected is not None and not size and expected.has(numbers, lanes, starts):
            expected.numbers, expected.versions = numbers, numbers[VERSION]
            return expected
        return Rows(slots, numbers, lanes, starts, size, self.unroll)

    def expected(
        self, slots: np.ndarray, lanes: np.ndarray = NO_NUMBERS, starts: np.ndarray = NO_NUMBERS
    ) -> Rows:
        """Return the batch that is expected next, of the next segments of these examples."""
        numbers = self._numbers.take(slots, 1)
        self._expected = Rows(slots, numbers, lanes, starts, unroll=self.unroll)
        return self._expected
