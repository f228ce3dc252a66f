"""Examples of a partition of segments on their way to batches: admitted in order, and ready.

    offer ─► waiting ──capacity──► fresh ──┐
                                           ├─► take_ready() … end()
             come_back() ───────► back ────┘

An admitted example gets a *slot*, its row in all tables (slots.py), and the next insertion index;
its key is then in flight.  Its place in ``capacity`` is free when its last segment is taken, its
slot when that segment is committed.  Examples begin in the order of their indices, so those that
came back are older than fresh ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .fifo import Fifo
from .plan import Shaper
from .slots import Rows, Slots
from .stored_state import CHUNK, INDEX, Examples, Key

#: First insertion index, as in TensorFlow …
FIRST_INDEX = -(2**63)
#: … with the partition in these bits after the sign.
PARTITION_BITS = 12
#: Number of admitted, unbegun examples above which no reads happen ahead.
READ_AHEAD = 1024
#: Marks of an example that an earlier process began or ended, and of one that it refused.
BEGUN, REFUSED = 1, 2


class OldestFirst:
    """Returned slots, the smallest insertion index first.

    They are a few sorted runs, each less than half as long as the one before when it was added.  So
    the cost of a batch grows with the logarithm of their number.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # [2, n]: insertion indices, slots
        self.count = 0

    def put(self, indices: np.ndarray, slots: np.ndarray) -> None:
        """Add slots with ascending indices."""
        if not len(slots):
            return
        self.count += len(slots)
        run = np.empty((2, len(slots)), np.int64)
        run[0], run[1] = indices, slots
        while self._runs and self._runs[-1].shape[1] <= 2 * run.shape[1]:
            run = np.concatenate([self._runs.pop(), run], axis=1)
            run = run[:, np.argsort(run[0], kind="stable")]
        self._runs.append(run)

    def get(self, n: int) -> np.ndarray:
        """Remove the first ``n``, which must be there."""
        self.count -= n
        if len(self._runs) == 1 and self._runs[0].shape[1] == n:
            whole: np.ndarray = self._runs.pop()[1]
            return whole
        heads = [run[:, :n] for run in self._runs]
        if len(heads) > 1:
            joined = np.concatenate(heads, axis=1)
            order = np.argsort(joined[0], kind="stable")[:n]
            origins = np.repeat(np.arange(len(heads)), [head.shape[1] for head in heads])[order]
            taken = np.bincount(origins, minlength=len(heads)).tolist()
            slots: np.ndarray = joined[1, order]
        else:
            slots = heads[0][1] if heads else np.empty(0, np.int64)
            taken = [len(slots)] * len(heads)
        runs = [run[:, used:] for run, used in zip(self._runs, taken, strict=True)]
        self._runs = [run for run in runs if run.shape[1]]
        return slots

    def first(self, n: int) -> np.ndarray:
        """Return unsorted indices and slots that include the first ``n``; leave them."""
        if not self._runs:
            return np.empty((2, 0), np.int64)
        return np.concatenate([run[:, :n] for run in self._runs], axis=1)


