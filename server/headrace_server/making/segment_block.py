"""A batch of segments as bytes: windows of sequences, contexts and states, written once.

    Rows + Offers of their chunks + states ─► SegmentBlock ─► fill(block)

A row of packed lanes has steps of several examples, and columns with a value for each of these:

    example        a a a a b b c c c      row 0 of the batch; its segment of c goes on in the next
    @segment_ids   1 1 1 1 2 2 3 3 3      context [B, most examples of a row, …], @key likewise

Offsets of columns depend only on the fields, the counts of rows and the sizes of strings, so the
layout computes them once for each combination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, repeat
from math import prod
from typing import Any

import msgpack
import numpy as np

from headrace_proto.channel import Frame
from headrace_proto.codec import pack
from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import ALIGNMENT, MOST_EVEN, Slot, arrange, even_offsets, strings_at
from headrace_proto.schema import Field
from headrace_proto.segment_layout import PACKED

from ..pipeline.declaration import Plain
from ..reading.columns import Column, Ragged, Strings, ranges
from ..reading.columns import window as windows_of
from ..shaping.slots import Rows
from ..shaping.stored_state import Column as StateColumn
from ..shaping.stored_state import Examples
from .assemble import as_bytes
from .segment_cutting import Geometry, Offer, StateSource

#: Bytes per window above which copying windows singly beats an index, which copies twice.
_LONG_WINDOW = 8192


def write_windows(
    block: np.ndarray,
    offset: int,
    item: int,
    geometry: Geometry,
    column: Ragged,
    places: slice | np.ndarray,
    rows: np.ndarray,
    begins: np.ndarray,
    sizes: np.ndarray | None,
) -> None:
    """Copy a window of each row to its place, with zeros where there is no step.

    The rows of the batch begin at ``offset`` of the block; a step has ``item`` bytes.  ``begins``
    are the first own steps of segments, ``sizes`` the numbers of own steps; None: all have
    ``num_unroll``.

    example      0 1 2 3 4 5 6 7 8        segment that begins at 6, left 2, num_unroll 4, right 1
                         └───────┘
    row        │ 4 5 │ 6 7 8 0 │ 0 │      whole windows are copied at once, those that reach beyond
                                          the example, and short first segments, one by one
    """
    raw, left, width = column.payload, geometry.left, geometry.width * item
    lengths, origins = column.lengths[rows], column.starts[rows]
    firsts = begins - left
    starts, ends = origins + firsts * item, (lengths - firsts) * item  # in bytes
    if sizes is not None:  # what follows a short segment does not follow it in the window
        short = sizes < geometry.num_unroll
        ends = np.where(short, np.minimum(ends, (left + sizes) * item), ends)
    partial = ends < width
    if left:
        partial |= firsts < 0
    at_places = None if isinstance(places, slice) else places  # None: all rows of the batch
    at_once = width <= min(_LONG_WINDOW, raw.size)
    alone = partial.nonzero()[0] if at_once else np.arange(len(rows))
    numbers = (alone if at_places is None else at_places[alone]).tolist()
    before = firsts[alone].tolist() if left else repeat(0)
    parts = numbers, before, starts[alone].tolist(), ends[alone].tolist()
    if at_once:
        starts[alone] = 0  # the loop below writes these again
        every = windows_of(raw, width)
        count = len(rows) if at_places is None else (block.size - offset) // width
        np.ndarray((count,), every.dtype, block, offset)[places] = every[starts]
    target, source = block.data, raw.data
    for place, first, start, end in zip(*parts, strict=False):
        at, to = offset + place * width, offset + (place + 1) * width
        if first < 0:
            block[at : at - first * item] = 0
            at, start, end = at - first * item, start - first * item, end + first * item
        end = min(end, to - at)
        target[at : at + end] = source[start : start + end]
        if at + end < to:
            block[at + end : to] = 0
    if sizes is None or not geometry.right:
        return
    after = begins + sizes
    real = np.minimum(lengths - after, geometry.right) * item
    again = (short & (real > 0)).nonzero()[0]
    numbers = (again if at_places is None else at_places[again]).tolist()
    sources = (origins + after * item)[again].tolist()
    for place, start, size in zip(numbers, sources, real[again].tolist(), strict=True):
        at = offset + place * width + (left + geometry.num_unroll) * item
        target[at : at + size] = source[start : start + size]


#: The result of one segment: arrays by the names of sequences; None for a bad one.
Result = Mapping[str, np.ndarray] | None
#: Gives the sequences of each row of a batch, by name, or None for a bad one.
Results = Callable[[Rows, Mapping[int, Offer]], Iterable[tuple[int, Result]]]
_Group = tuple[Offer, Any, np.ndarray]  # an offer, places in the batch, rows of it

_Array = tuple[tuple[int, ...], np.dtype, int]  # shape, dtype, offset
_Counts = tuple[int, int, int, int]  # rows, starts, states, most examples of a row


@dataclass(frozen=True, slots=True)
class _Places:
    """Offsets of all columns of batches with the same sizes."""

    slots: list[Slot]  # in the order of the fields
    nbytes: int
    arrays: Mapping[str, _Array]
    strings: Mapping[str, Slot]

    def columns(self, block: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns of numbers, as views of their block."""
        arrays = self.arrays.items()
        return {name: np.ndarray(shape, dtype, block, at) for name, (shape, dtype, at) in arrays}


