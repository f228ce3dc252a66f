"""The states of lanes that stay with the trainer, from one batch to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from headrace_proto.dtypes import BYTES, NUMPY_OF
from headrace_proto.errors import ProtocolError

from ..connection.state_block import strings_of
from ..framework import NUMPY
from .segments import SegmentBatch


class LaneStates(NamedTuple):
    """The states of a partition's lanes after the last saved batch.

    Each is the object that was saved, on its device, so the trainer must not write to it
    afterwards; a ``tf.Variable`` is read first, since training writes to it.
    """

    token: int
    lanes: bytes  # of the rows (int32)
    goes_on: np.ndarray  # whether the example at the end of each row does, and may be flushed
    states: Mapping[str, Any]


def continued(
    batch: SegmentBatch, lanes: bytes, starts: np.ndarray, kept: LaneStates | None
) -> dict[str, Any]:
    """Return the columns of states of a batch, where states stay with the trainer.

        batch k     rows of lanes 0 1 2 3 ── saved ──► kept {lanes, states}
                                                         │        @starts: row 2 begins a sequence
        batch k+1   rows of lanes 0 1 2 3 ◄── merged ────┘ ◄───── with zeros, or as @state_of says

    ``lanes`` are those of the rows, ``starts`` the rows that begin a sequence.  When none does and
    rows keep their lanes, the very same objects come back.
    ProtocolError where a row goes on that was not in this trainer's hands.
    """
    states, own = batch._layout.states, batch._framework
    source = None  # where the kept state of each row lies; 0 for rows that begin
    if kept is None or kept.lanes != lanes:
        place, numbers = np.full(batch._layout.batch_size, -1), np.frombuffer(lanes, np.int32)
        if kept is not None:
            before_in = np.frombuffer(kept.lanes, np.int32)
            place[before_in] = np.arange(len(before_in))
        source = place[numbers]
        source[starts] = 0
        if (source < 0).any():
            raise ProtocolError(
                f"batch {batch.partition}/{batch.number} of lanes goes on in lane "
                f"{numbers[np.argmax(source < 0)]} with a sequence that was not in this trainer's "
                "hands"
            )
    before = {} if kept is None or not kept.lanes else kept.states
    if source is None and not len(starts):
        return {"state:" + name: value for name, value in before.items()}
    found, slots, begin = {}, batch._slots, len(starts)
    for name, state in states.items():
        column, strings = "state:" + name, state.dtype == BYTES
        shape = (begin, *state.dims)
        initial = np.full(shape, b"", object) if strings else np.zeros(shape, NUMPY_OF[state.dtype])
        if slots[column].shape[0]:
            index = batch.array("@state_of")  # of the initial states that came; -1: zeros
            brought = index >= 0
            initial[brought] = batch.array(column)[index[brought]]
        if strings:
            if before:
                value = strings_of(state, before[name], own)
                initial = NUMPY.merged(value, source, starts, initial)
            found[column] = own.strings(initial)
        elif before:
            found[column] = own.merged(before[name], source, starts, initial)
        else:
            found[column] = own.numbers(initial, state.dtype)
    return found
