"""Row stages: the work on examples between reader and shape.

    chunk ─► map ─► filter ─► select ─► samplers ─► … ─► chunk       in the declared order

The schema of a map is declared, or learnt from the first rows that reach it and fixed then.
An example that breaks a rule (a function raises on it, or gives what does not fit) is named by
its origin and goes to ``BadRecords``.  A vectorized function answers for all rows it was given:
when it raises, or gives no n rows, they are bad together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field, schema_from_wire

from ..pipeline.declaration import Stage
from ..pipeline.examples import names_fault
from ..pipeline.selectors import RESERVED
from .chunk import Chunk
from .columns import column_from_rows
from .reader import BadRecords
from .sampling import SAMPLERS, Sampler
from .user_columns import Given, collect, columns_of, examples_of, learn, user_function

__all__ = ["RowStages"]

Fields = Mapping[str, Field]


class _Step(Protocol):
    def fields_after(self, before: Fields | None) -> Fields | None:
        """The schema after this step, if it is known."""

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk: ...


class RowStages:
    """The stages of one pipeline, for chunks of ``fields``.  ImportError where a function of the
    user's is not found."""

    def __init__(self, stages: tuple[Stage, ...], fields: Fields) -> None:
        #: Rows dropped on purpose, by reason.
        self.counts: dict[str, int] = {}
        self._source = fields
        self._steps = [_step(stage, i, self.counts) for i, stage in enumerate(stages)]
        #: The stages that draw by chance, in their order.
        self.samplers = [step for step in self._steps if isinstance(step, Sampler)]
        for name in fields:
            if name.startswith(RESERVED):
                raise DataError(
                    f"the source has a column {name!r}: names that start with {RESERVED!r} are for "
                    "what headrace adds to rows; rename it by map"
                )
        _ = self.fields  # DataError now for a column that is missing

    @property
    def fields(self) -> Fields | None:
        """The schema of what comes out; None until it is known."""
        known: Fields | None = self._source
        for step in self._steps:
            known = step.fields_after(known)
        return known

    @property
    def fact_fields(self) -> dict[str, Field]:
        """The facts of each row that the samplers add."""
        known: Fields | None = self._source
        facts: dict[str, Field] = {}
        for step in self._steps:
            if isinstance(step, Sampler):
                facts.update(step.fact_fields(known))
            known = step.fields_after(known)
        return facts

    def state(self) -> list[Any] | None:
        """The samplers' memory of all rows so far, as plain data; None if they keep none."""
        states = [sampler.state() for sampler in self.samplers]
        return states if any(state is not None for state in states) else None

    def restore(self, states: list[Any] | None) -> None:
        """Set the samplers to a memory that ``state`` gave."""
        for sampler, state in zip(self.samplers, states or [], strict=False):
            if state is not None:
                sampler.restore(state)

    def apply(self, chunk: Chunk, bad: BadRecords, epoch: int = 0) -> Chunk:
        """The chunk after all stages: the rows that are left, in their order."""
        for sampler in self.samplers:
            sampler.epoch = epoch
        fields: Fields | None = self._source
        for step in self._steps:
            if not len(chunk):
                break
            assert fields is not None  # rows came out of the step before, so its fields are known
            chunk = step.apply(chunk, fields, bad)
            fields = step.fields_after(fields)
        if len(chunk) or not self._steps:
            return chunk
        known = self.fields or {}
        return chunk.with_columns({name: column_from_rows([], f) for name, f in known.items()})

    def probe(self, chunk: Chunk) -> Fields | None:
        """Learn the schema from a chunk that is not used otherwise.

        Rows that break a rule teach nothing here; they are reported when they come in their turn.
        """
        before, states = dict(self.counts), self.state()
        self.apply(chunk, _Quiet())
        self.counts.clear()
        self.counts.update(before)
        self.restore(states)
        return self.fields


class _Quiet(BadRecords):
    def report(self, error: DataError, reason: str = "bad_record", rows: int = 1) -> None:
        pass


def _step(stage: Stage, number: int, counts: dict[str, int]) -> _Step:
    options = stage.options
    if stage.kind in SAMPLERS:
        return SAMPLERS[stage.kind](stage, number, counts)
    if stage.kind == "select":
        return _Select(options["names"])
    if stage.kind not in ("map", "filter"):
        raise ValueError(f"unknown stage {stage.kind!r}")
    function = _Function(stage.kind, options["function"], options["vectorized"])
    if stage.kind == "filter":
        return _Filter(function, counts)
    schema = options.get("schema")
    return _Map(function, None if schema is None else schema_from_wire(schema))


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


class _Function:
    """A function of the user's, and the text of its faults."""

    def __init__(self, kind: str, name: str, vectorized: bool) -> None:
        self.call = user_function(kind, name)
        self.vectorized = vectorized
        self.label = f"{kind} function {name}"
        self.reason = f"{kind}_failed"

    def fault(
        self, chunk: Chunk, row: int | None, text: str, cause: Exception | None = None
    ) -> DataError:
        """The fault of a row, or (None) of the whole chunk."""
        where = chunk.origin.describe(row or 0)
        rest = "" if row is not None else f" and the {len(chunk) - 1} after it"
        error = DataError(f"{where}{rest}: {self.label} {text}")
        error.__cause__ = cause
        return error

    def _tried(self, given: Any, check: Callable[[Any], str]) -> tuple[Any, str, Exception | None]:
        """The result, what is wrong with it or "", and the exception that it is instead."""
        try:
            result = self.call(given)
        except Exception as error:
            return None, f"raised {type(error).__name__}: {error}", error
        return result, check(result), None

    def over_rows(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[Any], str]
    ) -> tuple[list[int], list[Any]]:
        """The rows for which it gave what ``check`` finds nothing wrong with, and what it gave."""
        rows, results = [], []
        progress = bad.progress
        for i, example in enumerate(examples_of(chunk)):
            progress()
            result, fault, cause = self._tried(example, check)
            if fault:
                bad.report(self.fault(chunk, i, fault, cause), self.reason)
                continue
            rows.append(i)
            results.append(result)
        return rows, results

    def over_columns(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[Any], str]
    ) -> Any | None:
        """The function's result for the whole chunk; None where it was bad, which is reported."""
        result, fault, cause = self._tried(columns_of(chunk), check)
        if not fault:
            return result
        bad.report(self.fault(chunk, None, fault, cause), self.reason, len(chunk))
        return None


