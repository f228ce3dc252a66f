"""Examples from a function of the user's: ``factory(*args, **kwargs)`` gives dicts.

    a sequence (len and [i])     IndexedReader: exact shuffling, any position at once
    anything else iterable       StreamReader: a position is the number of examples given
    with shards=n                n streams: the factory is called for each, with ``shard`` and,
                                 where it takes that, ``num_shards``

A start in the middle of an iterable calls the factory again and throws away what was given before:
the cost of a resumed run grows with its position.  An object with ``iter_from(n)`` is asked for
the iterator from example n on instead.  Iterables must give the same examples each time.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from headrace_proto.errors import DataError
from headrace_proto.schema import Field
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Source
from headrace_server.pipeline.forks import own, own_iterator
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.reader import BadRecords, Reader

from .inference import PROBED
from .parts import Kept, PartsReader, Rows, empty_columns
from .rows import Layout, layout_of
from .streams import Place

__all__ = ["open_reader"]


def open_reader(
    source: Source, files: tuple[DataFile, ...], bad: BadRecords, cache: IndexCache
) -> Reader:
    from headrace_server.pipeline.naming import resolve

    del files, cache
    options = source.options
    name = options["function"]
    factory = _Factory(
        name,
        own(resolve)(name),
        tuple(options.get("args") or ()),
        dict(options.get("kwargs") or {}),
        options.get("shards"),
    )
    if factory.shards is not None:
        return _Streams(factory, {}, source, bad)
    made = factory.make(0)
    if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
        return _Streams(factory, {0: made}, source, bad)
    part = _SequencePart(name, made, bad)
    part.layout = layout_of(source.features, lambda: part.probe(PROBED))
    return PartsReader(part.layout.fields, [part])


class _Factory:
    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        shards: int | None,
    ) -> None:
        self.name, self.shards = name, shards
        self._function, self._args, self._kwargs = function, args, kwargs
        self._counts = False
        if shards is not None:
            named = inspect.signature(function).parameters
            rest = any(p.kind is p.VAR_KEYWORD for p in named.values())
            if "shard" not in named and not rest:
                raise ValueError(
                    f"{name} takes no parameter 'shard', which shards={shards} needs: it gives "
                    "the examples of that shard"
                )
            self._counts = "num_shards" in named or rest

    def make(self, stream: int) -> Any:
        """What the function gives for a stream.  DataError when it fails."""
        kwargs = dict(self._kwargs)
        if self.shards is not None:
            kwargs["shard"] = stream
            if self._counts:
                kwargs["num_shards"] = self.shards
        try:
            return own(self._function)(*self._args, **kwargs)
        except Exception as error:
            raise DataError(_failed(self.name, "when it was called", error)) from error


def _failed(name: str, where: str, error: Exception) -> str:
    return f"{name}: it raised {type(error).__name__} {where}: {error}"


def _wrong(name: str, record: int, row: Any) -> str:
    return f"{name}, record {record}: {row!r:.60} is a {type(row).__name__}, not a dict of columns"


class _SequencePart:
    """A sequence of examples."""

    layout: Layout  # set when the probe is done

    def __init__(self, name: str, examples: Any, bad: BadRecords) -> None:
        self._name, self._examples, self._bad = name, examples, bad
        self.rows = own(len)(examples)
        self._get = own(operator.getitem)

    def probe(self, wanted: int) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = []
        for i in range(min(wanted, self.rows)):
            try:
                rows.append(self._row(i))
            except DataError:  # reported when it is read
                if i == 0 and self.rows == 1:
                    raise
        return rows

    def _row(self, number: int) -> Mapping[str, Any]:
        try:
            row = self._get(self._examples, number)
        except Exception as error:
            raise DataError(_failed(self._name, f"for record {number}", error)) from error
        if not isinstance(row, Mapping):
            raise DataError(_wrong(self._name, number, row))
        return row

    def read(self, rows: Rows) -> Kept:
        numbers = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        found: list[Mapping[str, Any]] = []
        which: list[int] = []
        for i, number in enumerate(numbers.tolist()):
            try:
                found.append(self._row(number))
                which.append(i)
            except DataError as error:
                self._bad.report(error, "corrupt_record")
        sound = np.array(which, np.int64)
        origin = Origin.single(self._name, numbers[sound])
        if not found:
            return Kept(empty_columns(self.layout.fields), origin, sound)
        chunk, kept = self.layout.chunk(found, numbers[sound], origin, self._bad)
        return Kept(chunk.columns, chunk.origin, sound if kept is None else sound[kept])

    def close(self) -> None:
        self._examples = ()


class _Streams:
    """Iterables: one per shard."""

    def __init__(
        self, factory: _Factory, made: dict[int, Any], source: Source, bad: BadRecords
    ) -> None:
        self._factory, self._bad = factory, bad
        self._made = made  # by the factory, and not iterated yet
        self._running: dict[int, tuple[int, Iterator[Any]]] = {}
        self._layout = layout_of(source.features, self._probe)

    @property
    def fields(self) -> Mapping[str, Field]:
        return self._layout.fields

    @property
    def streams(self) -> int:
        return self._factory.shards or 1

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        begin = Place.unpacked(position).record
        iterator = self._from(stream, begin)
        rows: list[Mapping[str, Any]] = []
        numbers: list[int] = []
        ended = False
        for number in range(begin, begin + limit):
            self._bad.progress()
            try:
                row = next(iterator)
            except StopIteration:
                ended = True
            except Exception as error:  # what a generator raised is the last it does
                ended = True
                text = _failed(self._factory.name, f"for record {number}", error)
                self._bad.report(DataError(text), "corrupt_record")
            if ended:
                break
            if isinstance(row, Mapping):
                rows.append(row)
                numbers.append(number)
            else:
                text = _wrong(self._factory.name, number, row)
                self._bad.report(DataError(text), "corrupt_record")
        if not ended:
            self._running[stream] = begin + limit, iterator
        chunk = self._chunk(rows, np.array(numbers, np.int64))
        return chunk, None if ended else Place(0, begin + limit).packed()

    def close(self) -> None:
        self._running.clear()
        self._made.clear()

    def _from(self, stream: int, begin: int) -> Iterator[Any]:
        running = self._running.pop(stream, None)
        if running is not None and running[0] == begin:
            return running[1]
        made = self._made.pop(stream) if stream in self._made else self._factory.make(stream)
        try:
            iterator: Iterator[Any]
            if begin and hasattr(made, "iter_from"):
                iterator = own_iterator(own(made.iter_from)(begin))
            else:
                iterator = own_iterator(made)
                next(islice(iterator, begin, begin), None)  # goes past those given before
            return iterator
        except Exception as error:
            raise DataError(_failed(self._factory.name, "when it was started", error)) from error

    def _chunk(self, rows: Sequence[Mapping[str, Any]], numbers: np.ndarray) -> Chunk:
        origin = Origin.single(self._factory.name, numbers)
        if not rows:
            return Chunk(empty_columns(self.fields), numbers, origin)
        return self._layout.chunk(rows, numbers, origin, self._bad)[0]

    def _probe(self) -> list[Mapping[str, Any]]:
        """The first examples.  They are kept: the read that follows needs no second call."""
        rows: list[Mapping[str, Any]] = []
        for stream in range(self.streams):
            iterator = self._from(stream, 0)
            seen: list[Any] = []
            try:
                seen.extend(islice(iterator, PROBED - len(rows)))
            except Exception as error:  # it will come again, and is reported then
                if not rows and not seen:
                    text = _failed(self._factory.name, "for record 0", error)
                    raise DataError(text) from error
            else:
                self._running[stream] = 0, chain(seen, iterator)
            rows += [row for row in seen if isinstance(row, Mapping)]
            if len(rows) >= PROBED:
                break
        return rows
