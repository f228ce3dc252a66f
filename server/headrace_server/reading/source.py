"""A source is one class, which gives examples as chunks of columns.

    IndexedSource   knows how many examples it has and reads any of them: exact shuffling, a start
                    anywhere at once, contiguous slices for partitions
    StreamSource    reads forward from a position of a few bytes, one stream (mostly: file) at a
                    time; a partition takes whole streams

No call depends on the calls before it: the same call gives the same chunk, at any time, in any
process.  A source may keep files open and remember its position to make the usual next call cheap.

Each kind has a file of its own in ``sources``; ``hs.read("module:Class", …)`` names others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from headrace_proto.schema import Field

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..pipeline.declaration import Feature, ReadingOrder
from ..pipeline.declaration import Source as Declared
from ..shaping.log_admission import Event
from .chunk import BadRecords, Chunk
from .columns import Rows

#: Bytes of an example that a block counts where they are not known.
UNKNOWN_BYTES: Final = 1 << 14
#: Decoded blocks that a reader keeps in any case: a read ends within a block, which the next read
#: needs too, while another may enter.
KEPT_BLOCKS: Final = 2
#: A position: of a stream, or of a partition.
At = TypeVar("At")


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The surroundings with which a source is opened.

    ``files`` are those that the paths name, in their order; each has a ``path`` and a ``size``.
    ``features`` are the declared columns; None: the source shows which it has.
    ``bad.report(DataError(…), reason)`` takes a bad record: it raises the error, or counts it where
    the pipeline skips such records.  ``cache`` keeps indexes of files.
    """

    files: tuple[DataFile, ...]
    features: Mapping[str, Feature] | None
    bad: BadRecords
    cache: IndexCache
    logs: Callable[[str], LogParts] | None = None  # those of the server, by name


class Ended(NamedTuple):
    """A sequence of a log that has ended, or a whole example."""

    position: int  # of its end
    context: memoryview
    steps: Sequence[memoryview]  # the columns of some of its steps each
    whole: bool = False  # whether the context has all columns, each with a length of its own


class Piece(NamedTuple):
    """Steps of a sequence that lie in one record."""

    first: int
    columns: memoryview


class GrowingFeed(Protocol):
    """A partition of a log as a feed reads it that cuts sequences before they end."""

    overdue: int  # position up to which retention takes records from the feed
    waits: bool  # whether no more events are there

    def skip(self, upto: int) -> None:
        """Read on after a position; ``release`` follows."""

    def events(self, limit: int) -> tuple[list[Event], int, bool]:
        """Return the next events, up to which position they are all, and whether no more come."""

    def newest(self, of: int, step: int) -> tuple[int, int, float]:
        """Return position, version and time of the record with the step before this one.

        Where a sequence ended before, the position is that of its end.
        """

    def grown(self, of: np.ndarray, seen: int) -> np.ndarray:
        """Return a row with the steps that each sequence had at a position, one with whether it had
        ended, and one with whether it was aborted; zeros where the log has it no more."""

    def steps(self, of: int, first: int, after: int) -> tuple[bytes, memoryview, list[Piece]]:
        """Return key and context of a sequence, and the records with these steps."""

    def key(self, of: int) -> bytes:
        """Return the key of a sequence, empty where the log has it no more."""

    def context(self, of: int) -> memoryview:
        """Return the context of a sequence."""

    def refuse(self, of: Iterable[int]) -> None:
        """Give no further event of sequences; a later life refuses them as well."""

    def release(self, seen: int, floors: Mapping[int, int], done: Sequence[int]) -> None:
        """Note that the feed's journal has stored that it needs less."""


class LogFeed(Protocol):
    """A partition of a log as one feed reads it."""

    def ready(self, position: int, limit: int) -> int:
        """Return how many sequences ended from a position on, at most ``limit``; ``limit`` where
        no more will."""

    def read(self, position: int, limit: int) -> tuple[list[Ended], int | None]:
        """Return the first sequences that ended from a position on, and the position after them;
        None: no more will."""

    def release(self, position: int) -> None:
        """Note that what ended before a position is read in no later life."""


#: The number of a log's partitions, and those that are here.
LogParts = tuple[int, Mapping[int, Any]]


class Source:
    """A kind of source, and a source that is open: subclass IndexedSource or StreamSource."""

    fields: Mapping[str, Field]
    #: Whether it is never read by number, whatever it is opened with.
    forward = False

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field] | None:
        """Return the columns that a declaration shows; None where only reading shows them."""
        if source.features is None:
            return None
        return {name: feature.field for name, feature in source.features.items()}

    @classmethod
    def open(cls, opening: Opening, *args: Any, **options: Any) -> StreamSource:
        """Return the source, opened with the options that ``hs.read`` was given.

        It is ``Class(opening, **options)`` unless a class says otherwise.
        """
        made: StreamSource = cls(opening, *args, **options)  # type: ignore[assignment, call-arg]
        return made

    def close(self) -> None:
        """Close the files and connections that the source holds open."""


