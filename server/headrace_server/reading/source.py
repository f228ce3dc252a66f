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

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace_proto.schema import Field

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..pipeline.declaration import Feature
from .chunk import Chunk
from .columns import Rows
from .reader import BadRecords


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """The surroundings with which a source is opened.

    ``files`` are those that the paths name, in their order; each has a ``path`` and a ``size``.
    ``features`` are the declared columns; None: the source shows which it has.
    ``bad.report(DataError(…), reason)`` takes a bad record: it raises the error, or counts it where
    the pipeline skips such records.  ``cache`` keeps indexes of files, and copies of remote files.
    """

    files: tuple[DataFile, ...]
    features: Mapping[str, Feature] | None
    bad: BadRecords
    cache: IndexCache


class Source:
    """A kind of source, and a source that is open: subclass IndexedSource or StreamSource."""

    fields: Mapping[str, Field]

    @classmethod
    def open(cls, opening: Opening, *args: Any, **options: Any) -> Reader:
        """Return the source, opened with the options that ``hs.read`` was given.

        It is ``Class(opening, **options)`` unless a class says otherwise.
        """
        made: Reader = cls(opening, *args, **options)  # type: ignore[assignment, call-arg]
        return made

    def close(self) -> None:
        """Let go of what it holds open."""


class IndexedSource(Source):
    """A source with a known number of examples, each of which can be read by its number.

    Its attributes are ``fields``, the ``Field`` of each column by name, and ``length``, the number
    of examples.
    """

    length: int

    def take(self, rows: Rows) -> Chunk:
        """Return examples by slice (with start and stop) or by number (int64), in that order and
        without skipped bad ones.  Ordinals are their numbers."""
        raise NotImplementedError


class StreamSource(Source):
    """A source that is read forward from a position.

    Its attributes are ``fields``, the ``Field`` of each column by name, ``streams``, the number of
    streams that can be read independently (usually files), and ``may_wait``: whether the next
    examples may not be there yet, as those of a generator.
    """

    streams: int
    may_wait = False

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        """Return at most ``limit`` examples from a position (``b""``: the start) and the position
        after them; None: the stream ends there.  A chunk may be empty.  Ordinals count records from
        0 within the stream (those skipped count too)."""
        raise NotImplementedError

    def ready(self, stream: int, position: bytes, limit: int, whole: bool) -> int:
        """Return how many examples a read from a position gives without a wait, at most ``limit``.

        ``limit`` where no more will come, 0 where none has come yet.  ``whole``: fewer are of no
        use.
        """
        return limit


Reader = IndexedSource | StreamSource
_PLACE: Final = struct.Struct("<q")


class _OneStream(StreamSource):
    """An IndexedSource as a StreamSource, of one stream or of none where it has no example."""

    def __init__(self, reader: IndexedSource) -> None:
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


def streams_of(reader: Reader) -> StreamSource:
    """Return the reader as one that is read forward."""
    return _OneStream(reader) if isinstance(reader, IndexedSource) else reader


def read_on(
    reader: StreamSource, stream: int, position: bytes, count: int
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
