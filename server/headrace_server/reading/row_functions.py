"""User functions over the rows of a chunk: those of ``map``, ``filter`` and selectors.

    chunk ─► one call for each example (or one for all) ─► results ─► checked ─► chunk

The schema of a map is declared, or inferred from the first rows that reach it and then fixed.
An example that breaks a rule (a function raises on it, or its result does not fit) is named by
its origin and goes to ``BadRecords``.  A vectorized function is responsible for all its rows:
when it raises, or does not return n rows, they are all bad.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from headrace_proto.errors import DataError, brief, kind_of

from ..pipeline.examples import names_fault
from ..pipeline.forks import own
from ..pipeline.function_names import Sent, error_with_place, resolve
from .chunk import Chunk
from .function_draws import Draws
from .reader import BadRecords, fault_of
from .user_columns import Fields, Given, Results, columns_of, examples_of


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