#: Columns that do not come from examples: arrays, or a table and rows of it.
StateColumns = dict[str, Any]
#: Columns that are fields of the batch itself.
_OF_BATCH = {"@sequence": "segments", "@sequence_count": "counts", "@insertion_index": "indices"}
#: Columns of lanes, which have values for the empty rows of a rank's block, too.
_OF_BLOCK = ("@lane", "@starts")
#: Columns that count steps.
LENGTHS = ("@total_length", "@length", "@left_length", "@right_length")
#: Maximum number of combinations of sizes whose offsets are cached.
_MOST_KNOWN = 256


class BlockLayout:
    """Offsets of the columns of a feed's batches, and the origin of each column."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        geometry: Geometry,
        masks: Collection[str],
        values: Mapping[str, Plain],
        results: Results | None = None,
        packed: bool = False,
    ) -> None:
        """``masks`` are the sequences that tell real steps, ``values`` pad sequences.

        With ``results`` a function makes all sequences, and none is copied.
        """
        self.results, self.packed = results, packed
        self.fields = dict(fields)
        self.geometry = geometry
        numbers = [n for n, f in fields.items() if f.dtype != BYTES]
        self.strings = [n for n, f in fields.items() if f.dtype == BYTES]
        self.of_batch = [(n, _OF_BATCH[n]) for n in numbers if n in _OF_BATCH]
        self.masks = ["sequences:" + name for name in masks]
        named = [(n, n[10:]) for n in numbers if n.startswith("sequences:") and n not in self.masks]
        self.sequences, self.made = ([], named) if results else (named, [])
        self.values = [(n, values[of]) for n, of in self.sequences if of in values]
        own = ("state:", "initial:")
        self.extra = [n for n in numbers if n.startswith(own) or n == "@state_of"]
        self.of_block = [n for n in numbers if n in _OF_BLOCK]
        self.context = [(n, n[8:]) for n in numbers if n.startswith("context:")]
        columns = (n for n, _ in (*named, *self.context))
        known = {*_OF_BATCH, *_OF_BLOCK, *LENGTHS, *PACKED, *self.extra, *self.masks, *columns}
        self.facts = [(n, n[1:]) for n in numbers if n not in known]
        self._numbers = numbers
        #: By column: its strings in a row without an example.
        self.blanks = {
            n: [as_bytes(values.get(n.removeprefix("sequences:")))] * prod(self._inner(n, 1))
            for n in self.strings
        }
        #: Offsets by the counts of rows, starts, states and examples of a row, and the bytes of
        #: columns of strings.
        self.places = lru_cache(_MOST_KNOWN)(self._placed)
        self._placed_numbers = lru_cache(_MOST_KNOWN)(self._of_numbers)

    def _placed(self, counts: _Counts, texts: tuple[int, ...]) -> _Places:
        """Numeric columns come first, so their offsets do not depend on the strings."""
        numbers, arrays, end = self._placed_numbers(counts)
        placed, strings = dict(numbers), dict[str, Slot]()
        for name, size in zip(self.strings, texts, strict=True):
            shape = self._rows(name, counts), *self._inner(name, counts[3])
            nbytes = 8 * (prod(shape) + 1) + size
            placed[name] = strings[name] = Slot(BYTES, shape, end, nbytes)
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return _Places([placed[name] for name in self.fields], end, arrays, strings)

    def _of_numbers(self, counts: _Counts) -> tuple[Mapping[str, Slot], Mapping[str, _Array], int]:
        """Return the numeric columns of batches with these counts, and their end."""
        shapes = [(self._rows(n, counts), *self._inner(n, counts[3])) for n in self._numbers]
        dtypes = [self.fields[n].dtype for n in self._numbers]
        slots, end = arrange([(d, shape, 0) for d, shape in zip(dtypes, shapes, strict=True)])
        by_name = dict(zip(self._numbers, slots, strict=True))
        arrays = {n: (s.shape, numpy_dtype(s.dtype), s.offset) for n, s in by_name.items()}
        return by_name, arrays, end

    def _rows(self, name: str, counts: _Counts) -> int:
        if name.startswith("initial:"):
            return 1
        if name in ("@starts", "@state_of"):
            return counts[1]
        return counts[2] if name.startswith("state:") else counts[0]

    def _inner(self, name: str, examples: int) -> tuple[int, ...]:
        return tuple(examples if d is None else d for d in self.fields[name].shape[1:])


def places_of_starts(batch: Rows) -> np.ndarray:
    """Return the places of a rank's block whose lanes have new examples.

    A place without an example starts one in every batch, so trainers have zeros for its states.
    """
    starts = np.ones(batch.size, bool)
    starts[batch.lanes] = False
    starts[batch.lanes[batch.starts]] = True
    return starts.nonzero()[0]


class SegmentBlock:
    """One batch about to be written.

    ``extra`` has the columns that do not come from examples: arrays, or a table and rows of it.
    Numeric ones may be set later than the others.  In the block of a rank, the places without an
    example are zero, and their strings are empty.
    """

    def __init__(
        self,
        layout: BlockLayout,
        batch: Rows,
        offers: Mapping[int, Offer],
        extra: StateColumns,
        states: int,
    ) -> None:
        self.batch = batch
        self._layout = layout
        self.rows = batch.size or batch.height
        starts = batch.starts if not batch.unroll else batch.row_of[batch.starts]
        self._of_block = batch.lanes[batch.heads], starts
        self._at: Any = batch.at  # places of the batch's examples in its block …
        self._in_order = not batch.size
        if batch.size:
            self._of_block = np.arange(self.rows), places_of_starts(batch)
        self._rows_at = self._examples = self._at  # … of its rows, and of columns of examples
        self._most = 1
        if batch.unroll:
            numbers = np.arange(len(batch)) - batch.heads[batch.row_of]
            self._numbers = numbers  # of the examples in their rows
            self._most = int(numbers.max(initial=0)) + 1
            self._rows_at = self._at[batch.heads]
            self._examples = self._at * self._most + numbers
        self._groups = groups(batch.chunks, batch.rows, offers)
        self.extra = extra
        self.columns: dict[str, np.ndarray] = {}  # of numbers, once it has its block
        self._results: Iterable[tuple[int, Result]] = ()
        if layout.results is not None:
            self._results = layout.results(batch, offers)
            if any(name.startswith("sequences:") for name in layout.strings):
                self._results = list(self._results)
        self._texts = [self._strings(name) for name in layout.strings]
        sizes = tuple([sum(map(len, texts)) for texts in self._texts])
        counts = self.rows, len(self._of_block[1]), states, self._most
        self._places = layout.places(counts, sizes)
        self.slots = self._places.slots
        self.nbytes = self._places.nbytes

    def fill(self, block: np.ndarray) -> None:
        """Write the batch into its block (uint8, at least ``nbytes``)."""
        if not self.columns:
            self.fill_examples(block)
        for name in self._layout.extra:
            column = self.extra[name]
            if isinstance(column, tuple):
                table, taken = column
                if self._in_order:
                    table.take(taken, 0, self.columns[name], "clip")
                else:
                    self.columns[name][self._rows_at] = table[taken]
            else:
                self.columns[name][...] = column

    def fill_examples(self, block: np.ndarray) -> None:
        """Write all but numeric states, so that ``fill`` has only these left to write."""
        batch, layout, places = self.batch, self._layout, self._places
        geometry = layout.geometry
        self.columns = columns = places.columns(block)
        if layout.packed or not self._in_order:
            block[: self.nbytes] = 0
        for texts, slot in zip(self._texts, places.strings.values(), strict=True):
            write_strings(block, slot, texts)
        for name in layout.of_block:
            columns[name][:] = self._of_block[_OF_BLOCK.index(name)]
        flat = columns  # by example
        if layout.packed:
            self._fill_steps()
            flat = {n: c.reshape(-1, *c.shape[2:]) for n, c in columns.items() if c.ndim > 1}
        for name, of_it in layout.of_batch:
            flat[name][self._examples] = getattr(batch, of_it)
        sides = [name for name in LENGTHS[2:] if name in columns]
        padded = bool(layout.masks or layout.values or sides)
        there = np.zeros((self.rows, geometry.width) if padded else 0, bool)  # in the example …
        real = np.zeros_like(there)  # … and in its declared length
        for offer, at, rows in self._groups:
            to = at if self._in_order and not layout.packed else self._examples[at]
            flat["@total_length"][to] = totals = offer.totals[rows]
            for name, source in layout.context:
                context: Any = offer.context[source]
                flat[name][to] = context[rows]
            for name, source in layout.facts:
                flat[name][to] = offer.facts[source][rows]
            if layout.packed:
                self._copy_steps(block, offer, at, rows)
                continue
            begins, sizes = batch.segments[at] * geometry.stride, None
            own: int | np.ndarray = geometry.num_unroll
            if offer.firsts is not None:
                firsts = offer.firsts[rows]
                begins = geometry.begins(batch.segments[at], firsts)
                own = sizes = geometry.sizes(batch.segments[at], firsts)
            columns["@length"][to] = np.minimum(np.maximum(totals - begins, 0), own)
            for name, source in layout.sequences:
                column, offset = offer.sequences[source], places.arrays[name][2]
                item = column.item_bytes
                if item:
                    write_windows(block, offset, item, geometry, column, to, rows, begins, sizes)
            if padded:
                steps = geometry.steps(begins, own)
                ends = next(iter(offer.sequences.values())).lengths[rows]
                there[to] = (steps >= 0) & (steps < ends[:, None])
                real[to] = (steps >= 0) & (steps < totals[:, None])
        if layout.packed:
            there = real = columns["@segment_ids"] > 0
        after = geometry.left + geometry.num_unroll
        for name in sides:
            side = slice(geometry.left) if name == "@left_length" else slice(after, None)
            columns[name][:] = real[:, side].sum(1)
        for name, value in layout.values:
            columns[name][~there] = value
        for name in layout.masks:
            columns[name][:] = real
        for row, result in self._results:
            place = row if self._in_order else batch.lanes[row]
            for name in LENGTHS[1:] if result is None else ():
                if name in columns:
                    columns[name][place] = 0
            for name, made in layout.made:
                columns[name][place] = 0 if result is None else result[made]
        self._results = ()

    def _fill_steps(self) -> None:
        """Write what packed rows have by row and by step into their block, which is zero."""
        batch, columns, tails = self.batch, self.columns, self.batch.tails
        sizes, begins = batch.after - batch.segments, self._at * batch.unroll + batch.begins
        columns["@first"][self._rows_at] = batch.segments[batch.heads] == 0
        columns["@last"][self._rows_at] = batch.last[tails]
        columns["@length"][self._rows_at] = (batch.begins + sizes)[tails]
        columns["@resets"].reshape(-1)[begins[batch.segments == 0]] = True
        step = ranges(np.zeros_like(sizes), sizes)
        steps = begins.repeat(sizes) + step
        columns["@segment_ids"].reshape(-1)[steps] = (self._numbers + 1).repeat(sizes)
        columns["@positions"].reshape(-1)[steps] = batch.segments.repeat(sizes) + step

    def _copy_steps(self, block: np.ndarray, offer: Offer, of: Any, rows: np.ndarray) -> None:
        """Copy the steps of examples of one chunk into packed rows."""
        batch, target = self.batch, block.data
        first, begins = batch.segments[of], (self._at * batch.unroll + batch.begins)[of]
        sizes = batch.after[of] - first
        for name, source in self._layout.sequences:
            column, offset = offer.sequences[source], self._places.arrays[name][2]
            item, raw = column.item_bytes, column.payload.data
            parts = column.starts[rows] + first * item, offset + begins * item, sizes * item
            for start, place, size in zip(*(part.tolist() for part in parts), strict=True):
                target[place : place + size] = raw[start : start + size]

    def _strings(self, name: str) -> list[bytes]:
        """Return strings of a column, in C order."""
        extra = self.extra.get(name)
        if extra is not None:
            array = extra[0][extra[1]] if isinstance(extra, tuple) else extra
            flat: list[bytes] = array.reshape(-1).tolist()
            if isinstance(extra, tuple) and not self._in_order:
                whole = np.full((self.rows, *array.shape[1:]), b"", object)
                whole[self._rows_at] = array
                flat = whole.reshape(-1).tolist()
            return flat
        layout, batch = self._layout, self.batch
        if name == "@key" and self._in_order and len(self._groups) == 1 and not layout.packed:
            ((offer, _, rows),) = self._groups  # as it mostly is
            return [offer.keys[row] for row in rows.tolist()]
        of_steps = name.startswith("sequences:")
        out = layout.blanks[name] * (self.rows * (1 if of_steps else self._most))
        each, places = len(out) // max(1, self.rows), np.arange(self.rows)[self._at]
        if not of_steps:
            each //= self._most
            places = self._examples if batch.unroll else places
        elif layout.packed:
            each //= batch.unroll
            places = places * batch.unroll + batch.begins
        for row, result in self._results if of_steps else ():
            if result is not None:
                at = int(places[row]) * each
                out[at : at + each] = result[name[10:]].reshape(-1).tolist()
        for offer, of, rows in self._groups if layout.results is None or not of_steps else ():
            parts = places[of], rows, batch.segments[of], batch.after[of]
            for place, row, first, after in zip(*(part.tolist() for part in parts), strict=True):
                if name == "@key":
                    own = [offer.keys[row]]
                elif not of_steps:
                    own = _flat(offer.context[name[8:]], slice(row, row + 1))
                elif layout.packed:
                    own = _flat(offer.sequences[name[10:]].part(row), slice(first, after))
                else:
                    own = self._window(name, offer, row, first)
                out[place * each : place * each + len(own)] = own
        return out

    def _window(self, name: str, offer: Offer, row: int, segment: int) -> list[bytes]:
        texts, geometry = offer.sequences[name[10:]], self._layout.geometry
        firsts = None if offer.firsts is None else offer.firsts[row : row + 1]
        at = np.array([segment])
        (steps,) = geometry.steps(geometry.begins(at, firsts), geometry.sizes(at, firsts))
        inside = (steps >= 0) & (steps < texts.lengths[row])
        own, each = iter(_flat(texts.part(row), steps[inside])), prod(texts.inner)
        none = self._layout.blanks[name][:each]
        parts = (islice(own, each) if there else none for there in inside.tolist())
        return [text for part in parts for text in part]


def _flat(column: Column, rows: slice | np.ndarray) -> list[bytes]:
    """Return the strings of some rows of a column, in C order."""
    assert isinstance(column, Strings)
    texts: list[bytes] = column.take(rows).to_objects().reshape(-1).tolist()
    return texts


def groups(chunks: np.ndarray, rows: np.ndarray, offers: Mapping[int, Offer]) -> list[_Group]:
    """Return rows grouped by their chunk."""
    numbers = set(chunks.tolist())
    if len(numbers) == 1:
        return [(offers[numbers.pop()], slice(None), rows)]
    found: list[_Group] = []
    for number in sorted(numbers):
        places = (chunks == number).nonzero()[0]
        found.append((offers[number], places, rows[places]))
    return found


def write_strings(block: np.ndarray, slot: Slot, texts: list[bytes]) -> None:
    """Write offsets, then the strings back to back."""
    count = len(texts)
    start = slot.offset + 8 * (count + 1)
    lengths = list(map(len, texts))
    if 0 < count <= MOST_EVEN and lengths.count(lengths[0]) == count:  # as keys mostly are
        block.data[slot.offset : start] = even_offsets(count, lengths[0])
    else:
        offsets = np.ndarray((count + 1,), np.int64, block, slot.offset)
        offsets[0] = 0
        offsets[1:] = list(accumulate(lengths))
    text = b"".join(texts)
    block.data[start : start + len(text)] = text


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


def arrays_of(states: Sequence[StateSource], block: Frame, columns: Plain) -> list[np.ndarray]:
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
    """States at the server: an array per state, a row per slot."""

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

    def begin(self, batch: Rows, offers: Mapping[int, Offer]) -> None:
        """Write initial states for examples whose first segment is taken."""
        first = (batch.segments[batch.heads] == 0).nonzero()[0]
        if not len(first):
            return
        first = batch.heads[first] if batch.unroll else first
        slots = batch.slots[first]
        for offer, places, rows in groups(batch.chunks[first], batch.rows[first], offers):
            for state, table in zip(self._states, self._tables, strict=True):
                table[slots[places]] = initial(state, offer, rows)

    def columns(self, batch: Rows, offers: Mapping[int, Offer]) -> tuple[StateColumns, int]:
        """Return a batch's states as columns (a table and its rows), and their number of rows."""
        tables = zip(self._states, self._tables, strict=True)
        slots = batch.slots[batch.heads]
        return {"state:" + state.name: (table, slots) for state, table in tables}, len(slots)

    def put(self, slots: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Store states under these slots, a row each."""
        for table, array in zip(self._tables, arrays, strict=True):
            table[slots] = array

    def stored(self, slots: np.ndarray) -> list[StateColumn]:
        """Return the states under these slots as columns to store."""
        return state_columns([table[slots] for table in self._tables])

    def forget(self, slots: Iterable[int]) -> None:
        """Do nothing: the next example in a slot overwrites its states."""


class HandedStates(StateTable):
    """States that trainers flushed, by slot, for the trainers that continue from them."""

    def __init__(self, states: Sequence[StateSource]) -> None:
        super().__init__(states)
        self._handed: dict[int, list[np.ndarray]] = {}
        self._zeros = all(s.column is None and s.constant is None for s in states)

    def grow(self, slots: int) -> None:
        """Do nothing: only slots with states take room."""

    def resume(self, slots: np.ndarray, arrays: Sequence[np.ndarray], size: int) -> None:
        """Take over the states of an earlier process."""
        self.put(slots, arrays)

    def begin(self, batch: Rows, offers: Mapping[int, Offer]) -> None:
        """Do nothing: ``columns`` has the initial states."""

    def put(self, slots: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
        """Store states under these slots, a row each."""
        for row, slot in enumerate(slots.tolist()):
            self._handed[slot] = [array[row : row + 1].copy() for array in arrays]

    def stored(self, slots: np.ndarray) -> list[StateColumn]:
        """Return nothing: flushed states are stored at once."""
        return []

    def forget(self, slots: Iterable[int]) -> None:
        """Drop the states under these slots."""
        for slot in slots:
            self._handed.pop(slot, None)

    def columns(self, batch: Rows, offers: Mapping[int, Offer]) -> tuple[StateColumns, int]:
        """Return ``@state_of``, the distinct states from which rows start, and their number."""
        which: list[int] = []
        parts: list[list[np.ndarray]] = []
        own = any(state.column is not None for state in self._states)
        shared = -1 if self._zeros else None  # the states of all examples that begin, once known
        segments = batch.segments[batch.starts].tolist()
        for place, segment in zip(batch.starts.tolist(), segments, strict=True):
            if not segment and shared is not None:
                which.append(shared)
                continue
            which.append(len(parts))
            if segment:
                parts.append(self._handed[int(batch.slots[place])])
                continue
            offer, row = offers[int(batch.chunks[place])], batch.rows[place : place + 1]
            shared = None if own else len(parts)
            parts.append([initial(state, offer, row) for state in self._states])
        columns: StateColumns = {"@state_of": np.array(which, np.int32)}
        for i, state in enumerate(self._states):
            blank = self._tables[i]
            rows = np.concatenate([blank, *(part[i] for part in parts)]) if parts else blank
            columns["state:" + state.name] = rows
        return columns, len(parts)
