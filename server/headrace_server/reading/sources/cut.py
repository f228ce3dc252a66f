"""A source without its first examples, or only with its first n: ``skip`` and ``take``.

    examples of the source   0 1 2 3 4 5 6 7 8 9
    .skip(3).take(4)               0 1 2 3              a source of its own, which any number of
                                                        partitions share as they do others

By number the rest is not read.  Streams are cut in their order: the first examples are those
of the first stream, then those of the second.  Only its end shows how many examples a stream has,
so opening reads as many examples as are skipped or taken, once in each process.  Bad records before
a good one count.  Streams without remaining examples are dropped; the others, and the examples in
them, are numbered anew.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace_proto.schema import Field

from ...pipeline.declaration import Source as Declared
from ..chunk import BadRecords, Chunk
from ..source import IndexedSource, Opening, PartsReader, ReaderPart, Source, StreamSource
from . import open_reader

#: Number of records that the walk to the first example reads at once.
_WALKED = 1024
#: A position: number of records passed in the stream, then the reader's own position.
_PASSED = struct.Struct("<q")


class Cut(Source):
    """The source that is cut, opened, without its unwanted examples."""

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field] | None:
        return source.parts[0].fields

    @classmethod
    def open(
        cls, opening: Opening, sources: Sequence[Declared], start: int, stop: int | None
    ) -> StreamSource:
        bad = opening.bad
        reader = open_reader(sources[0], opening.files, bad, opening.cache)
        if isinstance(reader, IndexedSource):
            return PartsReader(reader.fields, [ReaderPart(reader, reader.fields, start, stop)])
        counts = dict(bad.counts)
        try:
            cut = _CutStreams(reader, start, stop, bad)
        except BaseException:
            reader.close()
            raise
        bad.counts.clear()  # the same records are read and counted again later
        bad.counts.update(counts)
        return cut


@dataclass(frozen=True, slots=True)
class _Part:
    """The rest of a stream: records low … high - 1, and a position at or before the first."""

    stream: int
    low: int
    high: int | None
    position: bytes
    passed: int


class _CutStreams(StreamSource):
    """A StreamSource of the remaining parts of another's streams."""

    def __init__(self, reader: StreamSource, start: int, stop: int | None, bad: BadRecords) -> None:
        self._reader, self._bad, self._start, self._stop = reader, bad, start, stop
        self.fields = reader.fields
        self._parts: list[_Part] = []
        before = 0  # number of examples of earlier streams, as far as it matters
        for stream in range(reader.streams):
            if stop is not None and before >= stop:
                break
            low, high = max(0, start - before), None if stop is None else stop - before
            position, passed = self._walk(stream, b"", 0, low)
            if position is None or (low and self._ends(stream, position)):
                before += passed
                continue
            self._parts.append(_Part(stream, low, high, position, passed))
            if high is None:
                before = start
                continue
            end, passed = self._walk(stream, position, passed, high)
            before += passed if end is None else high
        self.streams = len(self._parts)

    def _walk(
        self, stream: int, position: bytes, passed: int, upto: int
    ) -> tuple[bytes | None, int]:
        """Return a position at or before record ``upto``, and its record; None at the end."""
        at: bytes | None = position
        while at is not None and passed < upto:
            self._bad.progress()
            chunk, after = self._reader.read(stream, at, min(_WALKED, upto - passed))
            reached = int(chunk.ordinals[-1]) + 1 if len(chunk) else passed
            if reached > upto:  # bad records were skipped on the way: read on from here
                break
            at, passed = after, reached
        return at, passed

    def _ends(self, stream: int, position: bytes) -> bool:
        """Return whether a stream has no record after a position, which some readers show late."""
        chunk, after = self._reader.read(stream, position, 1)
        return after is None and not len(chunk)

    def _at(self, stream: int, position: bytes, limit: int) -> tuple[_Part, int, bytes, int]:
        """Return a part, the records passed in it, the reader's own position and its limit."""
        part = self._parts[stream]
        if position:
            (passed,) = _PASSED.unpack_from(position)
            inner = position[_PASSED.size :]
        else:
            passed, inner = part.passed, part.position
        if part.high is not None:
            limit = min(limit, max(1, part.high - passed))
        return part, passed, inner, limit

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        part, _, inner, most = self._at(stream, position, limit)
        n = self._reader.ready(part.stream, inner, most)
        return limit if n == most else n

    def by_number(self) -> IndexedSource | None:
        reader = self._reader.by_number()
        if reader is None:
            return None
        return PartsReader(self.fields, [ReaderPart(reader, self.fields, self._start, self._stop)])

    def expect_stream(self, stream: int) -> None:
        part = self._parts[stream]
        if not part.position:
            self._reader.expect_stream(part.stream)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        part, passed, inner, limit = self._at(stream, position, limit)
        chunk, after = self._reader.read(part.stream, inner, limit)
        if len(chunk):
            passed = int(chunk.ordinals[-1]) + 1
            inside = chunk.ordinals >= part.low
            if part.high is not None:
                inside &= chunk.ordinals < part.high
            if not inside.all():
                chunk = chunk.take(np.flatnonzero(inside))
            if part.low:
                chunk = replace(chunk, ordinals=chunk.ordinals - part.low)
        if after is None or (part.high is not None and passed >= part.high):
            return chunk, None
        return chunk, _PASSED.pack(passed) + after

    def close(self) -> None:
        self._reader.close()
