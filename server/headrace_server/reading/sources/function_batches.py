"""Examples from a function of the user's that gives many at once: dicts of arrays ``[n, …]``.

    {"x": [n, 3], "y": [n]} ─► columns, one copy of each array ─► chunks

A position is the number of the batch, the row in it and the rows before it.  A batch of which
columns differ in rows, or that does not fit the schema, is bad as a whole; single rows that do not
fit are bad alone.  The arrays are copied, since a generator may fill them again for its next batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.pipeline.declaration import Feature
from headrace_server.pipeline.examples import names_fault
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import take
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.user_columns import collect, learn

from .declared_columns import default_column
from .factory import Factory, raised
from .record_streams import Place

#: Rows of one batch: their numbers alone weigh 128 MiB.
MAX_ROWS: Final = 2**24
#: Batches that are looked at for one with rows, which shows the columns.
_PROBED: Final = 64


@dataclass(slots=True)
class _Walk:
    """An iterator, the place of the next row, and the batch that holds it once it was read."""

    place: Place  # record: of the batch; byte: the row in it; row: the rows of the stream before it
    batches: Iterator[Any]
    batch: Chunk | None = None
    rows: int = 0  # of the batch, those that are bad included


class FunctionBatches:
    """A StreamReader over what a function gives for each of its shards."""

    def __init__(
        self, factory: Factory, features: Mapping[str, Feature] | None, bad: BadRecords
    ) -> None:
        self._factory, self._bad = factory, bad
        self.streams = factory.shards or 1
        self._defaults = {
            name: default_column(name, feature)
            for name, feature in (features or {}).items()
            if feature.has_default
        }
        self._declared = features is not None
        if features is not None:
            self.fields: Mapping[str, Field] = {n: f.field for n, f in features.items()}
        else:
            self.fields = self._learnt()
        self._walks: dict[int, _Walk] = {}

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        place = Place.unpacked(position)
        walk = self._walks.pop(stream, None)
        if walk is None or walk.place != place:
            walk = _Walk(place, self._factory.iterator(stream, place.record))
        parts: list[Chunk] = []
        left = limit
        while left:
            if walk.batch is None and not self._fill(walk):
                return self._joined(parts), None
            parts.append(self._rows(walk, left))
            left -= len(parts[-1])
        self._walks[stream] = walk
        return self._joined(parts), walk.place.packed()

    def _fill(self, walk: _Walk) -> bool:
        """Read the batch of a walk; False at its end."""
        self._bad.progress()
        try:
            given = next(walk.batches)
        except StopIteration:
            return False
        except Exception as error:  # a generator that raised gives nothing more
            self._bad.report(DataError(f"{self._where(walk)}: {raised(error)}"))
            return False
        walk.batch = self._batch(walk, given)
        return True

    def _rows(self, walk: _Walk, limit: int) -> Chunk:
        """The next rows of a walk's batch."""
        assert walk.batch is not None
        start, number, before = walk.place.byte, walk.place.record, walk.place.row
        stop = min(len(walk.batch), start + limit)
        chunk = walk.batch.take(slice(start, stop))
        if stop < len(walk.batch):
            walk.place = Place(stop, number, before)
        else:
            walk.place, walk.batch = Place(0, number + 1, before + walk.rows), None
        return chunk

    def _joined(self, parts: list[Chunk]) -> Chunk:
        full = [part for part in parts if len(part)]
        return Chunk.join(full) if full else self._nothing()

    def _batch(self, walk: _Walk, given: Any) -> Chunk:
        """The rows of a batch that fit; those that do not are reported."""
        where = self._where(walk)
        fault, n = _shape_fault(given)
        fault, walk.rows = fault or self._columns_fault(given), n
        if fault:
            self._bad.report(DataError(f"{where}: {fault}"), "wrong_type", max(1, n))
            return self._nothing()
        ordinals = walk.place.row + np.arange(n)
        origin = Origin.single(self._factory.name, ordinals)

        def report(row: int, name: str, text: str) -> None:
            remedy = "" if self._declared else "; declare the features of the source"
            error = f"{where}, row {row}, column {name!r}: {text}{remedy}"
            self._bad.report(DataError(error), "wrong_type")

        none = np.zeros(n, np.int64)
        values = {
            name: _own(given[name]) if name in given else take(self._defaults[name], none)
            for name in self.fields
        }
        try:
            columns, keep = collect(values, self.fields, n, set(), report)
        except DataError:
            raise
        except (ValueError, TypeError) as error:
            self._bad.report(DataError(f"{where}: {error}"), "wrong_type", n)
            return self._nothing()
        if keep is not None:
            ordinals, origin = ordinals[keep], origin.take(keep)
        return Chunk(columns, ordinals, origin)

    def _columns_fault(self, given: Mapping[str, Any]) -> str:
        """The fault of the names of a batch's columns, or ""."""
        for name in self.fields:
            if name not in given and name not in self._defaults:
                return f"it has no column {name!r}, only {', '.join(given)}"
        if not self._declared and (more := given.keys() - self.fields.keys()):
            return f"the first batch has no column {min(more)!r}; declare the features"
        return ""

    def _learnt(self) -> Mapping[str, Field]:
        """The fields that the first batch with rows shows; it is read once more in its turn."""
        name = self._factory.name
        for stream in range(self.streams):
            batches = self._factory.iterator(stream, 0)
            seen: list[Any] = []
            try:
                for given in islice(batches, _PROBED):
                    seen.append(given)
                    fault, n = _shape_fault(given)
                    if fault:
                        raise DataError(f"{name}, batch {len(seen) - 1}: {fault}")
                    if n:
                        self._factory.made[stream] = chain(seen, batches)
                        return _shown(given, n, f"{name}, batch {len(seen) - 1}")
            except DataError:
                raise
            except Exception as error:
                raise DataError(f"{name}, batch {len(seen)}: {raised(error)}") from error
            self._factory.made[stream] = chain(seen, batches)
        raise DataError(f"{name} gives no batch with rows: declare the features")

    def _where(self, walk: _Walk) -> str:
        return f"{self._factory.name}, batch {walk.place.record}"

    def _nothing(self) -> Chunk:
        return Chunk.empty(self.fields, self._factory.name)

    def close(self) -> None:
        self._walks.clear()


