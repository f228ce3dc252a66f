"""``unbatch``: an example of each row of examples that have a batch dimension."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from headrace_proto.errors import DataError, rewording

from ...pipeline.declaration import unbatched_field
from ..chunk import BadRecords, Chunk, Faults, without
from ..columns import Column, Ragged
from ..stage import Fields, Stage


class Unbatch(Stage):
    """The rows of examples, in the order of their examples."""

    repeatable = True

    def fields_after(self, before: Fields | None) -> Fields | None:
        if before is None:
            return None
        with rewording(DataError, "", ValueError):
            return {name: unbatched_field(name, field) for name, field in before.items()}

    def apply(self, chunk: Chunk, bad: BadRecords) -> Chunk:
        chunk, counts = self._alike(chunk, bad)
        unfolded = self.repeated(chunk.with_columns({}), counts)
        self.counts["no_output"] += int((counts == 0).sum())
        return unfolded.with_columns({n: _rows_of(column) for n, column in chunk.columns.items()})

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
