"""Examples of a partition on their way to batches: admitted in order, and ready.

    offer ─► waiting ──capacity──► fresh ──┐
                                           ├─► take() … a batch, or a lane … ─► settle() ─► the end
             settle() ──────────► back ────┘

An admitted example gets an *entry* in the tables and the next insertion index; its key is then in
flight.  Its place in ``capacity`` is free when its last segment is taken, its entry when that
segment is committed.  Examples begin in the order of their indices, so those that came back are
older than fresh ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .entries import LANE, Entries
from .fifo import Fifo
from .stored_state import AT, END, INDEX, Examples, Key

#: First insertion index, as in TensorFlow …
FIRST_INDEX = -(2**63)
#: … with the partition in these bits after the sign.
PARTITION_BITS = 12
#: Number of admitted, unbegun examples above which no reads happen ahead.
READ_AHEAD = 1024
#: Marks of an example that an earlier process began or ended, and of one that it refused.
BEGUN, REFUSED = 1, 2


class OldestFirst:
    """Returned entries, the smallest insertion index first.

    They are a few sorted runs, each less than half as long as the one before when it was added.  So
    the cost of a batch grows with the logarithm of their number.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []  # [2, n]: insertion indices, entries
        self.count = 0

    def put(self, run: np.ndarray) -> None:
        """Add ascending indices, and their entries."""
        if not run.shape[1]:
            return
        self.count += run.shape[1]
        while self._runs and self._runs[-1].shape[1] <= 2 * run.shape[1]:
            run = np.concatenate([self._runs.pop(), run], axis=1)
            run = run[:, run[0].argsort(kind="stable")]
        self._runs.append(run)

    def get(self, n: int) -> np.ndarray:
        """Remove the first ``n``, which must be there, and return their entries."""
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
            entries: np.ndarray = joined[1, order]
        else:
            entries = heads[0][1] if heads else np.empty(0, np.int64)
            taken = [len(entries)] * len(heads)
        runs = [run[:, used:] for run, used in zip(self._runs, taken, strict=True)]
        self._runs = [run for run in runs if run.shape[1]]
        return entries

    def first(self, n: int) -> np.ndarray:
        """Return unsorted indices and entries that include the first ``n``; leave them."""
        if not self._runs:
            return np.empty((2, 0), np.int64)
        return np.concatenate([run[:, :n] for run in self._runs], axis=1)


@dataclass(slots=True)
class Waiting:
    """The examples of a chunk from row ``start`` on, which wait for a place."""

    chunk: int
    start: int
    keys: Sequence[Key]  # of all of the chunk, as all that follows
    left: np.ndarray  # number of segments of each; 0 where an earlier process handled it
    columns: np.ndarray  # of the tables
    line: int  # of its first example
    known: np.ndarray | None  # by row: BEGUN or REFUSED; None: all are new


