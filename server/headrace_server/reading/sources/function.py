"""Examples from a user function: ``factory(*args, **kwargs)`` yields dicts.

    a sequence (len and [i])     IndexedReader: exact shuffling, any position at once
    anything else iterable       StreamReader: a position is the number of examples given
    with shards=n                n streams: the factory is called for each, with ``shard`` and,
                                 where it takes that, ``num_shards``
    with batched=True            streams of dicts of arrays: see function_batches.py

Iterables must give the same examples each time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from headrace_proto.errors import DataError, brief, kind_of
from headrace_server.pipeline.forks import own
from headrace_server.reading.reader import BadRecords, Opening, Reader

from .example_rows import Row, RowPart, reader_of_rows
from .factory import Factory, raised
from .forward_files import Damaged
from .function_batches import batch_streams
from .record_streams import Place, Record, Records, record_streams


def open_reader(opening: Opening) -> Reader:
    factory = Factory(opening.source.options)
    opening.bad.enters(factory.name)  # its first examples may take long
    reader = _reader(opening, factory)
    opening.bad.enters("")
    return reader


def _reader(opening: Opening, factory: Factory) -> Reader:
    source, bad, name = opening.source, opening.bad, factory.name
    if source.options.get("batched"):
        return batch_streams(factory, source.features, bad)
    if factory.shards is None:
        made = factory.make(0)
        if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
            return reader_of_rows([_sequence_part(name, made, bad)], source.features)
        factory.made[0] = made
    streams = factory.shards or 1

    def walk(stream: int, place: Place) -> Records:
        return Records(name, place, bad, partial(_examples, factory, stream), offsets=False)

    first = factory.first_examples(streams)
    shown = (
        (f"{name}, record {i}", one) for i, one in first if isinstance(one, (Mapping, DataError))
    )
    # To start a stream anew may cost as much as all that was read of it.
    return record_streams(streams, walk, source.features, streams, shown)


def _not_columns(row: Any) -> str:
    return f"{brief(row)} is {kind_of(row)}, not a dict of columns"


def _sequence_part(name: str, examples: Any, bad: BadRecords) -> RowPart:
    """Return the part that has a sequence of examples."""
    item = own(operator.getitem)

    def get(number: int) -> Row:
        try:
            row = item(examples, number)
        except Exception as error:
            raise ValueError(raised(error)) from error
        if not isinstance(row, Mapping):
            raise ValueError(_not_columns(row))
        return row

    try:
        return RowPart(name, own(len)(examples), get, bad)
    except Exception as error:
        raise DataError(f"{name}: the length of its result: {raised(error)}") from error


def _examples(factory: Factory, stream: int, walk: Records) -> Iterator[Record]:
    """Yield the examples of one call of the function."""
    iterator = factory.iterator(stream, walk.place.record)
    while True:
        here = walk.place
        walk.bad.progress()
        walk.bad.enters(factory.name)
        try:
            row = next(iterator)
        except StopIteration:
            return
        except Exception as error:  # a generator that raised is finished
            raise Damaged(raised(error), "corrupt_record") from None
        walk.place = Place(0, here.record + 1)
        sound = isinstance(row, Mapping)
        yield Record(here, row) if sound else Record(here, None, _not_columns(row))