@dataclass(frozen=True, slots=True)
class OfferedExamples:
    """Facts of a chunk's examples while some of them wait."""

    keys: Sequence[Key]
    counts: np.ndarray
    columns: np.ndarray  # columns of the tables
    line: int  # of its first example
    known: np.ndarray | None  # by row: BEGUN or REFUSED; None: all are new

    def left(self, start: int, stop: int) -> int:
        """Return the number of segments of examples that no earlier process has handled."""
        counts = self.counts[start:stop]
        return int(
            counts.sum() if self.known is None else counts[self.known[start:stop] == 0].sum()
        )

    def seek(self, key: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Return epoch and number of segments of each example with this key."""
        for row in range(start, stop):
            epoch, name = self.keys[row]
            if name == key and (self.known is None or not self.known[row]):
                yield epoch, int(self.counts[row])


class Admission(Shaper):
    """The examples of one partition, and the queues of those that wait for a batch.

    ``capacity`` None is unbounded.
    """

    kind = "sequences"

    def __init__(
        self, batch_size: int, capacity: int | None, partition: int, unroll: int = 0
    ) -> None:
        super().__init__()
        self.capacity = capacity
        self.in_flight = 0  # examples that hold a place of the capacity
        self._read_ahead = max(READ_AHEAD, 4 * batch_size)
        #: Insertion index of the next example.
        self.next_index = FIRST_INDEX + (partition << (63 - PARTITION_BITS))
        self.next_line = 0  # number of the next example, as it is read
        self._claimed = self.next_index  # examples below are admitted, though there is no place
        self._waiting: deque[tuple[int, int, int]] = deque()  # chunk, start, stop
        self._offered: dict[int, OfferedExamples] = {}
        self._fresh = Fifo()
        self._back = OldestFirst()  # examples that were handed out and whose next segment is ready
        self.cancelled = False
        self._uses: dict[int, int] = {}  # chunk → examples of it that still need its payload
        self._refused: list[tuple[int, int]] = []
        #: Numbers and slots of examples that fill no batch at the end, until they are stored.
        self.drops: list[tuple[np.ndarray, np.ndarray]] = []
        self._freed: list[int] = []  # slots of examples that ended, where states stay at trainers
        self._slots = Slots(min(capacity or READ_AHEAD, READ_AHEAD), unroll)
        self.find, self.keys_of = self._slots.find, self._slots.keys_of

    # Input

    @property
    def _places(self) -> int | None:
        """How many examples may be in flight."""
        return self.capacity

    @property
    def hungry(self) -> bool:
        """Whether more examples are wanted now."""
        if self._finished:
            return False
        admits = self._claimed > self.next_index
        if not admits and (self._waiting or self._fresh.count >= self._read_ahead):
            return False
        room = self._room
        return room is None or room > 0

    @property
    def _room(self) -> int | None:
        """How many examples may be admitted.

        Those of batches that trainers hold from an earlier life are admitted though others have
        their places, and so are those that end in a packed row; there are not more of them than
        places, or than steps in a row for each.
        """
        places = self._places
        if places is None:
            return None
        most = (2 + self._slots.unroll) * places - self.in_flight
        claimed = min(self._claimed - self.next_index, most)
        return max(places - self.in_flight, claimed)

    def offer(self, chunk: int, rows: int, facts: Mapping[str, Any]) -> None:
        """Take a chunk's examples, in order: the ``key`` of each and its ``count`` of segments.

        ``line`` is the number of the first, and ``known`` marks those that an earlier process
        handled: they are not admitted again, and already have their insertion index.
        """
        self._check_open(chunk)
        if rows:
            counts, line = np.asarray(facts["count"], np.int64), facts.get("line", self.next_line)
            columns = self._slots.columns(chunk, counts, line)
            self._offered[chunk] = OfferedExamples(
                facts["key"], counts, columns, line, facts.get("known")
            )
            self.next_line = line + rows
            self._waiting.append((chunk, 0, rows))
            self._uses[chunk] = rows
            self._admit()

    def finish(self, drop: bool = False) -> None:
        """End the input.  With ``drop`` waiting examples are dropped."""
        self._finished = True
        if drop:
            self.cancelled = True
            for chunk, start, stop in self._waiting:
                self._note_dropped("cancelled", self._offered[chunk].left(start, stop))
                self._release(chunk, stop - start)
            self._waiting.clear()
            self._offered.clear()

    def take_refused(self) -> list[tuple[int, int]]:
        """Return chunk and row of examples that were refused because their key was in flight."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def _closed(self) -> bool:
        """Whether no more examples will be admitted."""
        return self._finished and not self._waiting

    def _admit(self) -> None:
        """Admit examples in order, while there is room."""
        while self._waiting:
            chunk, start, stop = self._waiting[0]
            room = self._room
            end = stop if room is None else min(stop, start + room)
            offered = self._offered[chunk]
            if end <= start:
                return
            if end < stop:
                self._waiting[0] = chunk, end, stop
            else:
                self._waiting.popleft()
                del self._offered[chunk]
            columns, keys = offered.columns[:, start:end], offered.keys[start:end]
            if offered.known is None and self._slots.are_new(keys):
                first, self.next_index = self.next_index, self.next_index + len(keys)
                columns[INDEX] = np.arange(first, self.next_index)
            else:
                rows = self._let_in(chunk, offered, start, end)
                columns, keys = offered.columns[:, rows], [offered.keys[row] for row in rows]
            if len(keys):
                self._fresh.put(self._slots.enter(columns, keys))
                self.in_flight += len(keys)

    def _let_in(self, chunk: int, offered: OfferedExamples, start: int, end: int) -> list[int]:
        """Admit rows out of a range, each with its insertion index; return them."""
        keys, known, reserve = offered.keys, offered.known, self._slots.reserve
        rows = []
        for row in range(start, end):
            mark = 0 if known is None else known[row]
            if not mark and not reserve(keys[row], offered.line + row):
                self._refused.append((chunk, row))
                mark = REFUSED
            if mark != REFUSED:
                self.next_index += 1
            if mark:
                self._release(chunk, 1)
            else:
                rows.append(row)
                offered.columns[INDEX, row] = self.next_index - 1
        return rows

    def resume(self, begun: Examples, index: int, line: int) -> np.ndarray:
        """Resume examples that an earlier process began; return their slots.

        ``index`` and ``line`` are those of the next example that is read.
        """
        self.next_index = self._claimed = index
        self.next_line = line
        slots = self._slots.resume(begun)
        self.in_flight += len(slots)
        for chunk, uses in Counter(begun.numbers[CHUNK].tolist()).items():
            self._uses[chunk] = self._uses.get(chunk, 0) + uses
        self._come_back(slots)
        return slots

    # Ready examples

    @property
    def ready(self) -> int:
        """Number of segments that wait for a batch, except those of begun lanes."""
        return self._back.count + self._fresh.count

    def _come_back(self, slots: np.ndarray) -> None:
        """Make the next segments of these examples ready."""
        slots = slots[self._slots.index[slots].argsort(kind="stable")]
        self._back.put(self._slots.index[slots], slots)

    def _take_ready(self, n: int) -> np.ndarray:
        """Take the ready examples with the ``n`` smallest insertion indices."""
        count = self._back.count
        if not count:
            return self._fresh.get(n)
        back = self._back.get(min(n, count))
        if count >= n:
            return back
        slots, index = np.concatenate([back, self._fresh.get(n - count)]), self._slots.index
        if index[slots[count - 1]] > index[slots[count]]:
            # An earlier process has stored an example, and not an older one in other hands.
            slots = slots[index[slots].argsort()]
        return slots

    def _withdraw(self, slots: np.ndarray) -> None:
        """Remove these from the ready examples."""
        back = self._back.get(self._back.count)
        back = back[~np.isin(back, slots)]
        self._back.put(self._slots.index[back], back)
        self._fresh.remove(slots)

    def _drop_ready(self, reason: str) -> None:
        """Drop all ready examples."""
        self._drop(self._back.get(self._back.count), reason)
        self._drop(self._fresh.get(self._fresh.count), reason)

    @property
    def slots(self) -> int:
        """Size of the tables, above all slots.  It only grows."""
        return self._slots.size

    def _leave_capacity(self, slots: np.ndarray) -> None:
        """Free the places of examples whose last segments are taken."""
        self.in_flight -= len(slots)
        self._slots.land(slots)

    def _reenter(self, slots: np.ndarray) -> None:
        """Count examples as in flight again whose last segments were handed out."""
        self.in_flight += len(slots)
        self._slots.reenter(slots)

    def _end(self, slots: np.ndarray) -> None:
        """Free the slots of examples that ended, and need their chunks no more."""
        uses = self._uses
        for chunk in self._slots.chunk[slots].tolist():
            uses[chunk] -= 1
            if not uses[chunk]:
                del uses[chunk]
        self._slots.free(slots)
        self._freed.extend(slots.tolist())

    def take_freed(self) -> list[int]:
        """Return slots of examples that ended or were dropped since the last call."""
        freed, self._freed = self._freed, []
        return freed

    def _release(self, chunk: int, rows: int) -> None:
        self._uses[chunk] -= rows
        if not self._uses[chunk]:
            del self._uses[chunk]

    def _drop(self, slots: np.ndarray, reason: str) -> None:
        """Drop examples in flight, and count their remaining segments."""
        left = self._slots.count[slots] - self._slots.segment[slots]
        self._note_dropped(reason, int(left.sum()))
        if reason == "remainder" and len(slots):  # a stored order says what is cancelled
            self.drops.append((self._slots.numbers_of(slots), slots))
        self._leave_capacity(slots)
        self._end(slots)

    # Queries

    def snapshot(self) -> dict[str, int]:
        """Return the count of ``drops``, which the store has with them."""
        return {"remainder": self._dropped.get("remainder", 0)}

    def restore(self, state: Mapping[str, int]) -> None:
        self._note_dropped("remainder", state["remainder"])

    def chunks(self) -> set[int]:
        """Return the chunks whose payload is still needed."""
        return set(self._uses)

    def seek_in(self, key: bytes, out: Iterable[tuple[int, Rows]]) -> list[list[object]]:
        """Return a key's examples of all epochs: epoch, segment, number of segments, place, batch.

        ``out``: batches that are not committed, by number, the oldest first.  The place is "ready"
        where the next segment waits for a batch, "not begun" where the first one does, or "out".
        """
        batches, found = list(out), []
        for slot, epoch in self._slots.of_name(key):
            count, segment, number = (
                int(self._slots.count[slot]),
                int(self._slots.segment[slot]),
                -1,
            )
            for of, rows in batches:
                at = (rows.slots == slot).nonzero()[0]
                if len(at):
                    segment, number = int(rows.segments[at[0]]), of
                    break
            where = "out" if number >= 0 else "ready" if segment else "not begun"
            found.append([epoch, segment, count, where, number])
        for chunk, start, stop in self._waiting:
            known = self._offered[chunk].seek(key, start, stop)
            found += [[epoch, 0, count, "not begun", -1] for epoch, count in known]
        return found
