"""The examples of several sources, one source after the other.

a  0 1 2        a.concat(b)  0 1 2 3 4        by number where both are, so a shuffle mixes them
b  0 1                       └─ a ─┘└b ┘      else stream by stream: one that is read by number
                                              is one stream
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate

from headrace_proto.errors import DataError, FilesMissing
from headrace_proto.schema import Field

from ...files.manifest import DataFile, resolve
from ...pipeline.declaration import Plain, fields_text
from ...pipeline.declaration import Source as Declared
from ..chunk import Chunk
from ..source import (
    IndexedSource,
    Opening,
    PartsReader,
    ReaderPart,
    Source,
    StreamSource,
)
from . import open_reader


class Concat(Source):
    """The sources in their order; DataError where their columns differ."""

    @classmethod
    def declared(cls, source: Declared) -> Mapping[str, Field] | None:
        return next((known for part in source.parts if (known := part.fields) is not None), None)

    @classmethod
    def open(cls, opening: Opening, sources: Sequence[Plain]) -> StreamSource:
        readers: list[StreamSource] = []
        parts = [Declared.from_plain(source) for source in sources]
        try:
            for part, own in zip(parts, _shared_out(parts, opening.files), strict=True):
                readers.append(open_reader(part, own, opening.bad, opening.cache))
                _check_alike(readers[0].fields, readers[-1].fields)
        except BaseException:
            for reader in readers:
                reader.close()
            raise
        indexed = [reader for reader in readers if isinstance(reader, IndexedSource)]
        if len(indexed) < len(readers):
            return _JoinedStreams(readers)
        fields = readers[0].fields
        return PartsReader(fields, [ReaderPart(reader, fields) for reader in indexed])


def _shared_out(
    parts: Sequence[Declared], files: tuple[DataFile, ...]
) -> list[tuple[DataFile, ...]]:
    """Return the files of each source, out of those listed when the feed started."""
    listed = {file.path: file for file in files}
    shares = [
        tuple(listed[f.path] for f in resolve(part.paths) if f.path in listed) for part in parts
    ]
    missing = listed.keys() - {file.path for share in shares for file in share}
    if missing:
        raise FilesMissing(f"{min(missing)} went away while the feed runs")
    return shares


def _check_alike(one: Mapping[str, Field], other: Mapping[str, Field]) -> None:
    if dict(one) != dict(other):
        raise DataError(
            f"concat: the columns of the sources differ: {fields_text(one)}, and "
            f"{fields_text(other)}; declare features= of both alike"
        )


class _JoinedStreams(StreamSource):
    """A StreamSource of the streams of others, one after the other."""

    def __init__(self, readers: Sequence[StreamSource]) -> None:
        self._readers = readers
        self.fields = readers[0].fields
        self._starts = [0, *accumulate(reader.streams for reader in self._readers)]
        self.streams = self._starts[-1]

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        i = bisect_right(self._starts, stream) - 1
        return self._readers[i].ready(stream - self._starts[i], position, limit)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        i = bisect_right(self._starts, stream) - 1
        chunk, after = self._readers[i].read(stream - self._starts[i], position, limit)
        return chunk.with_columns({name: chunk.columns[name] for name in self.fields}), after

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
