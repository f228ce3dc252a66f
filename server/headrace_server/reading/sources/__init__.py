"""The kinds of sources: a module for each, imported when a pipeline asks for it.

A module is named as the method that declares it, and has a class that subclasses ``Source``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from ...files.index_cache import IndexCache
from ...files.manifest import DataFile
from ...pipeline.declaration import Source as Declared
from ...pipeline.declaration import is_theirs, kind_class
from ..chunk import BadRecords, Chunk
from ..row_functions import theirs, user_code
from ..source import IndexedSource, LogParts, Opening, StreamSource


def open_reader(
    source: Declared,
    files: tuple[DataFile, ...],
    bad: BadRecords,
    cache: IndexCache,
    logs: Callable[[str], LogParts] | None = None,
) -> StreamSource:
    """Return the reader of a source.  ImportError names what is missing, or no class."""
    kind = kind_class("sources", source.kind)
    opening = Opening(files, source.features, bad, cache, logs)
    if not is_theirs(source.kind):
        return cast(StreamSource, kind.open(opening, **source.options))
    name = str(source.kind)
    with user_code(name, bad):
        reader = cast(StreamSource, kind.open(opening, **source.options))
    _name_faults(reader, name, bad)
    return reader


def _name_faults(reader: StreamSource, name: str, bad: BadRecords) -> None:
    """Have a source of the user's named in its faults, and its columns fitted to its fields."""

    def fitted(chunk: object) -> Chunk:
        return theirs(name, chunk, reader.fields, bad)

    def replace(method: str, fit: Callable[[Any], object]) -> None:
        given = getattr(reader, method)

        @wraps(given)
        def call(*args: object) -> object:
            with user_code(name, bad):
                return fit(given(*args))

        setattr(reader, method, call)

    if isinstance(reader, IndexedSource):
        replace("take", fitted)
    replace("read", lambda got: (fitted(got[0]), got[1]))
    replace("ready", int)
    replace("close", lambda nothing: None)
