"""``pack``: rows of equal length that hold several examples each.

examples   [1 2 3]  [4 5]  [6]  [7 7 7 7]        length 6, best fit

x             1 2 3 4 5 6   7 7 7 7 0 0
segment_ids   1 1 1 2 2 3   1 1 1 1 0 0     0: padding
positions     0 1 2 0 1 0   0 1 2 3 0 0     steps since the example began
label         a     b   c   d               each example's, [B, most examples of a row]
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import DataError, rewording
from headrace_proto.layout import ColumnPlace, array_at
from headrace_proto.schema import RESERVED, Field

from ...pipeline.argument_checks import MASK, PaddingValues, Selector, check_padding
from ...reading.chunk import BadRecords, Chunk, Faults, without
from ...reading.columns import Column, Ragged, Strings, concatenate, field_of, ranges, take
from ...shaping.pack import Packing, Strategy
from ...shaping.plan import Draft
from ..assemble import Assembly, Parts, Pieces, arranged, as_bytes, fill_strings, spread
from ..shape import Fields, RowFacts, Shape, split

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
        padding_values: PaddingValues | None,
        mask: bool,
        balance: Selector | None = None,
        balance_batches: int = 0,
    ) -> None:
        self._length, self._columns, self._too_long = length, columns, too_long
        self._size, self._strategy, self._most = batch_size, strategy, max_open
        self._smaller = allow_smaller_final_batch
        self._values, self._mask = padding_values or {}, mask
        self._balance, self._window = balance, balance_batches
        self.batch_sizes = [batch_size]

    def machine(self, partition: int) -> Packing:
        return Packing(
            self._length, self._size, self._strategy, self._most, self._smaller, self._window
        )

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
        with rewording(DataError, "pack: ", ValueError):
            check_padding(self._values, self._mask, _columns(fields), fields)
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
        schema |= {_IDS: steps, _POSITIONS: steps}
        for name in _columns(fields) if self._mask else ():
            schema[name + MASK] = Field("bool", schema[name].shape[:2])
        return schema

    def facts(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, RowFacts]:
        chunk = self._priced(chunk, bad)
        if not len(chunk):
            return chunk, {"length": np.empty(0, np.int64), "cost": np.empty(0)}
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
        chunk, facts = split(chunk)
        return chunk, {**facts, "length": length}

    def assembly(self, parts: Parts, fields: Fields, draft: Draft) -> Assembly:
        packed = self._packed(fields)
        masks = _columns(fields) if self._mask else ()
        return _PackedRows(parts, fields, packed, self._length, draft.layout, self._values, masks)


def _columns(fields: Fields) -> Fields:
    """Return the columns without the facts."""
    return {name: one for name, one in fields.items() if name[0] != RESERVED}


def _steps(column: Column) -> np.ndarray:
    if isinstance(column, Ragged):
        return column.extents[:, 0]
    return np.full(len(column), column.shape[1])


class _PackedRows(Assembly):
    """One packed batch about to be written."""

    def __init__(
        self,
        parts: Parts,
        fields: Fields,
        packed: list[str],
        length: int,
        layout: np.ndarray,
        values: PaddingValues,
        masks: Collection[str],
    ) -> None:
        """``values`` pad columns in place of zeros; columns in ``masks`` have one."""
        self._length = length
        self._row, self._start, stop = layout.T
        self._steps = stop - self._start  # of each piece
        first = np.searchsorted(self._row, self._row)  # the first piece of its row
        self._place = np.arange(len(layout)) - first
        ends = np.cumsum(self._steps)
        self._at = ends - self._steps - (ends - self._steps)[first]  # step of its row
        self.rows, most = int(self._row[-1]) + 1, int(self._place.max()) + 1
        self._there = np.zeros((self.rows, most), bool)  # whether a row has so many examples
        self._there[self._row, self._place] = True
        specs = []
        self._pieces: list[tuple[Pieces, bool, Any]] = []
        self._masks = [name in packed for name in masks]
        for name, one in fields.items():
            columns: Pieces = [take(chunk.columns[name], rows) for chunk, rows in parts]
            inner, text = (length, *one.shape[1:]), 0
            if name not in packed:
                inner, columns = (most, *one.shape), [concatenate(columns)]
                if isinstance(columns[0], Strings):
                    spread_out = self._spread(columns[0], as_bytes(values.get(name)))
                    text, columns = spread_out.nbytes, [spread_out]
            self._pieces.append((columns, name in packed, values.get(name)))
            specs.append((one.dtype, (self.rows, *inner), text))
        specs += [("int32", (self.rows, length), 0)] * 2
        specs += [("bool", (self.rows, length if one else most), 0) for one in self._masks]
        self.slots, self.nbytes = arranged(tuple(specs))

    def _spread(self, column: Strings, blank: bytes) -> Strings:
        """Return one string for each place of a row, ``blank`` where the row has no example."""
        inner = column.shape[1:]
        there = self._there.reshape(*self._there.shape, *(1 for _ in inner))
        there = np.broadcast_to(there, (*self._there.shape, *inner))
        return spread(column.reshape(-1), there, blank)

    def fill(self, block: np.ndarray) -> None:
        count = len(self._pieces)
        ids, positions = (array_at(block, slot) for slot in self.slots[count : count + 2])
        ids[:], positions[:] = 0, 0
        steps = ranges(self._row * self._length + self._at, self._steps)
        ids.reshape(-1)[steps] = np.repeat(self._place + 1, self._steps)
        positions.reshape(-1)[steps] = ranges(self._start, self._steps)
        real = ids > 0
        for slot, (columns, packed, value) in zip(self.slots, self._pieces, strict=False):
            if isinstance(columns[0], Strings):
                fill_strings(block, slot, columns)
                continue
            out = array_at(block, slot)
            if packed:
                self._fill_steps(block, slot, columns)
            else:
                out[:] = np.zeros((), out.dtype)
                out[self._row, self._place] = columns[0]
            if value is not None:
                out[~(real if packed else self._there)] = value
        for slot, packed in zip(self.slots[count + 2 :], self._masks, strict=True):
            array_at(block, slot)[:] = real if packed else self._there

    def _fill_steps(self, block: np.ndarray, slot: ColumnPlace, columns: list[Column]) -> None:
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
