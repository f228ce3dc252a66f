"""``pack``: rows of equal length that hold several examples each.

examples   [1 2 3]  [4 5]  [6]  [7 7 7 7]        length 6, best fit

x             1 2 3 4 5 6   7 7 7 7 0 0
segment_ids   1 1 1 2 2 3   1 1 1 1 0 0     0: padding
positions     0 1 2 0 1 0   0 1 2 3 0 0     steps since the example began
label         a     b   c   d               each example's, [B, most examples of a row]
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import DataError
from headrace_proto.layout import Slot, array_at
from headrace_proto.schema import RESERVED, Field

from ...reading.chunk import BadRecords, Chunk, Faults, without
from ...reading.columns import Column, Ragged, Strings, concatenate, field_of, ranges, take
from ...shaping.pack import Packing, Strategy
from ...shaping.plan import Draft
from ..assemble import Assembly, Parts, arranged, fill_strings
from ..shape import Fields, RowFacts, Shape

#: Columns of every packed batch.
_IDS, _POSITIONS = "segment_ids", "positions"


class Pack(Shape):
    """Batches of ``batch_size`` rows of ``length`` steps."""

    def __init__(
        self,
        length: int,
        batch_size: int,
        columns: list[str] | None,
        strategy: Strategy,
        max_open: int,
        too_long: Literal["error", "cut", "drop"],
        allow_smaller_final_batch: bool,
    ) -> None:
        self._length, self._columns, self._too_long = length, columns, too_long
        self._size, self._strategy, self._most = batch_size, strategy, max_open
        self._smaller = allow_smaller_final_batch
        self.batch_sizes = [batch_size]

    def machine(self, partition: int) -> Packing:
        return Packing(self._length, self._size, self._strategy, self._most, self._smaller)

    @property
    def batch_size(self) -> int | None:
        return None if self._smaller else self._size

    def _packed(self, fields: Fields) -> list[str]:
        """Return the names of the packed columns; DataError where a column can not be packed."""
        names = [name for name, one in fields.items() if one.shape[:1] == (None,)]
        packed = [name for name in names if name[0] != RESERVED]
        packed = packed if self._columns is None else self._columns
        for name in packed:
            if name not in fields:
                listed = ", ".join(fields)
                raise DataError(f"pack: columns: there is no column {name!r}, only {listed}")
        for name, one in fields.items():
            inner = one.shape[1:] if name in packed else one.shape
            if None in inner or (name in packed and (not one.shape or one.dtype == BYTES)):
                raise DataError(
                    f"pack: column {name!r} is {one}: a packed one has numbers for each step "
                    "([T, …], where T alone varies), and any other a fixed shape; select() leaves "
                    "columns out"
                )
        if not packed:
            raise DataError("pack: no column varies in its first dimension; name some: columns=")
        if taken := {_IDS, _POSITIONS} & {*fields}:
            raise DataError(f"pack: {', '.join(taken)} is a column that it adds; rename yours")
        return packed

    def schema(self, fields: Fields) -> Fields:
        if not fields:
            return {}
        packed, rows = self._packed(fields), self.batch_size
        schema = {}
        for name, one in fields.items():
            inner = (self._length, *one.shape[1:]) if name in packed else (None, *one.shape)
            schema[name] = Field(one.dtype, (rows, *inner))
        steps = Field("int32", (rows, self._length))
        return {**schema, _IDS: steps, _POSITIONS: steps}

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        if not len(chunk):
            return chunk, {"length": np.empty(0, np.int64)}
        packed = self._packed({name: field_of(one) for name, one in chunk.columns.items()})
        lengths = np.stack([_steps(chunk.columns[name]) for name in packed])
        faults: Faults = {}
        for row in np.flatnonzero((lengths != lengths[0]).any(axis=0)).tolist():
            of = ", ".join(f"{n} {t}" for n, t in zip(packed, lengths[:, row], strict=True))
            faults[row] = "unequal_lengths", f"its packed columns differ in their steps: {of}"
        if self._strategy != "concat" and self._too_long == "error":
            for row in np.flatnonzero(lengths[0] > self._length).tolist():
                text = f"it has {lengths[0, row]} steps, more than length={self._length}"
                faults.setdefault(row, ("too_long", f"{text}; too_long= may cut or drop it"))
        sound = np.ones(len(chunk), bool)
        sound[[*faults]] = False
        chunk, length = without(chunk, faults, bad), lengths[0][sound]
        if self._strategy != "concat" and self._too_long == "cut":
            length = np.minimum(length, self._length)
        return chunk, {"length": length}

    def assembly(self, parts: Parts, fields: Fields, draft: Draft) -> Assembly:
        return _PackedRows(parts, fields, self._packed(fields), self._length, draft.layout)


def _steps(column: Column) -> np.ndarray:
    if isinstance(column, Ragged):
        return column.extents[:, 0]
    return np.full(len(column), column.shape[1])


class _PackedRows(Assembly):
    """One packed batch about to be written."""

    def __init__(
        self, parts: Parts, fields: Fields, packed: list[str], length: int, layout: np.ndarray
    ) -> None:
        self._length = length
        self._row, self._start, stop = layout.T
        self._steps = stop - self._start  # of each piece
        first = np.searchsorted(self._row, self._row)  # the first piece of its row
        self._place = np.arange(len(layout)) - first
        ends = np.cumsum(self._steps)
        self._at = ends - self._steps - (ends - self._steps)[first]  # step of its row
        self.rows, most = int(self._row[-1]) + 1, int(self._place.max()) + 1
        specs = []
        self._written: list[Any] = []
        for name, one in fields.items():
            columns = [take(chunk.columns[name], rows) for chunk, rows in parts]
            inner, text = (length, *one.shape[1:]), 0
            if name not in packed:
                inner, columns = (most, *one.shape), [concatenate(columns)]
                if isinstance(columns[0], Strings):
                    text, columns = columns[0].nbytes, [self._spread(columns[0], most)]
            self._written.append((columns, name in packed))
            specs.append((one.dtype, (self.rows, *inner), text))
        specs += [("int32", (self.rows, length), 0)] * 2
        self.slots, self.nbytes = arranged(tuple(specs))

    def _spread(self, column: Strings, most: int) -> Strings:
        """Return one string for each place of a row, empty where the row has no example."""
        shape = self.rows, most, *column.shape[1:]
        starts, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        starts[self._row, self._place] = column.starts
        lengths[self._row, self._place] = column.lengths
        return Strings(column.data, starts, lengths)

    def fill(self, block: np.ndarray) -> None:
        for slot, (columns, packed) in zip(self.slots, self._written, strict=False):
            if packed:
                self._fill_steps(block, slot, columns)
            elif isinstance(columns[0], Strings):
                fill_strings(block, slot, columns)
            else:
                out = array_at(block, slot)
                out[:] = np.zeros((), out.dtype)
                out[self._row, self._place] = columns[0]
        ids, positions = (array_at(block, slot).reshape(-1) for slot in self.slots[-2:])
        ids[:], positions[:] = 0, 0
        steps = ranges(self._row * self._length + self._at, self._steps)
        ids[steps] = np.repeat(self._place + 1, self._steps)
        positions[steps] = ranges(self._start, self._steps)

    def _fill_steps(self, block: np.ndarray, slot: Slot, columns: list[Column]) -> None:
        """Copy the pieces of a column to their places, and zeros behind the last of each row."""
        row_bytes = slot.nbytes // self.rows
        step_bytes = row_bytes // self._length
        places = (slot.offset + self._row * row_bytes + self._at * step_bytes).tolist()
        sizes, skipped = (self._steps * step_bytes).tolist(), self._start * step_bytes
        out, end, i = block.data, slot.offset, 0
        for column in columns:
            if isinstance(column, Ragged):
                raw, starts = column.payload.data, column.starts
            else:
                dense = np.ascontiguousarray(column)
                raw = dense.reshape(-1).view(np.uint8).data
                starts = np.arange(len(dense)) * (dense.nbytes // len(dense))
            for begin in (starts + skipped[i : i + len(starts)]).tolist():
                place, size = places[i], sizes[i]
                if place > end:
                    block[end:place] = 0
                end = place + size
                out[place:end] = raw[begin : begin + size]
                i += 1
        block[end : slot.offset + slot.nbytes] = 0
