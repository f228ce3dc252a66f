"""``map_segments``: a function of the user's makes the sequences of each segment of a batch.

    segments ─► windows, as without the function ─► fn(sequences, context[, rng]) ─► the block

It is called while a batch is written, segment by segment, so beside the block no more than one
result is in memory.  All of a batch are where they have strings or vary: their sizes decide where
columns lie.
While it prepares a batch for which no trainer has asked, it ends after any segment once one asks.
The same segment gives the same result in every batch and process.

A segment whose call fails is a bad example.  Where these are skipped its row stays in the batch,
for its states go on, without a real step: sequences are zero, and so are lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

import numpy as np

from headrace_proto.dtypes import BYTES
from headrace_proto.errors import DataError, brief, kind_of, rewording
from headrace_proto.layout import strings_at
from headrace_proto.schema import Field, schema_from_wire

from ..pipeline.argument_checks import MASK
from ..pipeline.examples import fitted_array, infer_field, names_fault
from ..pipeline.segment_options import block_name
from ..reading.intake import Intake
from ..reading.row_functions import Draws, RowFunction
from ..shaping.bucket import Padding
from ..shaping.spans import Spans
from .segment_block import LENGTHS, BlockLayout, Gathered, Result, SegmentBlock
from .segment_cutting import Cutting, Offer
from .shape import padded_shape

#: The number that tells its draws from those of stages with the same seed.
_STAGE = -1
_Part = dict[str, np.ndarray]
T = TypeVar("T")


class SegmentMap:
    """The function of one partition."""

    def __init__(self, cutting: Cutting, windows: BlockLayout, intake: Intake) -> None:
        """``windows`` is the layout of batches without the function."""
        declared = cutting.map or {}
        function, seed, schema = (declared[name] for name in ("function", "seed", "schema"))
        label = f"map_segments function {function}"
        self._function = RowFunction(function, label, "map_segments_failed")
        self._function.load()
        self._draws = None if seed is None else Draws(seed, _STAGE)
        shown = {n: f for n, f in windows.fields.items() if n in LENGTHS or ":" in n}
        masks = [name.removeprefix("sequences:") for name in windows.masks]
        self._windows = BlockLayout(shown, cutting.geometry, masks, cutting.padding_values)
        self._intake = intake
        self._cut = cutting.geometry.cut
        self._reported: set[tuple[int, int]] = set()  # insertion indices and segments
        if schema is None:
            self.fields: Mapping[str, Field] = self._inferred(cutting)
        else:
            self.fields = schema_from_wire(schema)
        sizes = dict(declared.get("pad_to", {}))
        #: The sequences of a batch: masks too, and the sizes that are declared.
        self.made = dict[str, Field]()
        for name, field in self.fields.items():
            shape = padded_shape(field, sizes.get(name, ()))
            self.made[name] = Field(field.dtype, shape)
            if declared.get("mask") and field.ragged_dims:
                self.made[name + MASK] = Field("bool", shape[: field.ragged_dims])
                sizes[name + MASK] = sizes.get(name, ())
        values = declared.get("padding_values", {})
        self.padding = Padding(declared.get("pad_to_multiple", 1), (), sizes, None, values)

    def _inferred(self, cutting: Cutting) -> Mapping[str, Field]:
        """Return the fields that the first segment of the first sound example shows."""
        intake = self._intake
        for chunk in intake.first_chunks():
            _, offer = cutting.offer(chunk, intake.bad, 0)
            intake.bad.counts.clear()  # these examples are read again
            for row in range(len(offer.keys)):
                one = np.array([row])
                numbers = np.stack([one, one, one * 0, one, one * 0, offer.steps[one], one * 0])
                drawn = None if offer.openings is None else offer.openings[one]
                first = Spans(one, numbers, self._cut, openings=drawn)
                for _, fields in self._called(first, {0: offer}, _fields_of, self._ignore):
                    if fields is not None:
                        shown: Mapping[str, Field] = fields
                        return shown
        raise DataError(
            "no example shows what map_segments gives: declare it with map_segments(…, schema=…)"
        )

    def results(self, batch: Spans, offers: Mapping[int, Offer]) -> Iterator[tuple[int, Result]]:
        """Yield the result of each row of a batch, with its number; report bad ones."""
        offers = {chunk: offers[chunk] for chunk in batch.of_chunks()}  # which may go meanwhile
        return self._called(batch, offers, self._fitted, self._report)

    def _called(
        self,
        batch: Spans,
        offers: Mapping[int, Offer],
        checked: Callable[[object], T],
        report: Callable[[DataError, tuple[int, int]], None],
    ) -> Iterator[tuple[int, T | None]]:
        bad, function = self._intake.bad, self._function
        windows = self._shown(batch, offers)
        places = batch.chunks.tolist(), batch.rows.tolist(), self._cut.before(batch.first).tolist()
        for i, (chunk, row, segment) in enumerate(zip(*places, strict=True)):
            offer = offers[chunk]
            where = (
                f"{offer.origin.describe(row)}, key {offer.keys[row]!r:.200}, segment {segment} of "
                f"{offer.columns['@numbers'][row, 0]}"
            )
            bad.enters(function.name)
            bad.progress()
            bad.hand.reading(offer.ordinals[row : row + 1], offer.epoch, where)
            given: list[object] = [{n: v[i] for n, v in part.items()} for part in windows]
            if self._draws is not None:
                ordinal = int(offer.ordinals[row])
                given.append(self._draws.generator(offer.epoch, ordinal, segment))
            began = time.monotonic()
            result, fault, cause = function.tried(lambda _: "", *given)
            self._intake.stages.seconds[function.label] += time.monotonic() - began
            if not fault:
                try:
                    result = checked(result)
                except (ValueError, TypeError, OverflowError) as misfit:
                    fault = f"gave {misfit}"
            if fault:
                result = None
                error = DataError(f"{where}: {function.label} {fault}")
                error.__cause__ = cause
                report(error, (int(batch.indices[i]), segment))
            yield i, result
        bad.enters("")

    def _shown(self, batch: Spans, offers: Mapping[int, Offer]) -> tuple[_Part, _Part]:
        """Return the sequences and the context of a batch, by name, with a row for each segment."""
        alone = Spans(batch.entries, batch.numbers, self._cut, openings=batch.openings)
        written = SegmentBlock(Gathered(self._windows, [alone], offers), 0, {}, 0)
        block = np.empty(written.nbytes, np.uint8)
        written.fill_examples(block)
        columns: _Part = {name: written.columns[name] for name in self._windows.numbers}
        for name, slot in zip(self._windows.fields, written.slots, strict=True):
            if slot.dtype == BYTES:
                columns[name] = strings_at(block, slot)
        parts: tuple[_Part, _Part] = {}, {}
        for part, prefix in zip(parts, ("sequences:", "context:"), strict=True):
            named = [name for name in columns if name.startswith(prefix)]
            part |= {name.removeprefix(prefix): columns[name] for name in sorted(named)}
        return parts

    def _fitted(self, result: object) -> dict[str, np.ndarray]:
        """Return a result as arrays; ValueError where it does not fit."""
        named = _named(result)
        if named.keys() != self.fields.keys():
            raise ValueError(f"the sequences {list(named)}; this feed has {list(self.fields)}")
        arrays = {}
        for name, field in self.fields.items():
            with rewording(ValueError, f"sequence {name!r}: ", ValueError):
                array = arrays[name] = fitted_array(named[name], field)
                room = self.padding.sizes.get(name, ())
                sizes = zip(array.shape, room, strict=False)
                if any(most is not None and size > most for size, most in sizes):
                    raise ValueError(
                        f"has the shape {[*array.shape]}; pad_to gives room for {room}"
                    )
            if name + MASK in self.made and name + MASK not in self.fields:
                arrays[name + MASK] = np.ones(array.shape[: field.ragged_dims], bool)
        return arrays

    def _ignore(self, error: DataError, segment: tuple[int, int]) -> None:
        """Raise the error of a bad segment, unless these are skipped: its batch reports it."""
        if not self._intake.bad.skip:
            raise error

    def _report(self, error: DataError, segment: tuple[int, int]) -> None:
        """Report a bad segment, and count it once, in however many batches it comes."""
        if segment not in self._reported:
            self._intake.bad.report(error, self._function.reason)
            self._reported.add(segment)
            self._intake.count_dropped()
        self._intake.check_bad()  # again: it was one too many while its batch was prepared


def _named(result: object) -> Mapping[str, object]:
    if not isinstance(result, Mapping):
        raise ValueError(f"{brief(result)}, {kind_of(result)}; it gives a dict of name to array")
    return result


def _fields_of(result: object) -> dict[str, Field]:
    """Return the fields that a result shows; ValueError where a batch can not hold it."""
    named = _named(result)
    if fault := names_fault(named):
        raise ValueError(fault)
    fields = {}
    for name, value in named.items():
        with rewording(ValueError, f"sequence {name!r}: ", ValueError):
            fields[block_name("a name in the result", "sequences", name)] = infer_field([value])
    return fields
