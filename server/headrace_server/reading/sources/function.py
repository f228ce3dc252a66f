"""Examples from a user function: ``factory(*args, shard=k, num_shards=n)``, called for each stream.

    a sequence (len and [i])     IndexedSource: exact shuffling, any position at once
    anything else iterable       StreamSource: a position is the number of examples given
    with shards=n                n streams: the function is called for each, with ``shard`` and,
                                 where it takes that, ``num_shards``
    with batched=True            streams of dicts of arrays [n, …]: a position is the number of the
                                 batch, the row in it and the number of rows before it

Each stream has a thread that iterates (``Arrivals``), so a function that waits for its next example
holds up nothing else.  What has come after 50 ms is handed out.

Iterables must give the same examples each time.  A start in the middle of one calls the function
again and discards the examples before it: the cost of a resumed run grows with its position.  An
object with ``iter_from(n)`` is asked for the iterator from example n on instead.

A batch whose columns differ in rows, or that does not fit the schema, is bad as a whole; single
rows that do not fit are bad alone.  Its arrays are copied, since a generator may reuse them for its
next batch.
"""

from __future__ import annotations

import inspect
import operator
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np

from headrace_proto.errors import DataError, brief, kind_of
from headrace_server.pipeline.declaration import Feature, Plain
from headrace_server.pipeline.examples import names_fault
from headrace_server.pipeline.forks import own, own_iterator
from headrace_server.pipeline.function_names import Sent, error_with_place, resolve
from headrace_server.reading.chunk import Chunk, Origin
from headrace_server.reading.columns import repeated
from headrace_server.reading.declared_types import defaults_of
from headrace_server.reading.example_rows import PROBED, Row, RowPart, reader_of_rows
from headrace_server.reading.forward_files import NOTHING_AFTER, Damaged
from headrace_server.reading.reader import BadRecords
from headrace_server.reading.record_streams import Place, Record, Records, Streams, record_streams
from headrace_server.reading.source import Opening, Reader, Source
from headrace_server.reading.user_columns import Fields, Results

#: Maximum number of rows of one batch: their numbers alone take 128 MiB.
MAX_ROWS: Final = 2**24
#: Maximum number of partitions of a worker that share a stream, and each call the function once.
_SHARED: Final = 64
#: How long a read waits for all the results that it wants before it takes those that have come.
_PATIENCE_S: Final = 0.05
#: Time between two beats while a read waits for the first result.
_BEAT_S: Final = 0.25
#: Maximum number of results that a thread takes ahead while others are discarded.
_DISCARDED: Final = 1024


class Function(Source):
    """What a function of the user's gives."""

    @classmethod
    def open(cls, opening: Opening, batched: bool = False, **options: Any) -> Reader:
        factory = _Factory(opening.bad, batched=batched, **options)
        opening.bad.enters(factory.name)  # its first examples may take long
        reader = _batch_streams(factory, opening) if batched else _reader(factory, opening)
        opening.bad.enters("")
        return reader


def _reader(factory: _Factory, opening: Opening) -> Reader:
    bad, name = opening.bad, factory.name
    if factory.shards is None:
        made = factory.make(0)
        if hasattr(made, "__len__") and hasattr(made, "__getitem__"):
            return reader_of_rows([_sequence_part(name, made, bad)], opening.features)
        factory.made[0] = made
    streams = factory.shards or 1

    def walk(stream: int, place: Place) -> Records:
        return _Examples(name, place, bad, factory.arrivals(stream, place.record))

    first = factory.first_examples(streams)
    shown = (
        (f"{name}, record {i}", one) for i, one in first if isinstance(one, (Mapping, DataError))
    )
    # To start a stream anew may cost as much as all that was read of it.
    return record_streams(streams, walk, opening.features, streams + _SHARED, shown)


def _not_columns(row: Any) -> str:
    return f"{brief(row)} is {kind_of(row)}, not a dict of columns"


def _sequence_part(name: str, examples: Any, bad: BadRecords) -> RowPart:
    """Return the part that has a sequence of examples."""
    item = own(operator.getitem)

    def get(number: int) -> Row:
        try:
            row = item(examples, number)
        except Exception as error:
            raise ValueError(_raised(error)) from error
        if not isinstance(row, Mapping):
            raise ValueError(_not_columns(row))
        return row

    try:
        return RowPart(name, own(len)(examples), get, bad)
    except Exception as error:
        raise DataError(f"{name}: the length of its result: {_raised(error)}") from error


