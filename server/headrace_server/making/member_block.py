"""The block of a member of a round: rows without an example are blank.

    rows of the member, at their places ─┐
    a blank row for each other place ────┴─► Segments of all places ─► SegmentBlock

A blank row comes from an offer without steps: its numbers are 0, and its strings are empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.schema import RESERVED, Field

from ..core.changes import CHUNK
from ..core.slots import Segments
from ..reading.columns import Column, Ragged, Strings, ragged_of
from .sequencing import Offer

#: Number of the chunk of blank rows; others count from 0.
BLANK = -1


def whole(batch: Segments) -> Segments:
    """Return the batch with a row for each place of its block.

    A place without an example starts one in every batch, so trainers have zeros for its states.
    """
    member = batch.member
    assert member is not None

    slots = np.zeros(member.size, np.int64)
    slots[batch.lanes] = batch.slots
    numbers = np.zeros((len(batch.numbers), member.size), np.int64)
    numbers[CHUNK] = BLANK
    numbers[:, batch.lanes] = batch.numbers
    starts = numbers[CHUNK] == BLANK
    starts[batch.lanes[batch.starts]] = True
    places = np.arange(member.size)
    return Segments(slots, numbers, batch.stripe, places, starts.nonzero()[0], member)


def whole_states(batch: Segments, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of states for ``whole(batch)``, from those for the batch."""
    member = batch.member
    assert member is not None
    columns = dict(extra)
    for name, column in extra.items():
        if isinstance(column, tuple):
            table, slots = column
            out = np.full((member.size, *table.shape[1:]), b"" if table.dtype == object else 0)
            out = out.astype(table.dtype, copy=False)
            out[batch.lanes] = table[slots]
            columns[name] = out
        elif name == "@state_of":
            known = np.full(member.size, -1, np.int32)
            known[batch.lanes[batch.starts]] = column
            columns[name] = known[whole(batch).starts]
    return columns


def blank_offer(fields: Mapping[str, Field]) -> Offer:
    """Return one example without steps, for the wire columns of a feed."""
    sequences: dict[str, Ragged] = {}
    context: dict[str, Column] = {}
    facts: dict[str, np.ndarray] = {}
    none = np.zeros(1, np.int64)
    for name, field in fields.items():
        group, _, inner = name.partition(":")
        dims = tuple(d or 0 for d in field.shape[1:])
        if group == "sequences":
            sequences[inner] = ragged_of(_blank(field, (1, 0, *dims[1:])), 1)
        elif group == "context":
            context[inner] = _blank(field, (1, *dims))
        elif name.startswith(RESERVED) and field.dtype != BYTES:
            facts[name[len(RESERVED) :]] = np.zeros((1, *dims), numpy_dtype(field.dtype))
    totals = np.zeros(1, np.int32)
    return Offer(
        origin=None,
        keys=[b""],
        steps=none,
        totals=totals,
        counts=none,
        firsts=None,
        sequences=sequences,
        context=context,
        initial={},
        facts=facts,
        draws={},
    )


def _blank(field: Field, shape: tuple[int, ...]) -> np.ndarray | Strings:
    if field.dtype != BYTES:
        return np.zeros(shape, numpy_dtype(field.dtype))
    nowhere = np.zeros(shape, np.int64)
    return Strings(np.empty(0, np.uint8), nowhere, nowhere)
