"""States that stay with the trainer: each lane's last state, for the next batch.

    batch k     rows of lanes 0 1 2 3 ── saved ──► kept {lanes, states}
                                                     │        @starts: row 2 begins a sequence
    batch k+1   rows of lanes 0 1 2 3 ◄── merged ────┘ ◄───── with zeros, or as @state_of says

A kept state is the object that was saved, on its device, so the trainer must not write to it
afterwards; a ``tf.Variable`` is read first, since training writes to it.  When no sequence begins
and rows keep their lanes, the very same object comes back.  Partitions have lanes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from headrace_proto import limits
from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import LimitExceeded, ProtocolError
from headrace_proto.record import record
from headrace_proto.segment_layout import State

from .batch_memory import BatchGone
from .framework import NUMPY, Framework
from .requests import StatesPart
from .segments import SegmentBatch
from .state_block import BlockMaker, host, strings_in

#: Maximum bytes of states, and rows, in one message of a flush.
_PART_BYTES = 16 * 1024**2
_PART_ROWS = 1000


@record
class LaneStates:
    """The states of a partition's lanes after the last saved batch."""

    token: int
    lanes: np.ndarray
    goes_on: np.ndarray  # whether the example at the end of each row does, and may be flushed
    states: Mapping[str, Any]

    @property
    def unfinished(self) -> list[int]:
        """Rows whose sequence goes on."""
        rows: list[int] = np.flatnonzero(self.goes_on).tolist()
        return rows


class Going:
    """How the rows of one batch continue from kept states.

    Methods take the batch as an argument: a reference to it would be a cycle, whose memory waits
    for the collector.
    """

    __slots__ = ("_framework", "_index", "_kept", "_source", "_starts", "lanes")

    def __init__(self, batch: SegmentBatch, kept: LaneStates | None, framework: Framework) -> None:
        self._kept = kept
        self._framework = framework
        self.lanes = batch.array("@lane").copy()
        starts = batch.array("@starts")
        self._starts = starts.astype(np.int64)
        self._index: np.ndarray | None = None  # index of each start's initial state, if any has one
        self._source: np.ndarray | None = None
        if len(starts) and (index := batch.array("@state_of")).max() >= 0:
            self._index = np.array(index)
        if kept is None or kept.lanes.tobytes() != self.lanes.tobytes():
            self._find_rows(batch)

    def _find_rows(self, batch: SegmentBatch) -> None:
        """Find where the kept state of each row lies; 0 for rows that begin."""
        lanes, limit = self.lanes, batch._layout.batch_size
        place = np.full(limit, -1, np.int64)
        if self._kept is not None:
            place[self._kept.lanes] = np.arange(len(self._kept.lanes))
        source = place[lanes]
        source[self._starts] = 0
        if (source < 0).any():
            row = int(np.argmax(source < 0))
            raise ProtocolError(
                f"batch {batch.partition}/{batch.number} of lanes goes on in lane {lanes[row]} "
                "with a sequence that was not in this trainer's hands"
            )
        self._source = source

    def state(self, batch: SegmentBatch, name: str) -> Any:
        """Return a state of all rows."""
        state = batch._layout.states[name]
        starts, kept, source = self._starts, self._kept, self._source
        if kept is None or not len(kept.lanes):
            return self._begun(batch, state)
        value = kept.states[name]
        if not len(starts) and source is None:
            return value
        if state.dtype != BYTES:
            return self._framework.merged(value, source, starts, self._initial(batch, state))
        strings = strings_of(state, value, self._framework)
        return self._framework.strings(
            NUMPY.merged(strings, source, starts, self._initial(batch, state))
        )

    def _begun(self, batch: SegmentBatch, state: State) -> Any:
        """Return a state of a batch in which all rows begin."""
        rows = batch.rows
        if state.dtype == BYTES:
            return self._framework.strings(self._initial(batch, state))
        if self._index is None:
            return self._framework.zeros((rows, *state.dims), state.dtype)
        return self._framework.numbers(self._initial(batch, state), state.dtype)

    def _initial(self, batch: SegmentBatch, state: State) -> np.ndarray:
        """Return the initial states of the rows that begin."""
        shape = (len(self._starts), *state.dims)
        if state.dtype == BYTES:
            initial = np.full(shape, b"", object)
        else:
            initial = np.zeros(shape, numpy_dtype(state.dtype))
        index = self._index
        if index is not None:
            brought = index >= 0
            initial[brought] = batch.array("state:" + state.name)[index[brought]]
        return initial


