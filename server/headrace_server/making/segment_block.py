"""A batch of segments as bytes: sequences, contexts and states, written once.

    Spans + Offers of their chunks + states ─► SegmentBlock ─► fill(block)

A row of packed lanes has steps of several examples, and columns with a value for each of these:

    example        a a a a b b c c c      row 0 of the batch; its segment of c goes on in the next
    @segment_ids   1 1 1 1 2 2 3 3 3      context [B, most examples of a row, …], @key likewise

Places of columns depend only on the fields, the counts of rows and the sizes of strings, so the
layout computes them once for each combination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import ALIGNMENT, MOST_EVEN, arrange, even_offsets
from headrace_proto.layout import Slot as ColumnPlace
from headrace_proto.schema import Field
from headrace_proto.segment_layout import PACKED

from ..pipeline.declaration import Plain
from ..reading.columns import Strings, ranges
from ..shaping.spans import ALL, Spans
from .assemble import as_bytes
from .pieces import Pieces, write_sequence
from .segment_cutting import Geometry, Offer, groups
from .state_table import StateColumns

#: The result of one segment: arrays by the names of sequences; None for a bad one.
Result = Mapping[str, np.ndarray] | None
#: Gives the sequences of each segment of a batch, by name, or None for a bad one.
Results = Callable[[Spans, Mapping[int, Offer]], Iterable[tuple[int, Result]]]

_Counts = tuple[int, int, int, int]  # rows, starts, states, most examples of a row

#: Columns of lanes, which have values for the empty rows of a rank's block, too.
_OF_BLOCK = ("@lane", "@starts")
#: Columns that count steps.
LENGTHS = ("@total_length", "@length", "@left_length", "@right_length")
#: Columns with a value for each segment that follows from its numbers.
_OF_SEGMENTS = ("@sequence", "@sequence_count", "@length", "@total_length", "@insertion_index")
_SEQUENCE, _STATE, _INITIAL = "sequences:", "state:", "initial:"
#: Maximum number of combinations of sizes whose offsets are cached.
_MOST_KNOWN = 256
#: Bytes of a record of numpy: of larger batches each column is a view of its own.
_MOST_RECORD = 2**31


class _Numbers:
    """Where the columns of numbers of batches with the same counts lie: at the start of a block."""

    def __init__(self, specs: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        """``specs``: dtype and shape by name."""
        slots, self.end = arrange([(dtype, shape, 0) for dtype, shape in specs.values()])
        self.slots = dict(zip(specs, slots, strict=True))
        self.arrays = {n: (s.shape, numpy_dtype(s.dtype), s.offset) for n, s in self.slots.items()}
        self._record: np.dtype | None = None
        if self.end < _MOST_RECORD:
            formats = [(dtype, shape) for shape, dtype, _ in self.arrays.values()]
            offsets = [slot.offset for slot in slots]
            named = {"names": list(specs), "formats": formats, "offsets": offsets}
            self._record = np.dtype(named)  # type: ignore[call-overload]

    def columns(self, block: np.ndarray) -> Any:
        """Return the columns by name, as views of their block."""
        if self._record is not None:
            return np.ndarray((), self._record, block)
        arrays = self.arrays.items()
        return {name: np.ndarray(shape, dtype, block, at) for name, (shape, dtype, at) in arrays}


@dataclass(slots=True)
class _Places:
    """Where all columns of batches with the same sizes lie."""

    slots: list[ColumnPlace]  # in the order of the fields
    nbytes: int
    numbers: _Numbers
    strings: Mapping[str, ColumnPlace]


class BlockLayout:
    """Places of the columns of a feed's batches, and the origin of each column."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        geometry: Geometry,
        masks: Collection[str],
        values: Mapping[str, Plain],
        results: Results | None = None,
    ) -> None:
        """``masks``: sequences with a mask of their real steps.  ``values``: paddings of sequences.

        With ``results`` a function makes all sequences, and none is copied.
        """
        self.results, self.packed = results, geometry.cut.packed
        self.fields = dict(fields)
        self.geometry = geometry
        self.numbers = [n for n, f in fields.items() if f.dtype != BYTES]
        self.strings = [n for n, f in fields.items() if f.dtype == BYTES]
        self.of_segments = [(n, i) for i, n in enumerate(_OF_SEGMENTS) if n in fields]
        self.masks = [_SEQUENCE + name for name in masks]
        named = [(n, of) for n, of in _named(self.numbers, _SEQUENCE) if n not in self.masks]
        self.sequences, self.made = ([], named) if results else (named, [])
        self.values = [(n, values[of]) for n, of in self.sequences if of in values]
        self.extra = [n for n in self.numbers if n.startswith((_STATE, _INITIAL))]
        self.extra += [n for n in self.numbers if n == "@state_of"]
        self.of_block = [n for n in self.numbers if n in _OF_BLOCK]
        self.sides = [n for n in LENGTHS[2:] if n in fields]
        #: Whether it matters which steps of a row are real.
        self.padded = bool(self.masks or self.values or self.sides)
        columns = (n for n, _ in named)
        known = {*_OF_SEGMENTS, *_OF_BLOCK, *LENGTHS, *PACKED, *self.extra, *self.masks, *columns}
        #: Columns of numbers that examples have: context and facts.
        self.of_examples = [n for n in self.numbers if n not in known]
        self.texts = dict(_named(self.strings, _SEQUENCE))  # sequences of strings
        #: By column: its strings in a row without an example.
        self.blanks = {
            n: [as_bytes(values.get(n.removeprefix(_SEQUENCE)))] * prod(self._inner(n, 1))
            for n in self.strings
        }
        #: Places by the counts of rows, starts, states and examples of a row, and the bytes of
        #: columns of strings.
        self.places = lru_cache(_MOST_KNOWN)(self._placed)
        self._placed_numbers = lru_cache(_MOST_KNOWN)(self._of_numbers)

    def _placed(self, counts: _Counts, texts: tuple[int, ...]) -> _Places:
        """Numeric columns come first, so their offsets do not depend on the strings."""
        numbers = self._placed_numbers(counts)
        placed, strings, end = dict(numbers.slots), dict[str, ColumnPlace](), numbers.end
        for name, size in zip(self.strings, texts, strict=True):
            shape = self._rows(name, counts), *self._inner(name, counts[3])
            nbytes = 8 * (prod(shape) + 1) + size
            placed[name] = strings[name] = ColumnPlace(BYTES, shape, end, nbytes)
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return _Places([placed[name] for name in self.fields], end, numbers, strings)

    def _of_numbers(self, counts: _Counts) -> _Numbers:
        """Return where the numeric columns of batches with these counts lie."""
        shapes = {n: (self._rows(n, counts), *self._inner(n, counts[3])) for n in self.numbers}
        return _Numbers({n: (self.fields[n].dtype, shape) for n, shape in shapes.items()})

    def _rows(self, name: str, counts: _Counts) -> int:
        if name.startswith(_INITIAL):
            return 1
        if name in ("@starts", "@state_of"):
            return counts[1]
        return counts[2] if name.startswith(_STATE) else counts[0]

    def _inner(self, name: str, examples: int) -> tuple[int, ...]:
        return tuple(examples if d is None else d for d in self.fields[name].shape[1:])


