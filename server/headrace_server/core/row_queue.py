"""Rows that wait in queues, first in first out: the part that shapes with queues share.

append(chunk, rows) ─► stretches of rows ─► take(count): parts of a batch, the longest, their sum

A stretch is the rows of one chunk, as an array; no object is made for a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .plan import Part, packed_integers, stored, unpacked_integers

#: Maximum of a counter: messages and snapshots have 64-bit integers.
MAX_COUNTER = 2**63 - 1


class RowQueue:
    """Waiting rows, first in first out, each with or without a length."""

    __slots__ = ("_segments", "rows")

    def __init__(self) -> None:
        self._segments: deque[tuple[int, np.ndarray, np.ndarray | None]] = deque()
        self.rows = 0

    def append(self, chunk: int, rows: np.ndarray, lengths: np.ndarray | None = None) -> None:
        self._segments.append((chunk, rows, lengths))
        self.rows += len(rows)

    def take(self, count: int) -> tuple[list[Part], int, int]:
        """Remove rows; return them, their largest length, and the sum of lengths (0 if unknown)."""
        parts, longest, total = [], 0, 0
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
                largest = int(lengths.max())
                longest = max(longest, largest)
                exact = largest * len(lengths) <= MAX_COUNTER
                total += int(lengths.sum()) if exact else sum(lengths.tolist())
        return parts, longest, total

    def drop_last(self, count: int) -> None:
        self.rows -= count
        while count:
            chunk, rows, lengths = self._segments.pop()
            kept = max(len(rows) - count, 0)
            count -= len(rows) - kept
            if kept:
                rest = None if lengths is None else lengths[:kept]
                self._segments.append((chunk, rows[:kept], rest))

    def longest_of_last(self, count: int) -> int:
        return max((int(lengths.max()) for lengths in self.last(count)), default=0)

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

    def ranges(self) -> list[list[int]]:
        """Each stretch as [chunk, start, stop], where its rows are consecutive."""
        return [[chunk, int(rows[0]), int(rows[-1]) + 1] for chunk, rows, _ in self._segments]

    def to_plain(self) -> list[list[Any]]:
        """Return each stretch as [chunk, rows] or [chunk, rows, lengths], with packed integers."""
        return [
            [chunk, packed_integers(rows)]
            if lengths is None
            else [chunk, packed_integers(rows), packed_integers(lengths)]
            for chunk, rows, lengths in self._segments
        ]

    @classmethod
    def from_plain(cls, plain: list[list[Any]]) -> RowQueue:
        queue = cls()
        for chunk, rows, *lengths in plain:
            arrays = [unpacked_integers(values) for values in (rows, *lengths)]
            if len(arrays) > 2 or not len(rows) or len({array.shape for array in arrays}) > 1:
                raise ValueError(f"chunk {chunk} of a queue has rows {rows!r:.60}")
            queue.append(int(chunk), *arrays)
        return queue


def _part(chunk: int, rows: np.ndarray) -> Part:
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):  # rows of a chunk are in ascending order
        return Part(chunk, slice(first, last + 1))
    return Part(chunk, rows)


class QueuedRows(ABC):
    """Rows in queues, from which batches are drafted: the part that shapes with queues share."""

    kind: str
    hungry = True
    done = True
    batch_size: int  # of batches that are not whole yet

    def __init__(self, queues: int = 0) -> None:
        self._queues = [RowQueue() for _ in range(queues)]
        self._dropped: dict[str, int] = {}
        self._finished = False

    def _check_open(self, chunk: int) -> None:
        if self._finished:
            raise ValueError(f"chunk {chunk} is offered after the input has ended")

    def _count(self, reason: str, rows: int) -> None:
        if rows:
            self._dropped[reason] = self._dropped.get(reason, 0) + rows

    def begin_epoch(self) -> None:
        self._finished = False

    @property
    def batch_sizes(self) -> tuple[int | None, ...]:
        """The sizes of batches that are not whole yet: one, or one for each bucket."""
        return (self.batch_size,)

    @abstractmethod
    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use other sizes for all rows that are in no whole batch."""

    @abstractmethod
    def ready(self) -> int:
        """Return the number of whole batches that were not taken."""

    def targets(self) -> Sequence[Any]:
        """Return itself, if its proportions of classes can be changed."""
        return ()

    def waits_for(self) -> str:
        """Describe the rows that the next batch lacks; may be empty."""
        return ""

    def waiting(self) -> int:
        """Return the number of rows held, including those of untaken batches."""
        return sum(queue.rows for queue in self._queues)

    def chunks(self) -> set[int]:
        return set().union(*(queue.chunks() for queue in self._queues if queue.rows))

    def dropped(self) -> Mapping[str, int]:
        return self._dropped

    def _plain(self) -> dict[str, Any]:
        """Return the part of a snapshot that ``_unpacked`` reads."""
        return {
            "waiting": [
                [i, queue.to_plain()] for i, queue in enumerate(self._queues) if queue.rows
            ],
            "finished": self._finished,
            "dropped": dict(self._dropped),
        }

    def _stored(
        self, state: Mapping[str, Any], own: Mapping[str, Any], **settings: Any
    ) -> list[Any]:
        """Return the fields of a snapshot: the shape's own, then ``waiting`` and the totals."""
        kinds = {**own, "waiting": list, "finished": bool, "dropped": dict}
        return stored(state, f"a shape {self.kind!r}", kinds, **settings)

    def _unpacked(self, waiting: list[Any]) -> list[RowQueue]:
        queues = [RowQueue() for _ in self._queues]
        for number, plain in waiting:
            queues[below(number, len(queues))] = RowQueue.from_plain(plain)
        return queues


def decoded(name: str, read: Callable[[], Any]) -> Any:
    """Decode a field of a snapshot; ValueError names the field."""
    try:
        return read()
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"the field {name!r} of the snapshot can not be read: {error}") from error


def below(number: int, limit: int) -> int:
    if not 0 <= number < limit:
        raise ValueError(f"{number} is not in 0 … {limit - 1}")
    return number
