"""Examples that a function of the user's yields: ``factory(*args, shard=k, num_shards=n)``.

    anything iterable      a stream: a position is the number of examples given
    with shards=n          n streams: the function is called for each, with ``shard`` and, where it
                           takes that, ``num_shards``

Each stream has a thread that iterates (``Arrivals``), so a function that waits for its next example
holds up nothing else.  What has come after 50 ms is handed out.

Iterables must give the same examples each time.  A start in the middle of one calls the function
again, and *replays*: it reads the examples before that place and drops them, so the cost of a
resumed run grows with its position.  A class that can start at any position is an
``hs.StreamSource``.

    position   number of examples given, and the checksums of the first and of all of them

Where the checksums of a replay differ, the feed stops: to go on would lose data without a word.
The first example is compared at once, so that little is taken of a queue.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from headrace_proto.errors import DataError, brief, kind_of

from ...files.extras import require
from ...pipeline.declaration import Plain
from ...pipeline.forks import OwnProcess
from ...pipeline.function_names import Sent, error_with_place, resolve
from ..chunk import LOGS_NOTHING, BadRecords, Chunk
from ..columns import Column, Ragged, Strings
from ..example_rows import Place, Record, Records, Streams
from ..forward_files import Damaged
from ..source import Opening, Source, StreamSource

crc32c = require("google_crc32c", "server", "from_function")

#: Maximum number of partitions of a worker that share a stream, and each call the function once.
_SHARED: Final = 64
#: How long a read waits for all the results that it wants before it takes those that have come.
_PATIENCE_S: Final = 0.05
#: Maximum number of examples of a replay that are compared at once.
_COMPARED: Final = 256


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
        takes = () if shards is None else _of_shard(name, factory, shards)

        def iterator(stream: int) -> Iterator[object]:
            named = {name: {"shard": stream, "num_shards": streams}[name] for name in takes}
            when = " when it was called"
            try:
                made = factory(*args, **(kwargs or {}), **named)
                when = " when it was started"
                return iter(made)
            except Exception as error:
                raise DataError(f"{name}: {_raised(error, when)}") from error

        def walk(stream: int, place: Place) -> Records:
            return _Examples(name, place, bad, Arrivals(partial(iterator, stream), bad))

        # To start a stream anew may cost as much as all that was read of it.
        reader = Streams(streams, walk, opening.features, streams + _SHARED)
        bad.enters("")
        return reader


def _of_shard(name: str, factory: Callable[..., object], shards: int) -> tuple[str, ...]:
    """Return the arguments that tell a function of its shard."""
    named = inspect.signature(factory).parameters
    if any(p.kind is p.VAR_KEYWORD for p in named.values()):
        return "shard", "num_shards"
    if "shard" not in named:
        raise ValueError(
            f"{name} takes no parameter 'shard', which shards={shards} needs: it gives the "
            "examples of that shard"
        )
    return ("shard", "num_shards") if "num_shards" in named else ("shard",)


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
    """A walk over the examples of one call of the function.  ``place.byte`` holds the checksums."""

    def __init__(self, name: str, place: Place, bad: BadRecords, arrivals: Arrivals) -> None:
        super().__init__(name, Place(), bad, self._records, offsets=False)
        self._arrivals = arrivals
        self._goal = place  # where the next read begins
        self._first = 0  # checksum of the first example, and …
        self._sums: dict[tuple[str, int], int] = {}  # … of all, by column and its part
        weakref.finalize(self, arrivals.close)

    def reaches(self, place: Place) -> bool:
        self._goal = place
        return True

    def ready(self, limit: int) -> int:
        self._replay()
        return self._there(limit)

    def _there(self, limit: int) -> int:
        ahead = min(limit, len(self.ahead))
        return ahead + self._arrivals.ready(limit - ahead)

    def read(self, limit: int) -> tuple[Chunk, bool]:
        self._replay()
        chunk, goes_on = self._read(limit)
        self._goal = self.place
        return chunk, goes_on

    def _read(self, limit: int) -> tuple[Chunk, bool]:
        begins = not self.place.record
        self._arrivals.want(limit - len(self.ahead))
        chunk, goes_on = super().read(limit)
        if begins:
            self._first = _sum(_sums(chunk.take(np.flatnonzero(chunk.ordinals == 0)), {}))
        self._sums = _sums(chunk, self._sums)
        self.place = Place(self._first << 32 | _sum(self._sums), self.place.record)
        return chunk, goes_on

    def _replay(self) -> None:
        """Read up to the place where the walk is to begin; DataError where other examples come."""
        goal, bad, goes_on = self._goal, self.bad, True
        if self.place == goal:
            return
        # bad examples were reported when they were first read
        self.bad = replace(bad, skip=True, counts={}, logged=LOGS_NOTHING)
        try:
            while goes_on and (left := goal.record - self.place.record):
                done = f"{self.place.record:,} of {goal.record:,} examples"
                bad.hand.at(f"{self.name}, replaying {done}")
                some = min(left, _COMPARED) if self.place.record else 1
                _, goes_on = self._read(max(1, self._there(some)))
                if self._first != goal.byte >> 32:
                    raise self._other("its first example is another one")
        finally:
            self.bad = bad
        if left := goal.record - self.place.record:
            raise self._other(f"it ends {left:,} examples before that")
        if self.place != goal:
            raise self._other("not all of them are the same")

    def _other(self, what: str) -> DataError:
        return DataError(
            f"{self.name} was called again, to go on after {self._goal.record:,} examples, and "
            f"gives other examples than before: {what}.  It must give the same ones in the same "
            "order in every call.  Write examples that come only once, as from a queue, to files, "
            "and read these: hs.read_jsonl, hs.read_arrow …"
        )

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
                if self.place.record < self._goal.record:
                    raise self._other(_raised(error)) from error
                raise Damaged(_raised(error), "corrupt_record") from None
            self.place = Place(0, here.record + 1)
            if isinstance(row, Mapping):
                yield Record(here, row)
            else:
                yield Record(here, None, f"{brief(row)} is {kind_of(row)}, not a dict of columns")

    def close(self) -> None:
        super().close()
        self._arrivals.close()


def _sum(sums: Mapping[tuple[str, int], int]) -> int:
    """Return one checksum for those of columns."""
    return int(crc32c.value(repr(sorted(sums.items())).encode()))


def _sums(chunk: Chunk, sums: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """Return the checksums of columns, and of their sizes, continued over further rows.

    They do not depend on how rows are cut into chunks.
    """
    return {
        (name, i): crc32c.extend(sums.get((name, i), 0), np.ascontiguousarray(part))
        for name, column in chunk.columns.items()
        for i, part in enumerate(_parts(column))
    }


def _parts(column: Column) -> list[np.ndarray]:
    if isinstance(column, Ragged):
        return [column.extents, *_parts(column.values())]
    return [column.lengths, column.joined()] if isinstance(column, Strings) else [column]


def _raised(error: Exception, when: str = "") -> str:
    return f"it raised {error_with_place(error, when)}"
