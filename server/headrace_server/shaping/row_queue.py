"""Rows that wait in queues, first in first out: the part that shapes with queues share.

    append(chunk, rows) ─► stretches of rows ─► take(count): parts of a batch, largest and sum

    offer(chunk) … ─► loose rows ─► formed batches ─► next_draft()
    finish()       ─► loose rows are dropped, or form smaller batches

A stretch is the rows of one chunk, as an array; no object is made for a row.  A batch is *formed*
when its rows are known, though nothing has asked for it; rows that are in none are *loose*.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .plan import (
    Draft,
    Part,
    RowShaper,
    State,
    packed_integers,
    stored_fields,
    unpacked_integers,
)

#: Maximum of a counter: messages and snapshots have 64-bit integers.
MAX_COUNTER = 2**63 - 1
#: Queues, and the number of rows from the front of each.
Rows = tuple[tuple[int, int], ...]
#: Fields that the snapshots of all shapes have.
_FIELDS: Mapping[str, type] = {"formed": list, "waiting": list, "finished": bool, "dropped": dict}


#: Rows of one chunk, with their lengths or without.
_Stretch = tuple[int, np.ndarray, np.ndarray | None]


class RowQueue:
    """Waiting rows, first in first out, each with or without a length."""

    __slots__ = ("_segments", "rows")

    def __init__(self) -> None:
        self._segments: deque[_Stretch] = deque()
        self.rows = 0

    def append(self, chunk: int, rows: np.ndarray, lengths: np.ndarray | None = None) -> None:
        self._segments.append((chunk, rows, lengths))
        self.rows += len(rows)

    def take(self, count: int) -> tuple[list[Part], int, int | None]:
        """Remove rows; return them, their largest length, and the sum of lengths, if known."""
        parts, longest, total = [], 0, None
        self.rows -= count
        while count:
            chunk, rows, lengths = self._segments.popleft()
            if len(rows) > count:
                rest = None if lengths is None else lengths[count:]
                self._segments.appendleft((chunk, rows[count:], rest))
                rows, lengths = rows[:count], None if lengths is None else lengths[:count]
            count -= len(rows)
            parts.append(_part(chunk, rows))
            if lengths is not None:
                known = lengths.tolist()
                longest, total = max(longest, *known), (total or 0) + sum(known)
        return parts, longest, total

    def drop_last(self, count: int) -> list[_Stretch]:
        """Remove the last rows; return them."""
        self.rows -= count
        dropped = list[_Stretch]()
        while count:
            chunk, rows, lengths = self._segments.pop()
            kept = max(len(rows) - count, 0)
            count -= len(rows) - kept
            dropped.append((chunk, rows[kept:], None if lengths is None else lengths[kept:]))
            if kept:
                rest = None if lengths is None else lengths[:kept]
                self._segments.append((chunk, rows[:kept], rest))
        return dropped[::-1]

    def regroup(self, batches: np.ndarray, after: int) -> None:
        """Put rows into the order of batches of them, which have their ascending numbers.

        The last ``after`` rows stay behind them.
        """
        behind = self.drop_last(after)
        chunks, rows, lengths = zip(*self.drop_last(batches.size), strict=True)
        counts = [len(part) for part in rows]
        chunk, row = np.repeat(np.array(chunks), counts), np.concatenate(rows)
        length = None if lengths[0] is None else np.concatenate(lengths)
        for batch in batches:
            borders = np.flatnonzero(np.diff(chunk[batch])) + 1
            for part in np.split(batch, borders):
                self.append(
                    int(chunk[part[0]]), row[part], None if length is None else length[part]
                )
        for stretch in behind:
            self.append(*stretch)

    def last(self, count: int) -> Iterator[np.ndarray]:
        """Yield the lengths of the last rows, in parts, from the last row backwards."""
        for _, _, lengths in reversed(self._segments):
            if not count or lengths is None:
                break
            last = lengths[-count:]
            yield last
            count -= len(last)

    def chunks(self) -> set[int]:
        return {chunk for chunk, _, _ in self._segments}

    def to_plain(self) -> list[list[Any]]:
        """Return each stretch as [chunk, rows] or [chunk, rows, lengths].

        Consecutive rows are [start, stop], others packed integers, as are lengths.
        """
        return [
            [chunk, _plain(rows)]
            if lengths is None
            else [chunk, _plain(rows), packed_integers(lengths)]
            for chunk, rows, lengths in self._segments
        ]

    @classmethod
    def from_plain(cls, plain: list[list[Any]]) -> RowQueue:
        queue = cls()
        for chunk, rows, *lengths in plain:
            arrays = [_unpacked(rows), *map(unpacked_integers, lengths)]
            if len(arrays) > 2 or not len(rows) or len({array.shape for array in arrays}) > 1:
                raise ValueError(f"chunk {chunk} of a queue has rows {rows!r:.60}")
            queue.append(int(chunk), *arrays)
        return queue


def _part(chunk: int, rows: np.ndarray) -> Part:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):  # rows of a chunk are in ascending order
        return Part(chunk, slice(first, last + 1))
    return Part(chunk, rows)


def _plain(rows: np.ndarray) -> bytes | list[int]:
    first, last = int(rows[0]), int(rows[-1])
    return [first, last + 1] if last - first + 1 == len(rows) else packed_integers(rows)


def _unpacked(plain: bytes | list[int]) -> np.ndarray:
    if isinstance(plain, list):
        first, stop = plain
        return np.arange(first, stop)
    return unpacked_integers(plain)


@dataclass(slots=True)
class _Formed:
    """Equal batches, one after the other."""

    rows: Rows
    times: int


class QueuedRows(RowShaper):
    """Rows in queues, and the batches formed of them: the part that all shapes of rows share.

    The rows of a formed batch are given by queue, as numbers.
    """

    def __init__(self, queues: int, batch_sizes: Sequence[int | None]) -> None:
        super().__init__()
        self._queues = [RowQueue() for _ in range(queues)]
        #: The options with which a snapshot must have been taken.
        self._settings: dict[str, Any] = {}
        #: Sizes of batches that are not formed yet: one, or one for each bucket.
        self.batch_sizes = self._declared = tuple(batch_sizes)
        self._formed: deque[_Formed] = deque()

    @abstractmethod
    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use other sizes for all rows that are in no formed batch."""

    # Formed batches

    @abstractmethod
    def _is_resized(self, rows: Rows) -> bool:
        """Return whether a batch has another size than was declared, if sizes were changed."""

    def _drafted(self, rows: Rows, longest: int, real: int | None) -> int:
        """Count a batch; return its bucket.  ``longest`` and ``real``: see ``RowQueue.take``."""
        return -1

    def _form(self, rows: Rows, times: int = 1) -> None:
        if self._formed and self._formed[-1].rows == rows:
            self._formed[-1].times += times
        elif times:
            self._formed.append(_Formed(rows, times))

    def next_draft(self) -> Draft | None:
        if not self._formed:
            return None
        formed = self._formed[0]
        formed.times -= 1
        if not formed.times:
            self._formed.popleft()
        parts: list[Part] = []
        longest, real = 0, None
        for queue, count in formed.rows:
            own, longest, real = self._queues[queue].take(count)
            parts += own
        return Draft(tuple(parts), self._drafted(formed.rows, longest, real))

    def ready(self) -> int:
        return sum(formed.times for formed in self._formed)

    @property
    def resized(self) -> bool:
        """Whether batches may have other sizes than were declared."""
        if self.batch_sizes is self._declared:
            return False
        resized = any(self._is_resized(formed.rows) for formed in self._formed)
        return resized or self.batch_sizes != self._declared

    def _loose(self) -> list[int]:
        """Return the number of rows of each queue that are in no formed batch."""
        return self._left([queue.rows for queue in self._queues], self._formed)

    def _left(self, rows: list[int], batches: Iterable[_Formed]) -> list[int]:
        for formed in batches:
            for queue, count in formed.rows:
                rows[queue] -= count * formed.times
        return rows

    def finish(self, drop: bool = False) -> None:
        self._finished = True
        if drop:
            self._formed.clear()
        else:
            self._form_last()
        loose = self._loose()
        self._note_dropped("cancelled" if drop else "remainder", sum(loose))
        for queue, rows in zip(self._queues, loose, strict=True):
            queue.drop_last(rows)
        self._measure()

    def _form_last(self) -> None:
        """Form the batches that are smaller because the input has ended, if any."""
        return

    @abstractmethod
    def _measure(self) -> None:
        """Update the shape's counts of its loose rows, after some were dropped or restored."""

    # Queries

    def waiting(self) -> int:
        return sum(queue.rows for queue in self._queues)

    def chunks(self) -> set[int]:
        return set().union(*(queue.chunks() for queue in self._queues if queue.rows))

    # Snapshots

    def snapshot(self) -> State:
        sizes = {"sizes": list(self.batch_sizes)} if self.resized else {}
        return {
            **sizes,
            **self._settings,
            "formed": [[formed.rows, formed.times] for formed in self._formed],
            "waiting": [
                [i, queue.to_plain()] for i, queue in enumerate(self._queues) if queue.rows
            ],
            "finished": self._finished,
            "dropped": dict(self._dropped),
        }

    def restore(self, state: State) -> None:
        formed, waiting, finished, dropped = self._stored(state, _FIELDS)
        sizes = tuple(state["sizes"]) if "sizes" in state else self._declared
        queues = decoded("waiting", lambda: self._unpacked(waiting))
        batches = decoded("formed", lambda: deque(map(self._batch, formed)))
        if any(rows < 0 for rows in self._left([queue.rows for queue in queues], batches)):
            raise ValueError("the field 'formed' has more rows than 'waiting'")
        if "sizes" not in state and any(self._is_resized(one.rows) for one in batches):
            raise ValueError("the field 'formed' has a batch of another size than was declared")
        self.batch_sizes, self._queues, self._formed = sizes, queues, batches
        self._finished, self._dropped = finished, dict(dropped)
        self._measure()

    def _stored(self, state: State, kinds: Mapping[str, type]) -> list[Any]:
        return stored_fields(state, f"a shape {self.kind!r}", kinds, **self._settings)

    def _unpacked(self, waiting: list[Any]) -> list[RowQueue]:
        queues = [RowQueue() for _ in self._queues]
        for number, plain in waiting:
            queues[_below(number, len(queues))] = RowQueue.from_plain(plain)
        return queues

    def _batch(self, plain: list[Any]) -> _Formed:
        rows = tuple((_below(queue, len(self._queues)), int(count)) for queue, count in plain[0])
        if plain[1] < 1 or not rows or min(count for _, count in rows) < 1:
            raise ValueError(f"a batch can not be {plain}")
        return _Formed(rows, plain[1])


def decoded(name: str, read: Callable[[], Any]) -> Any:
    """Decode a field of a snapshot; ValueError names the field."""
    try:
        return read()
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"the field {name!r} of the snapshot can not be read: {error}") from error


def _below(number: int, limit: int) -> int:
    if not 0 <= number < limit:
        raise ValueError(f"{number} is not in 0 … {limit - 1}")
    return number
