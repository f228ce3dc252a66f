"""User functions over the rows of a chunk: those of ``map``, ``filter`` and selectors.

    chunk ─► one call for each example (or one for all) ─► results ─► checked ─► chunk

The schema of a map is declared, or inferred from the first rows that reach it and then fixed.
An example that breaks a rule (a function raises on it, or its result does not fit) is named by
its origin and goes to ``BadRecords``.  A vectorized function is responsible for all its rows:
when it raises, or does not return n rows, they are all bad.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError, brief, kind_of, rewording
from headrace_server.pipeline.declaration import unbatched_field
from headrace_server.pipeline.examples import names_fault
from headrace_server.pipeline.forks import own
from headrace_server.pipeline.function_names import Sent, error_with_place, resolve
from headrace_server.reading.chunk import Chunk
from headrace_server.reading.columns import Column, Ragged
from headrace_server.reading.reader import BadRecords, Faults, fault_of, without
from headrace_server.reading.user_columns import Fields, Given, Results, columns_of, examples_of
from headrace_server.shaping import chance
from headrace_server.shaping.row_copies import copy_ordinals

# ── Random generators for user functions: one for each example, independent of earlier draws.
#
#     seed, stage, epoch ─► key of Philox ─┐
#     ordinal ─► its counter ──────────────┴─► Generator: 2**128 numbers that no other example has
#
# Each call gets a new generator, so a resume and a retry draw the same numbers.


class Draws:
    """The generators of one stage; ``stage`` distinguishes stages of one seed."""

    def __init__(self, seed: int, stage: int) -> None:
        self._seed = chance.derive(seed, chance.MAPS, stage)
        #: The pass over the data to which the next chunk belongs.
        self.epoch = 0

    def generator(self, ordinal: int) -> np.random.Generator:
        """Return the generator of one example."""
        key = chance.key(self._seed, chance.MAPS, self.epoch)
        counter = np.array([0, 0, ordinal & (2**64 - 1), 0], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class RowFunction:
    """A user function, and the texts of its faults."""

    def __init__(
        self,
        name: str | Sent,
        label: str,
        reason: str,
        vectorized: bool = False,
        draws: Draws | None = None,
    ) -> None:
        """ImportError where there is none.  ``label`` names it in errors, ``reason`` in counts."""
        function = own(resolve)(name)
        if not callable(function):
            raise ImportError(f"{label} is {kind_of(function)}, not a function")
        self.call: Callable[..., Any] = own(function)
        self.name, self.label, self.reason = str(name), label, reason
        self.vectorized, self.draws = vectorized, draws

    def fault(
        self, chunk: Chunk, row: int | None, text: str, cause: Exception | None = None
    ) -> DataError:
        """Return the fault of a row, or (None) of the whole chunk."""
        return fault_of(chunk, row, f"{self.label} {text}", cause)

    def _tried(self, check: Callable[[Any], str], *given: Any) -> tuple[Any, str, Exception | None]:
        """Return the result, its fault or "", and the exception that was raised instead."""
        try:
            result = self.call(*given)
        except Exception as error:
            return None, f"raised {error_with_place(error)}", error
        return result, check(result), None

    def over_rows(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[Any], str]
    ) -> tuple[list[int], list[Any]]:
        """Return the rows whose results pass ``check``, and these results."""
        rows, results = [], []
        progress, draws = bad.progress, self.draws
        bad.enters(self.name)
        for i, example in enumerate(examples_of(chunk)):
            progress()
            drawn = () if draws is None else (draws.generator(int(chunk.ordinals[i])),)
            result, fault, cause = self._tried(check, example, *drawn)
            if fault:
                bad.report(self.fault(chunk, i, fault, cause), self.reason)
                continue
            rows.append(i)
            results.append(result)
        bad.enters("")
        return rows, results

    def over_columns(
        self, chunk: Chunk, bad: BadRecords, check: Callable[[Any], str]
    ) -> Any | None:
        """Return the function's result for the whole chunk; None for a bad one, which it reports.

        It gets the generator of the chunk's first example: where a seed is declared, each read is a
        group of a fixed number of examples.
        """
        draws = self.draws
        drawn = () if draws is None else (draws.generator(int(chunk.ordinals[0])),)
        bad.enters(self.name)
        result, fault, cause = self._tried(check, columns_of(chunk), *drawn)
        bad.enters("")
        if not fault:
            return result
        bad.report(self.fault(chunk, None, fault, cause), self.reason, len(chunk))
        return None


class Filter:
    def __init__(self, function: RowFunction, counts: Counter[str]) -> None:
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
        self._counts["filtered"] += judged - len(keep)
        return chunk if len(keep) == len(chunk) else chunk.take(keep)


def _verdict_fault(result: Any) -> str:
    if isinstance(result, (bool, np.bool_)):
        return ""
    if isinstance(result, np.ndarray) and result.dtype == bool and result.ndim == 0:
        return ""
    return f"gave {brief(result)}, {kind_of(result)}; a filter gives True or False"


def _mask_fault(result: Any, n: int) -> str:
    try:
        mask = np.asarray(result)
    except Exception:
        mask = np.empty(0)
    if mask.dtype == bool and mask.shape == (n,):
        return ""
    what = f"{mask.dtype} of shape {list(mask.shape)}"
    return f"gave {what}; a vectorized filter gives a bool array of shape [{n}]"


class Map:
    def __init__(self, function: RowFunction, schema: Fields | None) -> None:
        self._function = function
        remedy = (
            "this is what its schema declares"
            if schema is not None
            else "that is what its first results showed: declare schema= where results differ"
        )
        self._results = Results(schema, f"{function.label} gave ", f"; {remedy}")
        self.draws = function.draws

    def fields_after(self, before: Fields | None) -> Fields | None:
        return self._results.fields

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        given: dict[str, Given]
        if self._function.vectorized:
            whole = self._function.over_columns(chunk, bad, lambda r: self.fault(r, len(chunk)))
            if whole is None:
                return chunk.take(slice(0, 0))
            given = dict(whole)
        else:
            names: list[str] = []  # names of the first row, while no schema is known
            rows, results = self._function.over_rows(
                chunk, bad, lambda r: self.fault(r, None, names)
            )
            if not rows:
                return chunk.take(slice(0, 0))
            if len(rows) < len(chunk):
                chunk = chunk.take(np.array(rows, np.int64))
            given = {name: [result[name] for result in results] for name in results[0]}
        return self._results.put(chunk, given, before, bad)

    def fault(self, result: Any, n: int | None, names: list[str] | None = None) -> str:
        """Return the fault of a result as a whole, or ""; a vectorized one must have ``n`` rows."""
        if not isinstance(result, Mapping):
            return (
                f"gave {brief(result)}, {kind_of(result)}; a map gives a dict of column to "
                "value (return the dict, also where it was changed in place)"
            )
        wanted = names if self._results.fields is None else list(self._results.fields)
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
            except Exception:
                return f"gave column {name!r} of no length: {brief(value)}; {n} rows are wanted"
            if rows != n or isinstance(value, (bytes, str, Mapping)):
                return (
                    f"gave column {name!r} as {kind_of(value)} of length {rows}; a "
                    f"vectorized map gives as many rows as it gets, here {n}"
                )
        return ""


# ── Stages that make several rows of one example: ``flat_map`` and ``unbatch``.
#
#     example 7 ─► flat_map ─► outputs 0, 1, 2 ─► rows of ordinals  7, hash(7, 1), hash(7, 2)
#
# Outputs stand side by side, in the order of their examples, and bear the origin of their example.
# The first keeps its ordinal and the others have a hash of ordinal, stage and output: so chance
# that is keyed by ordinals differs between outputs, and depends on no other example.  A position is
# that of a read, and a plan names rows of it: a resume between two outputs unfolds the chunk again.


#: Rows of one example: more are a function without an end.
MAX_OUTPUTS: Final = 2**20
#: Rows of one chunk: as many weigh 128 MiB as row numbers alone.
_MOST_ROWS: Final = 2**24


def _unfolded(chunk: Chunk, counts: np.ndarray, stage: int) -> Chunk:
    """Return every row as often as it has outputs, with their ordinals."""
    taken = chunk.take(np.repeat(np.arange(len(chunk)), counts))
    return replace(taken, ordinals=copy_ordinals(chunk.ordinals, counts, stage))


class FlatMap(Map):
    """A function of the user's that gives any number of examples for one."""

    def __init__(
        self, function: RowFunction, schema: Fields | None, stage: int, counts: Counter[str]
    ) -> None:
        super().__init__(function, schema)
        function.call = _listed(function.call)
        self._stage, self._counts = stage, counts

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        names: list[str] = []  # of the first output, while none are known
        rows, results = self._function.over_rows(chunk, bad, lambda r: self._fault_of(r, names))
        counts = np.array([len(outputs) for outputs in results], np.int64)
        self._counts["no_output"] += int((counts == 0).sum())
        listed = [output for outputs in results for output in outputs]
        if not listed:
            return chunk.take(slice(0, 0))
        chunk = chunk.take(np.array(rows, np.int64))
        _check_rows(chunk, counts, "flat_map")
        given = {name: [output[name] for output in listed] for name in listed[0]}
        return self._results.put(_unfolded(chunk, counts, self._stage), given, before, bad)

    def _fault_of(self, outputs: Any, names: list[str]) -> str:
        """Return the fault of the outputs of one example, or ""."""
        if not isinstance(outputs, list):
            return (
                f"gave {brief(outputs)}, {kind_of(outputs)}; a flat_map gives a list (or "
                "another iterable) of dicts of column to value"
            )
        if len(outputs) > MAX_OUTPUTS:
            return f"gave more than {MAX_OUTPUTS} outputs for one example"
        seen = list(names)
        for i, output in enumerate(outputs):
            if fault := self.fault(output, None, seen):
                return f"as output {i} {fault}"
        names[:] = seen
        return ""


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with its outputs as a list, at most one more than are allowed."""

    def call(*given: Any) -> Any:
        outputs = function(*given)
        if isinstance(outputs, (str, bytes, Mapping)) or not isinstance(outputs, Iterable):
            return outputs
        return list(islice(outputs, MAX_OUTPUTS + 1))

    return call


class Unbatch:
    """The rows of examples that have a batch dimension."""

    def __init__(self, stage: int, counts: Counter[str]) -> None:
        self._stage, self._counts = stage, counts

    def fields_after(self, before: Fields | None) -> Fields | None:
        if before is None:
            return None
        with rewording(DataError, "", ValueError):
            return {name: unbatched_field(name, field) for name, field in before.items()}

    def apply(self, chunk: Chunk, before: Fields, bad: BadRecords) -> Chunk:
        self.fields_after(before)  # DataError for a column without rows
        chunk, counts = self._alike(chunk, bad)
        _check_rows(chunk, counts, "unbatch")
        self._counts["no_output"] += int((counts == 0).sum())
        columns = {name: _rows_of(column) for name, column in chunk.columns.items()}
        bare = chunk.with_columns({})
        return _unfolded(bare, counts, self._stage).with_columns(columns)

    def _alike(self, chunk: Chunk, bad: BadRecords) -> tuple[Chunk, np.ndarray]:
        """Return the examples whose columns agree in their rows, and the counts; report others."""
        counts = {name: _lengths(column) for name, column in chunk.columns.items()}
        first, *others = counts
        faults: Faults = {}
        for name in others:
            for row in np.flatnonzero(counts[name] != counts[first]).tolist():
                text = (
                    f"unbatch: column {name!r} has {counts[name][row]} rows and {first!r} has "
                    f"{counts[first][row]}; all columns of an example have as many"
                )
                faults.setdefault(row, ("unequal_rows", text))
        return without(chunk, faults, bad), np.delete(counts[first], list(faults))


def _check_rows(chunk: Chunk, counts: np.ndarray, kind: str) -> None:
    if int(counts.sum()) > _MOST_ROWS:
        row = int(counts.argmax())
        raise DataError(
            f"{chunk.origin.describe(row)}: {kind} makes {counts.sum()} rows of {len(chunk)} "
            f"examples, and {counts[row]} of this one; at most {_MOST_ROWS} can be at once"
        )


def _lengths(column: Column) -> np.ndarray:
    if isinstance(column, Ragged):
        return column.lengths
    return np.full(len(column), column.shape[1], np.int64)


def _rows_of(column: Column) -> Column:
    """Return the rows of all examples, one after the other.

    Payload is copied only where rows of a fixed shape lie apart.
    """
    if not isinstance(column, Ragged):
        n, rows, *inner_dims = column.shape
        return column.reshape(n * rows, *inner_dims)
    counts, inner = column.extents[:, 0], column.inner
    total = int(counts.sum())
    if column.extents.shape[1] > 1:
        extents = np.repeat(column.extents[:, 1:], counts, axis=0)
        sizes = np.prod(column.extents[:, 1:], axis=1, dtype=np.int64) * prod(inner)
        number = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        starts = np.repeat(column.starts, counts) + number * np.repeat(sizes * column.unit, counts)
        return replace(column, starts=starts, extents=extents)
    return column.values().reshape(total, *inner)
