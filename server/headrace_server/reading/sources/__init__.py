"""The kinds of sources: a module for each, imported when a pipeline asks for it.

A module is named as the method that declares it, and has a class that subclasses ``Source``.
"""

from __future__ import annotations

from typing import Any, cast

from ...files.index_cache import IndexCache
from ...files.manifest import DataFile
from ...pipeline.declaration import Source as Declared
from ...pipeline.declaration import is_theirs, kind_class
from ..chunk import BadRecords, Chunk
from ..columns import Rows
from ..row_functions import theirs, user_code
from ..source import IndexedSource, Opening, Source, StreamSource


def open_reader(
    source: Declared, files: tuple[DataFile, ...], bad: BadRecords, cache: IndexCache
) -> StreamSource:
    """Return the reader of a source.  ImportError names what is missing, or no class."""
    kind = kind_class("sources", source.kind)
    opening = Opening(files, source.features, bad, cache)
    if not is_theirs(source.kind):
        return cast(StreamSource, kind.open(opening, **source.options))
    name = str(source.kind)
    with user_code(name, bad):
        reader = kind.open(opening, **source.options)
        return (
            _TheirRows(reader, name, bad)
            if isinstance(reader, IndexedSource)
            else _TheirStreams(reader, name, bad)
        )


class _Theirs(Source):
    """A source of the user's: its faults name it, and its columns are fitted to its fields."""

    def __init__(self, reader: Any, name: str, bad: BadRecords) -> None:
        self.fields = dict(reader.fields)
        self._reader: Any = reader
        self._name, self._bad = name, bad

    def close(self) -> None:
        with user_code(self._name, self._bad):
            self._reader.close()


class _TheirRows(_Theirs, IndexedSource):
    def __init__(self, reader: IndexedSource, name: str, bad: BadRecords) -> None:
        super().__init__(reader, name, bad)
        self.length = int(reader.length)

    def take(self, rows: Rows) -> Chunk:
        with user_code(self._name, self._bad):
            return theirs(self._name, self._reader.take(rows), self.fields, self._bad)


class _TheirStreams(_Theirs, StreamSource):
    def __init__(self, reader: StreamSource, name: str, bad: BadRecords) -> None:
        super().__init__(reader, name, bad)
        self.streams = int(reader.streams)

    def read(self, stream: int, position: bytes, limit: int) -> tuple[Chunk, bytes | None]:
        with user_code(self._name, self._bad):
            chunk, after = self._reader.read(stream, position, limit)
            return theirs(self._name, chunk, self.fields, self._bad), after

    def ready(self, stream: int, position: bytes, limit: int) -> int:
        with user_code(self._name, self._bad):
            return int(self._reader.ready(stream, position, limit))
