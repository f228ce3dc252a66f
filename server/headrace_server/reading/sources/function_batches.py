"""Examples from a user function that yields many at once: dicts of arrays ``[n, …]``.

    {"x": [n, 3], "y": [n]} ─► columns, one copy of each array ─► chunks

A position is the number of the batch, the row in it and the number of rows before it.  A batch
whose columns differ in rows, or that does not fit the schema, is bad as a whole; single rows that
do not fit are bad alone.  The arrays are copied, since a generator may reuse them for its next
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError, brief, kind_of
from headrace_server.pipeline.declaration import Feature
from headrace_server.pipeline.examples import names_fault
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import repeated
from headrace_server.reading.declared_types import defaults_of
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.user_columns import Fields, Results

from .factory import Factory, raised
from .forward_files import NOTHING_AFTER
from .record_streams import Place, Streams

#: Maximum number of rows of one batch: their numbers alone take 128 MiB.
MAX_ROWS: Final = 2**24


def batch_streams(
    factory: Factory, features: Mapping[str, Feature] | None, bad: BadRecords
) -> Streams:
    """Return a stream for each shard."""
    streams = factory.shards or 1
    batches = _Batches(factory.name, features)
    if features is None:
        _learn(batches, factory, streams)

    def walk(stream: int, place: Place) -> _Walk:
        return _Walk(batches, factory, stream, place, bad)

    return Streams(batches.fields, streams, walk, most_open=streams)


class _Batches:
    """Makes chunks of the batches of a function."""

    def __init__(self, name: str, features: Mapping[str, Feature] | None) -> None:
        self.name = name
        self._defaults = defaults_of(features or {})
        fields = None if features is None else {n: f.field for n, f in features.items()}
        remedy = "" if features is not None else "; declare the features of the source"
        self._results = Results(fields, "", remedy)

    @property
    def fields(self) -> Fields:
        """The declared fields, or those that the first batch with rows showed."""
        return self._results.fields or {}

    def chunk(self, given: Any, place: Place, bad: BadRecords) -> tuple[Chunk, int]:
        """Return the fitting rows of a batch, and the number of all rows; report the others."""
        where = f"{self.name}, batch {place.record}"
        fault, n = _shape_fault(given)
        fault = fault or self._names_fault(given)
        if fault:
            bad.report(DataError(f"{where}: {fault}"), "wrong_type", max(1, n))
            return self.nothing(), n
        ordinals = place.row + np.arange(n)
        chunk = Chunk({}, ordinals, Origin.single(self.name, ordinals))
        own = {name: given[name] for name in self.fields or given if name in given}
        values = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in own.items()}
        for name in self._defaults.keys() - given.keys():
            values[name] = repeated(self._defaults[name], n)

        chunk = self._results.put(chunk, values, {}, bad, where) if n else chunk
        return (chunk if len(chunk) else self.nothing()), n

    def nothing(self) -> Chunk:
        """Return a chunk without rows."""
        return Chunk.empty(self.fields, self.name)

    def _names_fault(self, given: Mapping[str, Any]) -> str:
        """Return the fault of the names of a batch's columns, or ""."""
        fields = self.fields
        for name in fields:
            if name not in given and name not in self._defaults:
                return f"it has no column {name!r}, only {', '.join(given)}"
        if fields and not self._results.declared and (more := given.keys() - fields.keys()):
            return f"the first batch has no column {min(more)!r}; declare the features"
        return ""


def _learn(batches: _Batches, factory: Factory, streams: int) -> None:
    """Learn the fields from the first batch with rows, which is read once more in its turn."""
    for number, given in factory.first_examples(streams, "batch"):
        if isinstance(given, DataError):
            raise given
        batches.chunk(given, Place(0, number), BadRecords())
        if batches.fields:
            return
    raise DataError(f"{factory.name} gives no batch with rows: declare the features")


class _Walk:
    """A walk over the rows of batches.

    In its place ``record`` is the number of the batch, ``byte`` the row in it, and ``row`` the
    number of rows of the stream before it.
    """

    def __init__(
        self, batches: _Batches, factory: Factory, stream: int, place: Place, bad: BadRecords
    ) -> None:
        self.place, self._batches, self._bad = place, batches, bad
        self._iterator = factory.iterator(stream, place.record)
        self._batch: Chunk | None = None  # once it was read
        self._rows = 0  # of the batch, including bad ones

    def read(self, limit: int) -> tuple[Chunk, bool]:
        parts: list[Chunk] = []
        goes_on = True
        while limit and (goes_on := self._batch is not None or self._fill()):
            part = self._next_rows(limit)
            limit -= len(part)
            if len(part):
                parts.append(part)
        return Chunk.join(parts) if parts else self._batches.nothing(), goes_on

    def _fill(self) -> bool:
        """Read the next batch; return False at the end."""
        self._bad.progress()
        self._bad.enters(self._batches.name)
        try:
            given = next(self._iterator)
        except StopIteration:
            return False
        except Exception as error:  # a generator that raised is finished
            where = f"{self._batches.name}, batch {self.place.record}"
            self._bad.report(DataError(f"{where}: {raised(error)}{NOTHING_AFTER}"))
            return False
        self._batch, self._rows = self._batches.chunk(given, self.place, self._bad)
        return True

    def _next_rows(self, limit: int) -> Chunk:
        """Return the next rows of the batch."""
        assert self._batch is not None
        start, number, before = self.place
        stop = min(len(self._batch), start + limit)
        chunk = self._batch.take(slice(start, stop))
        if stop < len(self._batch):
            self.place = Place(stop, number, before)
        else:
            self.place, self._batch = Place(0, number + 1, before + self._rows), None
        return chunk

    def close(self) -> None:
        """Do nothing: no file is open."""


def _shape_fault(given: Any) -> tuple[str, int]:
    """Return the fault of a batch's form, or "", and its number of rows."""
    if not isinstance(given, Mapping):
        return f"{brief(given)} is {kind_of(given)}, not a dict of columns", 0
    if fault := names_fault(given):
        return f"it has {fault}", 0
    lengths: dict[str, int] = {}
    for name, column in given.items():
        sized = hasattr(column, "__len__") and not isinstance(column, (str, bytes, Mapping))
        if not sized or (isinstance(column, np.ndarray) and not column.ndim):
            kind = kind_of(column)
            return f"column {name!r} is {brief(column, 40)}, {kind}; it must be an array [n, …]", 0
        try:
            lengths[name] = len(column)
        except Exception as error:
            return f"column {name!r}, {kind_of(column)}, has no length: {error}", 0
    n = max(lengths.values())
    if min(lengths.values()) != n:
        return f"its columns have unequal numbers of rows: {lengths}", n
    if n > MAX_ROWS:
        return f"it has {n} rows; at most {MAX_ROWS} can be in a batch", n
    return "", n
