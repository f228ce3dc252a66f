"""Stages that make several rows of one example: ``flat_map`` and ``unbatch``.

    example 7 ─► flat_map ─► outputs 0, 1, 2 ─► rows of ordinals  7, hash(7, 1), hash(7, 2)

Outputs stand side by side, in the order of their examples, and bear the origin of their example.
The first keeps its ordinal and the others have a hash of ordinal, stage and output: so chance that
is keyed by ordinals differs between outputs, and depends on no other example.  A position is that
of a read, and a plan names rows of it: a resume between two outputs unfolds the chunk again.
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

from ..core.row_copies import copy_ordinals
from ..pipeline.declaration import unbatched_field
from .chunk import Chunk
from .columns import Column, Ragged
from .reader import BadRecords, Faults, without
from .row_functions import Map, RowFunction
from .user_columns import Fields

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
