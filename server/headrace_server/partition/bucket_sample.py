"""The boundaries of ``bucket_by_sequence_length(num_buckets=)``, from a sample of lengths.

    source ─► some runs of examples ─► stages ─► lengths ─► equally many in each bucket

The sample depends on the data and the declaration alone, so all workers and later servers find the
same boundaries.  For files they are stored beside the index, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ..files.index_cache import IndexCache
from ..files.manifest import DataFile
from ..pipeline.declaration import Declaration, Shape
from ..reading.chunk import BadRecords, Chunk
from ..reading.partition_rows import numbered
from ..reading.row_values import LENGTH, Values, as_int64
from ..reading.source import IndexedSource, StreamSource
from ..reading.stages import RowStages

#: The sample: so many runs, evenly over the source, of so many examples.
_RUNS, _ROWS = 16, 64


def with_boundaries(
    feed: str,
    declaration: Declaration,
    files: tuple[DataFile, ...],
    reader: StreamSource,
    bad: BadRecords,
    cache: IndexCache,
) -> Declaration:
    """Return the declaration with the boundaries of its buckets, if it asks for sampled ones."""
    options = dict(declaration.shape.options)
    count = options.pop("num_buckets", None)
    if count is None:
        return declaration

    def build() -> np.ndarray:
        counts = dict(bad.counts)
        found = boundaries_of(_lengths(declaration, reader, bad), count)
        bad.counts.clear()  # the same records are read and counted again later
        bad.counts.update(counts)
        return found

    if files:
        plain = [file.to_plain() for file in files]
        length = declaration.to_plain()["shape"]["length"]
        kind = f"boundaries {count} {declaration.examples_digest(feed, plain, length)}"
        options["boundaries"] = cache.get(files[0], kind, build).tolist()
    else:
        options["boundaries"] = build().tolist()
    return replace(declaration, shape=Shape(declaration.shape.kind, options))


def boundaries_of(lengths: np.ndarray, count: int) -> np.ndarray:
    """Return boundaries that put about equally many of these lengths in each of ``count`` buckets.

    There are fewer where many lengths are alike.
    """
    if not len(lengths):
        return np.empty(0, np.int64)
    ranks = np.arange(1, count) * len(lengths) // count
    found: np.ndarray = np.setdiff1d(np.sort(lengths)[ranks], lengths.min())
    return found


def _lengths(declaration: Declaration, reader: StreamSource, bad: BadRecords) -> np.ndarray:
    """Return the lengths of some examples, as the shape gets them."""
    shape = declaration.shape
    values = Values(str(shape.kind), "input_length", shape.options["length"], sequence=True)
    stages, quiet = RowStages(declaration.stages, reader.fields), BadRecords(skip=True)
    found = [np.empty(0, np.int64)]
    for run in _runs(reader):
        bad.hand.hold(run, 0)
        chunk = stages.probe(run, bad) if len(run) else run
        found.append(as_int64(values.sound(chunk, quiet, LENGTH)[1]))
    return np.concatenate(found)


def _runs(reader: StreamSource) -> Iterator[Chunk]:
    if isinstance(reader, IndexedSource):
        starts = [*np.unique(np.arange(_RUNS) * reader.length // _RUNS).tolist(), reader.length]
        for start, after in pairwise(starts):
            yield reader.take(slice(start, min(start + _ROWS, after)))
        return
    streams = np.unique(np.arange(_RUNS) * reader.streams // _RUNS).tolist()
    for stream in streams if reader.streams else ():
        chunk, _ = reader.read(stream, b"", _RUNS * _ROWS // len(streams))
        yield numbered(chunk, stream)
