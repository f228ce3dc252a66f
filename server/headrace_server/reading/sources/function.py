"""Examples that a function of the user's yields: ``factory(*args, shard=k, num_shards=n)``.

    anything iterable      a stream: a position is the number of examples given
    with shards=n          n streams: the function is called for each, with ``shard`` and, where it
                           takes that, ``num_shards``

Each stream has a thread that iterates (``Arrivals``), so a function that waits for its next example
holds up nothing else.  What has come after 50 ms is handed out.

Iterables must give the same examples each time.  A start in the middle of one calls the function
again and discards the examples before it: the cost of a resumed run grows with its position.  A
class that can start at any position is an ``hs.StreamSource``.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from headrace_proto.errors import DataError, brief, kind_of

from ...pipeline.declaration import Plain
from ...pipeline.forks import own, own_iterator
from ...pipeline.function_names import Sent, error_with_place, resolve
from ..chunk import BadRecords, Chunk
from ..example_rows import PROBED, Place, Record, Records, record_streams
from ..forward_files import Damaged
from ..source import Opening, Source, StreamSource

#: Maximum number of partitions of a worker that share a stream, and each call the function once.
_SHARED: Final = 64
#: How long a read waits for all the results that it wants before it takes those that have come.
_PATIENCE_S: Final = 0.05
#: Time between two beats while a read waits for the first result.
_BEAT_S: Final = 0.25
#: Maximum number of results that a thread takes ahead while others are discarded.
_DISCARDED: Final = 1024


class Function(Source):
    """The examples that a function of the user's gives."""

    @classmethod
    def open(cls, opening: Opening, **options: Any) -> StreamSource:
        factory = _Factory(opening.bad, **options)
        opening.bad.enters(factory.name)  # its first examples may take long
        reader = _reader(factory, opening)
        opening.bad.enters("")
        return reader


def _reader(factory: _Factory, opening: Opening) -> StreamSource:
    bad, name = opening.bad, factory.name
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
    ) -> None:
        self.name, self.shards = str(function), shards
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
        made = self.make(stream)
        try:
            iterator: Iterator[Any] = own_iterator(made)
            next(islice(iterator, begin, begin), None)  # skips the examples given before
            return iterator
        except Exception as error:
            raise DataError(f"{self.name}: {_raised(error, ' when it was started')}") from error

    def first_examples(self, streams: int) -> Iterator[tuple[int, Any]]:
        """Yield the first examples of each stream with their numbers, or the error in place of one.

        It keeps the examples, so that reading needs no second call.
        """
        for stream in range(streams):
            arrivals, seen = self.arrivals(stream, 0), list[Any]()
            arrivals.want(PROBED)
            try:
                for example in islice(arrivals, PROBED):
                    seen.append(example)
                    yield len(seen) - 1, example
            except Exception as error:  # reading meets it again, and reports it
                if not arrivals.begun:
                    raise
                yield len(seen), DataError(f"{self.name}, record {len(seen)}: {_raised(error)}")
            finally:  # the caller may have seen enough
                arrivals.unread(seen)
                self._shown[stream] = arrivals


def _close_all(shown: Mapping[int, Arrivals]) -> None:
    for arrivals in shown.values():
        arrivals.close()


def _raised(error: Exception, when: str = "") -> str:
    return f"it raised {error_with_place(error, when)}"
