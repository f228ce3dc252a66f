"""Cut a chunk of examples: the facts that the machine of segments needs, and the wire columns.

    chunk ─► sound rows: key, steps, total length, count of segments, initial states ─► Offer

An example that breaks a rule (sequences of unequal length, no step, a length past the end …) is
reported with file, record, column and value, and dropped as a whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace_proto.dtypes import BYTES, numpy_dtype
from headrace_proto.errors import DataError, LimitExceeded, rewording
from headrace_proto.schema import RESERVED, Field
from headrace_proto.segment_layout import NUMBERS, PACKED

from ..pipeline.argument_checks import MASK, selector_text
from ..pipeline.declaration import Options, Shape
from ..pipeline.segment_options import (
    MOST_STEPS,
    check_rows,
    columns_by_name,
    fitted,
    not_whole,
)
from ..reading.chunk import BadRecords, Chunk, Faults, Origin, without
from ..reading.columns import Column, Ragged, Strings, ragged_of, window
from ..reading.row_values import LENGTH, Rule, Values, as_int64
from ..shaping import chance
from ..shaping.log_admission import Growth
from ..shaping.segments import AT_SERVER, AT_TRAINER, NOWHERE, Segments
from ..shaping.spans import Cut


@dataclass(frozen=True, slots=True)
class Geometry:
    """The declared cut, and the context of segments.

        stride 3, num_unroll 4, left 2, right 1          example of 9 steps:  0 1 2 3 4 5 6 7 8

        segment 0      . .│0 1 2 3│4                     │ … │ are its own steps, before and after
        segment 1        1 2│3 4 5 6│7                   them is context; "." is no step, and zero
        segment 2            4 5│6 7 8 .│.    last

    The state of a segment is that before its first own step.
    """

    cut: Cut
    left: int = 0
    right: int = 0
    width: int = dataclasses.field(init=False)  # steps that a batch has room for, context included

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", self.left + self.cut.unroll + self.right)

    def counts(self, steps: np.ndarray, openings: np.ndarray | None = None) -> np.ndarray:
        """Return the number of segments of examples with these steps, at least one each."""
        return self.cut.left(np.zeros_like(steps), steps, openings)

    def padded(self, steps: np.ndarray) -> np.ndarray:
        """Return the number of steps up to the end of the last segment, without a phase."""
        last: np.ndarray = (self.counts(steps) - 1) * self.cut.stride + self.cut.unroll
        return last

    def own(self, first: np.ndarray, openings: np.ndarray | None) -> np.ndarray | int:
        """Return the number of own steps for which segments have room."""
        unroll = self.cut.unroll
        return unroll if openings is None else np.where(first == 0, openings, unroll)

    def steps(self, first: np.ndarray, openings: np.ndarray | None) -> np.ndarray:
        """Return which step of its example stands at each place of segments, [n, width].

        Below 0 are places before the example, and those between a short first segment and the
        context after it.
        """
        at = np.arange(self.width) - self.left
        if openings is None:
            return first[:, None] + at
        own, after = np.asarray(self.own(first, openings))[:, None], at - self.cut.unroll
        steps: np.ndarray = first[:, None] + np.where(after < 0, at, own + after)
        steps[(at >= own) & (after < 0)] = -1
        return steps


#: Bytes per row above which copying pieces singly beats an index, which copies twice.
LONG_ROW = 8192
#: Steps of a sequence: bytes of each, the first byte of each example, the buffer, and each run of
#: as many bytes as a row has, unless these are too many.
Steps = tuple[int, np.ndarray, memoryview, np.ndarray]
_LANE = Rule("it must be an integer, 0 or more", "lane_out_of_range", most=2**31 - 1, whole=True)
#: Bound on the number appended to a key to make it unique, the same as in TensorFlow.
_UNIQUE = 10**8


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The sound examples of a chunk.  All sequences are ragged columns."""

    origin: Origin  # of its rows
    ordinals: np.ndarray
    epoch: int
    keys: np.ndarray  # of bytes
    steps: np.ndarray  # int64 [n]
    openings: np.ndarray | None  # int64 [n], steps of the first segment, where that is drawn
    sequences: Mapping[str, Ragged]
    #: By name in a batch: keys, context and facts of examples.  ``@numbers``, int64 [n, 2]: the
    #: number of segments, and the length that the user declares.  ``@lanes``: where examples are
    #: assigned to lanes.
    columns: Mapping[str, Any]
    initial: Mapping[str, Column]  # initial states that each example brings
    begins: np.ndarray | int = 0  # the first step of each that is here
    _steps: dict[str, Steps] = dataclasses.field(default_factory=dict)

    def steps_of(self, name: str, width: int) -> Steps:
        """Return where the steps of a sequence lie; always ask with the same width."""
        steps = self._steps.get(name)
        if steps is None:
            sequence = self.sequences[name]
            raw, item = sequence.payload, sequence.item_bytes
            run, every = width * item, raw
            if raw.size < run <= LONG_ROW:
                every = np.pad(raw, (0, run - raw.size))
            every = window(every, run if run <= LONG_ROW else 0)
            starts = sequence.starts - self.begins * item
            steps = self._steps[name] = item, starts, raw.data, every
        return steps