def _named(names: Iterable[str], prefix: str) -> list[tuple[str, str]]:
    """Return the names with a prefix, and what follows it in each."""
    return [(name, name.removeprefix(prefix)) for name in names if name.startswith(prefix)]


def places_of_starts(batch: Spans) -> np.ndarray:
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
        batch: Spans,
        offers: Mapping[int, Offer],
        extra: StateColumns,
        states: int,
    ) -> None:
        self.batch = batch
        self._layout = layout
        self.rows = batch.size or batch.height
        self._in_order = not batch.size
        #: Rows of the block that hold a segment, and places in columns of examples.
        self._rows_at = self._examples = places = batch.places
        self._most = 1
        if layout.packed:
            starts = batch.row_of[batch.starts]
            numbers = np.arange(len(batch)) - batch.heads[batch.row_of]
            self._numbers = numbers  # of the examples in their rows
            self._most = int(numbers.max(initial=0)) + 1
            self._rows_at = places[batch.heads]
            self._examples = places * self._most + numbers
        else:
            starts = batch.starts
        self._of_block = batch.lanes[batch.heads], starts
        if batch.size:
            self._of_block = np.arange(self.rows), places_of_starts(batch)
        self._groups = groups(batch.chunks, batch.rows, offers)
        self.extra = extra
        self.columns: Any = None  # those of numbers by name, once it has its block
        self._results: Iterable[tuple[int, Result]] = ()
        if layout.results is not None:
            self._results = layout.results(batch, offers)
            if layout.texts:
                self._results = list(self._results)
        self._texts = [self._strings(name) for name in layout.strings]
        sizes = tuple([sum(map(len, texts)) for texts in self._texts])
        counts = self.rows, len(self._of_block[1]), states, self._most
        self._places = layout.places(counts, sizes)
        self.slots, self.nbytes = self._places.slots, self._places.nbytes

    def fill(self, block: np.ndarray) -> None:
        """Write the batch into its block (uint8, at least ``nbytes``)."""
        if self.columns is None:
            self.fill_examples(block)
        self.fill_results()
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
        """Write all but numeric states and the results of a function of segments."""
        batch, layout, places = self.batch, self._layout, self._places
        geometry, cut = layout.geometry, layout.geometry.cut
        self.columns = columns = places.numbers.columns(block)
        if layout.packed or not self._in_order:
            block[: self.nbytes] = 0
        for texts, place in zip(self._texts, places.strings.values(), strict=True):
            write_strings(block, place, texts)
        for name in layout.of_block:
            columns[name][:] = self._of_block[name == "@starts"]
        counts, totals = self._facts()
        own, first = geometry.own(batch.first, batch.openings), batch.first
        if layout.packed:
            self._by_example("@total_length")[self._examples] = totals
            self._by_example("@insertion_index")[self._examples] = batch.indices
            self._fill_steps()
        else:
            length = np.minimum(np.maximum(totals - first, 0), own)
            of_segments = cut.before(first), counts, length, totals, batch.indices
            for name, at in layout.of_segments:
                columns[name][self._rows_at] = of_segments[at]
        if layout.sequences:
            pieces = Pieces.of(batch, geometry, self._groups)
            for name, source in layout.sequences:
                offset = places.numbers.slots[name].offset
                write_sequence(block, offset, self.rows, geometry.width, source, pieces)
        if layout.padded:
            self._fill_padding(totals, own)

    @property
    def lacks_results(self) -> bool:
        return bool(self._results)

    def fill_results(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Call the function of segments and write its results, one after the other.

        It goes on from the last one, at least by one, and until ``goes_on`` returns False.
        """
        batch, layout, columns = self.batch, self._layout, self.columns
        for row, result in self._results:
            at = row if self._in_order else batch.lanes[row]
            for name in LENGTHS[1:] if result is None else ():
                if name in layout.fields:
                    columns[name][at] = 0
            for name, made in layout.made:
                columns[name][at] = 0 if result is None else result[made]
            if not goes_on():
                return
        self._results = ()

    def _by_example(self, name: str) -> np.ndarray:
        """Return a column with an entry for each place of an example."""
        column: np.ndarray = self.columns[name]
        return column.reshape(-1, *column.shape[2:]) if self._layout.packed else column

    def _facts(self) -> tuple[np.ndarray, np.ndarray]:
        """Write what columns of examples have; return counts of segments, and total lengths."""
        found = None if len(self._groups) == 1 else np.empty((2, len(self.batch)), np.int64)
        numbers = np.empty((2, 0), np.int64)
        for offer, of, rows in self._groups:
            numbers = offer.numbers.take(rows, 1)
            if found is not None:
                found[:, of] = numbers
            to = of if self._examples is ALL else self._examples[of]
            for name in self._layout.of_examples:
                self._by_example(name)[to] = offer.columns[name][rows]
        counts, totals = numbers if found is None else found
        return counts, totals

    def _fill_padding(self, totals: np.ndarray, own: np.ndarray | int) -> None:
        """Write masks, counts of real steps and paddings."""
        batch, layout, columns = self.batch, self._layout, self.columns
        geometry = layout.geometry
        if layout.packed:
            there = real = columns["@segment_ids"] > 0
        else:
            there = np.zeros((self.rows, geometry.width), bool)  # in the example …
            real = np.zeros_like(there)  # … and in its declared length
            steps = geometry.steps(batch.first, own)
            there[self._rows_at] = (steps >= 0) & (steps < batch.available[:, None])
            real[self._rows_at] = (steps >= 0) & (steps < totals[:, None])
        after = geometry.left + geometry.cut.unroll
        for name in layout.sides:
            side = slice(geometry.left) if name == "@left_length" else slice(after, None)
            columns[name][:] = real[:, side].sum(1)
        for name, value in layout.values:
            columns[name][~there] = value
        for name in layout.masks:
            columns[name][:] = real

    def _fill_steps(self) -> None:
        """Write what packed rows have by row and by step into their block, which is zero."""
        batch, columns, tails = self.batch, self.columns, self.batch.tails
        sizes, begins = batch.after - batch.first, batch.places * batch.cut.unroll + batch.begins
        columns["@first"][self._rows_at] = batch.first[batch.heads] == 0
        columns["@last"][self._rows_at] = batch.last[tails]
        columns["@length"][self._rows_at] = (batch.begins + sizes)[tails]
        columns["@resets"].reshape(-1)[begins[batch.first == 0]] = True
        step = ranges(np.zeros_like(sizes), sizes)
        steps = begins.repeat(sizes) + step
        columns["@segment_ids"].reshape(-1)[steps] = (self._numbers + 1).repeat(sizes)
        columns["@positions"].reshape(-1)[steps] = batch.first.repeat(sizes) + step

    # Strings

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
        if name in self._layout.texts:
            return self._of_steps(self._layout.texts[name], self._layout.blanks[name])
        return self._of_examples(name, self._layout.blanks[name])

    def _of_examples(self, name: str, blank: list[bytes]) -> list[bytes]:
        """Return a column of context, or the keys."""
        if len(self._groups) == 1 and self._examples is ALL:  # as it mostly is
            offer, _, rows = self._groups[0]
            return _texts(offer.columns[name], rows)
        whole = np.full((self.rows * self._most, len(blank)), b"", object)
        whole[:] = blank
        places = np.arange(self.rows * self._most)[self._examples]
        for offer, of, rows in self._groups:
            flat = np.empty(len(rows) * len(blank), object)
            flat[:] = _texts(offer.columns[name], rows)
            whole[places[of]] = flat.reshape(len(rows), len(blank))
        return whole.reshape(-1).tolist()

    def _of_steps(self, source: str, blank: list[bytes]) -> list[bytes]:
        """Return a sequence of strings."""
        batch, geometry = self.batch, self._layout.geometry
        whole = np.empty(self.rows * len(blank), object)
        whole[:] = blank * self.rows
        places = np.arange(self.rows)[batch.places]
        if self._layout.results is not None:
            of_rows = whole.reshape(self.rows, len(blank))
            for row, result in self._results:
                if result is not None:
                    of_rows[places[row]] = result[source].reshape(-1)
            return whole.tolist()
        steps = whole.reshape(self.rows * geometry.width, -1)
        pieces: Pieces | None = Pieces.of(batch, geometry, self._groups)
        while pieces is not None:
            for offer, of, rows in pieces.groups:
                asked = rows, pieces.first[of], pieces.sizes[of], pieces.to[of]
                for row, first, size, to in zip(*(part.tolist() for part in asked), strict=True):
                    texts = offer.sequences[source].part(row)
                    assert isinstance(texts, Strings)
                    part = texts.take(slice(first, first + size)).to_objects()
                    steps[to : to + size] = part.reshape(size, steps.shape[1])
            pieces = pieces.more
        return whole.tolist()


def _texts(column: Strings | np.ndarray, rows: np.ndarray) -> list[bytes]:
    """Return the strings of some examples, in C order."""
    taken = column.take(rows)
    found = taken.to_objects() if isinstance(taken, Strings) else taken
    texts: list[bytes] = found.reshape(-1).tolist()
    return texts


def write_strings(block: np.ndarray, place: ColumnPlace, texts: list[bytes]) -> None:
    """Write offsets, then the strings back to back."""
    count = len(texts)
    start = place.offset + 8 * (count + 1)
    lengths = list(map(len, texts))
    if 0 < count <= MOST_EVEN and lengths.count(lengths[0]) == count:  # as keys mostly are
        block.data[place.offset : start] = even_offsets(count, lengths[0])
    else:
        offsets = np.ndarray((count + 1,), np.int64, block, place.offset)
        offsets[0] = 0
        offsets[1:] = list(accumulate(lengths))
    text = b"".join(texts)
    block.data[start : start + len(text)] = text
