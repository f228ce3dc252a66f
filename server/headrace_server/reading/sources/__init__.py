"""One module per kind of source, imported when a pipeline asks for it."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from headrace_server.files.extras import require
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile
from headrace_server.pipeline.declaration import Source
from headrace_server.reading.reader import BadRecords, Opening, Reader

__all__ = ["open_reader"]

#: The kinds of sources.  Each is also the name of its module here.
_KINDS = (
    *("tfrecord", "arrow", "parquet", "jsonl", "csv", "npz", "tar", "tokens", "function"),
    *("examples", "cut", "concat"),
)
#: The kinds that are read by pyarrow, which a process imports only to read one of them.
_WITH_ARROW = ("arrow", "parquet")


def open_reader(
    source: Source, files: tuple[DataFile, ...], bad: BadRecords, cache: IndexCache
) -> Reader:
    """Return the reader of a source.  PackageMissing (an ImportError) names a missing package."""
    if source.kind not in _KINDS:
        raise ValueError(f"source kind {source.kind!r} is none of {', '.join(_KINDS)}")
    if source.kind in _WITH_ARROW:
        require("pyarrow", "server", f"a source of kind {source.kind!r}")
    module = import_module(f"{__name__}.{source.kind}")
    return cast(Reader, module.open_reader(Opening(source, files, bad, cache)))