#: An offer, places of segments in their batch, and rows of the offer.
Group = tuple[Offer, Any, np.ndarray]


def groups(chunks: np.ndarray, rows: np.ndarray, offers: Mapping[int, Offer]) -> list[Group]:
    """Return rows grouped by their chunk."""
    numbers = set(chunks.tolist())
    if len(numbers) == 1:
        return [(offers[numbers.pop()], slice(None), rows)]
    found: list[Group] = []
    for number in sorted(numbers):
        places = (chunks == number).nonzero()[0]
        found.append((offers[number], places, rows[places]))
    return found


@dataclass(frozen=True, slots=True)
class StateSource:
    """One state: its field, and the source of its first value."""

    name: str
    field: Field  # of one example: a fixed shape
    column: str | None = None
    constant: np.ndarray | None = None  # None and no column: zeros

    @classmethod
    def of(cls, plain: Options) -> StateSource:
        name, kind, value = plain["name"], plain["kind"], plain["value"]
        shape: tuple[int, ...] = tuple(plain["shape"])
        field = Field(plain["dtype"], shape)
        if kind == "column":
            return cls(name, field, value)
        if kind == "zeros":
            return cls(name, field)
        if field.dtype == BYTES:
            constant = np.empty(len(value), object)
            constant[:] = value
        else:
            constant = np.frombuffer(value, numpy_dtype(field.dtype))
        return cls(name, field, constant=constant.reshape(shape))

    def initial(self) -> np.ndarray:
        """Return the declared value; zeros for one that examples bring."""
        zeros = self.blank(1)
        return zeros.reshape(zeros.shape[1:]) if self.constant is None else self.constant

    def blank(self, n: int) -> np.ndarray:
        """Return an array of n values, all zero or empty."""
        shape = (n, *(d or 0 for d in self.field.shape))
        if self.field.dtype == BYTES:
            texts: np.ndarray = np.full(shape, b"", object)
            return texts
        return np.zeros(shape, numpy_dtype(self.field.dtype))


