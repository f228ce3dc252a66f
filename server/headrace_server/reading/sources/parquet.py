"""Parquet files, a row group at a time.

Rows are read by whole row groups, of which the last two are kept decoded.  Reading in order costs
each group once; **rows taken at random cost a whole group for each group that they lie in**, so
shuffle such files by a window, write small groups, or convert them to Arrow IPC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped, unused-ignore]
import pyarrow.parquet as pq  # type: ignore[import-untyped, unused-ignore]

from headrace_proto.errors import DataError, FilesMissing
from headrace_server.files.index_cache import IndexCache
from headrace_server.files.manifest import DataFile, is_remote, open_map, open_stream
from headrace_server.pipeline.declaration import Source
from headrace_server.reading.reader import BadRecords, IndexedReader

from .arrow import fields_of_schema, layout_of_schema
from .arrow_columns import DecodedColumn
from .parts import PartsReader
from .rows import Layout, layout_of
from .stored import Recent, StoredColumn, StoredPart, columns_serve, origin_in

__all__ = ["open_reader"]

_KEPT_GROUPS = 2


def open_reader(
    source: Source, files: tuple[DataFile, ...], bad: BadRecords, cache: IndexCache
) -> IndexedReader:
    """The footer tells where everything is, so nothing needs the cache."""
    del cache
    recent = Recent(_KEPT_GROUPS)
    layout: Layout | None = None
    parts: list[StoredPart] = []
    for file in files:
        try:
            opened = _open(file)
            schema = opened.schema_arrow
            layout = layout or layout_of_schema(source, file.path, schema)
            names = list(layout.fields) if layout.declared else None
            fields = fields_of_schema(file.path, schema, names)
        except FilesMissing:
            raise
        except DataError as error:
            bad.report(error, "corrupt_file")
            continue
        if not columns_serve(file.path, fields, layout, bad):
            continue
        first = 0
        wanted = [name for name in fields if name in layout.fields]
        for number in range(opened.num_row_groups):
            rows = opened.metadata.row_group(number).num_rows
            load = partial(_load, file, opened, number, wanted)
            columns = partial(recent.get, (file.path, number), load)
            parts.append(StoredPart(rows, columns, layout, origin_in(file.path, first), bad))
            first += rows
    if layout is None:
        layout = layout_of(source.features or {}, list)
    return PartsReader(layout.fields, parts)


def _open(file: DataFile) -> Any:
    try:
        data = open_stream(file) if is_remote(file.path) else pa.BufferReader(open_map(file))
        return pq.ParquetFile(data, page_checksum_verification=True)
    except FilesMissing:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file.path}: it is no Parquet file, or it is cut off at byte {file.size}: {error}"
        ) from None


def _load(
    file: DataFile, opened: Any, number: int, names: Sequence[str]
) -> Mapping[str, StoredColumn]:
    try:
        table = opened.read_row_group(number, columns=list(names), use_threads=False)
        return {name: DecodedColumn(table.column(name)) for name in names}
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file.path}, row group {number}: it is damaged: {error}") from None
