"""The two interfaces of sources, and the count of their bad records.

    IndexedReader   knows how many examples it has and reads any of them: exact shuffling, a start
                    anywhere at once, contiguous slices for partitions
    StreamReader    reads forward from a position of a few bytes, one stream (mostly: file) at a
                    time; a partition takes whole streams

No call depends on the calls before it: the same call gives the same chunk, at any time, in any
process.  A reader may keep files open and remember its position to make the usual next call cheap.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, runtime_checkable

import numpy as np

from headrace_proto.errors import DataError, FilesMissing
from headrace_proto.schema import Field

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..pipeline.declaration import Source
from .chunk import Chunk
from .columns import Rows

#: 2**40 records in a stream, and 2**23 streams, fit an int64.
ORDINAL_BITS: Final = 40
logger = logging.getLogger("headrace.data")

#: By row what is wrong with it: the reason by its short name, and in words.
Faults = dict[int, tuple[str, str]]

#: Messages of bad records that are logged one by one; the rest is only counted.
_LOGGED_ONE_BY_ONE = 20


@dataclass
class BadRecords:
    """The rule ``on_bad_example`` at work: raise, or skip with a count and a log line."""

    skip: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    logged: int = 0
    #: Called after each row that a user function took or returned, since these may be slow.
    progress: Callable[[], None] = lambda: None
    #: Called with the name of a user function before its calls, and with "" after them.
    enters: Callable[[str], None] = lambda name: None

    def report(self, error: DataError, reason: str = "bad_record", rows: int = 1) -> None:
        """Report a record that breaks a rule; return where it is skipped, else raise.

        A file that is missing is never skipped.
        """
        if not self.skip or isinstance(error, FilesMissing):
            raise error
        self.counts[reason] = self.counts.get(reason, 0) + rows
        self.logged += 1
        if self.logged <= _LOGGED_ONE_BY_ONE:
            logger.warning("skipped: %s", error)
        if self.logged == _LOGGED_ONE_BY_ONE:
            logger.warning("skipped: further bad records are counted and not logged")


def fault_of(chunk: Chunk, row: int | None, text: str, cause: Exception | None = None) -> DataError:
    """Return the error of a row, or (None) of the whole chunk."""
    rest = f" and the {len(chunk) - 1} after it" if row is None and len(chunk) > 1 else ""
    error = DataError(f"{chunk.origin.describe(row or 0)}{rest}: {text}")
    error.__cause__ = cause
    return error


def without(
    chunk: Chunk, faults: Faults, bad: BadRecords, after: str = ": ", where: str = ""
) -> Chunk:
    """Return the rows of a chunk that have no fault; report the others, in their order.

    ``where`` names them by their numbers in it, in place of their origin.
    """
    if not faults:
        return chunk
    for row in sorted(faults):
        reason, text = faults[row]
        place = f"{where}, row {row}, " if where else f"{chunk.origin.describe(row)}{after}"
        bad.report(DataError(f"{place}{text}"), reason)
    return chunk.take(np.delete(np.arange(len(chunk)), list(faults)))


class _Readable(Protocol):
    @property
    def fields(self) -> Mapping[str, Field]:
        """The schema of an example."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A source about to be opened, and where its faults are reported and its indexes kept."""

    source: Source
    files: tuple[DataFile, ...]
    bad: BadRecords
    cache: IndexCache


@runtime_checkable
class IndexedReader(_Readable, Protocol):
    """A source with a known number of examples, each of which can be read by its number."""

    @property
    def length(self) -> int:
        """Number of examples."""

    def take(self, rows: Rows) -> Chunk:
        """Return examples by slice (with start and stop) or by number (int64), in that order and
        without skipped bad ones.  Ordinals are their numbers."""


@runtime_checkable
class ChecksAhead(Protocol):
    """An IndexedReader, or a part of one, that checks examples before they are read."""

    def check_ahead(self, rows: np.ndarray, stop: Callable[[], object]) -> int:
        """Check these examples in turn until ``stop`` returns a value; return how many passed.

        ``take`` checks the others, and reports those that are bad.  A source that checks nothing
        ahead returns 0.
        """


@runtime_checkable
class StreamReader(_Readable, Protocol):
    """A source that is read forward from a position."""

    @property
    def streams(self) -> int:
        """Number of streams that can be read independently (usually files)."""

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        """Return at most ``limit`` examples from a position (``b""``: the start) and the position
        after them; None: the stream ends there.  A chunk may be empty.  Ordinals count records from
        0
        within the stream (those skipped count too)."""


Reader = IndexedReader | StreamReader
_PLACE: Final = struct.Struct("<q")


class _OneStream:
    """An IndexedReader as a StreamReader, of one stream or of none where it has no example."""

    def __init__(self, reader: IndexedReader) -> None:
        self._reader = reader
        self.fields = reader.fields
        self.streams = min(1, reader.length)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        start = _PLACE.unpack(position)[0] if position else 0
        stop = min(start + limit, self._reader.length)
        after = _PLACE.pack(stop) if stop < self._reader.length else None
        return self._reader.take(slice(start, stop)), after

    def close(self) -> None:
        self._reader.close()


def streams_of(reader: Reader) -> StreamReader:
    """Return the reader as one that is read forward."""
    return _OneStream(reader) if isinstance(reader, IndexedReader) else reader


def read_on(
    reader: StreamReader, stream: int, position: bytes, count: int
) -> tuple[Chunk, bytes | None]:
    """Read ``count`` examples, or all up to the stream's end: a reader may give fewer at a time."""
    chunks: list[Chunk] = []
    after: bytes | None = position
    while count and after is not None:
        chunk, after = reader.read(stream, after, count)
        count -= len(chunk)
        if len(chunk) or not chunks:
            chunks.append(chunk)
    return Chunk.join([chunk for chunk in chunks if len(chunk)] or chunks[:1]), after
