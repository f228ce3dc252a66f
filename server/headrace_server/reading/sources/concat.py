"""The examples of several sources, one source after the other.

a  0 1 2        a.concat(b)  0 1 2 3 4        by number where both are, so a shuffle mixes them
b  0 1                       └─ a ─┘└b ┘      else stream by stream: one that is read by number
                                              is one stream
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

from headrace_proto.errors import DataError
from headrace_proto.schema import Field

from ...files.manifest import DataFile, gone, resolve
from ...pipeline.declaration import Source as Declared
from ...pipeline.declaration import fields_text
from ..source import (
    IndexedSource,
    JoinedStreams,
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
    def open(cls, opening: Opening, sources: Sequence[Declared]) -> StreamSource:
        readers = open_parts(opening, sources, "concat")
        indexed = [reader for reader in readers if isinstance(reader, IndexedSource)]
        if len(indexed) < len(readers):
            return JoinedStreams(readers)
        fields = readers[0].fields
        return PartsReader(fields, [ReaderPart(reader, fields) for reader in indexed])


def open_parts(opening: Opening, parts: Sequence[Declared], method: str) -> list[StreamSource]:
    """Return the readers of sources, which have the same columns."""
    readers: list[StreamSource] = []
    with ExitStack() as undo:
        for part, own in zip(parts, _shared_out(parts, opening.files), strict=True):
            reader = open_reader(part, own, opening.bad, opening.cache, opening.logs)
            readers.append(undo.enter_context(closing(reader)))
            one, other = dict(readers[0].fields), dict(readers[-1].fields)
            if one != other:
                raise DataError(
                    f"{method}: the columns of the sources differ: {fields_text(one)}, and "
                    f"{fields_text(other)}; declare features= of both alike"
                )
        undo.pop_all()
    return readers


def _shared_out(
    parts: Sequence[Declared], files: tuple[DataFile, ...]
) -> list[tuple[DataFile, ...]]:
    """Return the files of each source, out of those listed when the feed started."""
    listed = {file.path: file for file in files}
    shares = [
        tuple(listed[f.path] for f in resolve(part.paths) if f.path in listed) for part in parts
    ]
    if missing := listed.keys() - {file.path for share in shares for file in share}:
        raise gone(listed[min(missing)])
    return shares
