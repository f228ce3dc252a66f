"""Examples packed into rows of equal length, rows into batches.

    offer(chunk) ─► each example into an open row ─► full rows ─► batches of so many rows
                       best fit: the row that it fills best
                       first fit: the oldest row with room
                       concat: the one open row, and its rest into the next
    finish()     ─► open rows by age ─► batches, and one that is smaller, or dropped

At most ``max_open`` rows are open: where an example fits none of that many, the fullest of them
(the oldest of equal ones) counts as full.  So the rows depend on the order of the examples alone.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from .plan import Draft, Part, RowShaper, State, balanced, stored_fields
from .row_queue import decoded

Strategy = Literal["best_fit", "first_fit", "concat"]
#: A stretch of an example: chunk, row in it, first step, the step after its last, and 1 if the
#: example ends with it.
_Piece = tuple[int, int, int, int, int]
_FIELDS: Mapping[str, type] = {
    "open": list,
    "full": list,
    "balanced": int,
    "made": int,
    "finished": bool,
    "dropped": dict,
    "sizes": list,
    "padding": list,
}


@dataclass(slots=True)
class _Row:
    age: int
    room: int
    pieces: list[_Piece] = field(default_factory=list)
    cost: float = 0

    def put(self, piece: _Piece, cost: float) -> None:
        self.pieces.append(piece)
        self.room -= piece[3] - piece[2]
        self.cost += cost


class Packing(RowShaper):
    """Shaper of ``.pack``.  Fact: ``length``, the steps of each example.

    Examples without a step, or with more than a row has, are dropped and counted.

    A draft has the pieces of its rows in their order: ``parts`` names the example of each, and
    ``layout`` (int64 [pieces, 3]) its row in the batch, its first step and the step after its last.
    """

    kind = "pack"

    def __init__(
        self,
        length: int,
        batch_size: int,
        strategy: Strategy = "best_fit",
        max_open: int = 64,
        allow_smaller_final_batch: bool = False,
        balance_batches: int = 0,
    ) -> None:
        """With ``balance_batches`` the fact ``cost`` of its examples is that of a row."""
        super().__init__()
        self._settings = {"length": length, "strategy": strategy, "max_open": max_open}
        self._settings["balance_batches"] = self._window = balance_batches
        self._balanced = 0  # of the full rows, the first that are in balanced batches
        self._length, self._strategy, self._most = length, strategy, max_open
        self._smaller = allow_smaller_final_batch
        self.batch_sizes = self._declared = (batch_size,)
        self._made = 0  # rows so far
        self._open: list[_Row] = []  # by age
        self._rooms: list[tuple[int, int]] = []  # room and age of each open row, ascending
        self._full: deque[_Row] = deque()

    # Rows

    def offer(self, chunk: int, rows: int, facts: Mapping[str, np.ndarray]) -> None:
        self._check_open(chunk)
        lengths = facts["length"]
        fits = lengths > 0
        self._note_dropped("no_steps", rows - int(fits.sum()))
        if self._strategy != "concat":
            long = lengths > self._length
            self._note_dropped("too_long", int(long.sum()))
            fits &= ~long
        costs = facts["cost"] if self._window else np.zeros(rows)
        place = self._concat if self._strategy == "concat" else self._fit
        for row in np.flatnonzero(fits).tolist():
            place(chunk, row, int(lengths[row]), float(costs[row]))

    def _fit(self, chunk: int, row: int, length: int, cost: float) -> None:
        if self._strategy == "best_fit":
            at = bisect_left(self._rooms, (length, -1))
            found = self._rooms[at][1] if at < len(self._rooms) else None
            here = None if found is None else self._of_age(found)
        else:
            here = next((one for one in self._open if one.room >= length), None)
        if here is None:
            if len(self._open) == self._most:
                self._close(self._of_age(self._rooms[0][1]))
            here = self._new()
        self._put(here, (chunk, row, 0, length, 1), cost)

    def _concat(self, chunk: int, row: int, length: int, cost: float) -> None:
        start = 0
        while start < length:
            here = self._open[0] if self._open else self._new()
            stop = min(length, start + here.room)
            share = cost * (stop - start) / length
            self._put(here, (chunk, row, start, stop, int(stop == length)), share)
            start = stop

    def _of_age(self, age: int) -> _Row:
        return self._open[bisect_left(self._open, age, key=lambda one: one.age)]

    def _new(self) -> _Row:
        row = _Row(self._made, self._length)
        self._made += 1
        self._open.append(row)
        insort(self._rooms, (row.room, row.age))
        return row

    def _put(self, row: _Row, piece: _Piece, cost: float) -> None:
        self._rooms.remove((row.room, row.age))
        row.put(piece, cost)
        insort(self._rooms, (row.room, row.age))
        if not row.room:
            self._close(row)

    def _close(self, row: _Row) -> None:
        self._open.remove(row)
        self._rooms.remove((row.room, row.age))
        self._full.append(row)

    def finish(self, drop: bool = False) -> None:
        self._finished = True
        for row in [*self._open]:
            self._close(row)
        if drop:
            self._drop(len(self._full), "cancelled")
        else:
            self._drop_remainder()

    def _drop_remainder(self) -> None:
        """Drop the last full rows, which fill no batch, unless it may be smaller."""
        if not self._smaller:
            self._drop(len(self._full) % self._size, "remainder")

    def _drop(self, rows: int, reason: str) -> None:
        rest = [self._full.pop() for _ in range(rows)]
        self._note_dropped(reason, sum(piece[4] for row in rest for piece in row.pieces))

    # Batches

    @property
    def _size(self) -> int:
        return self.batch_sizes[0] or 1

    @property
    def resized(self) -> bool:
        return self.batch_sizes != self._declared

    def set_batch_sizes(self, batch_sizes: Sequence[int]) -> None:
        super().set_batch_sizes(batch_sizes)
        self._balanced = 0
        if self._finished:
            self._drop_remainder()

    def _balance(self) -> bool:
        """Put full rows into the order of balanced batches; return False if there are too few."""
        batches = min(len(self._full) // self._size, self._window)
        if batches < (1 if self._finished else self._window):
            return self._finished
        self._balanced = batches * self._size
        rows = [self._full.popleft() for _ in range(self._balanced)]
        order = balanced(np.array([row.cost for row in rows]), batches).reshape(-1)
        self._full.extendleft(rows[i] for i in order[::-1].tolist())
        return True

    def next_draft(self) -> Draft | None:
        full = len(self._full)
        if not full or (full < self._size and not self._finished):
            return None
        if self._window and not self._balanced and not self._balance():
            return None
        self._balanced = max(self._balanced - self._size, 0)
        rows = [self._full.popleft() for _ in range(min(full, self._size))]
        pieces = [(i, *piece) for i, row in enumerate(rows) for piece in row.pieces]
        table = np.array(pieces, np.int64)
        cuts = np.flatnonzero(np.diff(table[:, 1])) + 1
        parts = tuple(Part(int(of[0, 1]), of[:, 2]) for of in np.split(table, cuts))
        counts = self.padding.setdefault(0, [0, 0])
        counts[0] += len(rows) * self._length
        counts[1] += int((table[:, 4] - table[:, 3]).sum())
        cost = sum(row.cost for row in rows)
        return Draft(parts, layout=table[:, [0, 3, 4]], ends=int(table[:, 5].sum()), cost=cost)

    # Queries

    def waits_for(self) -> str:
        if self._finished:
            return ""
        return f"{len(self._full)} of {self._size} rows are full"

    def waiting(self) -> int:
        return len({piece[:2] for row in (*self._full, *self._open) for piece in row.pieces})

    def chunks(self) -> set[int]:
        return {piece[0] for row in (*self._full, *self._open) for piece in row.pieces}

    # Snapshots

    def snapshot(self) -> State:
        return {
            **self._settings,
            "open": [[row.age, row.pieces, row.cost] for row in self._open],
            "full": [[row.age, row.pieces, row.cost] for row in self._full],
            "balanced": self._balanced,
            "made": self._made,
            "finished": self._finished,
            "dropped": dict(self._dropped),
            "sizes": list(self.batch_sizes),
            "padding": self.padding.get(0, [0, 0]),
        }

    def restore(self, state: State) -> None:
        fields = stored_fields(state, "a shape 'pack'", _FIELDS, **self._settings)
        opened, full, self._balanced, made, finished, dropped, sizes, padding = fields.values()
        rows = decoded("open", lambda: [self._row(*plain) for plain in opened])
        self._full = decoded("full", lambda: deque(self._row(*plain) for plain in full))
        self._open, self._rooms = rows, sorted((row.room, row.age) for row in rows)
        self._made, self._finished, self._dropped = made, finished, dict(dropped)
        self.batch_sizes, self.padding = tuple(sizes), {0: list(padding)}

    def _row(self, age: int, pieces: Sequence[Sequence[int]], cost: float) -> _Row:
        row = _Row(age, self._length, cost=cost)
        for chunk, number, start, stop, ends in pieces:
            row.put((chunk, number, start, stop, ends), 0)
        if row.room < 0 or not row.pieces:
            raise ValueError(f"a row of {self._length} steps can not hold {pieces}")
        return row