class StreamSource(Source, ABC):
    """A source that is read forward from a position.

    Its attributes are ``fields``, the ``Field`` of each column by name, and ``streams``, the number
    of streams that can be read independently (usually files).
    """

    streams: int
    #: Whether stream k is read by partition k alone, in any order of reading.
    bound = False

    @abstractmethod
    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        """Return at most ``limit`` examples from a position (``b""``: the start) and the position
        after them; None: the stream ends there.  A chunk may be empty.  Ordinals count records from
        0 within the stream (those skipped count too)."""

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        """Return how many examples a read from a position gives without a wait, at most ``limit``.

        ``limit`` where no more will come, 0 where none has come yet.  A source whose examples may
        not be there yet, such as a socket, defines it.
        """
        return limit

    def expect_stream(self, stream: int) -> None:
        """Begin to fetch the first examples of the stream that is read after the one at hand."""

    def release(self, stream: int, position: bytes) -> None:
        """Note that no later life reads what comes before a position of a stream."""

    def by_number(self) -> IndexedSource | None:
        """Return the same examples by number, for ``shuffle(blocks=)``; None where none can be."""
        return None


class IndexedSource(StreamSource):
    """A source with a known number of examples, each of which can be read by its number.

    Its attributes are ``fields``, the ``Field`` of each column by name, and ``length``, the number
    of examples.  Read forward, it is one stream, or none where it has no example.
    """

    length: int
    #: Whether examples come from afar, so that a share calls ``expect`` for those it reads next.
    far = False

    def expect(self, rows: np.ndarray) -> int:
        """Begin to fetch examples; return how many, from the first on, are there or coming."""
        return len(rows)

    @abstractmethod
    def take(self, rows: Rows) -> Chunk:
        """Return examples by slice (with start and stop) or by number (int64), in that order and
        without skipped bad ones.  Ordinals are their numbers."""

    def blocks(self, block_bytes: int) -> np.ndarray:
        """Return the numbers of the examples with which blocks begin, the first one's with it.

        Examples of a block are fetched and decoded together.  Where a source does not define it a
        block has as many examples as ``block_bytes`` have of 16 KiB.
        """
        return np.arange(0, self.length, max(1, block_bytes // UNKNOWN_BYTES))

    def hold(self, blocks: int) -> int:
        """Keep so many decoded blocks beside ``KEPT_BLOCKS``: their rows are read in turn.

        Return how many further ones come from afar and are read ahead; 0: that depends on bytes.
        """
        return 0

    def steps_of(self, column: str) -> np.ndarray | None:
        """Return how many steps a column has in each example, int64 [length], where that is known
        without reading them: so ``len(feed)`` of segments is.  None where it is not."""
        return None

    def by_number(self) -> IndexedSource:
        return self

    @property
    def streams(self) -> int:  # type: ignore[override]
        """The number of streams: 1, or 0 where it has no example."""
        return min(1, self.length)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        start = int.from_bytes(position)
        stop = min(start + limit, self.length)
        return self.take(slice(start, stop)), stop.to_bytes(8) if stop < self.length else None


def read_on(
    read: Callable[[At, int], tuple[Chunk, At | None]], position: At, count: int
) -> tuple[Chunk, At | None]:
    """Read ``count`` examples, or all up to the end: ``read`` may give fewer at a time."""
    chunks: list[Chunk] = []
    after: At | None = position
    while count and after is not None:
        chunk, after = read(after, count)
        count -= len(chunk)
        if len(chunk) or not chunks:
            chunks.append(chunk)
    return Chunk.join([chunk for chunk in chunks if len(chunk)] or chunks[:1]), after


# ── Sources that come in parts: files, row groups, one mapped whole.
#
#     rows ──► part and rows within it ──► its take ──► chunks ──► one chunk, in order
#
# A part is an IndexedSource, which needs no fields: it leaves out the rows that it reported as bad.
# Rows of several parts are read part by part and then put in order.


def _moved(rows: Rows, by: int) -> Rows:
    return slice(rows.start + by, rows.stop + by) if isinstance(rows, slice) else rows + by


class PartsReader(IndexedSource):
    """An IndexedSource over parts."""

    def __init__(self, fields: Mapping[str, Field], parts: Sequence[IndexedSource]) -> None:
        self.fields: Mapping[str, Field] = dict(fields)
        self._parts = [part for part in parts if part.length]
        self._all_parts = list(parts)
        self._starts = [0]
        for part in self._parts:
            self._starts.append(self._starts[-1] + part.length)
        self._bounds = np.array(self._starts, np.int64)
        self.length = self._starts[-1]
        self.far = any(part.far for part in self._parts)

    def expect(self, rows: np.ndarray) -> int:
        count, part_of = len(rows), self._bounds.searchsorted(rows, "right") - 1
        for i in np.unique(part_of).tolist():
            own = np.flatnonzero(part_of[:count] == i)
            if own.size:
                n = self._parts[i].expect(rows[own] - self._starts[i])
                if n < own.size:  # as many bytes of each part would be too many
                    mixed = np.unique(part_of[: own[n] + 1]).size
                    count = int(own[n // mixed])
        return count

    def blocks(self, block_bytes: int) -> np.ndarray:
        parts = zip(self._starts, self._parts, strict=False)
        none = np.empty(0, np.int64)
        return np.concatenate([none, *(at + part.blocks(block_bytes) for at, part in parts)])

    def hold(self, blocks: int) -> int:
        return max([0, *(part.hold(blocks) for part in self._parts)])

    def steps_of(self, column: str) -> np.ndarray | None:
        found = [part.steps_of(column) for part in self._parts]
        known = [steps for steps in found if steps is not None]
        return np.concatenate([np.empty(0, np.int64), *known]) if len(known) == len(found) else None

    def take(self, rows: Rows) -> Chunk:
        if isinstance(rows, slice):
            first, stop = rows.start, rows.stop
        else:
            rows = np.asarray(rows, np.int64)
            first, stop = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
        if not 0 <= first <= stop <= self.length:
            raise IndexError(f"examples {first} … {stop - 1} of {self.length}")
        if first == stop:
            return Chunk.empty(self.fields)
        low, high = bisect_right(self._starts, first) - 1, bisect_left(self._starts, stop)
        if high - low == 1:
            return self._read(low, rows)
        if isinstance(rows, slice):
            bounds = [first, *self._starts[low + 1 : high], stop]
            pieces = enumerate(map(slice, bounds, bounds[1:]), low)
            return Chunk.join([self._read(i, piece) for i, piece in pieces])
        part = np.searchsorted(self._bounds, rows, side="right") - 1
        by_part = np.argsort(part, kind="stable")
        cuts = np.flatnonzero(np.diff(part[by_part])) + 1
        chunks, places = [], []
        for group in np.split(by_part, cuts):
            chunk = self._read(int(part[group[0]]), rows[group])
            chunks.append(chunk)
            whole = len(chunk) == len(group)
            places.append(group if whole else group[np.isin(rows[group], chunk.ordinals)])
        return Chunk.join(chunks).take(np.argsort(np.concatenate(places)))

    def _read(self, i: int, rows: Rows) -> Chunk:
        start = self._starts[i]
        chunk = self._parts[i].take(_moved(rows, -start) if start else rows)
        return replace(chunk, ordinals=chunk.ordinals + start) if start else chunk

    def close(self) -> None:
        for part in self._all_parts:
            part.close()


class ReaderPart(IndexedSource):
    """The examples start … stop - 1 of another reader as a part, with columns in an order."""

    def __init__(
        self, reader: IndexedSource, names: Iterable[str], start: int = 0, stop: int | None = None
    ) -> None:
        stop = reader.length if stop is None else min(stop, reader.length)
        self._reader, self._names, self._start = reader, list(names), min(start, stop)
        self.length = stop - self._start
        self.far, self.hold = reader.far, reader.hold  # type: ignore[method-assign]

    def expect(self, rows: np.ndarray) -> int:
        return self._reader.expect(rows + self._start)

    def blocks(self, block_bytes: int) -> np.ndarray:
        inside = self._reader.blocks(block_bytes) - self._start
        return np.unique(np.maximum(inside[inside < self.length], 0))

    def steps_of(self, column: str) -> np.ndarray | None:
        steps = self._reader.steps_of(column)
        return None if steps is None else steps[self._start : self._start + self.length]

    def take(self, rows: Rows) -> Chunk:
        chunk = self._reader.take(_moved(rows, self._start))
        columns = {name: chunk.columns[name] for name in self._names}
        return replace(chunk, columns=columns, ordinals=chunk.ordinals - self._start)

    def close(self) -> None:
        self._reader.close()


@dataclass(eq=False)
class JoinedStreams(StreamSource):
    """A StreamSource of the streams of others, one after the other."""

    readers: Sequence[StreamSource]

    def __post_init__(self) -> None:
        self.fields = self.readers[0].fields
        self.starts = [0, *accumulate(reader.streams for reader in self.readers)]
        self.streams = self.starts[-1]

    def _at(self, stream: int) -> tuple[StreamSource, int]:
        i = bisect_right(self.starts, stream) - 1
        return self.readers[i], stream - self.starts[i]

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        reader, own = self._at(stream)
        return reader.ready(own, position, limit)

    def release(self, stream: int, position: bytes) -> None:
        i = bisect_right(self.starts, stream) - 1
        self.readers[i].release(stream - self.starts[i], position)

    def expect_stream(self, stream: int) -> None:
        reader, own = self._at(stream)
        reader.expect_stream(own)

    def by_number(self) -> IndexedSource | None:
        found = [reader.by_number() for reader in self.readers]
        parts = [ReaderPart(reader, self.fields) for reader in found if reader is not None]
        return PartsReader(self.fields, parts) if len(parts) == len(found) else None

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        reader, own = self._at(stream)
        chunk, after = reader.read(own, position, limit)
        return chunk.with_columns({name: chunk.columns[name] for name in self.fields}), after

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


@dataclass(eq=False)
class MixedReader(JoinedStreams):
    """The streams of the sources of a mix.  ``MixedShare`` reads each source in its own order."""

    names: Sequence[str]
    orders: Sequence[ReadingOrder]
    seed: int
    stop: str
