"""Rows that wait in queues, first in first out: the part that shapes with queues share.

    offer(chunk) … ─► loose rows ─► formed batches ─► next_draft()
    finish()       ─► loose rows are dropped, or form smaller batches

A queue is a table: no object is made for a row.  A batch is *formed* when its rows are known,
though nothing has asked for it; rows that are in none are *loose*.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from .fifo import Fifo
from .plan import (
    Draft,
    Part,
    RowShaper,
    State,
    packed_integers,
    stored_fields,
    unpacked_integers,
)

T = TypeVar("T")

#: Maximum of a counter: messages and snapshots have 64-bit integers.
MAX_COUNTER = 2**63 - 1
#: Queues, and the number of rows from the front of each.
Fronts = tuple[tuple[int, int], ...]
#: Fields that the snapshots of all shapes have.
_FIELDS: Mapping[str, type] = {"formed": list, "waiting": list, "finished": bool, "dropped": dict}


#: Columns of a queue's table: the last two are -1 and 0 where the shape needs none.
_CHUNK, ROW, LENGTH, COST = range(4)


def waiting(
    chunk: int,
    rows: np.ndarray,
    lengths: np.ndarray | int = -1,
    costs: np.ndarray | int = 0,
) -> np.ndarray:
    """Return rows of a chunk as items of a queue; their costs are float64."""
    items = np.empty((len(rows), 4), np.int64)
    items[:, _CHUNK], items[:, ROW], items[:, LENGTH] = chunk, rows, lengths
    items.view(np.float64)[:, COST] = costs
    return items


def _stretches(items: np.ndarray) -> list[np.ndarray]:
    """Divide rows into those of the same chunk, in ascending order."""
    chunks, rows = items[:, _CHUNK], items[:, ROW]
    ends = (chunks[1:] != chunks[:-1]) | (rows[1:] < rows[:-1])
    cuts = [0, *(ends.nonzero()[0] + 1).tolist(), len(items)]
    return [items[start:stop] for start, stop in pairwise(cuts)]


def _parts(items: np.ndarray) -> list[Part]:
    """Return rows of which those of the same chunk ascend, as parts of a batch."""
    item, end = items.item, len(items) - 1  # quicker than an index
    chunk, first, last = item(0, _CHUNK), item(0, ROW), item(end, ROW)
    if chunk != item(end, _CHUNK):
        return [part for stretch in _stretches(items) for part in _parts(stretch)]
    whole = last - first == end
    return [Part(chunk, slice(first, last + 1) if whole else items[:, ROW])]


def _plain(items: np.ndarray) -> list[object]:
    """Return rows of a chunk as [chunk, rows], with their lengths and costs where they have them.

    Consecutive rows are [start, stop], others packed integers, as are lengths.
    """
    (part,) = _parts(items)
    rows = part.rows
    plain = [rows.start, rows.stop] if isinstance(rows, slice) else packed_integers(rows)
    lengths, costs = items[:, LENGTH], items.view(np.float64)[:, COST]
    others = [b"" if lengths[0] < 0 else packed_integers(lengths), costs.tobytes()]
    return [part.chunk, plain, *others[: 2 if costs.any() else int(lengths[0] >= 0)]]


def _unpacked(plain: Sequence[list[Any]]) -> Fifo:
    """Return the queue of these rows."""
    queue = Fifo(4)
    for chunk, packed, *others in plain:
        rows = np.arange(*packed) if isinstance(packed, list) else unpacked_integers(packed)
        lengths = unpacked_integers(others[0]) if others and others[0] else -1
        costs = np.frombuffer(others[1], "<f8") if len(others) > 1 else 0
        queue.put(waiting(int(chunk), rows, lengths, costs))
    return queue


@dataclass(slots=True)
class Formed:
    """Equal batches, one after the other."""

    rows: Fronts
    times: int


class QueuedRows(RowShaper):
    """Rows in queues, and the batches formed of them: the part that all shapes of rows share.

    The rows of a formed batch are given by queue, as numbers.
    """

    _window = 0  # batches that are balanced at a time

    def __init__(self, queues: int, batch_sizes: Sequence[int | None]) -> None:
        super().__init__()
        self._queues = [Fifo(4) for _ in range(queues)]
        #: The options with which a snapshot must have been taken.
        self._settings: dict[str, object] = {}
        #: Sizes of batches that are not formed yet: one, or one for each bucket.
        self.batch_sizes = self._declared = tuple(batch_sizes)
        self._formed: deque[Formed] = deque()

    @abstractmethod
    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        """Use other sizes for all rows that are in no formed batch."""

    # Formed batches

    @abstractmethod
    def _is_resized(self, rows: Fronts) -> bool:
        """Return whether a batch has another size than was declared, if sizes were changed."""

    def _drafted(self, rows: Fronts, items: np.ndarray) -> int:
        """Count a batch, of which these are the items of the last queue; return its bucket."""
        return -1

    def _form(self, rows: Fronts, times: int = 1) -> None:
        if self._formed and self._formed[-1].rows == rows:
            self._formed[-1].times += times
        elif times:
            self._formed.append(Formed(rows, times))

    def next_draft(self) -> Draft | None:
        if not self._formed:
            return None
        formed = self._formed[0]
        formed.times -= 1
        if not formed.times:
            self._formed.popleft()
        parts: list[Part] = []
        for queue, count in formed.rows:
            items = self._queues[queue].get(count)
            parts += _parts(items)
        cost = float(items.view(np.float64)[:, COST].sum()) if self._window else 0.0
        return Draft(tuple(parts), self._drafted(formed.rows, items), cost=cost)

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
        return self._left([queue.count for queue in self._queues], self._formed)

    def _left(self, rows: list[int], batches: Iterable[Formed]) -> list[int]:
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
            queue.drop(rows)
        self._measure()

    def _form_last(self) -> None:
        """Form the batches that are smaller because the input has ended, if any."""
        return

    @abstractmethod
    def _measure(self) -> None:
        """Update the shape's counts of its loose rows, after some were dropped or restored."""

    # Queries

    def waiting(self) -> int:
        return sum(queue.count for queue in self._queues)

    def chunks(self) -> set[int]:
        chunks = set[int]()
        for queue in self._queues:
            found = queue.first(queue.count)[:, _CHUNK]
            chunks.update(found[:1].tolist(), found[1:][found[1:] != found[:-1]].tolist())
        return chunks

    # Snapshots

    def snapshot(self) -> State:
        sizes = {"sizes": list(self.batch_sizes)} if self.resized else {}
        return {
            **sizes,
            **self._settings,
            "formed": [[formed.rows, formed.times] for formed in self._formed],
            "waiting": [
                [i, [*map(_plain, _stretches(queue.first(queue.count)))]]
                for i, queue in enumerate(self._queues)
                if queue.count
            ],
            "finished": self._finished,
            "dropped": dict(self._dropped),
        }

    def restore(self, state: State) -> None:
        formed, waiting, finished, dropped = self._stored(state, _FIELDS)
        sizes = tuple(state["sizes"]) if "sizes" in state else self._declared
        queues = [Fifo(4) for _ in self._queues]
        found = decoded(
            "waiting", lambda: [(_below(i, len(queues)), _unpacked(q)) for i, q in waiting]
        )
        for number, queue in found:
            queues[number] = queue
        batches = decoded("formed", lambda: deque(map(self._batch, formed)))
        if any(rows < 0 for rows in self._left([queue.count for queue in queues], batches)):
            raise ValueError("the field 'formed' has more rows than 'waiting'")
        if "sizes" not in state and any(self._is_resized(one.rows) for one in batches):
            raise ValueError("the field 'formed' has a batch of another size than was declared")
        self.batch_sizes, self._queues, self._formed = sizes, queues, batches
        self._finished, self._dropped = finished, dict(dropped)
        self._measure()

    def _stored(self, state: State, kinds: Mapping[str, type]) -> list[Any]:
        return [*stored_fields(state, f"a shape {self.kind!r}", kinds, **self._settings).values()]

    def _batch(self, plain: list[Any]) -> Formed:
        rows = tuple((_below(queue, len(self._queues)), int(count)) for queue, count in plain[0])
        if plain[1] < 1 or not rows or min(count for _, count in rows) < 1:
            raise ValueError(f"a batch can not be {plain}")
        return Formed(rows, plain[1])


def decoded(name: str, read: Callable[[], T]) -> T:
    """Decode a field of a snapshot; ValueError names the field."""
    try:
        return read()
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ValueError(f"the field {name!r} of the snapshot can not be read: {error}") from error


def _below(number: int, limit: int) -> int:
    if not 0 <= number < limit:
        raise ValueError(f"{number} is not in 0 … {limit - 1}")
    return number
