"""Batches of segments as bytes: sequences, contexts and states.

    Spans of some batches + Offers of their chunks ─► Gathered ─┬─► SegmentBlock ─► fill(block)
                                                       states ──┘
    Gathered    heads [batches, bytes]       all columns of numbers but sequences and states: they
                                             are the first bytes of a block
                sequences [batches, rows, …] each gathered by one index

Batches that are made in one step are gathered together, and cut apart when each is written.

A row of packed lanes has steps of several examples, and columns with a value for each of these:

    example        a a a a b b c c c      row 0 of the batch; its segment of c goes on in the next
    @segment_ids   1 1 1 1 2 2 3 3 3      context [B, most examples of a row, …], @key likewise

Places of columns depend only on the fields, the counts of rows and the sizes of strings, so the
layout computes them once for each combination.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, islice
from math import prod
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.layout import ALIGNMENT, MOST_EVEN, ColumnPlace, arrange, array_at, even_offsets
from headrace_proto.schema import Field
from headrace_proto.segment_layout import PACKED

from ..pipeline.argument_checks import PaddingValues
from ..reading.columns import Strings, ranges
from ..shaping.bucket import NO_PADDING, Padding
from ..shaping.spans import ALL, Spans, joined
from .assemble import as_bytes
from .pieces import pieces_of, write_sequence
from .segment_cutting import LONG_ROW, Geometry, Offer, groups
from .state_table import StateColumns

#: The result of one segment: arrays by the names of sequences; None for a bad one.
Result = Mapping[str, np.ndarray] | None
#: Gives the sequences of each segment of a batch, by name, or None for a bad one.
Results = Callable[[Spans, Mapping[int, Offer]], Iterable[tuple[int, Result]]]

_Shape = tuple[int, ...]
#: Rows, starts, states, most examples of a row; shapes of the sequences that vary.
_Counts = tuple[int, int, int, int, tuple[_Shape, ...]]

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
    """Where the columns of numbers of batches with the same counts lie: at the start of a block.

    The head of a block has all but sequences, states and ``@starts``.
    """

    def __init__(self, specs: Mapping[str, tuple[str, tuple[int, ...]]], heads: int) -> None:
        """``specs``: dtype and shape by name; those of the head come first."""
        slots, self.end = arrange([(dtype, shape, 0) for dtype, shape in specs.values()])
        self.slots = dict(zip(specs, slots, strict=True))
        self.head = slots[heads].offset if heads < len(slots) else self.end  # bytes of it
        self.of_heads = _viewer(dict(islice(self.slots.items(), heads)), self.head)
        self.of_block = _viewer(self.slots, self.end)


def _viewer(slots: Mapping[str, ColumnPlace], end: int) -> Callable[..., Any]:
    """Return a function of a shape and a ``buffer``: it views blocks as columns by name.

    The blocks, of ``end`` bytes each, have this shape; () is one.
    """
    if end >= _MOST_RECORD:  # it is one block
        return lambda shape, buffer: {
            name: array_at(buffer.reshape(-1), slot).reshape(*shape, *slot.shape)
            for name, slot in slots.items()
        }
    formats = [(numpy_dtype(slot.dtype), slot.shape) for slot in slots.values()]
    offsets = [slot.offset for slot in slots.values()]
    named = {"names": list(slots), "formats": formats, "offsets": offsets, "itemsize": end}
    record = np.dtype(named)  # type: ignore[call-overload]
    return partial(np.ndarray, dtype=record)  # type: ignore[arg-type]


@dataclass(slots=True)
class _Places:
    """Where all columns of batches with the same sizes lie."""

    slots: list[ColumnPlace]  # in the order of the fields
    nbytes: int
    numbers: _Numbers
    strings: list[ColumnPlace]


class BlockLayout:
    """Places of the columns of a feed's batches, and the origin of each column."""

    def __init__(
        self,
        fields: Mapping[str, Field],
        geometry: Geometry,
        masks: Collection[str],
        values: PaddingValues,
        results: Results | None = None,
        padding: Padding = NO_PADDING,
    ) -> None:
        """``masks``: sequences with a mask of their real steps.  ``values``: paddings of sequences.

        With ``results`` a function makes all sequences, and none is copied.  ``padding``: of those
        that vary.
        """
        self.results, self.packed, self.padding = results, geometry.cut.packed, padding
        made = [n for n in fields if n.startswith(_SEQUENCE)] if results else []
        #: The sequences that vary, each with its number.
        self.varying = {n: i for i, n in enumerate(n for n in made if None in fields[n].shape[1:])}
        #: Whether places of columns depend on the results of a batch.
        self.sized = bool(self.varying) or any(fields[n].dtype == BYTES for n in made)
        self.fields = dict(fields)
        self.geometry = geometry
        self.numbers = [n for n, f in fields.items() if f.dtype != BYTES]
        self.strings = [n for n, f in fields.items() if f.dtype == BYTES]
        self.of_segments = [(n, i) for i, n in enumerate(_OF_SEGMENTS) if n in fields]
        self.masks = [_SEQUENCE + name for name in masks]
        named = [(n, of) for n, of in _named(self.numbers, _SEQUENCE) if n not in self.masks]
        self.sequences, self.made = ([], named) if results else (named, [])
        self.values = {n: values[of] for n, of in self.sequences if of in values}
        self.extra = [n for n in self.numbers if n.startswith((_STATE, _INITIAL))]
        self.extra += [n for n in self.numbers if n == "@state_of"]
        self.sides = [n for n in LENGTHS[2:] if n in fields]
        columns = [n for n, _ in named]
        #: Dtype and shape of a step of each sequence that is gathered, and the bytes of their rows;
        #: others are copied piece by piece.
        self.gathered, self.row_bytes = dict[str, tuple[np.dtype, tuple[int, ...]]](), 0
        for name in () if self.packed or results else columns:
            shape, dtype = self.inner(name, 1), numpy_dtype(fields[name].dtype)
            if 0 < prod(shape) * dtype.itemsize <= LONG_ROW:
                self.gathered[name] = dtype, shape[1:]
                self.row_bytes += prod(shape) * dtype.itemsize
        #: Whether several batches are gathered together, as far as each has a segment in each row.
        self.together = not (self.packed or results or len(self.gathered) < len(self.sequences))
        known = {*_OF_SEGMENTS, *_OF_BLOCK, *LENGTHS, *PACKED, *self.extra, *self.masks, *columns}
        #: Columns of numbers that examples have: context and facts.
        self.of_examples = [n for n in self.numbers if n not in known]
        others = {*self.extra, *columns, "@starts"}
        self.numbers.sort(key=others.__contains__)  # the head comes first
        self._heads = sum(n not in others for n in self.numbers)
        self.texts = dict(_named(self.strings, _SEQUENCE))  # sequences of strings
        #: By column: its strings in a row without an example.
        self.blanks = {
            n: [as_bytes(values.get(n.removeprefix(_SEQUENCE)))] * prod(self.inner(n, 1))
            for n in self.strings
        }
        #: Places by the counts of rows, starts, states and examples of a row, and the bytes of
        #: columns of strings.
        self.places = lru_cache(_MOST_KNOWN)(self._placed)
        self.placed_numbers = lru_cache(_MOST_KNOWN)(self._of_numbers)

    def _placed(self, counts: _Counts, texts: tuple[int, ...]) -> _Places:
        """Numeric columns come first, so their offsets do not depend on the strings."""
        numbers = self.placed_numbers(counts)
        placed, strings, end = dict(numbers.slots), list[ColumnPlace](), numbers.end
        for name, nbytes in zip(self.strings, texts, strict=True):
            shape = self._rows(name, counts), *self.inner(name, *counts[3:])
            placed[name] = ColumnPlace(BYTES, shape, end, nbytes)
            strings.append(placed[name])
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return _Places([placed[name] for name in self.fields], end, numbers, strings)

    def _of_numbers(self, counts: _Counts) -> _Numbers:
        """Return where the numeric columns of batches with these counts lie."""
        shapes = {n: (self._rows(n, counts), *self.inner(n, *counts[3:])) for n in self.numbers}
        specs = {n: (self.fields[n].dtype, shape) for n, shape in shapes.items()}
        return _Numbers(specs, self._heads)

    def _rows(self, name: str, counts: _Counts) -> int:
        if name.startswith(_INITIAL):
            return 1
        if name in ("@starts", "@state_of"):
            return counts[1]
        return counts[2] if name.startswith(_STATE) else counts[0]

    def inner(self, name: str, examples: int, sizes: Sequence[_Shape] = ()) -> _Shape:
        """Return the shape of a row of a column."""
        if sizes and name in self.varying:
            return sizes[self.varying[name]]
        return tuple(examples if d is None else d for d in self.fields[name].shape[1:])

    def sizes(self, results: Iterable[tuple[int, Result]]) -> tuple[_Shape, ...]:
        """Return the padded shape of each sequence that varies, in the batch of these results."""
        found = []
        for name in self.varying:
            field = Field("bool", self.fields[name].shape[1:])
            of, varying = name.removeprefix(_SEQUENCE), field.ragged_dims
            shapes = [result[of].shape for _, result in results if result is not None]
            blank = tuple(dim or 0 for dim in field.shape)
            largest = [max(dims) for dims in zip(blank, *shapes, strict=True)]
            sizes = self.padding.shape(of, field.shape[:varying], largest[:varying], 0)
            found.append((*sizes, *largest[varying:]))
        return tuple(found)


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


