"""Indexes of record files that a command makes for itself, and how far that is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from .progress import Progress


@contextmanager
def reporting_cache(files: Sequence[DataFile]) -> Iterator[IndexCache]:
    """Give a cache in memory that shows, while the block lasts, how many bytes were indexed."""
    with Progress("indexing", sum(file.size for file in files), "bytes") as progress:
        done: dict[str, int] = {}

        def note(file: DataFile, upto: int) -> None:
            done[file.path] = upto
            progress.to(sum(done.values()))

        yield IndexCache(None, note)