class Cutting:
    """The declared cutting of one partition."""

    def __init__(
        self,
        shape: Shape,
        known: Mapping[str, Field] | None,
        partition: int,
        live: bool = False,
    ) -> None:
        """``known``: the columns of an example after the stages.  ``live``: examples may grow."""
        if known is None:
            raise DataError(
                "no example shows what map gives, and a feed of segments needs to know: declare it "
                "with map(…, schema=…)"
            )
        with rewording(DataError, "batch_sequences_with_states: ", TypeError, ValueError):
            options = fitted(shape.options, known)
        self.num_unroll = unroll = int(options["num_unroll"])
        self.packed = bool(options.get("pack"))
        cut = Cut(unroll, options["stride"] or unroll, self.packed, live)
        self.geometry = Geometry(cut, options["left"], options["right"])
        self.phased = options["phase"] is not None
        self._phase_seed = options["phase_seed"] or 0
        self._not_whole = not_whole(options)
        self.batch_size = int(options["batch_size"])
        self.lanes = options["order"] == "lanes"
        self.at_trainer = options["state_placement"] == "trainer"
        self.small = bool(options["allow_small_batch"])
        self._pad = bool(options["pad"])
        self.key: str | None = options["input_key"]  # None: the ordinal
        self._unique = options["make_keys_unique"]
        self._seed = int(options["make_keys_unique_seed"] or 0)
        self._length = options["input_length"]
        self._lengths: Values | None = None
        if self._length is not None:
            self._lengths = Values(str(shape.kind), "input_length", self._length, sequence=True)
        self._lane_of: Values | None = None
        self.assigned = "lane" in options  # whether examples are assigned to lanes
        if self.assigned:
            self._lane_of = Values(str(shape.kind), "lane", options["lane"])
        self._sequences = columns_by_name(options["input_sequences"])
        self._context = columns_by_name(options["input_context"])
        self.sequences = {name: known[column] for name, column in self._sequences.items()}
        self.padding_values = options["padding_values"] or {}
        self.masked = bool(options["mask"])
        self.map = options.get("map")  # options of ``map_segments``
        self.context = {name: known[column] for name, column in self._context.items()}
        self.states = [StateSource.of(plain) for plain in options["initial_states"]]
        self.capacity: int = options["capacity"]
        places = AT_TRAINER if self.at_trainer else AT_SERVER if self.states else NOWHERE
        ranks = [len(field.shape) for field in self.fields({}).values()]
        ahead = max(options["right"], int(options.get("exact_last", False)))
        skips = options.get("max_staleness") is not None and options.get("stale") != "mark"
        growth = Growth(ahead, options.get("max_staleness"), skips)
        #: Examples of a packed row, at most.
        self.most = check_rows(self.batch_size, ranks, self.packed)
        self.machine = Segments(
            partition,
            self.batch_size,
            self.capacity,
            self.small,
            lanes=self.lanes,
            states=places,
            cut=cut,
            most=self.most,
            growth=growth if live else None,
            assigned=self.assigned,
        )

    def check_state_bytes(self, most: int) -> None:
        """Raise LimitExceeded if the states of one example are too large for the server.

        Strings have no fixed size, and are checked when they are saved.
        """
        sizes = {s.name: 0 if s.field.dtype == BYTES else s.blank(1).nbytes for s in self.states}
        total = sum(sizes.values())
        if not self.at_trainer and total > most:
            listed = ", ".join(f"{name!r} {size}" for name, size in sizes.items())
            raise LimitExceeded(
                f"the states of one example have {total} bytes ({listed}), more than "
                f"max_state_bytes={most}.  Raise it, or declare the feed with order='lanes' and "
                "state_placement='trainer': then they stay in the trainer's memory"
            )

    def fields(self, facts: Mapping[str, Field]) -> dict[str, Field]:
        """Return the wire columns of a batch; ``facts`` are those that stages add to rows."""
        rows = None if self.small else self.batch_size
        each: tuple[int | None, ...] = (rows, None) if self.packed else (rows,)  # of each example
        fields = {"@key": Field(BYTES, each)}
        for name in (*(() if self.packed else NUMBERS), "@length", "@total_length"):
            fields[name] = Field("int32", each if name == "@total_length" else (rows,))
        fields["@insertion_index"] = Field("int64", each)
        own = [f"@{side}_length" for side in ("left", "right") if getattr(self.geometry, side)]
        for name in [*own, "@lane"] if self.lanes else own:
            fields[name] = Field("int32", (rows,))
        for name, dtype in PACKED.items() if self.packed else ():
            steps = () if name in ("@first", "@last") else (self.num_unroll,)
            fields[name] = Field(dtype, (rows, *steps))
        for state in self.states if self.packed else ():
            fields["initial:" + state.name] = Field(state.field.dtype, (1, *state.field.shape))
        for name, fact in facts.items():
            fields[RESERVED + name] = Field(fact.dtype, (*each, *fact.shape))
        for name, field in self.sequences.items():
            fields["sequences:" + name] = Field(
                field.dtype, (rows, self.geometry.width, *field.shape[1:])
            )
        for name in self.sequences if self.masked else ():
            fields[f"sequences:{name}{MASK}"] = Field("bool", (rows, self.geometry.width))
        for name, field in self.context.items():
            fields["context:" + name] = Field(field.dtype, (*each, *field.shape))
        if self.at_trainer:
            fields["@starts"] = fields["@state_of"] = Field("int32", (None,))
            rows = None
        for state in self.states:
            fields["state:" + state.name] = Field(state.field.dtype, (rows, *state.field.shape))
        return fields

    def properties(self) -> dict[str, Any]:
        """Return the description of the feed for trainers, beside its schema."""
        return {
            "shape": "sequences",
            "num_unroll": self.num_unroll,
            "batch_size": self.batch_size,
            "order": "lanes" if self.lanes else "arrival",
            "placement": "trainer" if self.at_trainer else "server",
            **({"pack": True} if self.packed else {}),
            "states": [[s.name, s.field.dtype, list(s.field.shape)] for s in self.states],
            **({"left": self.geometry.left} if self.geometry.left else {}),
            **({} if self.lanes else {"capacity": self.capacity}),
            **({"live": True} if self.machine.log is not None else {}),
        }

    # Chunks

    def offer(self, chunk: Chunk, bad: BadRecords, epoch: int) -> tuple[Chunk, Offer]:
        """Return the examples of a chunk that can be cut; report the others."""
        totals: np.ndarray | None = None
        if self._lane_of is not None:
            chunk, lanes = self._lane_of.sound(chunk, bad, _LANE)
            chunk = chunk.with_fact("lanes", as_int64(lanes))
        if self._lengths is not None and len(chunk):
            chunk, lengths = self._lengths.sound(chunk, bad, LENGTH)
            totals = as_int64(lengths)
        sequences = self._cut(chunk)
        faults: Faults = {}
        for row, reason, text in self._faults(sequences, totals):
            faults.setdefault(row, (reason, text))
        if faults:
            totals = None if totals is None else np.delete(totals, list(faults))
            chunk = without(chunk, faults, bad)
            sequences = self._cut(chunk)
        steps = next(iter(sequences.values())).lengths
        openings = self.drawn(chunk.ordinals, epoch) if self.phased else None
        totals = np.minimum(steps if totals is None else totals, MOST_STEPS)
        numbers = np.array([self.geometry.counts(steps, openings), totals]).T.copy()
        keys, facts = self._keys(chunk, epoch), {RESERVED + n: f for n, f in chunk.facts.items()}
        return chunk, self._offer(chunk, epoch, keys, numbers, openings, sequences, facts)

    def cut(
        self,
        chunk: Chunk,
        keys: Sequence[bytes],
        begins: np.ndarray,
        numbers: np.ndarray,
        facts: Mapping[str, Any],
    ) -> Offer:
        """Offer some steps of examples that grow: of each those from ``begins`` on.

        ``keys``: of those that their producers gave none; ``numbers``: see ``Offer.columns``.
        """
        named = self._keys(chunk, 0)
        if self.key is None and not self._unique:
            named[:] = [key or number for key, number in zip(keys, named, strict=True)]
        return self._offer(chunk, 0, named, numbers, None, self._cut(chunk), facts, begins)

    def _offer(
        self,
        chunk: Chunk,
        epoch: int,
        keys: np.ndarray,
        numbers: np.ndarray,
        openings: np.ndarray | None,
        sequences: dict[str, Ragged],
        facts: Mapping[str, Any],
        begins: np.ndarray | int = 0,
    ) -> Offer:
        steps = next(iter(sequences.values())).lengths
        context = {f"context:{name}": chunk.columns[of] for name, of in self._context.items()}
        columns = {**facts, **context, "@key": keys, "@numbers": numbers}
        initial = {s.name: chunk.columns[s.column] for s in self.states if s.column is not None}
        return Offer(
            chunk.origin,
            chunk.ordinals,
            epoch,
            keys,
            steps,
            openings,
            sequences,
            columns,
            initial,
            begins,
        )

    def _cut(self, chunk: Chunk) -> dict[str, Ragged]:
        """Return the sequences; names of one column have one object, which is copied once."""
        cut = {column: _ragged(chunk.columns[column]) for column in self._sequences.values()}
        return {name: cut[column] for name, column in self._sequences.items()}

    def drawn(self, ordinals: np.ndarray, epoch: int) -> np.ndarray:
        """Draw the number of steps of each example's first segment: 1 … stride, equally likely."""
        stride = self.geometry.cut.stride
        drawn = chance.uniform(self._phase_seed, chance.PHASES, epoch, ordinals) * stride
        openings: np.ndarray = np.minimum(drawn.astype(np.int64), stride - 1) + 1
        return openings

    def _keys(self, chunk: Chunk, epoch: int) -> np.ndarray:
        """Return the keys; those of integers are their decimal digits."""
        column = chunk.ordinals if self.key is None else chunk.columns[self.key]
        keys: list[bytes]
        if isinstance(column, Strings):
            keys = column.to_objects().tolist()
        else:
            assert isinstance(column, np.ndarray)
            keys = [b"%d" % number for number in column.tolist()]
        if self._unique:
            drawn = chance.uniform(self._seed, chance.KEYS, epoch, chunk.ordinals) * _UNIQUE
            numbers = drawn.astype(np.int64).tolist()
            keys = [key + b"%d" % number for key, number in zip(keys, numbers, strict=True)]
        found = np.empty(len(keys), object)
        found[:] = keys
        return found

    def _faults(
        self, sequences: Mapping[str, Ragged], totals: np.ndarray | None
    ) -> Iterator[tuple[int, str, str]]:
        """Yield row, reason and text of each broken rule."""
        (name, column), geometry = next(iter(sequences.items())), self.geometry
        first, steps = self._sequences[name], column.lengths
        for name, column in sequences.items():
            for row in np.flatnonzero(column.lengths != steps).tolist():
                other = f"{self._sequences[name]!r} has {column.lengths[row]}"
                text = f"{first!r} has {steps[row]} steps, {other}"
                yield row, "unequal_lengths", f"sequences have unequal lengths: {text}"
        for row in np.flatnonzero(steps == 0).tolist():
            yield row, "no_steps", f"column {first!r} has no steps (T = 0): nothing can be cut"
        for row in np.flatnonzero(steps > MOST_STEPS).tolist():
            yield row, "long", f"column {first!r} has {steps[row]} steps; {MOST_STEPS} at most"
        if not self._pad:
            for row in np.flatnonzero(geometry.padded(steps) != steps).tolist():
                text = f"column {first!r} has {steps[row]} steps, which is {self._not_whole}: "
                yield row, "no_multiple", f"{text}batch_sequences_with_states(pad=True) fills it up"
        if totals is not None:
            what = f"input_length ({selector_text(self._length)})"
            # With a phase, padding differs between epochs; an example must be good in all or none.
            padded = steps if self.phased else geometry.padded(steps)
            for row in np.flatnonzero(totals > padded).tolist():
                with_it = "" if self.phased else " with padding"
                text = f"past the {padded[row]} steps that {first!r} has{with_it}"
                yield row, "length_past_end", f"{what} is {totals[row]}, {text}"
            for row in np.flatnonzero(totals < -MOST_STEPS).tolist():
                yield row, "length_too_small", f"{what} is {totals[row]}; {-MOST_STEPS} at least"


def _ragged(column: Column) -> Ragged:
    """Return a sequence as a ragged column."""
    return column if isinstance(column, Ragged) else ragged_of(column, 1)
