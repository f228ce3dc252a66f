"""Indexed readers of sources that come in parts: files, row groups, one mapped whole.

    ordinals ──► part and row within it ──► SourcePart.read ──► chunks ──► one chunk, in order

A part reads rows by slice or by index, and leaves out those that it reported as bad.
Rows of several parts are read part by part and then put in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from headrace_proto.schema import Field
from headrace_server.reading.chunk import Chunk
from headrace_server.reading.columns import Rows
from headrace_server.reading.reader import IndexedReader


class SourcePart(Protocol):
    """Consecutive examples of a source that are read alike."""

    @property
    def rows(self) -> int:
        """Number of examples."""

    def read(self, rows: Rows) -> Chunk:
        """Return rows by slice (with start and stop) or by int64 index, in that order.

        Ordinals are the numbers of rows in the part.  It has reported those that it leaves out.
        """

    def close(self) -> None: ...


def numbers_of(rows: Rows) -> np.ndarray:
    """Return rows by index."""
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
            chunks.append(self._read(i, slice(at - base, end - base)))
            at = end
        return Chunk.join(chunks) if chunks else Chunk.empty(self.fields)

    def take(self, ordinals: np.ndarray) -> Chunk:
        ordinals = np.asarray(ordinals, np.int64)
        if not len(ordinals):
            return Chunk.empty(self.fields)
        if ordinals.min() < 0 or ordinals.max() >= self.length:
            raise IndexError(f"examples {ordinals.min()} … {ordinals.max()} of {self.length}")
        if len(self._parts) == 1:
            return self._read(0, ordinals)
        part = np.searchsorted(self._bounds, ordinals, side="right") - 1
        by_part = np.argsort(part, kind="stable")
        cuts = np.flatnonzero(np.diff(part[by_part])) + 1
        chunks, places = [], []
        for group in np.split(by_part, cuts):
            i = int(part[group[0]])
            chunk = self._read(i, ordinals[group] - self._starts[i])
            chunks.append(chunk)
            whole = len(chunk) == len(group)
            places.append(group if whole else group[np.isin(ordinals[group], chunk.ordinals)])
        joined = Chunk.join(chunks)
        if len(chunks) == 1:  # they are in order, since the sort was stable
            return joined
        return joined.take(np.argsort(np.concatenate(places)))

    def _read(self, i: int, rows: Rows) -> Chunk:
        chunk = self._parts[i].read(rows)
        return replace(chunk, ordinals=chunk.ordinals + self._starts[i]) if i else chunk

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

    def read(self, rows: Rows) -> Chunk:
        if isinstance(rows, slice):
            chunk = self._reader.slice(rows.start + self._start, rows.stop + self._start)
        else:
            chunk = self._reader.take(rows + self._start)
        columns = {name: chunk.columns[name] for name in self._names}
        return replace(chunk, columns=columns, ordinals=chunk.ordinals - self._start)

    def close(self) -> None:
        self._reader.close()