def _shape_fault(given: Any) -> tuple[str, int]:
    """The fault of a batch that is no dict of columns of as many rows, or "", and its rows."""
    if not isinstance(given, Mapping):
        return f"{given!r:.60} is a {type(given).__name__}, not a dict of columns", 0
    if fault := names_fault(given):
        return f"it has {fault}", 0
    lengths: dict[str, int] = {}
    for name, column in given.items():
        sized = hasattr(column, "__len__") and not isinstance(column, (str, bytes, Mapping))
        if not sized or (isinstance(column, np.ndarray) and not column.ndim):
            kind = type(column).__name__
            return f"column {name!r} is {column!r:.40}, a {kind}; it must be an array [n, …]", 0
        try:
            lengths[name] = len(column)
        except Exception as error:
            return f"column {name!r}, a {type(column).__name__}, has no length: {error}", 0
    n = max(lengths.values())
    if min(lengths.values()) != n:
        return f"its columns have unequal numbers of rows: {lengths}", n
    if n > MAX_ROWS:
        return f"it has {n} rows; at most {MAX_ROWS} can be in a batch", n
    return "", n


def _shown(given: Mapping[str, Any], n: int, where: str) -> Mapping[str, Field]:
    """The fields that a batch shows."""

    def report(row: int, name: str, text: str) -> None:
        raise DataError(f"{where}, row {row}, column {name!r}: {text}")

    try:
        fields, _ = learn(given, {}, n, report)
    except DataError:
        raise
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: {error}") from None
    assert fields is not None  # it has rows, and the fault of one is raised
    return fields


def _own(column: Any) -> Any:
    return column.copy() if isinstance(column, np.ndarray) else column
