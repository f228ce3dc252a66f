"""Examples on their way through a feed of segments: admitted in order, cut, finished.

    offer ─► waiting ──capacity──► fresh ──first taken──► started ──last one done──► finished

An example that is admitted gets a *slot*, the row of all tables that speak of it (slots.py), and
the next insertion index; its key is then in flight.  Its place in ``capacity`` is free when its
last segment is taken, its slot when that segment is done.  What is taken when is decided by the
classes that build on this one: `SegmentQueue` (order of arrival) and `Lanes`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from .seeking import Found, found_in
from .slots import Begun, Segments, Slots

__all__ = ["BEGUN", "FIRST_INDEX", "PARTITION_BITS", "REFUSED", "Sequences"]

#: Insertion indices start here, as they did in TensorFlow …
FIRST_INDEX = -(2**63)
#: … and carry the partition in the bits after the sign.
PARTITION_BITS = 12
#: Examples that are admitted and not begun, beyond which nothing is read ahead.
_READ_AHEAD = 1024
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Offered:
    """What is known of a chunk's examples while some of them wait."""

    keys: Sequence[Hashable]
    counts: np.ndarray
    columns: np.ndarray  # of the tables
    line: int  # of its first example
    known: np.ndarray | None  # per row: one of the marks below; None: all are new

    def seek(self, key: Hashable, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Epoch and number of segments of the examples with this key."""
        for row in range(start, stop):
            epoch, name = cast("tuple[int, Hashable]", self.keys[row])
            if name == key and (self.known is None or not self.known[row]):
                yield epoch, int(self.counts[row])


#: An example that an earlier life has begun or ended, and one whose key it has refused.
BEGUN, REFUSED = 1, 2


class _Fifo:
    """Slots, first in first out."""

    def __init__(self) -> None:
        self._parts: deque[np.ndarray] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, slots: np.ndarray) -> None:
        self._parts.append(slots)
        self._count += len(slots)

    def get(self, n: int) -> np.ndarray:
        """The first ``n`` of them; there must be so many."""
        self._count -= n
        taken = []
        while n:
            part = self._parts.popleft()
            if len(part) > n:
                self._parts.appendleft(part[n:])
                part = part[:n]
            taken.append(part)
            n -= len(part)
        return taken[0] if len(taken) == 1 else np.concatenate([_NONE, *taken])

    def first(self, n: int) -> np.ndarray:
        """The first ``n`` of them, which stay."""
        slots = self.get(n)
        if n:
            self._parts.appendleft(slots)
            self._count += n
        return slots


class Sequences(ABC):
    """What both orders have in common: admission, capacity, counts.

    ``capacity`` None is unbounded.  A shaper whose drafts are Segments; see ``plan.Shaper``.
    """

    kind = "sequences"
    rewound = 0  # segments that were done, and go out again
    through: Sequence[int] = ()  # see ``take_through``
    _slots: Slots

    def __init__(
        self,
        batch_size: int,
        capacity: int | None = None,
        allow_small_batch: bool = False,
        partition: int = 0,
    ) -> None:
        if capacity is not None and capacity < batch_size:
            raise ValueError(f"capacity={capacity} is less than batch_size={batch_size}")
        self.batch_size = batch_size
        self.capacity = capacity
        self.allow_small = allow_small_batch
        self.in_flight = 0  # examples that hold a place of the capacity
        self._read_ahead = max(_READ_AHEAD, 4 * batch_size)
        self._next_index = FIRST_INDEX + (partition << (63 - PARTITION_BITS))
        self._waiting: deque[tuple[int, int, int]] = deque()  # chunk, start, stop
        self._offered: dict[int, _Offered] = {}
        self._fresh = _Fifo()
        self._finished = False
        self._cancelled = False
        self._dropped: dict[str, int] = {}
        self._uses: dict[int, int] = {}  # chunk → examples of it that still need its payload
        self.refused: list[tuple[int, int]] = []  # see ``take_refused``
        self._out: dict[int, Segments] = {}  # in trainers' hands, the oldest first
        self._slots = self._new_slots(min(capacity or _READ_AHEAD, _READ_AHEAD))

    def _new_slots(self, size: int) -> Slots:
        return Slots(size)

    # Input

    @property
    def hungry(self) -> bool:
        """Whether more examples are wanted now."""
        places = self._places
        room = places is None or self.in_flight < places
        ahead = bool(self._waiting) or len(self._fresh) >= self._read_ahead
        return room and not ahead and not self._finished

    def offer(self, chunk: int, rows: int, facts: Mapping[str, Any]) -> None:
        """A chunk's examples, in order: the ``key`` of each and its ``count`` of segments.

        ``line`` is the number of the first, and ``known`` marks those that an earlier life has
        dealt with: they are not admitted, and have had their insertion index.
        """
        if self._finished:
            raise ValueError(f"chunk {chunk} is offered after the input has ended")
        if rows:
            counts, line = np.asarray(facts["count"], np.int64), facts.get("line", 0)
            columns = self._slots.columns(chunk, counts, line)
            self._offered[chunk] = _Offered(facts["key"], counts, columns, line, facts.get("known"))
            self._waiting.append((chunk, 0, rows))
            self._uses[chunk] = rows
            self._admit()

    def finish(self, drop: bool = False) -> None:
        """The input has ended.  With ``drop`` what is not begun or ready now never will be."""
        self._finished = True
        if drop:
            self._cancelled = True
            for chunk, start, stop in self._waiting:
                self._note_dropped("cancelled", int(self._offered[chunk].counts[start:stop].sum()))
                self._release(chunk, stop - start)
            self._waiting.clear()
            self._offered.clear()

    def take_refused(self) -> list[tuple[int, int]]:
        """Chunk and row of examples whose key was in flight already.  They were not admitted."""
        refused, self.refused = self.refused, []
        return refused

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    @property
    def _places(self) -> int | None:
        """How many examples may be in flight."""
        return self.capacity

    @property
    def _closed(self) -> bool:
        """Whether no example will be admitted any more."""
        return self._finished and not self._waiting

    def _admit(self) -> None:
        """Let examples in, in their order, as far as there is room."""
        while self._waiting:
            chunk, start, stop = self._waiting[0]
            end = stop
            places = self._places
            if places is not None:
                end = min(stop, start + places - self.in_flight)
            if end <= start:
                return
            self._waiting.popleft()
            offered = self._offered[chunk]
            if end < stop:
                self._waiting.appendleft((chunk, end, stop))
            else:
                del self._offered[chunk]
            rows, indices = self._let_in(chunk, offered, start, end)
            if rows:
                at = slice(start, end) if len(rows) == end - start else rows
                keys = [offered.keys[row] for row in rows]
                self._fresh.put(self._slots.enter(offered.columns[:, at], indices, keys))
                self.in_flight += len(rows)

    def _let_in(
        self, chunk: int, offered: _Offered, start: int, end: int
    ) -> tuple[list[int], list[int]]:
        """Of these rows those that are admitted, and their insertion indices."""
        keys, known, reserve = offered.keys, offered.known, self._slots.reserve
        rows, indices = [], []
        for row in range(start, end):
            mark = 0 if known is None else known[row]
            if not mark and not reserve(keys[row], offered.line + row):
                self.refused.append((chunk, row))
                mark = REFUSED
            if mark != REFUSED:
                self._next_index += 1
            if mark:
                self._release(chunk, 1)
            else:
                rows.append(row)
                indices.append(self._next_index - 1)
        return rows, indices

    def resume(self, begun: Begun) -> np.ndarray:
        """Examples that an earlier life has begun go on; their slots."""
        slots = self._slots.resume(begun)
        self.in_flight += len(slots)
        for chunk, uses in Counter(begun.chunks.tolist()).items():
            self._uses[chunk] = self._uses.get(chunk, 0) + uses
        self._come_back(slots)
        return slots

    def start_from(self, index: int) -> None:
        """The insertion index of the next example that is offered."""
        self._next_index = index

    @property
    def next_index(self) -> int:
        return self._next_index

    def find(self, indices: np.ndarray) -> np.ndarray:
        """The slots of examples by insertion index; -1 where one is not there."""
        return self._slots.find(indices)

    @abstractmethod
    def _come_back(self, slots: np.ndarray) -> None:
        """The next segments of these, by ascending index, are ready."""

    @property
    def slots(self) -> int:
        """Size of the tables: slots are below this.  It only grows."""
        return len(self._slots)

    # Segments

    @abstractmethod
    def want(self, upto: int, stripe: int = 0) -> None:
        """Allow batches until there have been ``upto``."""

    @abstractmethod
    def saved(self, batch: Segments) -> np.ndarray | None:
        """A batch is done: places of the rows whose states are wanted.

        None when nothing can be saved any more.
        """

    @property
    def starved(self) -> bool:
        """Whether a batch is wanted that can not be formed now, but for states to come."""
        return False

    def claim(self, slots: np.ndarray, segments: np.ndarray) -> Segments | None:
        """The batch of these segments, which a trainer has; None where it is not its own."""
        return None

    def release(self, batch: Segments) -> None:
        """What was claimed is ready again."""
        return

    def leave(self, stripe: int) -> None:
        """The trainer of a stripe of lanes left."""
        return

    def keep(self, batch: Segments, rows: np.ndarray) -> np.ndarray:
        """Which of these rows' states after a batch are to be kept."""
        return rows[:0]

    def take_dry(self) -> list[int]:
        """Stripes of lanes for which nothing is left, once each."""
        return []

    def take_through(self) -> list[int]:
        """Slots of examples in lanes that are through or dropped, once each."""
        return []

    def _hand_out(self, batch: Segments) -> None:
        """A batch goes to a trainer: places of examples that end with it are free."""
        self._out[id(batch)] = batch
        self._leave_capacity(batch.slots[batch.last])
        self._admit()

    def _take_back(self, batch: Segments) -> None:
        if self._out.pop(id(batch), None) is None:
            raise ValueError("a batch is saved that is not out: it was saved before")

    def _leave_capacity(self, slots: np.ndarray) -> None:
        """The last segments of these were taken: others may come in."""
        self.in_flight -= len(slots)
        self._slots.land(slots)

    def _reenter(self, slots: np.ndarray) -> None:
        """The last segments of these were taken, and have come back."""
        self.in_flight += len(slots)
        self._slots.reenter(slots)

    def _free_slots(self, slots: np.ndarray) -> None:
        """These examples are through, or dropped."""
        self._slots.free(slots)

    def _need_no_payload(self, slots: np.ndarray) -> None:
        if len(slots):
            for chunk in self._slots.chunk[slots].tolist():
                self._release(chunk, 1)

    def _release(self, chunk: int, rows: int) -> None:
        left = self._uses[chunk] - rows
        if left:
            self._uses[chunk] = left
        else:
            del self._uses[chunk]

    def _note_dropped(self, reason: str, segments: int) -> None:
        if segments:
            self._dropped[reason] = self._dropped.get(reason, 0) + segments

    def _drop(self, slots: np.ndarray, reason: str) -> None:
        """Examples that are in flight go as they are; their segments to come are counted."""
        left = self._slots.count[slots] - self._slots.segment[slots]
        self._note_dropped(reason, int(left.sum()))
        self._leave_capacity(slots)
        self._need_no_payload(slots)
        self._free_slots(slots)

    @abstractmethod
    def expected(self) -> Segments | None:
        """A guess at the next batch, if it will be a full one: the oldest one is saved before."""

    # What is known

    def chunks(self) -> set[int]:
        """Chunks whose payload is still needed."""
        return set(self._uses)

    def dropped(self) -> Mapping[str, int]:
        """Segments dropped so far, by reason."""
        return self._dropped

    def standing(self) -> dict[str, int]:
        """Segments by what they wait for; of those that are ``full`` one for each example.

        ``ready`` wait for nothing, ``leased`` for the states of a trainer, and examples that were
        read are kept out while the capacity is ``full``.
        """
        return {
            "ready": self.ready,
            "leased": sum(len(batch) for batch in self._out.values()),
            "full": sum(stop - start for _, start, stop in self._waiting),
        }

    @property
    @abstractmethod
    def ready(self) -> int:
        """Segments that could be taken now."""

    def seek(self, key: Hashable) -> list[Found]:
        """What is known of the examples of a key, each in its epoch."""
        waiting = ((self._offered[chunk], start, stop) for chunk, start, stop in self._waiting)
        return [
            *found_in(self._slots, key, self._out.values()),
            *(Found(*known) for offered, *rows in waiting for known in offered.seek(key, *rows)),
        ]

    def oldest_out(self) -> Segments | None:
        """The batch that has been out for the longest time."""
        return next(iter(self._out.values()), None)

    def key_of(self, slot: int) -> Hashable:
        """The key of an example that is not through."""
        return self._slots.key_of(slot)

    def keys_of(self, slots: np.ndarray) -> list[Hashable]:
        """The keys of examples that are not through."""
        return self._slots.keys_of(slots)

    @property
    def done(self) -> bool:
        """Whether everything was handed out and is through."""
        return self._closed and not self._slots.live
