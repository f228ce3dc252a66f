"""Indexed readers of sources that come in parts: files, row groups, one mapped whole.

    ordinals ──► part and row within it ──► SourcePart.read ──► columns ──► one chunk, in order

A part reads rows by slice or by index and gives those that it kept; it has reported the rest.
Rows of several parts are read part by part and then put in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from headrace_proto.schema import Field
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import Column, Rows
from headrace_server.reading.reader import IndexedReader


class KeptRows(NamedTuple):
    """The rows that a part kept: columns, origin, and their places among the rows asked for."""

    columns: Mapping[str, Column]
    origin: Origin
    which: np.ndarray | None = None  # int64, positions within the rows asked; None: all

    def of(self, asked: np.ndarray) -> np.ndarray:
        """The numbers, among those of the rows asked for, of the rows that were kept."""
        return asked if self.which is None else asked[self.which]


class SourcePart(Protocol):
    """Consecutive examples of a source that are read alike."""

    @property
    def rows(self) -> int:
        """Number of examples."""

    def read(self, rows: Rows) -> KeptRows:
        """Rows by slice (with start and stop) or by int64 index, in that order."""

    def close(self) -> None: ...


def numbers_of(rows: Rows) -> np.ndarray:
    """Rows by index."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows


class PartsReader:
    """An IndexedReader over parts."""

    def __init__(self, fields: Mapping[str, Field], parts: Sequence[SourcePart]) -> None:
        self.fields: Mapping[str, Field] = dict(fields)
        self._parts = [part for part in parts if part.rows]
        self._all_parts = list(parts)
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + part.rows)
        self._bounds = np.array(self._starts, np.int64)

    @property
    def length(self) -> int:
        return self._starts[-1]

    def slice(self, start: int, stop: int) -> Chunk:
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"examples {start} … {stop - 1} of {self.length}")
        chunks = []
        at = start
        while at < stop:
            i = bisect_right(self._starts, at) - 1
            base, end = self._starts[i], min(stop, self._starts[i + 1])
            kept = self._parts[i].read(slice(at - base, end - base))
            ordinals = np.arange(at, end)
            chunks.append(_chunk(kept, ordinals))
            at = end
        return Chunk.join(chunks) if chunks else Chunk.empty(self.fields)

    def take(self, ordinals: np.ndarray) -> Chunk:
        ordinals = np.asarray(ordinals, np.int64)
        if not len(ordinals):
            return Chunk.empty(self.fields)
        if ordinals.min() < 0 or ordinals.max() >= self.length:
            raise IndexError(f"examples {ordinals.min()} … {ordinals.max()} of {self.length}")
        if len(self._parts) == 1:
            return _chunk(self._parts[0].read(ordinals), ordinals)
        part = np.searchsorted(self._bounds, ordinals, side="right") - 1
        by_part = np.argsort(part, kind="stable")
        cuts = np.flatnonzero(np.diff(part[by_part])) + 1
        chunks, places = [], []
        for group in np.split(by_part, cuts):
            i = int(part[group[0]])
            kept = self._parts[i].read(ordinals[group] - self._starts[i])
            chunks.append(_chunk(kept, ordinals[group]))
            places.append(kept.of(group))
        joined = Chunk.join(chunks)
        if len(chunks) == 1:  # the sort was stable: they are in order
            return joined
        return joined.take(np.argsort(np.concatenate(places)))

    def close(self) -> None:
        for part in self._all_parts:
            part.close()


class ReaderPart:
    """The examples start … stop - 1 of another reader as a part, with columns in an order."""

    def __init__(
        self,
        reader: IndexedReader,
        names: Iterable[str],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        stop = reader.length if stop is None else min(stop, reader.length)
        self._reader, self._names, self._start = reader, list(names), min(start, stop)
        self.rows = stop - self._start

    def read(self, rows: Rows) -> KeptRows:
        if isinstance(rows, slice):
            chunk = self._reader.slice(rows.start + self._start, rows.stop + self._start)
        else:
            chunk = self._reader.take(rows + self._start)
        columns, asked = {name: chunk.columns[name] for name in self._names}, numbers_of(rows)
        whole = len(chunk) == len(asked)
        which = None if whole else np.isin(asked + self._start, chunk.ordinals).nonzero()[0]
        return KeptRows(columns, chunk.origin, which)

    def close(self) -> None:
        self._reader.close()


def _chunk(kept: KeptRows, ordinals: np.ndarray) -> Chunk:
    return Chunk(kept.columns, kept.of(ordinals), kept.origin)
