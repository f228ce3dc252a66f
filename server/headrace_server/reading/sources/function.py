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
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from headrace_proto.errors import DataError
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Source
from headrace_server.pipeline.forks import own, own_iterator
from headrace_server.pipeline.naming import resolve
from headrace_server.reading.reader import BadRecords, Reader

from .example_rows import PROBED, Row, RowPart, reader_of_rows
from .record_streams import Place, StreamRecord, Streams

__all__ = ["open_reader"]


def open_reader(
    source: Source, files: tuple[DataFile, ...], bad: BadRecords, cache: IndexCache
) -> Reader:

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
    if factory.shards is None:
        made = factory.make(0)
        if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
            return reader_of_rows([_sequence_part(name, made, bad)], source.features)
        factory.made[0] = made
    streams = factory.shards or 1
    return Streams(
        [name] * streams,
        lambda stream, place: _Examples(factory, stream, place, bad),
        source.features,
        bad,
        offsets=False,
        most_open=streams,  # to start one anew may cost as much as all that was read of it
        examples=factory.first_examples(streams),
    )


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
        self.made: dict[int, Any] = {}  # by stream: what was made and not iterated yet
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
        """The result of the function for a stream.  DataError when it fails."""
        kwargs = dict(self._kwargs)
        if self.shards is not None:
            kwargs["shard"] = stream
            if self._counts:
                kwargs["num_shards"] = self.shards
        try:
            return own(self._function)(*self._args, **kwargs)
        except Exception as error:
            raise DataError(_failed(self.name, "when it was called", error)) from error

    def iterator(self, stream: int, begin: int) -> Iterator[Any]:
        """The examples of a stream from one on."""
        made = self.made.pop(stream) if stream in self.made else self.make(stream)
        try:
            if begin and hasattr(made, "iter_from"):
                return own_iterator(own(made.iter_from)(begin))
            iterator: Iterator[Any] = own_iterator(made)
            next(islice(iterator, begin, begin), None)  # goes past those given before
            return iterator
        except Exception as error:
            raise DataError(_failed(self.name, "when it was started", error)) from error

    def first_examples(self, streams: int) -> Iterator[Row | DataError]:
        """The first examples.  They are kept: the read that follows needs no second call."""
        for stream in range(streams):
            iterator = self.iterator(stream, 0)
            seen: list[Any] = []
            try:
                seen.extend(islice(iterator, PROBED))
                self.made[stream] = chain(seen, iterator)
            except Exception as error:  # it will come again, and is reported then
                seen.append(DataError(f"{self.name}, record {len(seen)}: {_raised(error)}"))
            for row in seen:
                if isinstance(row, (Mapping, DataError)):
                    yield row


def _failed(name: str, when: str, error: Exception) -> str:
    return f"{name}: it raised {type(error).__name__} {when}: {error}"


def _raised(error: Exception) -> str:
    return f"it raised {type(error).__name__}: {error}"


def _not_columns(row: Any) -> str:
    return f"{row!r:.60} is a {type(row).__name__}, not a dict of columns"


def _sequence_part(name: str, examples: Any, bad: BadRecords) -> RowPart:
    """A sequence of examples."""
    item = own(operator.getitem)

    def get(number: int) -> Row:
        try:
            row = item(examples, number)
        except Exception as error:
            raise DataError(f"{name}, record {number}: {_raised(error)}") from error
        if not isinstance(row, Mapping):
            raise DataError(f"{name}, record {number}: {_not_columns(row)}")
        return row

    return RowPart(name, own(len)(examples), get, bad)


class _Examples:
    """A walk over what one call of the function gave."""

    def __init__(self, factory: _Factory, stream: int, place: Place, bad: BadRecords) -> None:
        self.place, self._bad = place, bad
        self._iterator = factory.iterator(stream, place.record)

    def next(self) -> StreamRecord | None:
        here = self.place
        self._bad.progress()
        try:
            row = next(self._iterator)
        except StopIteration:
            return None
        except Exception as error:  # what a generator raised is the last it does
            return StreamRecord(here, None, _raised(error), ends=True)
        self.place = Place(0, here.record + 1)
        if not isinstance(row, Mapping):
            return StreamRecord(here, None, _not_columns(row))
        return StreamRecord(here, row)

    def close(self) -> None:
        """Nothing is open."""
