"""The states of examples between two of their segments.

StateTable     states at the server: an array per state, a row per slot
HandedStates   states at trainers: only those that they flushed, by slot
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from headrace_proto.codec import pack
from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import Slot, strings_at

from ..core.slots import Segments
from ..core.stored_state import Column, Examples
from .segment_block import groups, state_array
from .segment_cutting import Offer, StateSource


def arrays_of(
    states: Sequence[StateSource], block: Any, columns: Sequence[Any]
) -> list[np.ndarray]:
    """Return the arrays of a block of states, whose columns were checked on arrival."""
    arrays = []
    for state, (offset, nbytes, shape) in zip(states, columns, strict=True):
        dtype = state.field.dtype
        if dtype == BYTES:
            slot = Slot(dtype, tuple(shape), offset, nbytes)
            arrays.append(strings_at(np.frombuffer(block, np.uint8), slot))
        else:
            arrays.append(np.ndarray(shape, numpy_dtype(dtype), block, offset))
    return arrays


def state_columns(arrays: Sequence[np.ndarray]) -> list[Column]:
    """Return states of some examples as columns to store: the arrays, unless there are strings."""
    if any(array.dtype.hasobject for array in arrays):
        plain = [
            [a[row].tolist() if a.dtype == object and a.ndim > 1 else _raw(a[row]) for a in arrays]
            for row in range(len(arrays[0]))
        ]
        return [[pack(values) for values in plain]]
    return [array.reshape(len(array), -1).view(np.uint8) for array in arrays]


def _raw(value: Any) -> bytes:
    return value if isinstance(value, bytes) else np.ascontiguousarray(value).tobytes()


def stored_states(states: Sequence[StateSource], examples: Examples) -> list[np.ndarray]:
    """Return stored states as arrays, one for each state; numbers are views of what was stored.

    ValueError if their sizes do not fit.
    """
    arrays = [state.blank(len(examples)) for state in states]
    if not arrays or not len(examples):
        return arrays
    if any(array.dtype == object for array in arrays):
        for row, values in enumerate(examples.packed()):
            for array, value in zip(arrays, msgpack.unpackb(values), strict=True):
                if array.dtype == object:
                    array[row] = value
                else:
                    array[row] = np.frombuffer(value, array.dtype).reshape(array.shape[1:])
        return arrays
    columns, widths = examples.states, tuple(array.nbytes // len(array) for array in arrays)
    if examples.widths != widths:  # they are one column, or do not fit
        whole = np.frombuffer(bytearray().join(examples.packed()), np.uint8)
        whole = whole.reshape(len(examples), -1)
        if whole.shape[1] != sum(widths):
            raise ValueError(f"states of {whole.shape[1]} bytes are stored; they have {widths}")
        columns = np.split(whole, np.cumsum(widths)[:-1], axis=1)
    return [
        np.ascontiguousarray(column).view(array.dtype).reshape(array.shape)
        for column, array in zip(columns, arrays, strict=True)
    ]


class StateTable:
    """States at the server."""

    def __init__(self, states: Sequence[StateSource]) -> None:
        self._states = states
        self._tables = [state.blank(0) for state in states]

    def grow(self, slots: int) -> None:
        """Make room for this many slots."""
        for i, table in enumerate(self._tables):
            if len(table) < slots:
                grown = self._states[i].blank(slots)
                grown[: len(table)] = table
                self._tables[i] = grown

    def resume(self, slots: np.ndarray, arrays: Sequence[np.ndarray], size: int) -> None:
        """Take over the states of an earlier process, those of the first slots, without a copy."""
        self._tables = list(arrays)
        self.grow(size)

    def begin(self, batch: Segments, offers: Mapping[int, Offer]) -> None:
        """Write initial states for examples whose first segment is taken."""
        first = (batch.segments == 0).nonzero()[0]
        if not len(first):
            return
        slots = batch.slots[first]
        for state, table in zip(self._states, self._tables, strict=True):
            if state.column is not None:
                for offer, places, rows in groups(batch.chunks[first], batch.rows[first], offers):
                    table[slots[places]] = state_array(offer.initial[state.name], rows)
            elif state.constant is not None:
                table[slots] = state.constant
            else:
                table[slots] = b"" if table.dtype == object else 0

    def columns(self, batch: Segments, offers: Any) -> tuple[dict[str, Any], int]:
        """Return a batch's states as columns (a table and its rows), and their number of rows."""
        tables, slots = zip(self._states, self._tables, strict=True), batch.slots
        return {"state:" + state.name: (table, slots) for state, table in tables}, len(slots)

    def put(self, slots: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Store states under these slots, a row each."""
        for table, array in zip(self._tables, arrays, strict=True):
            table[slots] = array

    def stored(self, slots: np.ndarray) -> list[Column]:
        """Return the states under these slots as columns to store."""
        return state_columns([table[slots] for table in self._tables])

    def forget(self, slots: Iterable[int]) -> None:
        """Do nothing: the next example in a slot overwrites its states."""


class HandedStates(StateTable):
    """States that trainers flushed, for the trainers that continue from them."""

    def __init__(self, states: Sequence[StateSource]) -> None:
        super().__init__(states)
        self._handed: dict[int, list[np.ndarray]] = {}
        self._zeros = all(s.column is None and s.constant is None for s in states)

    def grow(self, slots: int) -> None:
        """Do nothing: only slots with states take room."""

    def resume(self, slots: np.ndarray, arrays: Sequence[np.ndarray], size: int) -> None:
        """Take over the states of an earlier process."""
        self.put(slots, arrays)

    def begin(self, batch: Segments, offers: Mapping[int, Offer]) -> None:
        """Do nothing: ``columns`` has the initial states."""

    def put(self, slots: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Store states under these slots, a row each."""
        for row, slot in enumerate(slots.tolist()):
            self._handed[slot] = [array[row : row + 1].copy() for array in arrays]

    def stored(self, slots: np.ndarray) -> list[Column]:
        """Return nothing: flushed states are stored at once."""
        return []

    def forget(self, slots: Iterable[int]) -> None:
        """Drop the states under these slots."""
        for slot in slots:
            self._handed.pop(slot, None)

    def columns(self, batch: Segments, offers: Any) -> tuple[dict[str, Any], int]:
        """Return ``@state_of``, the distinct states from which rows start, and their number."""
        which: list[int] = []
        parts: list[list[np.ndarray]] = []
        shared = -1  # row of the constants, once one is needed
        own = any(state.column is not None for state in self._states)
        segments = batch.segments[batch.starts].tolist()
        for place, segment in zip(batch.starts.tolist(), segments, strict=True):
            if segment:
                parts.append(self._handed[int(batch.slots[place])])
            elif self._zeros:
                which.append(-1)
                continue
            elif own:
                offer = offers[int(batch.chunks[place])]
                parts.append(self._initial(offer, batch.rows[place : place + 1]))
            else:
                if shared < 0:
                    shared = len(parts)
                    parts.append(self._initial(None, batch.rows[:1]))
                which.append(shared)
                continue
            which.append(len(parts) - 1)
        columns: dict[str, Any] = {"@state_of": np.array(which, np.int32)}
        for i, state in enumerate(self._states):
            blank = self._tables[i]
            rows = np.concatenate([blank, *(part[i] for part in parts)]) if parts else blank
            columns["state:" + state.name] = rows
        return columns, len(parts)

    def _initial(self, offer: Offer | None, rows: np.ndarray) -> list[np.ndarray]:
        """Return the initial states of one row, as arrays of one row."""
        values = []
        for state in self._states:
            if state.column is not None:
                assert offer is not None
                values.append(state_array(offer.initial[state.name], rows))
            elif state.constant is not None:
                values.append(state.constant[None])
            else:
                values.append(state.blank(1))
        return values