class Gathered:
    """The numbers of the examples of all batches of one step, gathered together.

    Several are whole batches, with a segment in each row.  In the block of a rank the places
    without an example are zero, and their strings are empty.
    """

    heads: np.ndarray | None = None  # the first bytes of each of several blocks
    columns: Any = None  # of the head, once they are gathered
    #: Indices of the steps of rows that no segment has: each of one row, or of all.
    absent: Sequence[Any] = ()

    def __init__(
        self, layout: BlockLayout, batches: Sequence[Spans], offers: Mapping[int, Offer]
    ) -> None:
        self.layout, self.batches, self.offers = layout, batches, offers
        self.spans = spans = batches[0] if len(batches) == 1 else joined(batches)
        self.rows = spans.size or spans.height // len(batches)  # of a block
        self.groups = groups(spans.chunks, spans.rows, offers)
        #: Rows of the block that hold a segment, and places in columns of examples.
        self.rows_at = self._examples = places = spans.places
        self.most = 1  # examples of a row
        if layout.packed:
            self._numbers = np.arange(len(spans)) - spans.heads[spans.row_of]  # in their rows
            self.most = int(self._numbers.max(initial=0)) + 1
            self.rows_at = places[spans.heads]
            self._examples = places * self.most + self._numbers
        self.sequences: dict[str, np.ndarray] = {}  # [rows of all batches, width, …]
        self._texts: dict[str, list[bytes]] = {}

    def gather(self, columns: Any) -> None:
        """Gather the columns of numbers, unless that is done; of one batch to its ``columns``."""
        if self.columns is not None:
            return
        spans, layout, count = self.spans, self.layout, len(self.batches)
        if count > 1:
            placed = layout.placed_numbers((self.rows, 0, 0, 1, ()))
            self.heads = np.zeros((count, placed.head), np.uint8)
            columns = placed.of_heads((count,), buffer=self.heads)
        self.columns = columns
        if "@lane" in layout.fields:
            lanes = np.arange(self.rows) if spans.size else spans.lanes[spans.heads]
            columns["@lane"][...] = lanes.reshape(count, -1)
        if not spans.height:  # of a rank
            self.absent = [np.ones((self.rows, layout.geometry.width), bool).nonzero()]
            return
        for name in layout.of_examples:
            self._put(name, self._taken(name), self._examples)
        counts, totals = self._taken("@numbers").T
        if layout.packed:
            self._put("@total_length", totals, self._examples)
            self._put("@insertion_index", spans.indices, self._examples)
            self._put_steps()
        else:
            self._put_segments(counts, totals)

    def _put(self, name: str, values: np.ndarray, places: Any) -> None:
        """Write values of rows or of examples to their places in a column."""
        column = self.columns[name]
        if places is ALL:
            column[...] = values.reshape(column.shape)
        else:  # it is one batch
            outer = prod(column.shape[: column.ndim - values.ndim + 1])
            column.reshape(outer, *values.shape[1:])[places] = values

    def _taken(self, name: str) -> np.ndarray:
        """Return a column of the examples, in the order of the segments; strings as objects."""
        parts = []
        for offer, _, rows in self.groups:
            part = offer.columns[name]
            strings = isinstance(part, Strings)
            parts.append(part.take(rows).to_objects() if strings else part[rows])
        return self._joined(parts)

    def _joined(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return what the groups have, in the order of the segments."""
        if len(parts) == 1:
            return parts[0]
        whole = np.empty((len(self.spans), *parts[0].shape[1:]), parts[0].dtype)
        for part, (_, at, _) in zip(parts, self.groups, strict=True):
            whole[at] = part
        return whole

    def _put_segments(self, counts: np.ndarray, totals: np.ndarray) -> None:
        """Write what follows from the steps of segments that have a row each."""
        spans, layout, geometry = self.spans, self.layout, self.layout.geometry
        first, columns = spans.first, self.columns
        length = np.minimum(np.maximum(totals - first, 0), geometry.own(first, spans.openings))
        known = [spans.cut.before(first), counts, length, totals, spans.indices]
        if self.heads is not None:
            known = [numbers.reshape(len(self.batches), -1) for numbers in known]
        rows_at = self.rows_at
        for name, at in layout.of_segments:
            columns[name][rows_at] = known[at]
        if layout.masks or layout.sides:
            steps = geometry.steps(first, spans.openings)
            real, after = (steps >= 0) & (steps < totals[:, None]), geometry.left + spans.cut.unroll
            for name in layout.sides:
                side = slice(geometry.left) if name == "@left_length" else slice(after, None)
                self._put(name, real[:, side].sum(1), self.rows_at)
            for name in layout.masks:
                self._put(name, real, self.rows_at)
        if spans.size or geometry.left or spans.openings is not None:
            steps = geometry.steps(first, spans.openings)
            whole = np.ones((len(self.batches) * self.rows, geometry.width), bool)
            whole[rows_at] = (steps < 0) | (steps >= spans.end[:, None])
            self.absent = [whole.nonzero()]
        else:
            ends = spans.end - first
            rows = (ends < geometry.width).nonzero()[0]
            counted = zip(rows.tolist(), ends[rows].tolist(), strict=True)
            self.absent = [(row, slice(end, None)) for row, end in counted]
        for name, source in layout.sequences:
            if name in layout.gathered:
                self.sequences[name] = self._sequence(name, source)

    def _put_steps(self) -> None:
        """Write what packed rows have by row and by step."""
        spans, columns, tails, at = self.spans, self.columns, self.spans.tails, self.rows_at
        sizes, begins = spans.after - spans.first, spans.places * spans.cut.unroll + spans.begins
        self._put("@first", spans.first[spans.heads] == 0, at)
        self._put("@last", spans.last[tails], at)
        self._put("@length", (spans.begins + sizes)[tails], at)
        columns["@resets"].reshape(-1)[begins[spans.first == 0]] = True
        step, ids = ranges(np.zeros_like(sizes), sizes), columns["@segment_ids"]
        steps = begins.repeat(sizes) + step
        ids.reshape(-1)[steps] = (self._numbers + 1).repeat(sizes)
        columns["@positions"].reshape(-1)[steps] = spans.first.repeat(sizes) + step
        for name in self.layout.masks:
            columns[name][...] = ids > 0
        self.absent = [(ids == 0).nonzero()]

    def _sequence(self, name: str, source: str) -> np.ndarray:
        """Gather a sequence by one index, which says where the first step of each row lies.

        Rows with steps before or after the buffer, or in two pieces, are copied piece by piece.
        """
        spans, geometry, width = self.spans, self.layout.geometry, self.layout.geometry.width
        first, taken, beyond = spans.first, [], []
        if geometry.left:
            first = first - geometry.left
        for offer, of, rows in self.groups:
            item, origins, _, every = offer.steps_of(source, width)
            at = origins.take(rows) + first[of] * item
            inside = np.minimum(at, len(every) - 1)
            if geometry.left:
                inside = np.maximum(inside, 0)
            taken.append(every[inside])
            beyond.append(inside != at)
        dtype, inner = self.layout.gathered[name]
        steps = self._joined(taken).view(dtype).reshape(-1, width, *inner)
        odd = self._joined(beyond)
        if spans.openings is not None and geometry.right:
            odd |= (spans.first == 0) & (spans.openings < spans.cut.unroll)
        if len(odd.nonzero()[0]):
            steps[odd] = 0
            pieces = pieces_of(spans, geometry, np.arange(len(steps)))
            raw = steps.reshape(-1).view(np.uint8)
            write_sequence(raw, 0, width, source, self.groups, pieces, odd)
        if spans.size:
            whole = np.zeros((self.rows, width, *inner), dtype)
            whole[self.rows_at] = steps
            steps = whole
        value = self.layout.values.get(name, 0)
        for at in self.absent:
            steps[at] = value
        return steps

    # Strings

    def texts(self, name: str, number: int) -> list[bytes]:
        """Return the strings of a column of one of the batches, in C order."""
        found = self._texts.get(name)
        if found is None:
            blank, source = self.layout.blanks[name], self.layout.texts.get(name)
            if source is not None:
                found = self._of_steps(source, blank)
            else:
                found = self._of_examples(name, blank)
            self._texts[name] = found
        count = len(found) // len(self.batches)
        return found[count * number : count * (number + 1)]

    def _of_examples(self, name: str, blank: list[bytes]) -> list[bytes]:
        """Return a column of context, or the keys."""
        if not self.groups:  # of a rank
            return blank * self.rows * self.most
        found = self._taken(name)
        if self._examples is not ALL:
            whole = np.empty((self.rows * self.most, len(blank)), object)
            whole[:] = blank
            whole[self._examples] = found.reshape(len(found), -1)
            found = whole
        texts: list[bytes] = found.reshape(-1).tolist()
        return texts

    def _of_steps(self, source: str, blank: list[bytes]) -> list[bytes]:
        """Return a sequence of strings."""
        count, width = len(self.batches) * self.rows, self.layout.geometry.width
        whole = np.empty(count * len(blank), object)
        whole[:] = blank * count
        places = np.arange(count)[self.spans.places]
        steps = whole.reshape(count * width, -1)
        for piece in pieces_of(self.spans, self.layout.geometry, places):
            for offer, of, rows in self.groups:
                asked = rows, *(part[of] for part in piece)
                for row, first, size, to in zip(*(part.tolist() for part in asked), strict=True):
                    texts = offer.sequences[source].part(row)
                    assert isinstance(texts, Strings)
                    if isinstance(offer.begins, np.ndarray):
                        first -= int(offer.begins[row])
                    part = texts.take(slice(first, first + size)).to_objects()
                    steps[to : to + size] = part.reshape(size, steps.shape[1])
        return whole.tolist()


class SegmentBlock:
    """One batch about to be written.

    ``extra`` has the columns that do not come from examples: arrays, or a table and rows of it.
    Numeric ones may be set later than the others.
    """

    columns: Any = None  # those of numbers by name, once it has its block

    def __init__(
        self,
        gathered: Gathered,
        number: int,
        extra: StateColumns,
        states: int,
        results: Iterable[tuple[int, Result]] = (),
    ) -> None:
        """``number``: of the batch among those that are gathered together.

        ``results``: of the function of segments, where it was called before.
        """
        self.batch = batch = gathered.batches[number]
        self._gathered, self._number, self.extra = gathered, number, extra
        self._layout = layout = gathered.layout
        #: Rows whose lanes have new examples.
        self._starts = batch.row_of[batch.starts] if layout.packed else batch.starts
        if batch.size:
            self._starts = places_of_starts(batch)
        self.results = results
        if layout.results is not None and not results:
            self.results = layout.results(batch, gathered.offers)
        if layout.sized:
            self.results = list(self.results)
        self._sizes = layout.sizes(self.results)
        self._texts = [*map(self._strings, layout.strings)]
        counts = gathered.rows, len(self._starts), states, gathered.most, self._sizes
        self._places = places = layout.places(counts, tuple(map(len, self._texts)))
        self.slots, self.nbytes = places.slots, places.nbytes

    def fill(self, block: np.ndarray) -> None:
        """Write the batch into its block (uint8, at least ``nbytes``)."""
        if self.columns is None:
            self.fill_examples(block)
        if self.results:
            self.fill_results()
        columns, size = self.columns, self.batch.size
        for name in self._layout.extra:
            column = self.extra[name]
            if not isinstance(column, tuple):
                columns[name][...] = column
            elif size:
                columns[name][self._gathered.rows_at] = column[0][column[1]]
            else:
                column[0].take(column[1], 0, columns[name], "clip")

    def fill_examples(self, block: np.ndarray) -> None:
        """Write all but numeric states and the results of a function of segments."""
        gathered, layout, places = self._gathered, self._layout, self._places
        if layout.packed or self.batch.size:
            block[: self.nbytes] = 0
        self.columns = columns = places.numbers.of_block((), buffer=block)
        gathered.gather(columns)
        if gathered.heads is not None:
            block[: places.numbers.head] = gathered.heads[self._number]
        for texts, place in zip(self._texts, places.strings, strict=True):
            block.data[place.offset : place.offset + place.nbytes] = texts
        if "@starts" in layout.fields:
            columns["@starts"][:] = self._starts
        for name, made in layout.made if self.batch.size else ():
            columns[name][...] = layout.padding.values.get(made, 0)
        for name, source in layout.sequences:
            if (steps := gathered.sequences.get(name)) is not None:
                begin = self._number * gathered.rows
                columns[name][...] = steps[begin : begin + gathered.rows]
            else:
                self._copy(block, name, source)

    def _copy(self, block: np.ndarray, name: str, source: str) -> None:
        """Write a sequence piece by piece."""
        column, gathered, geometry = self.columns[name], self._gathered, self._layout.geometry
        for at in gathered.absent:
            column[at[0]] = 0
        pieces = pieces_of(self.batch, geometry, np.arange(len(column))[gathered.rows_at])
        offset = self._places.numbers.slots[name].offset
        write_sequence(block, offset, geometry.width, source, gathered.groups, pieces)
        for at in gathered.absent if name in self._layout.values else ():
            column[at] = self._layout.values[name]

    def fill_results(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Call the function of segments and write its results, one after the other.

        It goes on from the last one, at least by one, and until ``goes_on`` returns False.
        """
        layout, columns = self._layout, self.columns
        for row, result in self.results:
            at = self._place_of(row)
            for name in LENGTHS[1:] if result is None else ():
                if name in layout.fields:
                    columns[name][at] = 0
            for name, made in layout.made:
                _put(columns[name], at, result, made, layout.padding.values.get(made, 0))
            if not goes_on():
                return
        self.results = ()

    def _place_of(self, row: int) -> int:
        return int(self.batch.lanes[row]) if self.batch.size else row

    def _strings(self, name: str) -> bytes:
        """Return a column of strings as it is in the block."""
        column, gathered, layout = self.extra.get(name), self._gathered, self._layout
        if layout.results is not None and (made := layout.texts.get(name)) is not None:
            blank = as_bytes(layout.padding.values.get(made))
            column = np.full((gathered.rows, *layout.inner(name, 1, self._sizes)), blank, object)
            for row, result in self.results:
                _put(column, self._place_of(row), result, made, blank)
        if column is None:
            return packed_strings(gathered.texts(name, self._number))
        if isinstance(column, tuple):
            column = column[0][column[1]]
            if self.batch.size:
                whole = np.full((gathered.rows, *column.shape[1:]), b"", object)
                whole[gathered.rows_at] = column
                column = whole
        return packed_strings(column.reshape(-1).tolist())


def _put(column: np.ndarray, at: int, result: Result, name: str, blank: object) -> None:
    """Write a sequence of a result to its row of a column, padded."""
    if result is not None and result[name].shape == column.shape[1:]:
        column[at, ...] = result[name]  # also of one element that is a string
        return
    column[at] = blank
    if result is not None:
        column[at][tuple(map(slice, result[name].shape))] = result[name]


def packed_strings(texts: list[bytes]) -> bytes:
    """Return the bytes of a column of strings: offsets, then the strings back to back."""
    count, lengths = len(texts), list(map(len, texts))
    if 0 < count <= MOST_EVEN and lengths.count(lengths[0]) == count:  # as keys mostly are
        offsets = even_offsets(count, lengths[0])
    else:
        offsets = np.array([0, *accumulate(lengths)], np.int64).tobytes()
    return b"".join([offsets, *texts])