class _Filter:
    def __init__(self, function: _Function, counts: dict[str, int]) -> None:
        self._function = function
        self._counts = counts

    def fields_after(self, before: Fields | None) -> Fields | None:
        return before

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        if self._function.vectorized:
            mask = self._function.over_columns(chunk, bad, lambda r: _mask_fault(r, len(chunk)))
            if mask is None:
                return chunk.take(slice(0, 0))
            keep = np.flatnonzero(np.asarray(mask))
            judged = len(chunk)
        else:
            rows, verdicts = self._function.over_rows(chunk, bad, _verdict_fault)
            keep = np.array([i for i, v in zip(rows, verdicts, strict=True) if v], np.int64)
            judged = len(rows)
        if len(keep) < judged:
            self._counts["filtered"] = self._counts.get("filtered", 0) + judged - len(keep)
        return chunk if len(keep) == len(chunk) else chunk.take(keep)


def _verdict_fault(result: Any) -> str:
    if isinstance(result, (bool, np.bool_)):
        return ""
    if isinstance(result, np.ndarray) and result.dtype == bool and result.ndim == 0:
        return ""
    return f"gave {result!r:.60}, a {type(result).__name__}; a filter gives True or False"


def _mask_fault(result: Any, n: int) -> str:
    try:
        mask = np.asarray(result)
    except ValueError:
        mask = np.empty(0)
    if mask.dtype == bool and mask.shape == (n,):
        return ""
    what = f"{mask.dtype} of shape {list(mask.shape)}"
    return f"gave {what}; a vectorized filter gives a bool array of shape [{n}]"


class _Map:
    def __init__(self, function: _Function, schema: Fields | None) -> None:
        self._function = function
        self._fields = schema
        self._declared = schema is not None

    def fields_after(self, before: Fields | None) -> Fields | None:
        return self._fields

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        given: dict[str, Given]
        if self._function.vectorized:
            whole = self._function.over_columns(chunk, bad, lambda r: self._fault(r, len(chunk)))
            if whole is None:
                return chunk.take(slice(0, 0))
            given = dict(whole)
        else:
            names: list[str] = []  # of the first row, while none are known
            rows, results = self._function.over_rows(
                chunk, bad, lambda r: self._fault(r, None, names)
            )
            if not rows:
                return chunk.take(slice(0, 0))
            if len(rows) < len(chunk):
                chunk = chunk.take(np.array(rows, np.int64))
            given = {name: [result[name] for result in results] for name in results[0]}
        return self._collected(chunk, given, before, bad)

    def _collected(
        self, chunk: Chunk, given: Mapping[str, Given], before: Fields, bad: BadRecords
    ) -> Chunk:
        remedy = (
            "this is what its schema declares"
            if self._declared
            else "that is what its first results showed: declare schema= where results differ"
        )

        def report(row: int, name: str, text: str) -> None:
            fault = f"gave column {name!r}: {text}; {remedy}"
            bad.report(self._function.fault(chunk, row, fault), "wrong_type")

        fields, wrong = self._fields, set[int]()
        try:
            if fields is None:
                fields, wrong = learn(given, before, len(chunk), report)
                if fields is None:
                    return chunk.take(slice(0, 0))
            columns, keep = collect(given, fields, len(chunk), wrong, report)
        except DataError:
            raise
        except (ValueError, TypeError) as error:  # of a dtype that is not allowed, mostly
            fault = self._function.fault(chunk, None, f"gave no column: {error}", error)
            bad.report(fault, "wrong_type", len(chunk))
            return chunk.take(slice(0, 0))
        if keep is None:
            self._fields = fields
            return chunk.with_columns(columns)
        if len(keep):
            self._fields = fields
        return chunk.take(keep).with_columns(columns)

    def _fault(self, result: Any, n: int | None, names: list[str] | None = None) -> str:
        """The fault of a result as a whole, or ""; a vectorized one must have ``n`` rows."""
        if not isinstance(result, Mapping):
            return (
                f"gave {result!r:.60}, a {type(result).__name__}; a map gives a dict of column to "
                "value (return the dict, also where it was changed in place)"
            )
        wanted = names if self._fields is None else list(self._fields)
        if wanted and (len(result) != len(wanted) or any(name not in result for name in wanted)):
            return f"gave the columns {list(result)}; the others of this run are {wanted}"
        if not wanted:
            if fault := names_fault(result):
                return f"gave {fault}"
            if names is not None:
                names.extend(result)
        if n is None:
            return ""
        for name, value in result.items():
            try:
                rows = len(value)
            except TypeError:
                return f"gave column {name!r} of no length: {value!r:.60}; {n} rows are wanted"
            if rows != n or isinstance(value, (bytes, str, Mapping)):
                return (
                    f"gave column {name!r} as a {type(value).__name__} of length {rows}; a "
                    f"vectorized map gives as many rows as it gets, here {n}"
                )
        return ""
