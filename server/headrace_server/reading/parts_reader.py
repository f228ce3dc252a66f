"""Indexed readers of sources that come in parts: files, row groups, one mapped whole.

    rows ──► part and rows within it ──► its take ──► chunks ──► one chunk, in order

A part is an IndexedSource, which needs no fields: it leaves out the rows that it reported as bad.
Rows of several parts are read part by part and then put in order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from headrace_proto.schema import Field
from headrace_server.reading.chunk import Chunk
from headrace_server.reading.columns import Rows
from headrace_server.reading.source import IndexedSource


def _moved(rows: Rows, by: int) -> Rows:
    return slice(rows.start + by, rows.stop + by) if isinstance(rows, slice) else rows + by


class PartsReader(IndexedSource):
    """An IndexedSource over parts."""

    def __init__(self, fields: Mapping[str, Field], parts: Sequence[IndexedSource]) -> None:
        self.fields: Mapping[str, Field] = dict(fields)
        self._parts = [part for part in parts if part.length]
        self._all_parts = list(parts)
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + part.length)
        self._bounds = np.array(self._starts, np.int64)
        self.length = self._starts[-1]

    def take(self, rows: Rows) -> Chunk:
        if isinstance(rows, slice):
            first, stop = rows.start, rows.stop
        else:
            rows = np.asarray(rows, np.int64)
            first, stop = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
        if not 0 <= first <= stop <= self.length:
            raise IndexError(f"examples {first} … {stop - 1} of {self.length}")
        if first == stop:
            return Chunk.empty(self.fields)
        low, high = bisect_right(self._starts, first) - 1, bisect_left(self._starts, stop)
        if high - low == 1:
            return self._read(low, rows)
        if isinstance(rows, slice):
            bounds = [first, *self._starts[low + 1 : high], stop]
            pieces = enumerate(map(slice, bounds, bounds[1:]), low)
            return Chunk.join([self._read(i, piece) for i, piece in pieces])
        part = np.searchsorted(self._bounds, rows, side="right") - 1
        by_part = np.argsort(part, kind="stable")
        cuts = np.flatnonzero(np.diff(part[by_part])) + 1
        chunks, places = [], []
        for group in np.split(by_part, cuts):
            chunk = self._read(int(part[group[0]]), rows[group])
            chunks.append(chunk)
            whole = len(chunk) == len(group)
            places.append(group if whole else group[np.isin(rows[group], chunk.ordinals)])
        return Chunk.join(chunks).take(np.argsort(np.concatenate(places)))

    def _read(self, i: int, rows: Rows) -> Chunk:
        start = self._starts[i]
        chunk = self._parts[i].take(_moved(rows, -start) if start else rows)
        return replace(chunk, ordinals=chunk.ordinals + start) if start else chunk

    def close(self) -> None:
        for part in self._all_parts:
            part.close()


class ReaderPart(IndexedSource):
    """The examples start … stop - 1 of another reader as a part, with columns in an order."""

    def __init__(
        self,
        reader: IndexedSource,
        names: Iterable[str],
        start: int = 0,
        stop: int | None = None,
    ) -> None:
        stop = reader.length if stop is None else min(stop, reader.length)
        self._reader, self._names, self._start = reader, list(names), min(start, stop)
        self.length = stop - self._start

    def take(self, rows: Rows) -> Chunk:
        chunk = self._reader.take(_moved(rows, self._start))
        columns = {name: chunk.columns[name] for name in self._names}
        return replace(chunk, columns=columns, ordinals=chunk.ordinals - self._start)

    def close(self) -> None:
        self._reader.close()
