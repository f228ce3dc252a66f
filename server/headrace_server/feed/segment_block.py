"""A batch of segments as bytes: windows of sequences, contexts and states, written once.

    Segments + Offers of their chunks + states ─► SegmentBlock ─► fill(block)

Columns of numbers have the same place in every batch of as many rows, so places are reckoned once;
strings, which differ in size, come after them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.layout import ALIGNMENT, Slot, arrange, array_at
from headrace_proto.schema import Field

from ..core.slots import Segments
from .columns import Column, Ragged, RaggedStrings, Strings
from .sequencing import Offer
from .trace import States

__all__ = [
    "BlockLayout",
    "SegmentBlock",
    "groups",
    "identity_in",
    "state_array",
    "write_strings",
]

_Group = tuple[Offer, np.ndarray | slice, np.ndarray]  # an offer, places in the batch, rows of it


class BlockLayout:
    """Where the columns of a feed's batches lie."""

    def __init__(self, fields: Mapping[str, Field], num_unroll: int) -> None:
        self.fields = dict(fields)
        self.num_unroll = num_unroll
        self._numbers = [n for n, f in fields.items() if f.dtype != BYTES]
        self._known: dict[tuple[int, int, int], tuple[dict[str, Slot], int]] = {}

    def numbers(self, rows: int, starts: int, states: int) -> tuple[dict[str, Slot], int]:
        """The columns of numbers of a batch of so many rows, and where they end."""
        key = rows, starts, states
        known = self._known.get(key)
        if known is None:
            if len(self._known) > 256:
                self._known.clear()
            specs = [
                (self.fields[n].dtype, (self._rows(n, key), *self._inner(n)), 0)
                for n in self._numbers
            ]
            slots, end = arrange(specs)
            known = self._known[key] = dict(zip(self._numbers, slots, strict=True)), end
        return known

    def _rows(self, name: str, counts: tuple[int, int, int]) -> int:
        if name in ("@starts", "@state_of"):
            return counts[1]
        return counts[2] if name.startswith("state:") else counts[0]

    def _inner(self, name: str) -> tuple[int, ...]:
        return tuple(d or 0 for d in self.fields[name].shape[1:])


