"""The columns of every batch of a feed of segments, and where they lie in one batch.

    Welcome: schema, properties ──► SegmentLayout ──► slots.of(given): {name: Slot, …}

The schema is checked once, and each batch before any of it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from sys import maxsize
from typing import Any

from .dtypes import BYTES, numpy_dtype
from .errors import ProtocolError
from .layout import KnownSlots
from .schema import Field, rows_open, schema_from_wire


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


GROUPS = ("sequences", "context", "state")
#: Columns of every feed of segments …
_COLUMNS = ("@key", "@length", "@total_length", "@insertion_index")
#: … of one whose rows have one example each …
NUMBERS = ("@sequence", "@sequence_count")
#: … and of one with packed rows, by dtype: of each row, and of each of its steps.
PACKED = {
    "@first": "bool",
    "@last": "bool",
    "@segment_ids": "int32",
    "@positions": "int32",
    "@resets": "bool",
}
#: Columns with an entry for each row that begins an example, not for each row.
STARTS = ("@starts", "@state_of")


class SegmentLayout:
    """The columns, states and order of a feed of segments."""

    def __init__(self, schema: dict[str, Field], properties: dict[str, Any]) -> None:
        self.schema = schema
        self.num_unroll = _number(properties, "num_unroll")
        self.batch_size = _number(properties, "batch_size")
        capacity = properties.get("capacity", 1)  # examples in flight in a partition
        most_rows = maxsize if capacity is None else max(self.batch_size, capacity)
        self.left = _number(properties, "left") if "left" in properties else 0
        self.lanes = properties.get("order") == "lanes"
        self.kept = properties.get("placement") == "trainer"  # states stay there
        self.packed = properties.get("pack") is True  # a row has several examples
        self.groups = (*GROUPS, "initial") if self.packed else GROUPS
        states = schema_from_wire(properties.get("states")).items()
        self.states = {
            name: State(name, field.dtype, tuple(dim or 0 for dim in field.shape))
            for name, field in states
        }
        self._check_columns()
        #: Returns the Saving of the feed; None where it has no states, or the feed is gone.
        self.saving: Any = lambda: None
        self.ranked = False  # a rank has lanes in every partition, and each a number of its own
        free = [*STARTS, *(f"initial:{name}" for name in self.states)]
        free += [f"state:{name}" for name in self.states if self.kept]
        self.slots = KnownSlots(schema, schema.keys() - free, most_rows)

    def names(self, group: str) -> list[str]:
        """Return names of the sequences, of the context, or of the states."""
        return [name.partition(":")[2] for name in self.schema if name.startswith(group + ":")]

    def _check_columns(self) -> None:
        wanted = [*_COLUMNS, *["@lane"] * self.lanes, *(STARTS if self.kept else ())]
        wanted += [*PACKED, *(f"initial:{n}" for n in self.states)] if self.packed else NUMBERS
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


def _number(properties: dict[str, Any], name: str) -> int:
    value = properties.get(name)
    if type(value) is not int or value < 1:
        raise ProtocolError(f"a feed of segments has {name}={value!r:.40}")
    return value
