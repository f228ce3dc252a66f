"""Assertions that hold for every reader."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fsspec
import numpy as np

import headrace_server as hs
from headrace_proto.schema import Field
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import resolve
from headrace_server.pipeline.builder import Pipeline
from headrace_server.pipeline.declaration import Feature, Source
from headrace_server.reading.chunk import BadRecords, Chunk, Origin
from headrace_server.reading.columns import column_from_rows, dtype_of, field_of, row_of
from headrace_server.reading.source import IndexedSource, StreamSource
from headrace_server.reading.sources import open_reader
from headrace_server.reading.stages import RowStages

#: What the test at hand has opened.
OPEN: list[Any] = []


def opened(
    kind: str,
    *paths: Any,
    features: Mapping[str, Feature] | None = None,
    bad: BadRecords | None = None,
    cache: IndexCache | None = None,
    **options: Any,
) -> Any:
    source = Source(kind, tuple(map(str, paths)), features, options)
    return opened_source(source, bad, cache)


def opened_source(
    source: Source, bad: BadRecords | None = None, cache: IndexCache | None = None
) -> Any:
    """Return the reader of a declared source."""
    files = resolve(source.paths)
    OPEN.append(open_reader(source, files, bad or BadRecords(), cache or IndexCache(None)))
    return OPEN[-1]


def write(path: Any, content: str | bytes) -> str:
    """Write a file, compressed where its name says so; return its path."""
    data = content.encode(errors="surrogateescape") if isinstance(content, str) else content
    with fsspec.open(str(path), "wb") as sink:
        sink.write(gzip.compress(data) if str(path).endswith("gz") else data)
    return str(path)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def examples(chunk: Chunk) -> list[dict[str, Any]]:
    """The rows of a chunk as plain dicts."""
    for column in chunk.columns.values():
        assert len(column) == len(chunk)
    assert len(chunk.origin.record) == len(chunk) == len(chunk.origin.file)
    return [
        {name: plain(row_of(column, i)) for name, column in chunk.columns.items()}
        for i in range(len(chunk))
    ]


def numbered(chunk: Chunk) -> list[tuple[int, str, dict[str, Any]]]:
    """The rows with their ordinals and origins."""
    rows = examples(chunk)
    return [(int(chunk.ordinals[i]), chunk.origin.describe(i), row) for i, row in enumerate(rows)]


def assert_of_fields(chunk: Chunk, fields: Mapping[str, Field]) -> None:
    assert list(chunk.columns) == list(fields)
    for name, field in fields.items():
        column = chunk.columns[name]
        assert dtype_of(column) == field.dtype
        shown = field_of(column).shape
        assert len(shown) == len(field.shape)
        assert field_of(column).ragged_dims == field.ragged_dims
        for row in range(len(column)):
            assert field.admits(np.shape(row_of(column, row))) or field.dtype == "bytes"


def all_of(reader: Any) -> list[dict[str, Any]]:
    """Every example, with the agreement of all ways to read it asserted."""
    if isinstance(reader, IndexedSource):
        return indexed(reader)
    assert isinstance(reader, StreamSource)
    rows = [row for stream in range(reader.streams) for row in streamed(reader, stream)]
    numbered = reader.by_number()
    assert numbered is None or indexed(numbered) == rows
    return rows


def indexed(reader: IndexedSource) -> list[dict[str, Any]]:
    whole = reader.take(slice(0, reader.length))
    assert_of_fields(whole, reader.fields)
    want = numbered(whole)
    n = reader.length
    assert whole.ordinals.tolist() == [i for i, _, _ in want]
    for step in (1, 3, 64):
        got = [
            row
            for start in range(0, n, step)
            for row in numbered(reader.take(slice(start, min(start + step, n))))
        ]
        assert got == want
    by_ordinal = {row[0]: row for row in want}
    rng = np.random.default_rng(n)
    for order in (rng.permutation(n), rng.integers(0, max(1, n), 2 * n) if n else np.empty(0, int)):
        taken = reader.take(order)
        assert_of_fields(taken, reader.fields)
        assert numbered(taken) == [by_ordinal[i] for i in order.tolist() if i in by_ordinal]
    assert_of_fields(reader.take(np.empty(0, np.int64)), reader.fields)
    return [row for _, _, row in want]


def streamed(reader: StreamSource, stream: int) -> list[dict[str, Any]]:
    whole, end = reader.read(stream, b"", 1_000_000)
    assert end is None
    assert_of_fields(whole, reader.fields)
    want = numbered(whole)
    positions: list[bytes] = []
    for limit in (1, 3, 64):
        got: list[Any] = []
        position: bytes | None = b""
        while position is not None:
            positions.append(position)
            chunk, position = reader.read(stream, position, limit)
            assert len(chunk) <= limit
            got += numbered(chunk)
        assert got == want
    for position in positions[:: max(1, len(positions) // 12)]:  # a start where none goes on
        rest, end = reader.read(stream, position, 1_000_000)
        assert end is None
        got = numbered(rest)
        assert got == want[len(want) - len(got) :]
        first, after = reader.read(stream, position, 2)
        again, after_again = reader.read(stream, position, 2)
        assert (numbered(first), after) == (numbered(again), after_again)
    return [row for _, _, row in want]


def chunk_of(rows: Sequence[Mapping[str, Any]], fields: Mapping[str, Field]) -> Chunk:
    """Records 0 … of a file as a chunk; their ordinals begin with 100."""
    columns = {n: column_from_rows([row[n] for row in rows], f) for n, f in fields.items()}
    numbers = np.arange(len(rows), dtype=np.int64)
    return Chunk(columns, 100 + numbers, Origin.single("a.tfrecord", numbers))


def of_columns(first: int = 0, **columns: Any) -> Chunk:
    """Columns as a chunk of records of a file, from ``first`` on."""
    arrays = {n: np.asarray(c) if isinstance(c, list) else c for n, c in columns.items()}
    numbers = first + np.arange(len(next(iter(arrays.values()))), dtype=np.int64)
    return Chunk(arrays, numbers, Origin.single("a.npz", numbers))


def stages_of(declare: Callable[[Pipeline], Pipeline], fields: Mapping[str, Field]) -> RowStages:
    """The stages that are declared after a source with these columns."""
    return RowStages(declare(hs.read_arrow("a.arrow")).batch(4).declaration().stages, fields)
