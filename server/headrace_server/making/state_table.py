"""States between segments: at the server, handed over by trainers, and as they are stored.

StateTable      an array per state, a row per entry of the machine's table
HandedStates    by entry the states that a trainer flushed; others begin with initial ones
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import repeat
from typing import Any

import msgpack
import numpy as np

from headrace_proto.channel import Frame
from headrace_proto.checks import Columns
from headrace_proto.codec import pack
from headrace_proto.dtypes import BYTES, NUMPY_OF, numpy_dtype
from headrace_proto.layout import ColumnPlace, strings_at

from ..reading.columns import Strings
from ..shaping.spans import Spans
from ..shaping.stored_state import Column as StateColumn
from ..shaping.stored_state import Examples
from .segment_cutting import Offer, StateSource, groups

#: Columns that do not come from examples: arrays, or a table and rows of it.
StateColumns = dict[str, Any]


def initial(state: StateSource, offer: Offer, rows: np.ndarray) -> np.ndarray:
    """Return the initial values of a state for rows of a chunk; strings are objects."""
    if state.column is None:
        values = state.blank(len(rows))
        if state.constant is not None:
            values[:] = state.constant
        return values
    column = offer.initial[state.name]
    if isinstance(column, Strings):
        return column.take(rows).to_objects()
    assert isinstance(column, np.ndarray)
    taken: np.ndarray = column[rows]
    return taken


def arrays_of(states: Sequence[StateSource], block: Frame, columns: Columns) -> list[np.ndarray]:
    """Return the arrays of a block of states, whose columns were checked on arrival."""
    arrays = []
    for state, (offset, nbytes, shape) in zip(states, columns, strict=True):
        dtype = state.field.dtype
        if dtype == BYTES:
            place = ColumnPlace(dtype, tuple(shape), offset, nbytes)
            arrays.append(strings_at(np.frombuffer(block, np.uint8), place))
        else:
            kind = NUMPY_OF.get(dtype) or numpy_dtype(dtype)
            arrays.append(np.ndarray(shape, kind, block, offset))
    return arrays


def state_columns(arrays: Sequence[np.ndarray]) -> list[StateColumn]:
    """Return states of some examples as columns to store: the arrays, unless there are strings."""
    if any(array.dtype.hasobject for array in arrays):
        plain = [
            [a[row].tolist() if a.dtype == object and a.ndim > 1 else _raw(a[row]) for a in arrays]
            for row in range(len(arrays[0]))
        ]
        return [[pack(values) for values in plain]]
    return [array.reshape(len(array), -1).view(np.uint8) for array in arrays]


def _raw(value: bytes | np.ndarray) -> bytes:
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
    """States at the server: an array per state, a row per entry."""

    def __init__(self, states: Sequence[StateSource]) -> None:
        self._states = states
        self._names = ["state:" + state.name for state in states]
        self._tables = [state.blank(0) for state in states]
        self._size = 0  # rows of the tables
        #: Initial values by state; None where examples bring them.
        self._initial = [s.initial() if s.column is None else None for s in states]
        self._brought = any(state.column is not None for state in states)

    def grow(self, size: int) -> None:
        """Make room for this many entries."""
        if size > self._size:
            self._size = size = max(size, 2 * self._size)
            for i, table in enumerate(self._tables):
                grown = self._states[i].blank(size)
                grown[: len(table)] = table
                self._tables[i] = grown

    def resume(self, entries: np.ndarray, arrays: Sequence[np.ndarray], size: int) -> None:
        """Take over the states of an earlier process, of the first entries, without a copy."""
        self._tables = list(arrays)
        self.grow(size)

    def _begin(self, batch: Spans, offers: Mapping[int, Offer]) -> None:
        """Write initial states for examples whose first segment is taken.

        Harmless for an expected batch: no other batch uses these entries yet.
        """
        begun = batch.first[batch.heads] == 0
        if batch.cut.grows:  # segments before it may have been left out
            begun |= batch.versions[batch.heads] == 0
        begins = begun.nonzero()[0]
        if not len(begins):
            return
        begins = batch.heads[begins] if batch.cut.packed else begins
        entries = batch.entries[begins]
        for value, table in zip(self._initial, self._tables, strict=True):
            if value is not None:
                table[entries] = value
        if not self._brought:
            return
        for offer, places, rows in groups(batch.chunks[begins], batch.rows[begins], offers):
            for state, table in zip(self._states, self._tables, strict=True):
                if state.column is not None:
                    table[entries[places]] = initial(state, offer, rows)

    def columns(self, batch: Spans, offers: Mapping[int, Offer]) -> tuple[StateColumns, int]:
        """Return a batch's states as columns (a table and its rows), and their number of rows."""
        self._begin(batch, offers)
        entries = batch.entries[batch.heads]
        columns = zip(self._tables, repeat(entries), strict=False)
        return dict(zip(self._names, columns, strict=True)), len(entries)

    def put(self, entries: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Store states under these entries, a row each."""
        for table, array in zip(self._tables, arrays, strict=True):
            table[entries] = array

    def stored(self, entries: np.ndarray) -> list[StateColumn]:
        """Return the states under these entries as columns to store."""
        return state_columns([table[entries] for table in self._tables])

    def forget(self, used: np.ndarray) -> None:
        """Do nothing: the next example in an entry overwrites its states."""


class HandedStates(StateTable):
    """States that trainers flushed, by entry, for the trainers that continue from them."""

    def __init__(self, states: Sequence[StateSource]) -> None:
        super().__init__(states)
        self._handed: dict[int, list[np.ndarray]] = {}
        self._zeros = all(s.column is None and s.constant is None for s in states)
        #: Of no state at all.
        self._none: StateColumns = dict(zip(self._names, self._tables, strict=True))

    def grow(self, size: int) -> None:
        """Do nothing: only entries with states take room."""

    def resume(self, entries: np.ndarray, arrays: Sequence[np.ndarray], size: int) -> None:
        """Take over the states of an earlier process."""
        self.put(entries, arrays)

    def put(self, entries: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Store states under these entries, a row each."""
        for row, entry in enumerate(entries.tolist()):
            self._handed[entry] = [array[row : row + 1].copy() for array in arrays]

    def stored(self, entries: np.ndarray) -> list[StateColumn]:
        """Return nothing: flushed states are stored at once."""
        return []

    def forget(self, used: np.ndarray) -> None:
        """Drop the states of examples that are gone: these entries are used.

        Until then an example that begins in such an entry does not look at them.
        """
        for entry in self._handed.keys() - set(used.tolist()):
            del self._handed[entry]

    def columns(self, batch: Spans, offers: Mapping[int, Offer]) -> tuple[StateColumns, int]:
        """Return ``@state_of``, the distinct states from which rows start, and their number."""
        starts, parts = batch.starts, list[list[np.ndarray]]()
        first = batch.first[starts]
        shared = -1 if self._zeros else None  # the states of all examples that begin, once known
        if self._zeros and not len(first.nonzero()[0]):  # as it mostly is
            return {"@state_of": np.zeros(len(starts), np.int32) - 1, **self._none}, 0
        which = list[int]()
        for place, step in zip(starts.tolist(), first.tolist(), strict=True):
            if not step and shared is not None:
                which.append(shared)
                continue
            which.append(len(parts))
            if step:
                parts.append(self._handed[int(batch.entries[place])])
                continue
            offer, row = offers[int(batch.chunks[place])], batch.rows[place : place + 1]
            shared = None if self._brought else len(parts)
            parts.append([initial(state, offer, row) for state in self._states])
        columns: StateColumns = {"@state_of": np.array(which, np.int32)}
        for i, (name, blank) in enumerate(self._none.items()):
            rows = np.concatenate([blank, *(part[i] for part in parts)]) if parts else blank
            columns[name] = rows
        return columns, len(parts)
