"""The check of state blocks that trainers send, before anything reads them.

A partition copies states from a block without another check, so this module checks the columns of
the block (place and shape of each state) and the offsets of strings, once, when the block comes.
"""

from __future__ import annotations

import numpy as np

from headrace_proto.checks import Columns
from headrace_proto.dtypes import BYTES
from headrace_proto.errors import ProtocolError
from headrace_proto.layout import ColumnPlace, arrange, check_place, strings_at
from headrace_proto.schema import Field

#: Refuses the states of lanes that their trainer does not have any more.
LANES_LOST = (
    "the states of lanes were not handed over: the lease of their last batch had ended.  These "
    "sequences go on from the states that the server has, and what was done since is done again"
)


class StateBlocks:
    """The check of one feed's blocks, each with these states of some rows."""

    def __init__(self, states: list[Field], most_bytes: int, rows: int = 0) -> None:
        """``rows``: of a batch whose states may come by a state buffer."""
        self._states = states
        self._with_strings = any(state.dtype == BYTES for state in states)
        shapes = [(rows, *(dim or 0 for dim in state.shape)) for state in states]
        arrays = [(state.dtype, shape, 0) for state, shape in zip(states, shapes, strict=True)]
        #: Bytes of such a buffer; 0 where there is none.
        self.buffer_bytes = 0 if self._with_strings else arrange(arrays)[1]
        #: Rows, columns and size of the last valid block.  Identity, not equality, shows that
        #: columns were checked: a list with 2.0 for 2 is equal and wrong.
        self._right: tuple[int, object, int] = (-1, None, -1)
        self._most_bytes = most_bytes  # of one row, where there are strings

    def fault_of_columns(self, rows: int, columns: Columns, nbytes: int) -> str:
        """Return why a block can not hold the states of ``rows`` rows; "" if it can."""
        if not isinstance(columns, list) or len(columns) != len(self._states):
            return f"{len(self._states)} states are saved together"
        try:
            for state, column in zip(self._states, columns, strict=True):
                offset, size, shape = column
                check_place(ColumnPlace(state.dtype, tuple(shape), offset, size), nbytes)
                if tuple(shape) != (rows, *state.shape):
                    return f"a state of shape {shape} came; it is {[rows, *state.shape]}"
        except (TypeError, ValueError, ProtocolError) as error:
            return f"a state is described wrongly: {error}"
        self._right = rows, columns, nbytes
        return ""

    def fault_of_block(self, rows: int, columns: Columns, block: bytes | memoryview) -> str:
        """Return the fault of the columns or of the bytes (the offsets of strings), or ""."""
        right = self._right
        if right[1] is not columns or right[0] != rows or right[2] != len(block):
            fault = self.fault_of_columns(rows, columns, len(block))
            if fault:
                return fault
        if not self._with_strings:
            return ""
        memory = np.frombuffer(block, np.uint8)
        texts = []
        try:
            for state, (offset, size, shape) in zip(self._states, columns, strict=True):
                if state.dtype == BYTES:
                    texts.append(strings_at(memory, ColumnPlace(BYTES, tuple(shape), offset, size)))
        except ProtocolError as error:
            return f"a state is described wrongly: {error}"
        return self._fault_of_size(rows, columns, texts) if texts and rows else ""

    def _fault_of_size(self, rows: int, columns: Columns, texts: list[np.ndarray]) -> str:
        """Return why the strings of a block are too large; "" if they are not."""
        numbers = sum(
            column[1]
            for state, column in zip(self._states, columns, strict=True)
            if state.dtype != BYTES
        )
        largest = max(sum(_length(array[row]) for array in texts) for row in range(rows))
        total = numbers // rows + largest
        if total <= self._most_bytes:
            return ""
        return (
            f"the states of one example have {total} bytes, more than the server's "
            f"max_state_bytes={self._most_bytes}: raise it, or let states stay with the trainer "
            "(order='lanes', state_placement='trainer')"
        )


def _length(value: bytes | np.ndarray) -> int:
    """Return the bytes of one row's strings."""
    return len(value) if isinstance(value, bytes) else sum(map(len, value.flat))