class Admission:
    """The examples of one partition, and the queues of those that wait for a batch.

    ``capacity`` None is unbounded.
    """

    def __init__(
        self, entries: Entries, partition: int, batch_size: int, capacity: int | None
    ) -> None:
        self._entries = entries
        self.capacity = capacity
        self.in_flight = 0  # examples that hold a place of the capacity
        self._crowded = False  # whether more examples came back than there are places
        #: Number of examples that need places if it is: those of begun lanes could deadlock.
        self.least_places: Callable[[], int] = int
        self.read_ahead = max(READ_AHEAD, 4 * batch_size)
        #: Insertion index of the next example.
        self.next_index = FIRST_INDEX + (partition << (63 - PARTITION_BITS))
        self.claimed = self.next_index  # examples below are admitted, though there is no place
        self.next_line = 0  # number of the next example, as it is read
        self.finished = self.cancelled = False
        self._waiting: deque[Waiting] = deque()
        self.lacking = False  # whether a lane waits for an example that is assigned to it
        self.fresh = Fifo()
        self.back = OldestFirst()  # examples that were handed out and whose next segment is ready
        self._refused: list[tuple[int, int]] = []
        #: Numbers and entries of examples that fill no batch at the end, until they are stored.
        self.drops: list[tuple[np.ndarray, np.ndarray]] = []
        self.dropped: dict[str, int] = {}  # number of segments, by reason

    # Input

    @property
    def hungry(self) -> bool:
        """Whether more examples are wanted now."""
        if self.finished:
            return False
        admits = self.claimed > self.next_index
        much = self.fresh.count >= self.read_ahead and not self.lacking
        if not admits and (self._waiting or much):
            return False
        return not self.full

    @property
    def full(self) -> bool:
        """Whether no more examples may be admitted now."""
        room = self._room
        return room is not None and room <= 0

    @property
    def _room(self) -> int | None:
        """How many examples may be admitted.

        Those of batches that trainers hold from an earlier life are admitted though others have
        their places, and so are those that end in a packed row; there are not more of them than
        places, or than steps in a row for each.
        """
        places, cut = self.capacity, self._entries.cut
        if places is None:
            return None
        if self._crowded:
            places = max(places, self.least_places())
        if self.claimed <= self.next_index:
            return max(places - self.in_flight, 0)
        most = (2 + cut.packed * cut.unroll) * places - self.in_flight
        return max(places - self.in_flight, min(self.claimed - self.next_index, most))

    def offer(self, chunk: int, rows: int, facts: Mapping[str, Any]) -> None:
        """Take a chunk's examples, in order: the ``key`` of each, and its ``steps``.

        ``openings`` are the steps of first segments, where these are drawn, and ``lanes`` the lane
        of each example, where that is declared.  ``line`` is the number of the first example, and
        ``known`` marks those that an earlier process handled: they are not admitted again, and
        already have their insertion index.
        """
        if self.finished:
            raise ValueError(f"chunk {chunk} is offered after the input has ended")
        if rows:
            steps, line = np.asarray(facts["steps"], np.int64), facts.get("line", self.next_line)
            openings, known = facts.get("openings"), facts.get("known")
            columns = self._entries.columns(chunk, steps, line, openings)
            if (lanes := facts.get("lanes")) is not None:
                columns[LANE] = lanes
            left = self._entries.cut.left(np.zeros_like(steps), steps, openings)
            if known is not None:
                left = left * (known == 0)
            self.next_line = line + rows
            self._waiting.append(Waiting(chunk, 0, facts["key"], left, columns, line, known))
            self.admit()

    def finish(self, drop: bool = False) -> None:
        """End the input.  With ``drop`` waiting examples are dropped."""
        self.finished = True
        if drop:
            self.cancelled = True
            for of in self._waiting:
                self._note_dropped("cancelled", int(of.left[of.start :].sum()))
            self._waiting.clear()

    def take_refused(self) -> list[tuple[int, int]]:
        """Return chunk and row of examples that were refused because their key was in flight."""
        refused, self._refused = self._refused, []
        return refused

    @property
    def closed(self) -> bool:
        """Whether no more examples will be admitted."""
        return self.finished and not self._waiting

    def admit(self) -> None:
        """Admit examples in order, while there is room."""
        while self._waiting:
            of, room = self._waiting[0], self._room
            start, stop = of.start, len(of.keys)
            end = stop if room is None else min(stop, start + room)
            if end <= start:
                return
            of.start = end
            if end == stop:
                self._waiting.popleft()
            columns, keys = of.columns[:, start:end], of.keys[start:end]
            if of.known is None and self._entries.are_new(keys):
                first, self.next_index = self.next_index, self.next_index + len(keys)
                columns[INDEX] = np.arange(first, self.next_index)
            else:
                rows = self._let_in(of, start, end)
                columns, keys = of.columns[:, rows], [of.keys[row] for row in rows]
            if len(keys):
                self.fresh.put(self._entries.enter(columns, keys))
                self.in_flight += len(keys)

    def _let_in(self, of: Waiting, start: int, end: int) -> list[int]:
        """Admit rows out of a range, each with its insertion index; return them."""
        rows = []
        for row in range(start, end):
            mark = 0 if of.known is None else of.known[row]
            if not mark and not self._entries.reserve(of.keys[row], of.line + row):
                self._refused.append((of.chunk, row))
                mark = REFUSED
            if mark != REFUSED:
                self.next_index += 1
            if not mark:
                rows.append(row)
                of.columns[INDEX, row] = self.next_index - 1
        return rows

    def admit_claimed(self, index: int) -> bool:
        """Admit the examples below an index, beyond the capacity; return whether that is done."""
        self.claimed = max(self.claimed, index)
        before = self.fresh.count, self.next_index
        self.admit()  # those that an earlier process began get indices only
        return before != (self.fresh.count, self.next_index)

    def resume(self, begun: Examples, index: int, line: int) -> np.ndarray:
        """Resume examples that an earlier process began; return their entries.

        ``index`` and ``line`` are those of the next example that is read.
        """
        self.next_index = self.claimed = index
        self.next_line = line
        entries = self._entries.resume(begun)
        self.in_flight += len(entries)
        self.settle(entries)
        return entries

    # Ready examples

    @property
    def ready(self) -> int:
        """Number of segments that wait for a batch, except those of begun lanes."""
        return self.back.count + self.fresh.count

    def all_ready(self) -> np.ndarray:
        """Return the entries of all ready examples."""
        back, fresh = self.back, self.fresh
        return np.concatenate([back.first(back.count)[1], fresh.first(fresh.count)])

    def settle(self, entries: np.ndarray, cancel: bool = False) -> None:
        """Let examples that no batch and no lane has go on: they end, or are ready.

        ``cancel``: those that do not end are dropped.
        """
        numbers = self._entries.numbers_of(entries)
        going = (numbers[AT] < numbers[END]).nonzero()[0]
        if len(going) < len(entries):
            self._entries.free(entries[numbers[AT] == numbers[END]])
            if not len(going):
                return
            entries = entries[going]
        if cancel:
            self.drop(entries, "cancelled")
        else:
            run = np.array([numbers[INDEX, going], entries])
            self.back.put(run[:, run[0].argsort(kind="stable")])

    def take(self, n: int) -> np.ndarray:
        """Take the ready examples with the ``n`` smallest insertion indices."""
        count = self.back.count
        if not count:
            return self.fresh.get(n)
        back = self.back.get(min(n, count))
        if count >= n:
            return back
        entries, index = np.concatenate([back, self.fresh.get(n - count)]), self._entries.index
        if index[entries[count - 1]] > index[entries[count]]:
            # An earlier process has stored an example, and not an older one in other hands.
            entries = entries[index[entries].argsort()]
        return entries

    def withdraw(self, entries: np.ndarray) -> None:
        """Remove these from the ready examples."""
        back = self.back.get(self.back.count)
        back = back[~np.isin(back, entries)]
        self.back.put(np.array([self._entries.index[back], back]))
        self.fresh.remove(entries)

    def drop_ready(self, reason: str) -> None:
        """Drop all ready examples."""
        self.drop(self.back.get(self.back.count), reason)
        self.drop(self.fresh.get(self.fresh.count), reason)

    # Examples go

    def land(self, entries: np.ndarray) -> None:
        """Free the places of examples whose last segments are taken, and admit others."""
        if len(entries):
            self.in_flight -= len(entries)
            self._entries.land(entries)
        if self._waiting:
            self.admit()

    def reenter(self, entries: np.ndarray) -> None:
        """Count examples as in flight again whose last segments were handed out."""
        self.in_flight += len(entries)
        self._entries.reenter(entries)
        self._crowded |= self.capacity is not None and self.in_flight > self.capacity

    def drop(self, entries: np.ndarray, reason: str) -> None:
        """Drop examples in flight, and count their remaining segments."""
        if not len(entries):
            return
        self._note_dropped(reason, int(self._entries.left(entries).sum()))
        if reason == "remainder":  # a stored order says what is cancelled
            self.drops.append((self._entries.numbers_of(entries), entries))
        self.in_flight -= len(entries)
        self._entries.land(entries)
        self._entries.free(entries)

    def _note_dropped(self, reason: str, segments: int) -> None:
        if segments:
            self.dropped[reason] = self.dropped.get(reason, 0) + segments

    # Queries

    def snapshot(self) -> dict[str, int]:
        """Return the count of ``drops``, which the store has with them."""
        return {"remainder": self.dropped.get("remainder", 0)}

    def restore(self, state: Mapping[str, int]) -> None:
        """Go on counting as an earlier process left it."""
        self._note_dropped("remainder", state["remainder"])

    def chunks(self) -> set[int]:
        """Return the chunks whose payload is still needed."""
        entries = self._entries
        return {*entries.chunk[entries.used()].tolist(), *(of.chunk for of in self._waiting)}

    @property
    def waiting(self) -> int:
        """Number of examples that wait for a place of the capacity."""
        return sum(len(of.keys) - of.start for of in self._waiting)

    def seek(self, key: bytes) -> Iterator[tuple[int, int]]:
        """Return epoch and number of segments of each waiting example with this key."""
        for of in self._waiting:
            for row in range(of.start, len(of.keys)):
                epoch, name = of.keys[row]
                if name == key and of.left[row]:
                    yield epoch, int(of.left[row])
