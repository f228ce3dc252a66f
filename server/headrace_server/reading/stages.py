"""Row stages: the processing of examples between reader and shape.

chunk ─► map ─► filter ─► select ─► samplers ─► … ─► chunk       in the declared order

map, filter, flat_map, unbatch     row_functions.py
samplers     sampling.py             select     here
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, Protocol

from headrace_proto.errors import DataError
from headrace_proto.schema import RESERVED, Field, schema_from_wire

from ..pipeline.declaration import Stage
from ..pipeline.examples import names_fault
from .chunk import Chunk
from .reader import BadRecords
from .row_functions import Draws, Filter, FlatMap, Map, RowFunction, Unbatch
from .sampling import SAMPLERS, Sampler
from .user_columns import Fields

#: A count of logged faults that suppresses the log.
_LOGS_NOTHING = 1 << 62


class _Step(Protocol):
    def fields_after(self, before: Fields | None) -> Fields | None:
        """Return the schema after this step, if it is known."""

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk: ...


class RowStages:
    """The stages of one pipeline, for chunks of ``fields``.  ImportError where a user function
    is not found."""

    def __init__(self, stages: tuple[Stage, ...], fields: Fields) -> None:
        #: Rows dropped on purpose, by reason.
        self.counts = Counter[str]()
        #: Time spent, by the name of the step.
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._source = fields
        #: Whether rows have their ordinals in the source as a fact.  No step, since steps see the
        #: ordinals of copies, and so that it changes no draw of the others.
        self._with_origin = any(stage.kind == "with_origin" for stage in stages)
        stages = tuple(stage for stage in stages if stage.kind != "with_origin")
        self._steps = [_step(stage, i, self.counts) for i, stage in enumerate(stages)]
        self._named = [_name_of(stage) for stage in stages]
        #: The samplers, in their order.
        self.samplers = [step for step in self._steps if isinstance(step, Sampler)]
        drawing = (step.draws for step in self._steps if isinstance(step, Map))
        self._draws = [draws for draws in drawing if draws is not None]
        for name in fields:
            if name.startswith(RESERVED):
                raise DataError(
                    f"the source has a column {name!r}: names that start with {RESERVED!r} are for "
                    "what headrace adds to rows; rename it, or declare features without it"
                )
        self.fields  # noqa: B018 - DataError for a column that is missing

    def check_names(self) -> None:
        """DataError where a batch can not hold the columns by their names."""
        known = self.fields
        if known and (fault := names_fault(known)):
            raise DataError(
                f"the source has {fault}; choose others by select(names), or declare the features "
                "that are wanted"
            )

    @property
    def fields(self) -> Fields | None:
        """The schema after all stages; None until it is known."""
        known: Fields | None = self._source
        for step in self._steps:
            known = step.fields_after(known)
        return known

    @property
    def fact_fields(self) -> dict[str, Field]:
        """Return the facts of rows that the stages add."""
        known: Fields | None = self._source
        facts = {"origin": Field("int64")} if self._with_origin else {}
        for step in self._steps:
            if isinstance(step, Sampler):
                facts.update(step.fact_fields(known))
            known = step.fields_after(known)
        return facts

    def state(self) -> list[Any] | None:
        """Return the samplers' memory of all rows so far, as plain data; None if they keep none."""
        states = [sampler.state() for sampler in self.samplers]
        return states if any(state is not None for state in states) else None

    def restore(self, states: list[Any] | None) -> None:
        """Restore a result of ``state``."""
        for sampler, state in zip(self.samplers, states or [], strict=False):
            if state is not None:
                sampler.restore(state)

    def apply(self, chunk: Chunk, bad: BadRecords, epoch: int = 0) -> Chunk:
        """Return the chunk after all stages: the remaining rows, in their order."""
        for sampler in self.samplers:
            sampler.epoch = epoch
        for draws in self._draws:
            draws.epoch = epoch
        if self._with_origin:
            chunk = chunk.with_fact("origin", chunk.ordinals)
        fields: Fields | None = self._source
        for name, step in zip(self._named, self._steps, strict=True):
            if not len(chunk):
                break
            assert fields is not None  # the earlier step has returned rows, so its fields are known
            began = time.monotonic()
            chunk = step.apply(chunk, fields, bad)
            self.seconds[name] += time.monotonic() - began
            fields = step.fields_after(fields)
        if len(chunk) or (chunk.columns and not self._steps):
            return chunk
        return chunk.with_columns(Chunk.empty(self.fields or {}).columns)

    def probe(self, chunk: Chunk, bad: BadRecords) -> Fields | None:
        """Infer the schema from a chunk that is not used otherwise.

        Rows that break a rule are ignored here; they are reported when they are read for use.
        """
        before, states = dict(self.counts), self.state()
        self.apply(chunk, replace(bad, skip=True, counts={}, logged=_LOGS_NOTHING))
        self.counts.clear()
        self.seconds.clear()
        self.counts.update(before)
        self.restore(states)
        return self.fields


def _name_of(stage: Stage) -> str:
    """Return the name of a step, with that of its function."""
    function = stage.options.get("function")
    return stage.kind if function is None else f"{stage.kind} function {function}"


def _step(stage: Stage, number: int, counts: Counter[str]) -> _Step:
    options = stage.options
    if stage.kind in SAMPLERS:
        return SAMPLERS[stage.kind](stage, number, counts)
    if stage.kind == "select":
        return _Select(options["names"])
    if stage.kind == "unbatch":
        return Unbatch(number, counts)
    if stage.kind not in ("map", "filter", "flat_map"):
        raise ValueError(f"unknown stage {stage.kind!r}")
    seed = options.get("seed")
    draws = None if seed is None else Draws(seed, number)
    vectorized = options.get("vectorized", False)
    reason = f"{stage.kind}_failed"
    function = RowFunction(options["function"], _name_of(stage), reason, vectorized, draws)
    if stage.kind == "filter":
        return Filter(function, counts)
    wire = options.get("schema")
    schema = None if wire is None else schema_from_wire(wire)
    if stage.kind == "map":
        return Map(function, schema)
    return FlatMap(function, schema, number, counts)


class _Select:
    def __init__(self, names: list[str]) -> None:
        self._names = names

    def fields_after(self, before: Fields | None) -> Fields | None:
        if before is None:
            return None
        for name in self._names:
            if name not in before:
                raise DataError(
                    f"select: there is no column {name!r}, only {', '.join(before)}; select names "
                    "columns that the source, or the map before it, gives"
                )
        return {name: before[name] for name in self._names}

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        self.fields_after(before)
        return chunk.with_columns({name: chunk.columns[name] for name in self._names})