class SegmentBlock:
    """One batch about to be written.

    ``extra`` are its columns beside those of the examples: arrays, or a table and rows of it.
    """

    def __init__(
        self,
        layout: BlockLayout,
        batch: Segments,
        offers: Mapping[int, Offer],
        extra: Mapping[str, Any],
        states: int,
    ) -> None:
        self.batch = batch
        self.rows = len(batch)
        self._layout = layout
        self._groups = groups(batch.chunks, batch.rows, offers)
        self._extra = extra
        slots, end = layout.numbers(self.rows, len(batch.starts), states)
        placed = dict(slots)
        self._texts: dict[str, tuple[list[bytes], Slot]] = {}
        for name, field in layout.fields.items():
            if field.dtype == BYTES:
                texts = self._strings(name)
                rows = states if name.startswith("state:") else self.rows
                shape = (rows, *(d or 0 for d in field.shape[1:]))
                nbytes = 8 * (len(texts) + 1) + sum(map(len, texts))
                slot = Slot(BYTES, shape, end, nbytes)
                end += -(-nbytes // ALIGNMENT) * ALIGNMENT
                placed[name] = slot
                self._texts[name] = texts, slot
        self.slots = [placed[name] for name in layout.fields]
        self._placed = placed
        self.nbytes = end

    def fill(self, block: np.ndarray) -> None:
        """Write the batch into its block (uint8, at least ``nbytes``)."""
        batch, unroll = self.batch, self._layout.num_unroll
        for name, slot in self._placed.items():
            if slot.dtype == BYTES:
                write_strings(block, slot, self._texts[name][0])
                continue
            out = array_at(block, slot)
            extra = self._extra.get(name)
            if isinstance(extra, tuple):
                table, taken = extra
                np.take(table, taken, axis=0, out=out, mode="clip")
            elif extra is not None:
                out[...] = extra
            elif name.startswith("sequences:"):
                for offer, places, rows in self._groups:
                    column = offer.sequences[name[10:]]
                    assert isinstance(column, Ragged)
                    _windows(block, slot, column, places, rows, batch.segments[places] * unroll)
            elif name == "@sequence":
                out[:] = batch.segments
            elif name == "@sequence_count":
                out[:] = batch.counts
            elif name == "@insertion_index":
                out[:] = batch.indices
            elif name == "@lane":
                out[:] = batch.lanes
            elif name == "@starts":
                out[:] = batch.starts
            else:
                for offer, places, rows in self._groups:
                    out[places] = self._values(name, offer, places, rows)

    def states(self, block: np.ndarray) -> States:
        """The states of a batch that was written, and which of its rows they are of."""
        names = [n for n in self._placed if n.startswith("state:") or n == "@state_of"]
        slots = {name: self._placed[name] for name in names}
        return {
            name: (slot.shape, block[slot.offset : slot.offset + slot.nbytes].tobytes())
            for name, slot in slots.items()
        }

    def _values(self, name: str, offer: Offer, places: Any, rows: np.ndarray) -> np.ndarray:
        if name == "@total_length":
            totals: np.ndarray = offer.totals[rows]
            return totals
        if name == "@length":
            unroll = self._layout.num_unroll
            left = offer.totals[rows] - self.batch.segments[places] * unroll
            clipped: np.ndarray = np.minimum(np.maximum(left, 0), unroll)
            return clipped
        if name.startswith("context:"):
            column = offer.context[name[8:]]
            assert isinstance(column, np.ndarray)
            taken: np.ndarray = column[rows]
            return taken
        fact: np.ndarray = offer.facts[name[1:]][rows]
        return fact

    def _strings(self, name: str) -> list[bytes]:
        """The strings of a column, in C order."""
        extra = self._extra.get(name)
        if extra is not None:
            array = extra[0][extra[1]] if isinstance(extra, tuple) else extra
            flat: list[bytes] = array.reshape(-1).tolist()
            return flat
        out: list[list[bytes]] = [[]] * self.rows
        segments = self.batch.segments.tolist()
        for offer, places, rows in self._groups:
            numbers = range(self.rows) if isinstance(places, slice) else places.tolist()
            for place, row in zip(numbers, rows.tolist(), strict=True):
                out[place] = self._row_strings(name, offer, row, segments[place])
        return [text for texts in out for text in texts]

    def _row_strings(self, name: str, offer: Offer, row: int, segment: int) -> list[bytes]:
        if name == "@key":
            return [offer.keys[row]]
        if name.startswith("context:"):
            column = offer.context[name[8:]]
            assert isinstance(column, Strings)
            own: list[bytes] = column.take(slice(row, row + 1)).to_objects().reshape(-1).tolist()
            return own
        texts = offer.sequences[name[10:]]
        assert isinstance(texts, RaggedStrings)
        unroll = self._layout.num_unroll
        window = texts.row_strings(row).take(slice(segment * unroll, (segment + 1) * unroll))
        flat: list[bytes] = window.to_objects().reshape(-1).tolist()
        each = int(np.prod(texts.inner, dtype=np.int64))
        return flat + [b""] * (unroll * each - len(flat))


def groups(chunks: np.ndarray, rows: np.ndarray, offers: Mapping[int, Offer]) -> list[_Group]:
    """Rows of some chunks by the chunk that they lie in."""
    numbers = set(chunks.tolist())
    if len(numbers) == 1:
        return [(offers[numbers.pop()], slice(None), rows)]
    found: list[_Group] = []
    for number in sorted(numbers):
        places = np.flatnonzero(chunks == number)
        found.append((offers[number], places, rows[places]))
    return found


def _windows(
    block: np.ndarray,
    slot: Slot,
    column: Ragged,
    places: Any,
    rows: np.ndarray,
    begins: np.ndarray,
) -> None:
    """Copy a window of each row to its place, zeros after its end."""
    window = slot.nbytes // max(1, slot.shape[0])
    item = column.item_bytes
    starts = column.starts[rows] + begins * item
    sizes = np.minimum((column.extents[rows, 0] - begins) * item, window)
    numbers = range(len(rows)) if isinstance(places, slice) else places.tolist()
    out, raw = block.data, column.raw.data
    for place, start, size in zip(numbers, starts.tolist(), sizes.tolist(), strict=True):
        at = slot.offset + place * window
        out[at : at + size] = raw[start : start + size]
        if size < window:
            block[at + size : at + window] = 0


def write_strings(block: np.ndarray, slot: Slot, texts: list[bytes]) -> None:
    """Offsets, then the strings back to back."""
    count = len(texts)
    offsets = np.ndarray((count + 1,), np.int64, block, slot.offset)
    offsets[0] = 0
    offsets[1:] = np.fromiter(accumulate(map(len, texts)), np.int64, count)
    start = slot.offset + 8 * (count + 1)
    text = b"".join(texts)
    block[start : start + len(text)] = np.frombuffer(text, np.uint8)


def state_array(column: Column, rows: np.ndarray) -> np.ndarray:
    """Rows of a column as an array, of objects where they are strings."""
    if isinstance(column, Strings):
        return column.take(rows).to_objects()
    assert isinstance(column, np.ndarray)
    taken: np.ndarray = column[rows]
    return taken


def identity_in(block: np.ndarray, names: Sequence[str], columns: Sequence[Any]) -> bytes:
    """Which segments a batch has: insertion indices (int64), then their numbers (int32)."""
    places = dict(zip(names, columns, strict=True))
    told = b""
    for name, dtype in (("@insertion_index", "int64"), ("@sequence", "int32")):
        offset, nbytes, shape = places[name]
        told += array_at(block, Slot(dtype, tuple(shape), offset, nbytes)).tobytes()
    return told