def strings_of(state: State, value: Any, framework: Framework) -> np.ndarray:
    """Return kept strings as an object array; frameworks without strings keep lists."""
    if framework.owns(value):
        return host(state, framework, value)
    return np.array(value, object).reshape(len(value), *state.dims)


class Lanes:
    """Kept states by partition."""

    def __init__(self, framework: Framework) -> None:
        self._framework = framework
        self._kept: dict[int, LaneStates] = {}
        self._torn: set[int] = set()  # partitions that lost a batch: the following ones go back

    def reject(self, partition: int) -> None:
        """Note that a batch will not be used, so those that continue it can not be used either."""
        self._torn.add(partition)

    def going(self, batch: SegmentBatch) -> Going:
        """Return how a batch continues its lanes; ProtocolError for an impossible description.

        BatchGone where it continues a rejected one, until the server begins lanes anew.
        """
        partition = batch.partition
        if partition in self._torn:
            if len(batch.array("@starts")) < batch.rows:
                raise BatchGone
            self._torn.discard(partition)
        return Going(batch, self._kept.get(partition), self._framework)

    def keep(self, batch: SegmentBatch, lanes: np.ndarray, states: Mapping[str, Any]) -> None:
        """Keep the states of a saved batch: the next one may continue from them."""
        self._kept[batch.partition] = LaneStates(
            batch.token,
            lanes,
            batch._derived_array("valid") & ~batch._derived_array("last"),
            states,
        )

    def hand_over_no_more(self, kept: LaneStates) -> None:
        """Note that the server refuses these states; batches here still continue from them."""
        for partition, one in self._kept.items():
            if one is kept:
                self._kept[partition] = replace(kept, goes_on=np.zeros_like(kept.goes_on))

    def standing(self) -> list[tuple[int, LaneStates]]:
        """List by partition the kept states that can be flushed."""
        return [(p, kept) for p, kept in self._kept.items() if kept.unfinished]


def parts_of(kept: LaneStates, maker: BlockMaker, framework: Framework) -> list[StatesPart]:
    """Return the states of the unfinished rows, in messages of bounded size."""
    whole: dict[str, np.ndarray] = {}
    sizes = np.full(len(kept.lanes), sum(state.row_bytes for state in maker.states.values()))
    for name, state in maker.states.items():
        value = kept.states[name]
        if state.dtype == BYTES:
            whole[name] = strings_of(state, value, framework)
            array = whole[name]
            sizes += [sum(map(len, strings_in(state, array[i : i + 1]))) for i in range(len(array))]
        else:
            whole[name] = host(state, framework, value)
    parts: list[StatesPart] = []
    rows: list[int] = []
    filled = 0
    for row in kept.unfinished:
        size = int(sizes[row])
        if size > limits.MAX_UPLOAD_BYTES:
            raise LimitExceeded(
                f"the states {', '.join(maker.states)} of row {row} (lane {kept.lanes[row]}) take "
                f"{size} bytes; a message of a trainer holds {limits.MAX_UPLOAD_BYTES}"
            )
        if rows and (filled + size > _PART_BYTES or len(rows) == _PART_ROWS):
            parts.append(_part(rows, whole, maker))
            rows, filled = [], 0
        rows.append(row)
        filled += size
    if rows:
        parts.append(_part(rows, whole, maker))
    return parts


def _part(rows: list[int], whole: Mapping[str, np.ndarray], maker: BlockMaker) -> StatesPart:
    values: dict[str, Any] = {}
    for name, state in maker.states.items():
        some = whole[name][rows]
        values[name] = strings_in(state, some) if state.dtype == BYTES else some
    columns, block = maker.block(len(rows), values)
    return tuple(rows), columns, block