class Arrivals(Iterator[Any]):
    """The results of a user's iterator, which is begun and read in a thread of its own.

    The thread takes as many results ahead as were wanted last, and of an iterator that is slow at
    most twice those that came in 50 ms: it may make large ones, and trainers may be slower.
    """

    def __init__(self, begin: Callable[[], Iterator[Any]], bad: BadRecords) -> None:
        self.begun = False  # whether ``begin`` has returned
        self._bad = bad
        self._there: deque[Any] = deque()
        self._room = 0
        self._late = False  # whether it was slow when results were wanted last
        self._hungry = False  # whether a read waits for one result
        self._error: BaseException | None = None  # its end: StopIteration, or what it raised
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, args=[[begin]], name="headrace-source", daemon=True
        )

    def want(self, most: int) -> None:
        """Let the thread take results until ``most`` are there."""
        if len(self._there) >= most:
            return  # it rests meanwhile, so that user code runs only while the worker reads
        with self._changed:
            self._room = max(self._room, most)
            self._changed.notify_all()
            if self._thread.ident is None:
                self._thread.start()

    def ready(self, most: int, whole: bool) -> int:
        """Return how many of ``most`` results have come; ``most`` where no more will come."""
        recovered = len(self._there) >= self._room
        if not self._late or recovered:
            self.want(most)
        with self._changed:
            if not self._late or recovered:
                enough = self._changed.wait_for(lambda: self._paused(most), _PATIENCE_S)
                self._late = not enough
                self._room = most if enough or whole else max(2, 2 * len(self._there))
            else:
                self._changed.notify_all()  # there may be room again
            return most if self._error is not None else min(most, len(self._there))

    def _paused(self, most: int) -> bool:
        return self._error is not None or len(self._there) >= most

    def __next__(self) -> Any:
        if not self._there and self._error is None:
            self._wait()
        if self._there:
            return self._there.popleft()
        assert self._error is not None
        raise self._error

    def _wait(self) -> None:
        """Wait for all results that are wanted for a moment, and then for one or the end."""
        self.want(1)
        with self._changed:
            self._changed.wait_for(lambda: self._paused(self._room), _PATIENCE_S)
            self._hungry = True
            while not self._paused(1):
                self._changed.wait(_BEAT_S)
                self._bad.progress()
            self._hungry = False

    @property
    def over(self) -> bool:
        """Whether all results were taken, and no more will come."""
        return self._error is not None and not self._there

    def unread(self, results: list[Any]) -> None:
        """Give back the results that were taken last."""
        self._there.extendleft(reversed(results))

    def discard(self, count: int) -> None:
        """Take results, and drop them."""
        while count > 0:
            some = min(count, _DISCARDED)
            self.want(some)
            if sum(1 for _ in islice(self, some)) < some:
                return
            count -= some

    def _run(self, begins: list[Callable[[], Iterator[Any]]]) -> None:
        try:
            iterator = begins.pop()()  # it holds the factory, whose end closes this
            self.begun = True
            while self._goes_on():
                self._there.append(next(iterator))
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _goes_on(self) -> bool:
        """Wait for room; return False once it is closed."""
        if len(self._there) < self._room and not self._hungry and not self._closed:
            return True
        with self._changed:
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or len(self._there) < self._room)
            return not self._closed

    def close(self) -> None:
        """Let the thread end, once the iterator has returned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Examples(Records):
    """A walk over the examples of one call of the function."""

    def __init__(self, name: str, place: Place, bad: BadRecords, arrivals: Arrivals) -> None:
        super().__init__(name, place, bad, self._records, offsets=False)
        self._arrivals = arrivals
        weakref.finalize(self, arrivals.close)

    def ready(self, limit: int, whole: bool) -> int:
        return self._arrivals.ready(limit, whole)

    def read(self, limit: int) -> tuple[Chunk, bool]:
        self._arrivals.want(limit)
        return super().read(limit)

    def _records(self, _: Records) -> Iterator[Record]:
        while True:
            here = self.place
            self.bad.progress()
            self.bad.enters(self.name)
            try:
                row = next(self._arrivals)
            except StopIteration:
                return
            except Exception as error:  # a generator that raised is finished
                if not self._arrivals.begun:
                    raise
                raise Damaged(_raised(error), "corrupt_record") from None
            self.place = Place(0, here.record + 1)
            sound = isinstance(row, Mapping)
            yield Record(here, row) if sound else Record(here, None, _not_columns(row))

    def close(self) -> None:
        super().close()
        self._arrivals.close()


class _Factory:
    """Calls the function for each stream, and starts its iterators."""

    def __init__(
        self,
        bad: BadRecords,
        function: str | Sent,
        args: Sequence[Plain] = (),
        kwargs: Mapping[str, Plain] | None = None,
        shards: int | None = None,
        batched: bool = False,
    ) -> None:
        self.name, self.shards, self._batched = str(function), shards, batched
        self.made: dict[int, Any] = {}  # by stream: results that were not iterated yet
        self._shown: dict[int, Arrivals] = {}  # by stream: those whose first examples were shown
        self._bad = bad
        weakref.finalize(self, _close_all, self._shown)
        self._function = own(resolve)(function)
        self._args, self._kwargs = args, kwargs or {}
        self._counts = False
        if self.shards is not None:
            named = inspect.signature(self._function).parameters
            rest = any(p.kind is p.VAR_KEYWORD for p in named.values())
            if "shard" not in named and not rest:
                raise ValueError(
                    f"{self.name} takes no parameter 'shard', which shards={self.shards} needs: it "
                    "gives the examples of that shard"
                )
            self._counts = "num_shards" in named or rest

    def make(self, stream: int) -> Any:
        """Return the result of the function for a stream.  DataError when it fails."""
        kwargs = dict(self._kwargs)
        if self.shards is not None:
            kwargs["shard"] = stream
            if self._counts:
                kwargs["num_shards"] = self.shards
        try:
            return own(self._function)(*self._args, **kwargs)
        except Exception as error:
            raise DataError(f"{self.name}: {_raised(error, ' when it was called')}") from error

    def arrivals(self, stream: int, begin: int) -> Arrivals:
        """Return the examples of a stream from number ``begin`` on."""
        if (shown := self._shown.pop(stream, None)) is not None:
            try:
                shown.discard(begin)
            except Exception as error:
                text = _raised(error, " when it was started")
                raise DataError(f"{self.name}: {text}") from error
            return shown
        return Arrivals(lambda: self._iterator(stream, begin), self._bad)

    def _iterator(self, stream: int, begin: int) -> Iterator[Any]:
        made = self.made.pop(stream) if stream in self.made else self.make(stream)
        try:
            if begin and hasattr(made, "iter_from"):
                rest = own_iterator(own(made.iter_from)(begin))
                return map(_kept, rest) if self._batched else rest
            iterator: Iterator[Any] = own_iterator(made)
            next(islice(iterator, begin, begin), None)  # skips the examples given before
            return map(_kept, iterator) if self._batched else iterator
        except Exception as error:
            raise DataError(f"{self.name}: {_raised(error, ' when it was started')}") from error

    def first_examples(
        self, streams: int, kind: str = "record", ahead: int = PROBED
    ) -> Iterator[tuple[int, Any]]:
        """Yield the first examples of each stream with their numbers, or the error in place of one.

        It keeps the examples, so that reading needs no second call.
        """
        for stream in range(streams):
            arrivals, seen = self.arrivals(stream, 0), list[Any]()
            arrivals.want(ahead)
            try:
                for example in islice(arrivals, PROBED):
                    seen.append(example)
                    yield len(seen) - 1, example
            except Exception as error:  # reading meets it again, and reports it
                if not arrivals.begun:
                    raise
                yield len(seen), DataError(f"{self.name}, {kind} {len(seen)}: {_raised(error)}")
            finally:  # the caller may have seen enough
                arrivals.unread(seen)
                self._shown[stream] = arrivals


def _close_all(shown: Mapping[int, Arrivals]) -> None:
    for arrivals in shown.values():
        arrivals.close()


def _raised(error: Exception, when: str = "") -> str:
    return f"it raised {error_with_place(error, when)}"


def _kept(given: Any) -> Any:
    """Return a batch with copies of its arrays: a generator may reuse them for its next batch."""
    if not isinstance(given, Mapping):
        return given
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in given.items()}


# ── batches of examples ──────────────────────────────────────────────────────────────────────────


def _batch_streams(factory: _Factory, opening: Opening) -> Streams:
    """Return a stream for each shard."""
    streams = factory.shards or 1
    batches = _Batches(factory.name, opening.features)
    if opening.features is None:
        _learn(batches, factory, streams)

    def walk(stream: int, place: Place) -> _Walk:
        return _Walk(batches, factory, stream, place, opening.bad)

    return Streams(batches.fields, streams, walk, streams + _SHARED, may_wait=True)


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
        values = {name: given[name] for name in self.fields or given if name in given}
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


def _learn(batches: _Batches, factory: _Factory, streams: int) -> None:
    """Learn the fields from the first batch with rows, which is read once more in its turn."""
    for number, given in factory.first_examples(streams, "batch", 1):
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
        self, batches: _Batches, factory: _Factory, stream: int, place: Place, bad: BadRecords
    ) -> None:
        self.place, self._batches, self._bad = place, batches, bad
        self._arrivals = factory.arrivals(stream, place.record)
        weakref.finalize(self, self._arrivals.close)
        self._batch: Chunk | None = None  # once it was read
        self._rows = 0  # of the batch, including bad ones

    def ready(self, limit: int, whole: bool) -> int:
        if self._batch is None:
            n = self._arrivals.ready(1, True)
            if not n or self._arrivals.over:
                return limit if n else 0
            self._fill()
        rows = 0 if self._batch is None else len(self._batch) - self.place.byte
        return limit if whole else max(1, min(limit, rows))

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
            given = next(self._arrivals)
        except StopIteration:
            return False
        except Exception as error:  # a generator that raised is finished
            if not self._arrivals.begun:
                raise
            where = f"{self._batches.name}, batch {self.place.record}"
            self._bad.report(DataError(f"{where}: {_raised(error)}{NOTHING_AFTER}"))
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
        self._arrivals.close()


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
