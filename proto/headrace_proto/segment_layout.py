"""The columns of every batch of a feed of segments, and where they lie in one batch.

    Welcome: schema, properties ──► SegmentLayout ──► places(given): {name: ColumnPlace, …}

The schema is checked once.  A batch is then compared with the layout for its number of rows,
unless its list of columns was compared before: batches that lie alike come with the same list.
A batch that does not fit is a ProtocolError before any of it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from sys import maxsize
from typing import Any, NamedTuple

import numpy as np

from .dtypes import BYTES, numpy_dtype
from .errors import ProtocolError
from .layout import ALIGNMENT, slot_of
from .schema import Field, rows_open, schema_from_wire
from .step_messages import Given


@dataclass(frozen=True, slots=True)
class State:
    """A declared state: its name, and dtype and shape of one row."""

    name: str
    dtype: str
    dims: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; without the data of strings."""
        item = 8 if self.dtype == BYTES else numpy_dtype(self.dtype).itemsize
        return prod(self.dims) * item


class ColumnPlace(NamedTuple):
    """Where a column lies in a block, and what it is."""

    offset: int
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    numpy: np.dtype | None  # None for strings


GROUPS = ("sequences", "context", "state")
#: Columns of every feed of segments.
_COLUMNS = ("@key", "@sequence", "@sequence_count", "@length", "@total_length", "@insertion_index")
#: Columns with an entry for each row that begins an example, not for each row.
STARTS = ("@starts", "@state_of")
#: Number of layouts that are remembered: most batches of a feed have one of a few.
_MOST_KNOWN = 64


class SegmentLayout:
    """The columns, states and order of a feed of segments."""

    def __init__(self, schema: dict[str, Field], properties: dict[str, Any]) -> None:
        self.schema = schema
        self.num_unroll = _number(properties, "num_unroll")
        self.batch_size = _number(properties, "batch_size")
        capacity = properties.get("capacity", 1)  # examples in flight in a partition
        self.most_rows = maxsize if capacity is None else max(self.batch_size, capacity)
        self.left = _number(properties, "left") if "left" in properties else 0
        self.lanes = properties.get("order") == "lanes"
        self.kept = properties.get("placement") == "trainer"  # states stay there
        states = schema_from_wire(properties.get("states")).items()
        self.states = {
            name: State(name, field.dtype, tuple(dim or 0 for dim in field.shape))
            for name, field in states
        }
        self._check_columns()
        #: As batches may have them: another trainer can change their number of rows.
        self._fields = list(rows_open(schema).items())
        self._expected: dict[int, list[tuple[list[int], tuple[int, ...], int] | None]] = {}
        #: Returns the Saving of the feed; None where it has no states, or the feed is gone.
        self.saving: Any = lambda: None
        self.ranked = False  # a rank has lanes in every partition, and each a number of its own
        self.traced: Any = None  # what traced.py shares between all batches of the feed
        # by identity of columns
        self._known: dict[int, tuple[Any, int, int, dict[str, ColumnPlace]]] = {}

    def names(self, group: str) -> list[str]:
        """Return names of the sequences, of the context, or of the states."""
        return [name.partition(":")[2] for name in self.schema if name.startswith(group + ":")]

    def _check_columns(self) -> None:
        wanted = [*_COLUMNS, *["@lane"] * self.lanes, *(STARTS if self.kept else ())]
        if lacking := [name for name in wanted if name not in self.schema]:
            raise ProtocolError(f"a feed of segments lacks the columns {lacking}")
        for name, state in self.states.items():
            field = self.schema.get("state:" + name)
            if field is None or (field.dtype, field.shape[1:]) != (state.dtype, state.dims):
                raise ProtocolError(
                    f"the state {name!r} of {state.dtype}{list(state.dims)} has the column {field}"
                )

    def open_rows(self) -> None:
        """Let batches have any number of rows."""
        self.schema = rows_open(self.schema)

    # Batches

    def places(self, given: Given) -> dict[str, ColumnPlace]:
        """Return the places of a batch's columns, in the order of the schema."""
        columns, rows, nbytes = given.columns, given.rows, given.nbytes
        known = self._known.get(id(columns))
        if known is not None and known[0] is columns and known[1] == rows and known[2] == nbytes:
            return known[3]
        if not isinstance(columns, list) or len(columns) != len(self._fields):
            raise ProtocolError(
                f"a batch does not have the {len(self._fields)} columns of its feed"
            )
        if not 0 <= rows <= self.most_rows:
            raise ProtocolError(f"a batch has {rows} rows; its feed has {self.most_rows}")
        expected = self._expected.get(rows)
        if expected is None:
            expected = self._expected[rows] = self._expect(rows)
        places: dict[str, ColumnPlace] = {}
        for want, column, (name, field) in zip(expected, columns, self._fields, strict=True):
            if want is not None and type(column) is list and len(column) == 3:
                offset, size, shape = column
                if (
                    shape == want[0]
                    and size == want[2]
                    and type(offset) is int
                    and offset >= 0
                    and not offset % ALIGNMENT
                    and offset + want[2] <= nbytes
                ):
                    places[name] = _place(offset, size, want[1], field)
                    continue
            places[name] = self._place(name, field, column, given)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(columns)] = columns, rows, nbytes, places
        return places

    def _expect(self, rows: int) -> list[tuple[list[int], tuple[int, ...], int] | None]:
        """Return shape and size of each column in a batch of ``rows`` rows, where certain."""
        expected: list[tuple[list[int], tuple[int, ...], int] | None] = []
        for name, field in self._fields:
            shape = (rows, *field.shape[1:])
            dims = [d for d in shape if d is not None]
            free = name in STARTS or (self.kept and name.startswith("state:"))
            if free or field.dtype == BYTES or len(dims) < len(shape) or not field.admits((*dims,)):
                expected.append(None)
            else:
                item = numpy_dtype(field.dtype).itemsize
                expected.append((dims, tuple(dims), prod(dims) * item))
        return expected

    def _place(self, name: str, field: Field, column: Any, given: Given) -> ColumnPlace:
        slot = slot_of(name, field, column, given.nbytes)
        free = name in STARTS or (self.kept and name.startswith("state:"))
        if not free and slot.shape[0] != given.rows:
            raise ProtocolError(
                f"column {name!r} of a batch of {given.rows} rows has {slot.shape[0]}"
            )
        return _place(slot.offset, slot.nbytes, slot.shape, field)


def _place(offset: int, nbytes: int, shape: tuple[int, ...], field: Field) -> ColumnPlace:
    known = None if field.dtype == BYTES else numpy_dtype(field.dtype)
    return ColumnPlace(offset, nbytes, shape, field.dtype, known)


def _number(properties: dict[str, Any], name: str) -> int:
    value = properties.get(name)
    if type(value) is not int or value < 1:
        raise ProtocolError(f"a feed of segments has {name}={value!r:.40}")
    return value
