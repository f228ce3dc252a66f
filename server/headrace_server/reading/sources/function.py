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
from typing import Final

from headrace_proto.errors import DataError, brief, kind_of

from ...pipeline.declaration import Plain
from ...pipeline.forks import OwnProcess
from ...pipeline.function_names import Sent, error_with_place, resolve
from ..chunk import BadRecords, Chunk
from ..example_rows import Place, Record, Records, record_streams
from ..forward_files import Damaged
from ..source import Opening, Source, StreamSource

#: Maximum number of partitions of a worker that share a stream, and each call the function once.
_SHARED: Final = 64
#: How long a read waits for all the results that it wants before it takes those that have come.
_PATIENCE_S: Final = 0.05


class Function(Source):
    """The examples that a function of the user's gives."""

    forward = True

    @classmethod
    def open(
        cls,
        opening: Opening,
        function: str | Sent,
        args: Sequence[Plain] = (),
        kwargs: Mapping[str, Plain] | None = None,
        shards: int | None = None,
    ) -> StreamSource:
        name, bad, streams = str(function), opening.bad, shards or 1
        bad.enters(name)  # its first examples may take long
        factory = resolve(function)
        given: list[dict[str, Plain]] = [dict(kwargs or {}) for _ in range(streams)]
        if shards is not None:
            for shard, named in enumerate(given):
                named |= _of_shard(name, factory, shard, shards)

        def iterator(stream: int, begin: int) -> Iterator[object]:
            when = " when it was called"
            try:
                made = factory(*args, **given[stream])
                when = " when it was started"
                iterator: Iterator[object] = iter(made)
                next(islice(iterator, begin, begin), None)  # skips the examples given before
            except Exception as error:
                raise DataError(f"{name}: {_raised(error, when)}") from error
            return iterator

        def walk(stream: int, place: Place) -> Records:
            arrivals = Arrivals(lambda: iterator(stream, place.record), bad)
            return _Examples(name, place, bad, arrivals)

        # To start a stream anew may cost as much as all that was read of it.
        reader = record_streams(streams, walk, opening.features, streams + _SHARED)
        bad.enters("")
        return reader


def _of_shard(name: str, factory: Callable[..., object], shard: int, shards: int) -> dict[str, int]:
    """Return the arguments that tell a function of its shard."""
    named = inspect.signature(factory).parameters
    rest = any(p.kind is p.VAR_KEYWORD for p in named.values())
    if "shard" not in named and not rest:
        raise ValueError(
            f"{name} takes no parameter 'shard', which shards={shards} needs: it gives the "
            "examples of that shard"
        )
    return {"shard": shard} | ({"num_shards": shards} if "num_shards" in named or rest else {})


class Arrivals(Iterator[object]):
    """The results of a user's iterator, which is begun and read in a thread of its own.

    The thread takes as many results ahead as were wanted last, so that user code runs only while
    the worker reads.
    """

    def __init__(self, begin: Callable[[], Iterator[object]], bad: BadRecords) -> None:
        self.begun = False  # whether ``begin`` has returned
        self._bad = bad
        self._there: deque[object] = deque()
        self._room = 0
        self._late = False  # whether it was slow when results were wanted last
        self._error: BaseException | None = None  # its end: StopIteration, or what it raised
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=self._run, args=[begin], name="headrace-source", daemon=True
        )

    def want(self, most: int) -> None:
        """Let the thread take results until ``most`` are there."""
        if len(self._there) >= most:
            return
        with self._changed:
            self._room = most
            self._changed.notify_all()
            if self._thread.ident is None:
                self._thread.start()

    def ready(self, most: int) -> int:
        """Return how many of ``most`` results have come; ``most`` where no more will come.

        It waits a moment for them, but not again and again where they are late.
        """
        self.want(most)
        with self._changed:
            patience = 0 if self._late else _PATIENCE_S
            self._late = not self._changed.wait_for(lambda: self._paused(most), patience)
            return most if self._error is not None else min(most, len(self._there))

    def _paused(self, most: int) -> bool:
        return self._error is not None or len(self._there) >= most

    def __next__(self) -> object:
        while not self._there and self._error is None:
            self.want(max(1, self._room))
            with self._changed:
                self._changed.wait_for(lambda: self._paused(self._room), _PATIENCE_S)
            self._bad.progress()
        if self._there:
            return self._there.popleft()
        assert self._error is not None
        raise self._error

    def _run(self, begin: Callable[[], Iterator[object]]) -> None:
        try:
            iterator = begin()
            self.begun = True
            while self._goes_on():
                with OwnProcess():  # no step of the worker is around this thread
                    row = next(iterator)
                self._there.append(row)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _goes_on(self) -> bool:
        """Wait for room; return False once it is closed."""
        if len(self._there) < self._room and not self._closed:
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

    def ready(self, limit: int) -> int:
        ahead = min(limit, len(self.ahead))
        return ahead + self._arrivals.ready(limit - ahead)

    def read(self, limit: int) -> tuple[Chunk, bool]:
        self._arrivals.want(limit - len(self.ahead))
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
            if isinstance(row, Mapping):
                yield Record(here, row)
            else:
                yield Record(here, None, f"{brief(row)} is {kind_of(row)}, not a dict of columns")

    def close(self) -> None:
        super().close()
        self._arrivals.close()


def _raised(error: Exception, when: str = "") -> str:
    return f"it raised {error_with_place(error, when)}"
